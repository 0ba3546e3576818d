//! Virtual machines that use a device as they should, and such that take their memory away.
#![cfg(feature = "vhost-user")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "the tests of NBD use more of it")]
#[path = "../nbd/client.rs"]
mod client;
mod front_end;

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;

use client::{Client, Style};
use front_end::{DATA_AT, Guest, Notifications, memory_file};
use rustix::fs::{MemfdFlags, memfd_create};
use trueno_zram_serve::nbd::{Exports, NbdLimits, NbdServer};
use trueno_zram_serve::vhost_user::VhostUserServer;
use trueno_zram_serve::{Endpoint, Export, StoreExport};
use trueno_zram_store::{Store, StoreOptions};

const MEMORY_BYTES: u64 = 1 << 20;

/// The position of [`pattern`] in the store.
const PATTERN_AT: u64 = 1 << 20;
const PATTERN_SECTOR: u64 = PATTERN_AT / 512;

/// A store that is served over vhost-user and NBD, with a pattern in it that must stay.
struct Setup {
    folder: tempfile::TempDir,
    /// A client that is connected all the time.
    client: Client,
    _vhost_user: VhostUserServer,
    _nbd: NbdServer,
}

impl Setup {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::create(&StoreOptions::new(8 << 20)).unwrap());
        let export: Arc<dyn Export> = Arc::new(StoreExport::new(store));
        let vhost_user = VhostUserServer::start(&folder.path().join("vhost-user"), &export, 1).unwrap();
        let exports = Exports::new().with("ram", export);
        let nbd_path = folder.path().join("nbd");
        let nbd = NbdServer::start(&Endpoint::Unix(nbd_path.clone()), exports, NbdLimits::default()).unwrap();
        let mut client = Client::connect(&nbd_path, "", Style::Structured);
        client.write(PATTERN_AT, &pattern()).unwrap();
        Self { folder, client, _vhost_user: vhost_user, _nbd: nbd }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("vhost-user")
    }

    /// A machine that is connected, and has not handed over its memory.
    fn connect(&self, memory: File) -> Guest {
        Guest::connect(&self.socket(), memory, Notifications::Always)
    }

    /// A machine whose queue runs.
    fn start(&self, notifications: Notifications) -> Guest {
        Guest::start(&self.socket(), MEMORY_BYTES, notifications)
    }

    /// Everybody else finds everything as it was: clients of NBD, and the next virtual machine.
    fn assert_unharmed(&mut self) {
        let mut new_client = Client::connect(&self.folder.path().join("nbd"), "", Style::Structured);
        for client in [&mut self.client, &mut new_client] {
            assert!(client.read(PATTERN_AT, 64 << 10).unwrap() == pattern());
        }
        assert!(self.start(Notifications::Always).read(PATTERN_SECTOR, 64 << 10) == pattern());
    }
}

/// Runs `act`, after which nobody else may be harmed.
fn harms_nobody(act: impl FnOnce(&mut Setup)) {
    let mut setup = Setup::new();
    act(&mut setup);
    setup.assert_unharmed();
}

fn pattern() -> Vec<u8> {
    (0..=250u8).cycle().take(64 << 10).collect()
}

#[test]
fn a_guest_reads_what_it_wrote() {
    harms_nobody(|setup| {
        for notifications in Notifications::ALL {
            let mut guest = setup.start(notifications);
            for round in 0..100u8 {
                assert_eq!(guest.write(u64::from(round) * 8, &[round; 4096]), 0);
            }
            assert_eq!(guest.read(99 * 8, 4096), [99; 4096]);
            assert!(guest.read(PATTERN_SECTOR, 64 << 10) == pattern());
            assert_eq!(guest.write(u64::MAX / 512, &[1; 512]), 1, "beyond the end");
            assert!(!guest.has_ended());
        }
    });
}

