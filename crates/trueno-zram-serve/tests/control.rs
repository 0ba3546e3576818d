//! The control socket.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::{Permissions, set_permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::thread::{Uid, set_thread_res_uid};
use trueno_test_pages::corpus;
use trueno_zram_core::Algorithm;
use trueno_zram_serve::control::{ControlClient, ControlError, ControlLimits, ControlServer, ServedStore};
use trueno_zram_store::{Store, StoreHandle, StoreOptions};

const SIZE: u64 = 4 << 20;

fn filled() -> Arc<Store> {
    let store = Arc::new(Store::create(&StoreOptions::new(SIZE)).unwrap());
    let mut handle = StoreHandle::new(&store).unwrap();
    for (page, content) in (0..500).zip(corpus::all_pages()) {
        handle.write_page(page * 2, content).unwrap();
    }
    store
}

fn content(store: &Arc<Store>) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(SIZE).unwrap()];
    StoreHandle::new(store).unwrap().read_at(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn stores_are_shown_saved_and_loaded_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control");
    let (first, second) = (filled(), Arc::new(Store::create(&StoreOptions::new(SIZE)).unwrap()));
    let stores = vec![ServedStore::new("first", Arc::clone(&first)), ServedStore::new("second", Arc::clone(&second))];
    let server = ControlServer::start(&path, stores, ControlLimits::default()).unwrap();
    let connect = || ControlClient::connect(&path).unwrap();

    let exports = connect().stat().unwrap();
    assert_eq!(exports.iter().map(|export| &export.name[..]).collect::<Vec<_>>(), ["first", "second"]);
    assert_eq!(exports[0].stats, first.stats());
    assert_eq!(exports[0].algorithm, "lz4");

    let mut archive = Vec::new();
    for algorithm in [Algorithm::Zstd { level: 5 }, Algorithm::None, Algorithm::Lz4] {
        StoreHandle::new(&second).unwrap().discard(0, SIZE).unwrap();
        archive.clear();
        assert_eq!(connect().save("first", algorithm, &mut archive).unwrap(), SIZE);
        assert_eq!(connect().load("second", &mut &archive[..]).unwrap(), SIZE);
        assert!(content(&second) == content(&first));
    }

    // Refusals say why, and the server goes on.
    assert!(matches!(connect().save("third", Algorithm::Lz4, &mut Vec::new()), Err(ControlError::Server(_))));
    let cut = &archive[..archive.len() / 3];
    assert!(matches!(connect().load("second", &mut &cut[..]), Err(ControlError::Server(_))));
    assert!(matches!(connect().load("second", &mut &b"no archive"[..]), Err(ControlError::Server(_))));
    assert_eq!(connect().stat().unwrap().len(), 2);
    drop(server);
    assert!(ControlClient::connect(&path).is_err());
}

#[test]
fn stores_are_resized_and_refusals_say_why() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control");
    let store = Arc::new(Store::create(&StoreOptions::new(SIZE).with_max_size_bytes(2 * SIZE)).unwrap());
    let stores = vec![ServedStore::new("ram", Arc::clone(&store))];
    let _server = ControlServer::start(&path, stores, ControlLimits::default()).unwrap();
    let resize = |size| ControlClient::connect(&path).unwrap().resize("ram", size);
    resize(2 * SIZE).unwrap();
    assert_eq!(ControlClient::connect(&path).unwrap().stat().unwrap()[0].stats.size_bytes, 2 * SIZE);
    StoreHandle::new(&store).unwrap().write_at(2 * SIZE - 1, &[1]).unwrap();
    for (size, reason) in [(SIZE, "data"), (2 * SIZE + 4096, "room"), (1, "4096"), (0, "4096"), (u64::MAX, "4096")] {
        let refused = resize(size).unwrap_err().to_string();
        assert!(refused.contains(reason), "{refused}");
    }
    assert!(ControlClient::connect(&path).unwrap().resize("other", SIZE).is_err());
    for request in
        ["{\"command\":\"resize\",\"export\":\"ram\"}", "{\"command\":\"resize\",\"export\":\"ram\",\"size_bytes\":-1}"]
    {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(format!("{request}\n").as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        assert!(reply.starts_with("{\"error\""), "{reply}");
    }
    // A save that hangs holds the length.
    let (mut save, line) = begin_save(&path);
    assert_eq!(line, "\"ready\"\n");
    assert!(resize(3 * SIZE / 2).unwrap_err().to_string().contains("saved"));
    std::io::copy(&mut save, &mut std::io::sink()).unwrap();
    drop(save);
    let metrics = ControlClient::connect(&path).unwrap().metrics().unwrap();
    assert!(
        metrics.contains(&format!("trueno_zram_size_bytes{{export=\"ram\"}} {}\n", 2 * SIZE))
            && metrics.ends_with("# EOF\n")
    );
}

/// Limits with which only the number and the order of clients decide who is served.
fn without_time_limits() -> ControlLimits {
    ControlLimits::default().with_request_timeout(Duration::MAX).with_idle_timeout(Duration::MAX)
}

