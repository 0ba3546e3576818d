//! Any bytes from clients of the control socket: each gets replies or the end of its connection, and the server goes on.
#![no_main]

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use trueno_zram_serve::control::{ControlClient, ControlLimits, ControlServer, ServedStore};
use trueno_zram_store::{Store, StoreHandle, StoreOptions};

const SIZE: u64 = 64 << 10;

/// The length to which it can grow.
const MAX_SIZE: u64 = 2 * SIZE;

/// The most bytes of replies: a ready line, an archive of the store, and a line with the outcome.
const MAX_REPLY: usize = 2 * MAX_SIZE as usize + 16384;

/// A request that succeeds, so that the rest of the input is an archive in chunks.
const LOAD: &[u8] = b"{\"command\":\"load\",\"export\":\"ram\"}\n";

struct Server {
    path: PathBuf,
    store: Arc<Store>,
    _server: ControlServer,
}

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let path = std::env::temp_dir().join(format!("trueno-fuzz-control-{}", std::process::id()));
    let store = Arc::new(Store::create(&StoreOptions::new(SIZE).with_max_size_bytes(MAX_SIZE)).expect("a small store"));
    let stores = vec![ServedStore::new("ram", Arc::clone(&store))];
    let server = ControlServer::start(&path, stores, ControlLimits::default()).expect("a socket");
    Server { path, store, _server: server }
});

/// Sends bytes and reads all replies.
fn send(bytes: &[u8]) -> Vec<u8> {
    let mut stream = UnixStream::connect(&SERVER.path).expect("the server accepts");
    // A server that refuses a request does not read its end.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let mut replies = Vec::new();
    let _ = stream.read_to_end(&mut replies);
    replies
}

fuzz_target!(|data: &[u8]| {
    let Some((first, rest)) = data.split_first() else { return };
    let sent = match first % 4 {
        3 => {
            let size = rest.first().map_or(0, |size| u64::from(*size) * 2048);
            format!("{{\"command\":\"resize\",\"export\":\"\",\"size_bytes\":{size}}}\n").into_bytes()
        }
        0 => rest.to_vec(),
        1 => [LOAD, rest].concat(),
        _ => [LOAD, &u32::try_from(rest.len()).unwrap_or(0).to_be_bytes(), rest, &[0; 4]].concat(),
    };
    let replies = send(&sent);
    assert!(replies.len() <= MAX_REPLY, "{} bytes of replies", replies.len());
    // A whole archive is answered even if it is damaged.
    assert!(first % 4 != 2 || rest.is_empty() || replies.ends_with(b"}\n"), "{}", String::from_utf8_lossy(&replies));

    let exports = ControlClient::connect(&SERVER.path).and_then(|client| client.stat().map_err(std::io::Error::other));
    assert_eq!(exports.expect("the server answers").len(), 1);
    // A request may have made it shorter, as far as it was empty, and longer again.
    let mut content = vec![0; SERVER.store.size_bytes() as usize];
    let mut handle = StoreHandle::new(&SERVER.store).expect("LZ4 needs nothing");
    handle.read_at(0, &mut content).expect("all pages are whole");
    assert!(SERVER.store.stats().mm.orig_data_size <= MAX_SIZE);
});