#[test]
fn the_configuration_has_the_length_that_the_device_has_now() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vhost-user");
    let options = StoreOptions::new(1 << 20).with_max_size_bytes(4 << 20);
    let store = Arc::new(Store::create(&options).unwrap());
    let export: Arc<dyn Export> = Arc::new(StoreExport::new(Arc::clone(&store)));
    let _server = VhostUserServer::start(&path, &export, 1).unwrap();
    let mut guest = Guest::start(&path, MEMORY_BYTES, Notifications::Always);
    assert_eq!(guest.size_bytes(), 1 << 20);
    let beyond = (3 << 20) / 512;
    assert_eq!(guest.write(beyond, &[7; 4096]), 1, "beyond the end");
    store.resize(4 << 20).unwrap();
    assert_eq!(guest.size_bytes(), 4 << 20);
    assert_eq!(guest.write(beyond, &[7; 4096]), 0);
    assert!(store.resize(2 << 20).is_err());
    assert_eq!(guest.write(beyond, &[0; 4096]), 0);
    store.resize(2 << 20).unwrap();
    assert_eq!((guest.size_bytes(), guest.write(beyond, &[7; 4096])), (2 << 20, 1));
}

#[test]
fn memory_that_is_shorter_than_it_says_is_refused() {
    harms_nobody(|setup| {
        for file_bytes in [0, 4096, MEMORY_BYTES - 4096, MEMORY_BYTES - 1] {
            let mut guest = setup.connect(memory_file(file_bytes));
            guest.hand_over(MEMORY_BYTES).unwrap_err();
            // It would be told of the queue's place in memory that is not there.
            guest.start_queue().unwrap_err();
            guest.wait_for_end();
        }
    });
}

/// Takes the memory away before the device knows the queue.
fn cut_before_start(mut guest: Guest, memory_bytes: u64) {
    guest.hand_over(memory_bytes).unwrap();
    guest.memory.set_len(0).unwrap();
    // The device looks at the ring when it learns its place, and at the queue when it is enabled. It may disconnect in between.
    if guest.start_queue().is_ok() {
        guest.kick();
    }
    guest.wait_for_end();
}

#[test]
fn memory_that_is_cut_before_its_queue_is_known_ends_only_that_guest() {
    harms_nobody(|setup| cut_before_start(setup.connect(memory_file(MEMORY_BYTES)), MEMORY_BYTES));
}

#[test]
fn data_that_is_cut_off_ends_only_that_guest_and_is_not_written() {
    harms_nobody(|setup| {
        for notifications in Notifications::ALL {
            let mut guest = setup.start(notifications);
            assert_eq!(guest.write(0, &[7; 4096]), 0);
            guest.memory.set_len(DATA_AT).unwrap();
            // Over the pattern: zeros in place of the missing data must not get there.
            guest.submit_write(PATTERN_SECTOR, DATA_AT, 4096);
            guest.wait_for_end();
            setup.assert_unharmed();
            let mut guest = setup.start(notifications);
            guest.memory.set_len(DATA_AT).unwrap();
            guest.submit_read(0, DATA_AT, 64 << 10);
            guest.wait_for_end();
            setup.assert_unharmed();
        }
    });
}

#[test]
fn a_queue_that_is_cut_off_ends_only_that_guest() {
    harms_nobody(|setup| {
        // In turn: nothing is left, the descriptors, and those with the available ring, but not the used one.
        for left_bytes in [0, 0x1000, 0x2000] {
            for notifications in Notifications::ALL {
                let mut guest = setup.start(notifications);
                assert_eq!(guest.write(0, &[7; 4096]), 0);
                guest.memory.set_len(left_bytes).unwrap();
                guest.kick();
                if left_bytes == 0x2000 {
                    // The rings say that there is nothing to do, and are not written to. So there is no page that is missed.
                    continue;
                }
                guest.wait_for_end();
            }
        }
    });
}

