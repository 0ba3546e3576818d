//! The paths of sockets: who may connect, what is replaced, and what is removed.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use crate::Server;
use crate::support::{self, BINARY, folder, image, run};

/// Commands that listen at `path`, with their other arguments.
fn commands(path: &str) -> Vec<Vec<String>> {
    let commands = [
        &["serve", "--size", "1M", "--nbd", "unix:PATH"][..],
        &["serve", "--size", "1M", "--vhost-user", "PATH"],
        &["serve", "--size", "1M", "--nbd", "unix:other", "--control", "PATH"],
        &["serve", "--keeper", "PATH"],
        &["restore", "image.lz4", "--uffd", "PATH"],
    ];
    let with_path = |command: &&[&str]| command.iter().map(|word| word.replace("PATH", path)).collect();
    commands.iter().map(with_path).collect()
}

/// Makes an archive to restore from.
fn make_archive(folder: &Path) {
    fs::write(folder.join("image"), image(20)).unwrap();
    run(folder, &["compress", "-q", "image"]).ok();
}

#[test]
fn files_at_the_path_of_a_socket_stay() {
    let folder = folder();
    let folder = folder.path();
    make_archive(folder);
    fs::write(folder.join("file"), b"content").unwrap();
    for command in commands("file") {
        run(folder, &command).fails(&["file"]);
        assert_eq!(fs::read(folder.join("file")).unwrap(), b"content", "{command:?}");
    }
    assert!(!folder.join("other").exists(), "the socket of a server that did not start");
}

#[test]
fn sockets_of_running_servers_stay() {
    let folder = folder();
    let folder = folder.path();
    make_archive(folder);
    let mut server = Server::start(folder, &["--size", "1M", "--vhost-user", "vm", "--control", "control"]);
    server.client().write(0, &[7; 4096]).unwrap();
    for path in ["nbd", "vm", "control"] {
        for command in commands(path) {
            run(folder, &[&command[..], &["--json".to_owned()]].concat()).fails_as("in_use", &[path]);
        }
        UnixStream::connect(folder.join(path)).unwrap();
    }
    assert_eq!(server.client().read(0, 4096).unwrap(), [7; 4096]);
    server.end(Signal::TERM);
    for path in ["nbd", "vm", "control"] {
        assert!(!folder.join(path).exists(), "{path}");
    }
}

#[test]
fn sockets_of_dead_servers_are_replaced() {
    let folder = folder();
    let options = ["--size", "1M", "--vhost-user", "vm", "--control", "control"];
    let mut server = Server::start(folder.path(), &options);
    server.end(Signal::KILL);
    assert!(folder.path().join("vm").symlink_metadata().unwrap().file_type().is_socket());
    let server = Server::start(folder.path(), &options);
    server.client().write(0, &[7; 4096]).unwrap();
    UnixStream::connect(folder.path().join("vm")).unwrap();
}

#[test]
fn a_server_that_ends_leaves_the_sockets_of_others() {
    let folder = folder();
    let paths = ["nbd", "vm", "control"].map(|name| folder.path().join(name));
    let mut server = Server::start(folder.path(), &["--size", "1M", "--vhost-user", "vm", "--control", "control"]);
    let others = paths.each_ref().map(|path| {
        fs::remove_file(path).unwrap();
        UnixListener::bind(path).unwrap()
    });
    server.end(Signal::TERM);
    for path in &paths {
        UnixStream::connect(path).unwrap();
    }
    drop(others);
}

/// The binary under a umask.
fn under_umask(folder: &Path, umask: &str, args: &[&str]) -> Command {
    let mut shell = Command::new("sh");
    shell.current_dir(folder).args(["-c", "umask \"$0\"; exec \"$@\"", umask, BINARY]).args(args);
    shell
}

#[test]
fn modes_do_not_depend_on_the_umask() {
    for umask in ["0", "0777"] {
        let folder = folder();
        let folder = folder.path();
        let mode = |name: &str| folder.join(name).symlink_metadata().unwrap().mode() & 0o777;
        fs::write(folder.join("image"), image(20)).unwrap();
        let options = ["--size", "1M", "--vhost-user", "vm", "--control", "control"];
        let args = [&["serve", "-q", "--json", "--nbd", "unix:nbd"], &options[..]].concat();
        let server = Server::spawn(folder, under_umask(folder, umask, &args));
        for socket in ["nbd", "vm", "control"] {
            assert_eq!(mode(socket), 0o600, "{socket} under umask {umask}");
        }
        server.client().write(0, &[7; 4096]).unwrap();
        // A copy of memory is for its owner, less what the umask takes.
        let pid = server.child.id().to_string();
        let snapshot = ["snapshot", "-q", &pid, "-o", "snapshot.lz4"];
        let taken = support::finish(support::piped(&mut under_umask(folder, umask, &snapshot)), &[]).ok();
        drop(taken);
        assert_eq!(mode("snapshot.lz4") & !0o600, 0, "under umask {umask}");
        // An archive has the permissions of its file.
        let args = ["compress", "-q", "image"];
        support::finish(support::piped(&mut under_umask(folder, umask, &args)), &[]).ok();
        assert_eq!(mode("image.lz4"), mode("image"), "under umask {umask}");
    }
}

#[test]
fn tcp_beyond_the_loopback_interface_is_asked_for() {
    let folder = folder();
    for address in ["tcp:0.0.0.0:0", "tcp:[::]:0", "tcp:192.0.2.1:0"] {
        let args = ["serve", "--size", "1M", "--nbd", "tcp:127.0.0.1:0", "--nbd", address];
        run(folder.path(), &args).refuses(&[address, "--allow-remote"]);
    }
    let server = Server::start(folder.path(), &["--size", "1M", "--nbd", "tcp:0.0.0.0:0", "--allow-remote"]);
    assert!(server.ready["nbd"][1].as_str().unwrap().starts_with("tcp:0.0.0.0:"));
}
