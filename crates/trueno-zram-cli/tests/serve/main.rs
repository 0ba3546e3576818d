//! `serve`, `stat`, `save` and `load`, run as users run them, with a client of the protocol's text.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "the tests of the library use more of it")]
#[path = "../../../trueno-zram-serve/tests/nbd/client.rs"]
mod client;
mod device;
mod metrics;
mod overlay;
mod refusals;
mod resize;
mod sockets;
#[allow(dead_code, reason = "the tests of files use more of it")]
#[path = "../files/support.rs"]
mod support;
mod units;
mod verify;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use client::{Client, Style};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The runtime folder of servers.
static RUNTIME_FOLDER: LazyLock<tempfile::TempDir> = LazyLock::new(|| tempfile::tempdir().unwrap());

/// A running `serve` in a folder, with an NBD socket `nbd` there.
struct Server {
    child: Child,
    folder: PathBuf,
    /// The object that it printed when clients could connect.
    ready: Value,
}

impl Server {
    fn start(folder: &Path, options: &[&str]) -> Self {
        let args = [&["serve", "-q", "--json", "--nbd", "unix:nbd"], options].concat();
        Self::spawn(folder, support::command(folder, &args))
    }

    /// Starts a command that serves in a folder.
    fn spawn(folder: &Path, mut command: Command) -> Self {
        command.stderr(Stdio::inherit());
        Self::spawn_with_own_stderr(folder, command)
    }

    /// Like `spawn`, for a command whose messages go elsewhere.
    fn spawn_with_own_stderr(folder: &Path, mut command: Command) -> Self {
        // The list of this user's servers is not that of the tests.
        if !command.get_envs().any(|(name, _)| name == "XDG_RUNTIME_DIR") {
            command.env("XDG_RUNTIME_DIR", RUNTIME_FOLDER.path());
        }
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        Self { child, folder: folder.to_owned(), ready }
    }

    fn client(&self) -> Client {
        Client::connect(&self.folder.join("nbd"), "", Style::Structured)
    }

    /// Ends it by a signal and waits for its end.
    fn end(&mut self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The statistics of a server's only export.
fn stat(folder: &Path) -> Value {
    let report = support::run(folder, &["stat", "control", "--json"]).ok().json();
    assert_eq!((&report[0]["command"], &report[0]["status"]), (&"stat".into(), &"ok".into()));
    assert_eq!(report[0]["exports"].as_array().unwrap().len(), 1);
    report[0]["exports"][0].clone()
}

/// The content of an archive, as `decompress` restores it.
fn decompressed(folder: &Path, archive: &str) -> Vec<u8> {
    support::run(folder, &["decompress", "-q", archive, "-c"]).ok().stdout
}
