//! The length of a device: `resize`, what clients see of it, and a keeper's store after it.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{self, BINARY, folder, run};
use crate::{Server, stat};

const MIB: u64 = 1 << 20;

/// The command that discards.
const TRIM: u16 = 4;

fn resize(folder: &Path, size: &str) -> support::Run {
    run(folder, &["resize", "control", size, "--json"])
}

#[test]
fn devices_grow_and_shrink_and_clients_see_it_when_they_connect() {
    let folder = folder();
    let folder = folder.path();
    let server = Server::start(folder, &["--size", "4M", "--max-size", "16M", "--control", "control"]);
    let mut before = server.client();
    assert_eq!(before.size, 4 * MIB);
    assert_eq!(resize(folder, "16M").ok().json()[0]["size_bytes"], 16 * MIB);
    assert_eq!(before.read(0, 4096).unwrap(), [0; 4096]);
    assert!(before.read(8 * MIB, 4096).is_err(), "a client keeps to the length that it was told");
    let mut after = server.client();
    assert_eq!(after.size, 16 * MIB);
    after.write(15 * MIB, &[7; 4096]).unwrap();
    assert_eq!(stat(folder)["size_bytes"], 16 * MIB);
    assert_eq!(stat(folder)["max_size_bytes"], 16 * MIB);
    resize(folder, "17M").fails(&["control", &(16 * MIB).to_string()]);
    resize(folder, "8M").fails(&["control", &(15 * MIB / 4096).to_string(), "data"]);
    run(folder, &["resize", "control", "0"]).refuses(&["SIZE"]);
    after.call(0, TRIM, 15 * MIB, 4096, b"").unwrap();
    resize(folder, "8M").ok();
    // Requests beyond the new end are errors for all clients, and never read what was there.
    assert!(after.read(8 * MIB, 4096).is_err() && after.write(15 * MIB, &[1; 4096]).is_err());
    assert!(after.read(8 * MIB - 4096, 8192).is_err());
    assert_eq!(after.read(8 * MIB - 4096, 4096).unwrap(), [0; 4096]);
    resize(folder, "16M").ok();
    assert_eq!(server.client().read(15 * MIB, 4096).unwrap(), [0; 4096]);
}

#[test]
fn an_archive_has_whole_length() {
    let folder = folder();
    let folder = folder.path();
    std::fs::write(folder.join("image"), support::image(64)).unwrap();
    run(folder, &["compress", "-q", "image"]).ok();
    let _server = Server::start(folder, &["image.lz4", "--overlay", "--size", "1M", "--control", "control"]);
    resize(folder, "128K").fails(&["archive", &(64 * 4096).to_string()]);
    resize(folder, "256K").ok();
    resize(folder, "8M").ok();
}

struct Keeper(Child);

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_store_that_is_kept_has_the_length_it_was_given_and_says_so() {
    let folder = folder();
    let folder = folder.path();
    let mut keeper = Command::new(BINARY);
    keeper.current_dir(folder).args(["serve", "-q", "--keeper", "keeper"]).stdin(Stdio::null());
    let _keeper = Keeper(keeper.spawn().unwrap());
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !folder.join("keeper").exists() {
        assert!(std::time::Instant::now() < deadline);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let options = ["--size", "4M", "--keep-in", "keeper", "--control", "control"];
    let args = [&["serve", "--json", "--nbd", "unix:nbd"], &options[..]].concat();
    let start = |log: &str| {
        let mut command = support::command(folder, &args);
        command.stderr(std::fs::File::create(folder.join(log)).unwrap());
        Server::spawn_with_own_stderr(folder, command)
    };
    let said = |log: &str| std::fs::read_to_string(folder.join(log)).unwrap();
    let mut server = start("first");
    assert_eq!((&server.ready["attached"], server.ready["size_bytes"].as_u64()), (&Value::Bool(false), Some(4 * MIB)));
    resize(folder, "9M").ok();
    server.client().write(8 * MIB, &[9; 4096]).unwrap();
    server.end(Signal::KILL);
    let server = start("second");
    assert_eq!((&server.ready["attached"], server.ready["size_bytes"].as_u64()), (&Value::Bool(true), Some(9 * MIB)));
    assert_eq!(server.client().read(8 * MIB, 4096).unwrap(), [9; 4096]);
    assert!(
        said("first").contains("`ram` is new") && said("second").contains("`ram` was kept: 9.0 MiB"),
        "{}",
        said("second")
    );
    // It can grow further: the room is kept as well.
    resize(folder, "32M").ok();
}