#[test]
fn memory_that_is_cut_while_requests_run_ends_only_that_guest() {
    harms_nobody(|setup| {
        for round in 0..20u64 {
            let mut guest = setup.start(Notifications::EventIndex);
            let memory = guest.memory.try_clone().unwrap();
            let cut = std::thread::spawn(move || memory.set_len(round * 4096 % DATA_AT).unwrap());
            // The file grows again with each request, and is cut at another moment in each round.
            for request in 0..20u64 {
                guest.submit_write(request * 8, DATA_AT + request * 4096, 4096);
            }
            cut.join().unwrap();
            guest.memory.set_len(0).unwrap();
            guest.kick();
            guest.wait_for_end();
            assert!(setup.client.read(PATTERN_AT, 4096).unwrap() == pattern()[..4096]);
        }
    });
}

#[test]
fn huge_pages_that_are_missing_end_only_that_guest() {
    const HUGE_BYTES: u64 = 2 << 20;
    // A kernel may have no huge pages.
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let Ok(file) = memfd_create("huge", flags) else { return };
    let file = File::from(file);
    file.set_len(HUGE_BYTES).unwrap();
    harms_nobody(|setup| {
        let refused = setup.connect(file.try_clone().unwrap());
        refused.hand_over(HUGE_BYTES / 2).unwrap_err();
        refused.wait_for_end();
        cut_before_start(setup.connect(file), HUGE_BYTES);
    });
}

#[test]
fn front_ends_that_send_nonsense_are_disconnected() {
    harms_nobody(|setup| {
        for bytes in [&b""[..], b"x", &[0xff; 12], &[0; 12], &[0xff; 4096]] {
            // It may be gone before all is sent.
            let _ = UnixStream::connect(setup.socket()).unwrap().write_all(bytes);
        }
        setup.connect(memory_file(0)).hand_over(4096).unwrap_err();
    });
}

#[test]
fn notifications_that_nobody_takes_keep_nobody_out() {
    harms_nobody(|setup| {
        let mut guest = setup.start(Notifications::Always);
        guest.fill_notifications();
        guest.submit_write(0, DATA_AT, 4096);
    });
}

#[test]
fn silent_connections_leave_for_those_that_wait() {
    let mut setup = Setup::new();
    let mut silent: Vec<_> = (0..3).map(|_| UnixStream::connect(setup.socket()).unwrap()).collect();
    setup.assert_unharmed();
    for connection in &mut silent {
        assert_eq!(connection.read(&mut [0]).unwrap_or(0), 0, "it has been ended");
    }
}

/// A small device in memory.
fn export() -> Arc<dyn Export> {
    Arc::new(StoreExport::new(Arc::new(Store::create(&StoreOptions::new(1 << 20)).unwrap())))
}

#[test]
fn a_server_ends_while_a_guest_is_connected_or_none_is() {
    let folder = tempfile::tempdir().unwrap();
    let export = export();
    let path = folder.path().join("socket");
    drop(VhostUserServer::start(&path, &export, 2).unwrap());
    assert!(!path.exists());
    let server = VhostUserServer::start(&path, &export, 2).unwrap();
    let guest = Guest::start(&path, MEMORY_BYTES, Notifications::Always);
    drop(server);
    guest.wait_for_end();
    assert!(!path.exists());
}

#[test]
fn sockets_of_others_and_other_files_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let export = export();
    let start = |name: &str| VhostUserServer::start(&folder.path().join(name), &export, 1);
    std::fs::write(folder.path().join("file"), b"content").unwrap();
    assert_eq!(start("file").unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    assert_eq!(std::fs::read(folder.path().join("file")).unwrap(), b"content");
    let first = start("socket").unwrap();
    assert_eq!(start("socket").unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    let mut guest = Guest::start(&folder.path().join("socket"), MEMORY_BYTES, Notifications::Always);
    assert_eq!(guest.write(0, &[1; 512]), 0);
    std::fs::remove_file(folder.path().join("socket")).unwrap();
    let theirs = UnixListener::bind(folder.path().join("socket")).unwrap();
    drop(first);
    UnixStream::connect(folder.path().join("socket")).unwrap();
    drop(theirs);
}
