//! A device in memory: written, shown, saved, loaded, kept.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::client::{Client, Style};
use crate::support::{command, folder, image, run};
use crate::{Server, decompressed, stat};

const SIZE: usize = 8 << 20;

/// A running keeper at the socket `keeper` of a folder.
struct Keeper(Child);

impl Keeper {
    fn start(folder: &Path) -> Self {
        let mut keeper = command(folder, &["serve", "--keeper", "keeper"]);
        let mut keeper = keeper.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(keeper.stderr.take().unwrap()).read_line(&mut line).unwrap();
        assert!(folder.join("keeper").exists(), "{line}");
        Self(keeper)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_a_client_writes_is_shown_saved_and_loaded() {
    let folder = folder();
    let folder = folder.path();
    let server = Server::start(folder, &["--size", "8M", "--limit", "6M", "--control", "control"]);
    assert_eq!((&server.ready["size_bytes"], &server.ready["attached"]), (&SIZE.into(), &false.into()));
    let mut expected = image(1000);
    let mut client = server.client();
    client.write(0, &expected).unwrap();
    expected.resize(SIZE, 0);
    assert!(client.read(0, u32::try_from(SIZE).unwrap()).unwrap() == expected);

    let shown = stat(folder);
    assert_eq!((&shown["name"], &shown["algorithm"]), (&"ram".into(), &"lz4".into()));
    assert_eq!(shown["size_bytes"], SIZE);
    assert_eq!(shown["pages_written"], 1000);
    let table = String::from_utf8(run(folder, &["stat", "control"]).ok().stdout).unwrap();
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split("  ").collect()).collect();
    assert!(rows.len() == 2 && rows[0][0] == "NAME" && rows[1][0].trim() == "ram", "{table}");

    for (name, options, magic) in [
        ("saved.lz4", &[][..], [0x04, 0x22, 0x4d, 0x18]),
        ("saved.zst", &[][..], [0x28, 0xb5, 0x2f, 0xfd]),
        ("other", &["--algorithm", "zstd:1"][..], [0x28, 0xb5, 0x2f, 0xfd]),
    ] {
        let saved = run(folder, &[&["save", "control", name, "--json"], options].concat()).ok().json();
        assert_eq!(saved[0]["bytes_in"], SIZE);
        let bytes = fs::read(folder.join(name)).unwrap();
        assert_eq!(saved[0]["bytes_out"], bytes.len());
        assert_eq!(bytes[..4], magic);
        assert!(decompressed(folder, name) == expected, "{name}");
    }
    let streamed = run(folder, &["save", "control", "-", "-q"]).ok().stdout;
    assert!(streamed == fs::read(folder.join("saved.lz4")).unwrap());

    for name in ["saved.lz4", "saved.zst"] {
        client.write(4096, &[7; 100_000]).unwrap();
        let loaded = run(folder, &["load", "control", name, "--json"]).ok().json();
        assert_eq!((&loaded[0]["command"], &loaded[0]["status"]), (&"load".into(), &"ok".into()));
        assert!(client.read(0, u32::try_from(SIZE).unwrap()).unwrap() == expected);
    }
    drop(server);
    let server = Server::start(folder, &["--size", "9M", "--algorithm", "zstd", "--load", "saved.zst"]);
    assert!(server.client().read(0, u32::try_from(SIZE).unwrap()).unwrap() == expected);
}

#[test]
fn idle_pages_are_recompressed() {
    let folder = folder();
    let options = ["--size", "8M", "--control", "control", "--recompress", "zstd", "--idle", "1", "--backend", "cpu"];
    let server = Server::start(folder.path(), &[&options[..], &["--recompress-cpu", "100"]].concat());
    let expected = image(500);
    server.client().write(0, &expected).unwrap();
    let recompressed = (0..600).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        stat(folder.path())["pages_recompressed"].as_u64().unwrap() > 100
    });
    assert!(recompressed, "{}", stat(folder.path()));
    assert!(server.client().read(0, u32::try_from(expected.len()).unwrap()).unwrap() == expected);
}

#[test]
fn a_kept_device_outlives_its_server() {
    let folder = folder();
    let folder = folder.path();
    let _keeper = Keeper::start(folder);
    let expected = image(300);
    for round in 0..4 {
        let mut server = Server::start(folder, &["--size", "8M", "--keep-in", "keeper"]);
        assert_eq!(server.ready["attached"], round > 0);
        let mut client = server.client();
        if round > 0 {
            assert!(client.read(0, u32::try_from(expected.len()).unwrap()).unwrap() == expected);
        } else {
            client.write(0, &expected).unwrap();
        }
        server.end(Signal::KILL);
    }
    // It has the length that it had, whatever is asked for.
    let server = Server::start(folder, &["--size", "9M", "--keep-in", "keeper"]);
    assert_eq!((&server.ready["attached"], server.ready["size_bytes"].as_u64()), (&true.into(), Some(8_388_608)));
}

#[test]
fn of_two_servers_with_one_name_one_is_refused_and_nothing_is_lost() {
    const RACES: usize = 8;
    let folder = folder();
    let folder = folder.path();
    let _keeper = Keeper::start(folder);
    let expected = image(20);
    for race in 0..RACES {
        let name = format!("race-{race}");
        let options = ["serve", "-q", "--json", "--size", "1M", "--keep-in", "keeper", "--name", &name];
        let start = |socket| {
            let nbd = format!("unix:{socket}");
            let mut child = command(folder, &[&options[..], &["--nbd", &nbd]].concat());
            child.stdin(Stdio::null()).spawn().unwrap()
        };
        let mut servers = ["first", "second"].map(|socket| (start(socket), socket));
        let runs = servers.each_mut().map(|(server, _)| {
            let mut line = String::new();
            BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
            serde_json::from_str::<Value>(&line).is_ok_and(|line| line["status"] == "ok")
        });
        assert_ne!(runs[0], runs[1], "race {race}");
        if runs[1] {
            servers.reverse();
        }
        let [(mut winner, socket), (loser, _)] = servers;
        let loser = loser.wait_with_output().unwrap();
        assert_eq!(loser.status.code(), Some(1));
        let message = String::from_utf8(loser.stderr).unwrap();
        assert!(message.contains(&name) && message.contains(&format!("process {}", winner.id())), "{message}");

        let mut client = Client::connect(&folder.join(socket), "", Style::Structured);
        client.write(4096, &expected).unwrap();
        // One that starts later is refused as well.
        let late = run(folder, &[&options[..], &["--nbd", "unix:late"]].concat());
        late.fails(&[&name, &format!("process {}", winner.id())]);
        winner.kill().unwrap();
        winner.wait().unwrap();
        let next = Server::start(folder, &["--size", "1M", "--keep-in", "keeper", "--name", &name]);
        assert_eq!(next.ready["attached"], true);
        assert!(next.client().read(4096, u32::try_from(expected.len()).unwrap()).unwrap() == expected);
    }
}

#[test]
fn sockets_are_removed_when_a_signal_ends_the_server() {
    let folder = folder();
    for signal in [Signal::TERM, Signal::USR2] {
        let options = ["--size", "1M", "--control", "control", "--vhost-user", "vhost"];
        let mut server = Server::start(folder.path(), &options);
        for socket in ["nbd", "control", "vhost"] {
            assert!(folder.path().join(socket).exists(), "{socket}");
        }
        server.end(signal);
        assert!(fs::read_dir(folder.path()).unwrap().next().is_none());
    }
}
