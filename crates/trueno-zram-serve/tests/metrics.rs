//! The metrics over HTTP, with clients that break the protocol.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use proptest::prelude::*;
use trueno_zram_serve::control::ServedStore;
use trueno_zram_serve::metrics::{MetricsLimits, MetricsServer};
use trueno_zram_store::{Store, StoreOptions};

const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

fn start(limits: MetricsLimits) -> (MetricsServer, SocketAddr) {
    let store = Arc::new(Store::create(&StoreOptions::new(1 << 20)).unwrap());
    let stores = vec![ServedStore::new("ram", store)];
    let server = MetricsServer::start("127.0.0.1:0".parse().unwrap(), stores, limits).unwrap();
    let address = server.address().unwrap();
    (server, address)
}

/// Sends bytes, and returns all that comes back.
fn ask(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    // A server that refuses a request does not read its end, and then the connection is reset.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply);
    reply
}

static SERVER: LazyLock<(MetricsServer, SocketAddr)> = LazyLock::new(|| start(MetricsLimits::default()));

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_bytes_get_a_reply_or_the_end_and_the_server_goes_on(
        head in prop_oneof![Just(&b""[..]), Just(&b"GET "[..]), Just(&b"GET /metrics HTTP/1.1\r\n"[..])],
        rest in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let address = SERVER.1;
        let reply = ask(address, &[head, &rest].concat());
        prop_assert!(reply.is_empty() || reply.starts_with(b"HTTP/1.1 "), "{}", String::from_utf8_lossy(&reply));
        prop_assert!(ask(address, REQUEST).starts_with(b"HTTP/1.1 200 OK\r\n"));
    }
}

#[test]
fn clients_that_send_nothing_leave_for_others() {
    let limits = MetricsLimits::default().with_request_timeout(Duration::MAX);
    let (server, address) = start(limits);
    let mut silent: Vec<_> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
    assert!(ask(address, REQUEST).ends_with(b"# EOF\n"));
    assert!(server.connections() <= limits.max_connections);
    assert_eq!(silent[0].read(&mut [0; 100]).unwrap_or(0), 0, "the oldest is disconnected");
    // It does not wait for clients that send nothing.
    drop(server);
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn a_request_has_limited_time_and_length() {
    let (_server, address) = start(MetricsLimits::default().with_request_timeout(Duration::from_millis(50)));
    let mut slow = TcpStream::connect(address).unwrap();
    let refused = (0..60_000).any(|_| {
        std::thread::sleep(Duration::from_millis(5));
        slow.write_all(b"x").is_err()
    });
    assert!(refused);
    let mut rest = Vec::new();
    let _ = TcpStream::connect(address).unwrap().read_to_end(&mut rest);
    assert!(rest.is_empty());
    let (_server, address) = start(MetricsLimits::default());
    let endless = ask(address, &[&b"GET /metrics HTTP/1.1\r\n"[..], &vec![b'x'; 1 << 20]].concat());
    assert!(endless.is_empty() || endless.starts_with(b"HTTP/1.1 431 "));
}
