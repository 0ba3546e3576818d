//! Connections that have ended leave no descriptor open. A file of its own: no other test opens any meanwhile.
#![cfg(feature = "vhost-user")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "the tests of NBD use more of it")]
#[path = "nbd/client.rs"]
mod client;
#[allow(dead_code, reason = "the tests of vhost-user use more of it")]
#[path = "vhost_user/front_end.rs"]
mod front_end;

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use client::{Client, Style};
use front_end::{Guest, Notifications, memory_file};
use trueno_zram_serve::control::{ControlClient, ControlLimits, ControlServer, ServedStore};
use trueno_zram_serve::nbd::{Exports, NbdLimits, NbdServer};
use trueno_zram_serve::vhost_user::VhostUserServer;
use trueno_zram_serve::{Endpoint, Export, StoreExport};
use trueno_zram_store::{Store, StoreOptions};

const QUEUES: u16 = 3;
const MEMORY_BYTES: u64 = 1 << 20;

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_thousand_connections_of_all_kinds_leave_no_descriptor_open() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let store = Arc::new(Store::create(&StoreOptions::new(1 << 20)).unwrap());
    let export: Arc<dyn Export> = Arc::new(StoreExport::new(Arc::clone(&store)));
    let _vhost_user = VhostUserServer::start(&at("vhost-user"), &export, QUEUES).unwrap();
    let exports = Exports::new().with("ram", export);
    let _nbd = NbdServer::start(&Endpoint::Unix(at("nbd")), exports, NbdLimits::default()).unwrap();
    let _control =
        ControlServer::start(&at("control"), vec![ServedStore::new("ram", store)], ControlLimits::default()).unwrap();
    let one_of_each = |kind: usize| match kind {
        0 => drop(UnixStream::connect(at("vhost-user")).unwrap()),
        // Half of a header.
        1 => drop(UnixStream::connect(at("vhost-user")).unwrap().write_all(&[1, 0, 0, 0, 1, 0])),
        2 => drop(Guest::connect(&at("vhost-user"), memory_file(0), Notifications::Always)),
        3 => {
            let guest = Guest::connect(&at("vhost-user"), memory_file(MEMORY_BYTES), Notifications::Always);
            guest.hand_over(MEMORY_BYTES).unwrap();
        }
        4 => {
            let guest = Guest::connect(&at("vhost-user"), memory_file(0), Notifications::Always);
            guest.hand_over(MEMORY_BYTES).unwrap_err();
        }
        5 => {
            let mut guest = Guest::start(&at("vhost-user"), MEMORY_BYTES, Notifications::EventIndex);
            assert_eq!(guest.write(0, &[1; 4096]), 0);
        }
        6 => {
            let guest = Guest::start(&at("vhost-user"), MEMORY_BYTES, Notifications::Always);
            guest.memory.set_len(0).unwrap();
            guest.kick();
            guest.wait_for_end();
        }
        7 => drop(UnixStream::connect(at("nbd")).unwrap()),
        8 => drop(Client::connect(&at("nbd"), "", Style::Structured).read(0, 4096)),
        _ => drop(ControlClient::connect(&at("control")).unwrap().stat().unwrap()),
    };
    let before = open_descriptors();
    for kind in 0..1000 {
        one_of_each(kind % 10);
    }
    // The servers notice the end of a client in their own time. Idle ones have some 20 descriptors to wait with, which they may
    // not have opened before; a leak in one of the ten kinds of connections would be 100 or more.
    let limit = before + 50;
    let deadline = Instant::now() + Duration::from_secs(60);
    while open_descriptors() > limit && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(10));
    }
    let after = open_descriptors();
    assert!(after <= limit, "{before} descriptors before, {after} after 1,000 connections");
}
