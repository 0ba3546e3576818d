//! Thousands of sessions that make no sense, after which the servers are as they were. One test, since it counts the descriptors
//! and the threads of the whole process.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "nbd/client.rs"]
#[allow(dead_code, reason = "the other test uses the rest")]
mod client;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use client::{Client, Style};
use trueno_test_pages::generate::Generator;
use trueno_zram_core::Algorithm;
use trueno_zram_serve::control::{ControlClient, ControlLimits, ControlServer, ServedStore};
use trueno_zram_serve::nbd::{Exports, NbdLimits, NbdServer};
use trueno_zram_serve::{Endpoint, StoreExport};
use trueno_zram_store::{Store, StoreOptions};

const SESSIONS: usize = 2000;
const SIZE: u64 = 4 << 20;

/// Returns how many entries a folder has.
fn entries(folder: &str) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

/// Returns the number of descriptors and threads of this process.
fn resources() -> (usize, usize) {
    (entries("/proc/self/fd"), entries("/proc/self/task"))
}

/// Whole and damaged messages of both protocols, to be sent one after the other.
fn pieces() -> Vec<Vec<u8>> {
    let option = |number: u32, data: &[u8]| {
        let len = u32::try_from(data.len()).unwrap();
        [b"IHAVEOPT", &number.to_be_bytes()[..], &len.to_be_bytes(), data].concat()
    };
    let request = |command: u16, offset: u64, len: u32| {
        let header: [&[u8]; 5] =
            [&0x25609513u32.to_be_bytes(), &[0, 0], &command.to_be_bytes(), &[7; 8], &offset.to_be_bytes()];
        [&header.concat()[..], &len.to_be_bytes()].concat()
    };
    let go = [client::counted(b"ram"), vec![0, 0]].concat();
    vec![
        3u32.to_be_bytes().to_vec(),
        option(8, b""),
        option(3, b""),
        option(7, &go),
        option(1, b"ram"),
        option(99, &[0; 300]),
        request(0, 0, 4096),
        request(1, 4096, 65536),
        request(3, 0, 0),
        request(1, u64::MAX, u32::MAX),
        vec![0x55; 5000],
        b"{\"command\":\"stat\"}\n".to_vec(),
        b"{\"command\":\"save\",\"export\":\"\",\"algorithm\":\"lz4\"}\n".to_vec(),
        b"{\"command\":\"load\",\"export\":\"ram\"}\n\0\0\x01\0".to_vec(),
        b"{\"command\":\"save\"".to_vec(),
        b"\n".to_vec(),
    ]
}

/// One session: some pieces, cut and damaged at random, and one of several ends.
fn session(path: &Path, pieces: &[Vec<u8>], random: &mut Generator, kept: &mut Vec<UnixStream>) {
    let mut stream = UnixStream::connect(path).unwrap();
    let mut below = |bound| random.below(bound);
    for _ in 0..below(6) {
        let mut piece = pieces[below(pieces.len())].clone();
        if below(4) == 0 {
            piece.truncate(below(piece.len()));
        }
        if below(8) == 0 && !piece.is_empty() {
            let at = below(piece.len());
            piece[at] ^= 0x40;
        }
        // The server may have ended the connection.
        let _ = stream.write_all(&piece);
    }
    match below(4) {
        0 => {
            let _ = stream.shutdown(Shutdown::Write);
            let _ = stream.read(&mut [0; 100]);
        }
        1 => kept.push(stream),
        _ => {}
    }
}

#[test]
fn random_sessions_leave_the_servers_as_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let [nbd, control] = ["nbd", "control"].map(|name| folder.path().join(name));
    let store = Arc::new(Store::create(&StoreOptions::new(SIZE)).unwrap());
    let exports = Exports::new().with("ram", Arc::new(StoreExport::new(Arc::clone(&store))));
    let nbd_server = NbdServer::start(&Endpoint::Unix(nbd.clone()), exports, NbdLimits::default()).unwrap();
    let control_server =
        ControlServer::start(&control, vec![ServedStore::new("ram", store)], ControlLimits::default()).unwrap();
    let serves = || {
        let mut client = Client::connect(&nbd, "ram", Style::Structured);
        client.write(8192, b"served").unwrap();
        assert_eq!(client.read(8192, 6).unwrap(), b"served");
        assert_eq!(ControlClient::connect(&control).unwrap().stat().unwrap().len(), 1);
    };
    let saves = || {
        let saved = ControlClient::connect(&control).unwrap().save("ram", Algorithm::Lz4, &mut Vec::new());
        assert_eq!(saved.unwrap(), SIZE);
    };
    let wait_for = |what: &str, done: &dyn Fn() -> bool| {
        let ended = (0..60_000).any(|_| {
            let is_done = done();
            if !is_done {
                std::thread::sleep(Duration::from_millis(10));
            }
            is_done
        });
        assert!(ended, "{what}: {:?} descriptors and threads", resources());
    };
    // Thread pools are started by the first save.
    serves();
    saves();
    let all_left = || nbd_server.connections() + control_server.connections() == 0;
    wait_for("the first clients leave", &all_left);
    let before = resources();

    let (pieces, mut random) = (pieces(), Generator::new(8));
    let mut kept = Vec::new();
    for number in 0..SESSIONS {
        session(if number % 2 == 0 { &nbd } else { &control }, &pieces, &mut random, &mut kept);
        // Some stay open and silent.
        if kept.len() > 300 {
            kept.drain(..100);
        }
    }
    serves();
    drop(kept);
    wait_for("all clients leave", &all_left);
    serves();
    saves();
    wait_for("the last clients leave", &all_left);
    wait_for("what they had is free", &|| {
        let (fds, threads) = resources();
        fds <= before.0 && threads <= before.1
    });
}
