//! Clients that stall, leave, send garbage, or send too much.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use trueno_test_pages::generate::Generator;
use trueno_zram_serve::nbd::ServerLimits;
use trueno_zram_store::StoreOptions;

use crate::client::{self, READ, Style, WRITE};
use crate::{SIZE, Served};

/// Reads until the server ends the connection. Returns whether it did.
fn ends(stream: &mut UnixStream) -> bool {
    let mut sink = [0; 4096];
    loop {
        match stream.read(&mut sink) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

#[test]
fn garbage_ends_the_connection_and_nothing_else() {
    let served = Served::new();
    let mut healthy = served.client(Style::Structured);
    healthy.write(0, b"untouched").unwrap();
    let mut random = Generator::new(1);
    for round in 0..60 {
        let mut stream = UnixStream::connect(served.path()).unwrap();
        if round % 2 == 0 {
            client::greet(&mut stream);
        }
        let garbage: Vec<u8> = (0..random.below(5000)).map(|_| random.byte()).collect();
        let _ = stream.write_all(&garbage);
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(ends(&mut stream));
    }
    assert_eq!(healthy.read(0, 9).unwrap(), b"untouched");
}

#[test]
fn a_request_with_a_wrong_magic_number_ends_the_connection() {
    let served = Served::new();
    let mut client = served.client(Style::Structured);
    client.stream.write_all(&[0x25; 28]).unwrap();
    assert!(ends(&mut client.stream));
}

#[test]
fn announcing_more_than_allowed_ends_the_connection() {
    let served = Served::new();
    let mut client = served.client(Style::Structured);
    client.send(0, WRITE, 0, u32::MAX, b"");
    assert!(ends(&mut client.stream));

    let mut stream = UnixStream::connect(served.path()).unwrap();
    client::greet(&mut stream);
    stream.write_all(b"IHAVEOPT\0\0\0\x07\x40\0\0\0").unwrap();
    assert_eq!(client::option_reply(&mut stream, 7).0, 0x8000_0009);
    assert!(ends(&mut stream));
}

#[test]
fn a_client_that_leaves_within_a_request_does_no_harm() {
    let served = Served::new();
    let mut healthy = served.client(Style::Simple);
    healthy.write(0, &[5; 8192]).unwrap();
    for sent in [0, 1, 100, 4096, 5000] {
        let mut client = served.client(Style::Structured);
        client.send(0, WRITE, 0, 1 << 20, &vec![6; sent]);
    }
    // Whole pages that arrived may be written; parts of pages are not.
    let back = healthy.read(0, 8192).unwrap();
    assert!(back[..4096] == [5; 4096] || back[..4096] == [6; 4096]);
    assert_eq!(back[4096..], [5; 4096]);
}

#[test]
fn a_client_that_does_not_read_its_replies_is_disconnected_and_others_are_served() {
    let limits = ServerLimits { write_timeout: Duration::from_millis(300), ..ServerLimits::default() };
    let served = Served::start(&StoreOptions::new(SIZE), limits);
    let mut stalled = served.client(Style::Structured);
    for _ in 0..8 {
        stalled.send(0, READ, 0, u32::try_from(SIZE).unwrap(), b"");
    }
    let mut healthy = served.client(Style::Structured);
    for round in 0..100 {
        healthy.write(round * 4096, &[1; 4096]).unwrap();
    }
    // It reads nothing, so the server gives up after the time limit, however long this takes here.
    while served.server.connections() > 1 {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(ends(&mut stalled.stream));
    healthy.write(0, b"still served").unwrap();
}

#[test]
fn a_client_that_sends_without_end_is_served_without_taking_memory() {
    let served = Served::new();
    let mut client = served.client(Style::Structured);
    let data = vec![1; 1 << 20];
    for round in 0..100u64 {
        client.write((round % 8) << 20, &data).unwrap();
    }
    assert_eq!(served.store.stats().mm.mem_used_total, 0, "same-filled pages take no slots");
}

#[test]
fn there_are_only_so_many_connections() {
    let limits = ServerLimits { max_connections: 3, ..ServerLimits::default() };
    let served = Served::start(&StoreOptions::new(SIZE), limits);
    let clients: Vec<_> = (0..3).map(|_| served.client(Style::Simple)).collect();
    let mut refused = UnixStream::connect(served.path()).unwrap();
    assert!(ends(&mut refused));
    drop(clients);
    // Their threads take a moment to notice.
    while served.server.connections() > 0 {
        std::thread::yield_now();
    }
    served.client(Style::Simple).write(0, b"again").unwrap();
}
