//! Clients that stall, leave, send garbage, or send too much.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use trueno_test_pages::generate::Generator;
use trueno_zram_serve::nbd::NbdLimits;
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
    let limits = NbdLimits::default().with_write_timeout(Duration::from_millis(300));
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
    let limits = NbdLimits::default().with_max_connections(3);
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

/// Limits with which only the order of connections decides which of them ends.
fn without_time_limits() -> NbdLimits {
    NbdLimits::default()
        .with_negotiation_timeout(Duration::MAX)
        .with_request_timeout(Duration::MAX)
        .with_write_timeout(Duration::MAX)
}

#[test]
fn silent_connections_leave_for_a_client_that_negotiates_the_oldest_first() {
    let limits = without_time_limits();
    let served = Served::start(&StoreOptions::new(SIZE), limits);
    let connect = || UnixStream::connect(served.path()).unwrap();
    let mut silent: Vec<UnixStream> = (0..limits.max_connections).map(|_| connect()).collect();
    let mut client = served.client(Style::Structured);
    client.write(0, b"served").unwrap();
    assert!(ends(&mut silent[0]));
    // Clients in the middle of the negotiation are no better.
    silent.extend((0..limits.max_connections).map(|_| {
        let mut stream = connect();
        client::greet(&mut stream);
        client::send_option(&mut stream, 8, b"");
        stream
    }));
    let mut other = served.client(Style::Simple);
    assert_eq!(other.read(0, 6).unwrap(), b"served");
    assert_eq!(client.read(0, 6).unwrap(), b"served", "clients that have negotiated stay");
    assert!(ends(&mut silent[limits.max_connections - 1]));
    assert!(served.server.connections() <= limits.max_connections);
}

#[test]
fn a_negotiation_that_takes_too_long_ends() {
    let limits = without_time_limits().with_negotiation_timeout(Duration::from_millis(50));
    let served = Served::start(&StoreOptions::new(SIZE), limits);
    assert!(ends(&mut UnixStream::connect(served.path()).unwrap()));
    // A client that sends a byte now and then as well.
    let mut slow = UnixStream::connect(served.path()).unwrap();
    let option = [&b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\xff\xff"[..], &[0; 0xffff]].concat();
    let refused = option.iter().any(|byte| {
        std::thread::sleep(Duration::from_millis(5));
        slow.write_all(&[*byte]).is_err()
    });
    assert!(refused, "the negotiation ended before the option did");
}

#[test]
fn a_client_that_stops_within_a_request_is_disconnected_and_idle_ones_stay() {
    let limits = without_time_limits().with_request_timeout(Duration::from_millis(50));
    let served = Served::start(&StoreOptions::new(SIZE), limits);
    let mut idle = served.client(Style::Structured);
    let mut header = served.client(Style::Structured);
    header.stream.write_all(&0x25609513u32.to_be_bytes()).unwrap();
    assert!(ends(&mut header.stream));
    for sent in [0, 1, 5000] {
        let mut data = served.client(Style::Structured);
        data.send(0, WRITE, 0, 1 << 20, &vec![6; sent]);
        assert!(ends(&mut data.stream), "after {sent} bytes of its data");
    }
    // It was silent for longer than those that were disconnected for it.
    idle.write(0, b"still served").unwrap();
}
