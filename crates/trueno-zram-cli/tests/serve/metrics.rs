//! Statistics for other programs: OpenMetrics text, its dashboard, and the list of servers.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::Server;
use crate::support::{command, finish, folder, image, run};

/// Sends bytes and returns the whole reply.
fn ask(address: &str, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

#[test]
fn metrics_are_served_on_the_control_socket_and_over_http() {
    let folder = folder();
    let folder = folder.path();
    let server = Server::start(folder, &["--size", "4M", "--control", "control", "--metrics", "127.0.0.1:0"]);
    server.client().write(0, &image(100)).unwrap();
    let printed = String::from_utf8(run(folder, &["stat", "control", "--metrics"]).ok().stdout).unwrap();
    let address = server.ready["metrics"].as_str().unwrap();
    let reply = ask(address, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    assert!(
        head.starts_with("HTTP/1.1 200 OK") && head.contains("application/openmetrics-text; version=1.0.0"),
        "{head}"
    );
    assert_eq!(body, printed);
    assert!(body.contains("trueno_zram_size_bytes{export=\"ram\"} 4194304\n") && body.ends_with("# EOF\n"), "{body}");
    assert!(ask(address, b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    assert!(ask(address, b"\r\n\r\n").starts_with("HTTP/1.1 400 "));
    run(folder, &["stat", "--metrics"]).refuses(&["SOCKET"]);
    let args = ["serve", "--size", "1M", "--nbd", "unix:other", "--metrics"];
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:9"] {
        run(folder, &[&args[..], &[address]].concat()).refuses(&[address, "--allow-remote"]);
    }
    run(folder, &[&args[..], &["nowhere"]].concat()).refuses(&["--metrics"]);
    run(folder, &[&args[..], &[address]].concat()).fails(&[address]);
}

/// All names of metrics in the queries of a dashboard.
fn names_in(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::String(text) if key == "expr" || key == "query" || key == "definition" => {
                        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
                        names.extend(words.filter(|word| word.starts_with("trueno_zram_")).map(str::to_owned));
                    }
                    value => names_in(value, names),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| names_in(value, names)),
        _ => {}
    }
}

#[test]
fn the_dashboard_shows_metrics_that_there_are_and_all_of_them() {
    let folder = folder();
    let folder = folder.path();
    let _server = Server::start(folder, &["--size", "4M", "--control", "control"]);
    let printed = String::from_utf8(run(folder, &["stat", "control", "--metrics"]).ok().stdout).unwrap();
    let samples = printed.lines().filter_map(|line| line.split_once('{')).map(|(name, _)| name.to_owned());
    let samples: BTreeSet<String> = samples.filter(|name| !name.starts_with('#')).collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/grafana-dashboard.json");
    let dashboard: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let mut shown = BTreeSet::new();
    names_in(&dashboard, &mut shown);
    assert_eq!(shown, samples);
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "each panel has an id of its own");
    assert!(
        panels.iter().all(|panel| !panel["targets"].as_array().unwrap().is_empty() && panel["gridPos"]["w"].is_u64())
    );
}

/// The servers that `stat` lists, with the runtime folder of the tests.
fn listed(folder: &Path) -> Vec<Value> {
    let mut stat = command(folder, &["stat", "--json"]);
    let listed = finish(stat.env("XDG_RUNTIME_DIR", folder.join("runtime")), &[]).ok();
    listed.json()[0]["servers"].as_array().unwrap().clone()
}

#[test]
fn servers_that_run_are_listed() {
    let folder = folder();
    let folder = folder.path();
    assert!(listed(folder).is_empty());
    std::fs::create_dir(folder.join("runtime")).unwrap();
    let start = |args: &[&str]| {
        let mut command = command(folder, &[&["serve", "-q", "--json"], args].concat());
        command.env("XDG_RUNTIME_DIR", folder.join("runtime"));
        Server::spawn(folder, command)
    };
    let mut first = start(&["--size", "4M", "--control", "control", "--name", "disk", "--nbd", "unix:nbd"]);
    let mut second = start(&["--size", "1M", "--nbd", "unix:nbd2"]);
    first.client().write(0, &image(100)).unwrap();
    let servers = listed(folder);
    let of = |pid: u32| servers.iter().find(|server| server["process"] == pid).unwrap();
    assert_eq!(servers.len(), 2);
    let with_control = of(first.child.id());
    assert_eq!(with_control["control"], folder.join("control").to_str().unwrap());
    assert_eq!((&with_control["name"], &with_control["exports"][0]["size_bytes"]), (&"disk".into(), &(4 << 20).into()));
    assert_eq!(of(second.child.id())["exports"], Value::Array(Vec::new()));
    let mut table = command(folder, &["stat"]);
    let table = finish(table.env("XDG_RUNTIME_DIR", folder.join("runtime")), &[]).ok().stdout;
    let table = String::from_utf8(table).unwrap();
    assert!(table.starts_with("PID ") && table.lines().count() == 3 && table.contains("/control"), "{table}");
    second.end(Signal::KILL);
    assert_eq!(listed(folder).len(), 1);
    first.end(Signal::TERM);
    assert!(listed(folder).is_empty());
    let nothing = finish(command(folder, &["stat"]).env("XDG_RUNTIME_DIR", folder.join("runtime")), &[]).ok();
    assert!(nothing.stderr.contains("no server"), "{}", nothing.stderr);
    // A folder that others can write is not believed.
    use std::os::unix::fs::PermissionsExt;
    let list = folder.join("runtime/trueno-zram");
    std::fs::set_permissions(&list, std::fs::Permissions::from_mode(0o777)).unwrap();
    let refused = finish(command(folder, &["stat"]).env("XDG_RUNTIME_DIR", folder.join("runtime")), &[]);
    refused.fails(&["runtime/trueno-zram", "private"]);
}