fn start(path: &Path, limits: ControlLimits) -> ControlServer {
    ControlServer::start(path, vec![ServedStore::new("ram", filled())], limits).unwrap()
}

/// Sends a request for the whole store, and returns the first line of the answer. The rest is never read.
fn begin_save(path: &Path) -> (BufReader<UnixStream>, String) {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.write_all(b"{\"command\":\"save\",\"export\":\"ram\",\"algorithm\":\"none\"}\n").unwrap();
    let mut input = BufReader::with_capacity(16, stream);
    let mut line = String::new();
    input.read_line(&mut line).unwrap();
    (input, line)
}

#[test]
fn statistics_are_answered_while_saves_hang() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control");
    let limits = without_time_limits();
    let server = start(&path, limits);
    let saves: Vec<_> = (0..20).map(|_| begin_save(&path)).collect();
    let ready = saves.iter().filter(|(_, line)| line == "\"ready\"\n").count();
    assert_eq!(ready, limits.max_transfers);
    assert!(saves.iter().skip(ready).all(|(_, line)| line.starts_with("{\"error\"")), "the others are told");
    for _ in 0..limits.max_connections {
        assert_eq!(ControlClient::connect(&path).unwrap().stat().unwrap().len(), 1);
    }
    let load = ControlClient::connect(&path).unwrap().load("ram", &mut &b""[..]);
    assert!(matches!(load, Err(ControlError::Server(_))), "{load:?}");
    // It does not wait for clients that never read.
    drop(server);
    assert!(!path.exists());
}

#[test]
fn clients_without_a_request_leave_for_others_the_oldest_first() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control");
    let server = start(&path, without_time_limits());
    let connect = |begin: &[u8]| {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(begin).unwrap();
        stream
    };
    let mut silent: Vec<_> = (0..40).map(|number| connect(if number % 2 == 0 { b"" } else { b"{\"command" })).collect();
    assert_eq!(ControlClient::connect(&path).unwrap().stat().unwrap().len(), 1);
    assert_eq!(ControlClient::connect(&path).unwrap().save("ram", Algorithm::Lz4, &mut Vec::new()).unwrap(), SIZE);
    assert!(server.connections() <= ControlLimits::default().max_connections);
    assert_eq!(silent[0].read(&mut [0; 100]).unwrap_or(0), 0);
}

#[test]
fn clients_have_limited_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control");
    let short = Duration::from_millis(50);
    let server = start(&path, without_time_limits().with_request_timeout(short));
    // No request, half a one, and one whose bytes come now and then: each gets an error and the end.
    let mut rest = Vec::new();
    UnixStream::connect(&path).unwrap().read_to_end(&mut rest).unwrap();
    let mut half = UnixStream::connect(&path).unwrap();
    half.write_all(b"{\"command\"").unwrap();
    // The server does not read the rest of what it was sent.
    let _ = half.read_to_end(&mut rest);
    let mut slow = UnixStream::connect(&path).unwrap();
    let refused = (0..60_000).any(|_| {
        std::thread::sleep(Duration::from_millis(5));
        slow.write_all(b" ").is_err()
    });
    assert!(refused);
    drop(server);
    // An archive that does not go on.
    let _server = start(&path, without_time_limits().with_idle_timeout(short));
    let mut load = UnixStream::connect(&path).unwrap();
    load.write_all(b"{\"command\":\"load\",\"export\":\"ram\"}\n\0\0\x10\0").unwrap();
    load.read_to_end(&mut rest).unwrap();
    assert!(String::from_utf8_lossy(&rest).contains("\"ready\"\n{\"error\""));
}

/// Runs something as another user, on a thread of its own: users are those of threads. Returns `None` if this process may not
/// become another user; the rule itself has a unit test, which runs everywhere.
fn as_nobody<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    let nobody = Uid::from_raw(65534);
    std::thread::scope(|threads| {
        let thread = threads.spawn(|| set_thread_res_uid(nobody, nobody, nobody).ok().map(|()| work()));
        thread.join().unwrap()
    })
}

/// Lets everybody connect, as far as files are concerned.
fn open_up(socket: &Path) {
    set_permissions(socket.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    set_permissions(socket, Permissions::from_mode(0o666)).unwrap();
}

#[test]
fn other_users_are_told_that_they_may_not_use_the_control_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control");
    let server = start(&path, without_time_limits());
    open_up(&path);
    let Some(refused) = as_nobody(|| ControlClient::connect(&path).unwrap().stat()) else { return };
    assert!(matches!(&refused, Err(ControlError::Server(_))), "{refused:?}");
    let saved = as_nobody(|| ControlClient::connect(&path).unwrap().save("ram", Algorithm::Lz4, &mut Vec::new()));
    assert!(matches!(saved, Some(Err(ControlError::Server(_)))), "{saved:?}");
    // They do not take places either.
    let silent = as_nobody(|| [(); 40].map(|()| UnixStream::connect(&path).unwrap()));
    assert_eq!(ControlClient::connect(&path).unwrap().stat().unwrap().len(), 1);
    assert!(server.connections() <= 1);
    drop(silent);
}
