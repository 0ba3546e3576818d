//! The keeper: what it gives back, who gets a name, and clients that do not keep to the rules.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::{Permissions, set_permissions};
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::thread::{Uid, set_thread_res_uid};
use tempfile::TempDir;
use trueno_test_pages::generate::Generator;
use trueno_zram_core::PAGE_SIZE;
use trueno_zram_serve::keeper::{self, Claim, Keeper, KeeperError, Vacancy};
use trueno_zram_store::{Error, Store, StoreHandle, StoreOptions};

const SIZE: u64 = 1 << 20;

/// A keeper in a folder of its own. It serves until the tests end.
fn keeper() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keeper");
    let keeper = Keeper::bind(&path).unwrap();
    std::thread::spawn(move || keeper.run());
    (folder, path)
}

fn vacant(path: &Path, name: &str) -> Vacancy {
    match keeper::claim(path, name).unwrap() {
        Claim::Vacant(vacancy) => vacancy,
        Claim::Kept(_) => panic!("`{name}` is kept"),
    }
}

fn kept(path: &Path, name: &str) -> Store {
    match keeper::claim(path, name).unwrap() {
        Claim::Vacant(_) => panic!("`{name}` is not kept"),
        Claim::Kept(fds) => Store::attach(fds).unwrap(),
    }
}

fn create() -> Store {
    Store::create(&StoreOptions::new(SIZE)).unwrap()
}

#[test]
fn a_keeper_gives_back_what_it_was_given() {
    let (_folder, path) = keeper();
    let vacancy = vacant(&path, "ram");
    let store = Arc::new(create());
    let page = Generator::new(1).page();
    StoreHandle::new(&store).unwrap().write_page(7, &page).unwrap();
    vacancy.put(store.fds()).unwrap();
    drop(store);
    let store = Arc::new(kept(&path, "ram"));
    let mut back = [0; PAGE_SIZE];
    StoreHandle::new(&store).unwrap().read_page(7, &mut back).unwrap();
    assert!(back == page);
    keeper::remove(&path, "ram").unwrap();
    vacant(&path, "ram");
}

#[test]
fn other_users_get_nothing_from_a_keeper() {
    let (folder, path) = keeper();
    set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    let store = create();
    vacant(&path, "ram").put(store.fds()).unwrap();
    drop(store);
    // Users are those of threads. Where this process may not become another one, there is nothing to see.
    let nobody = Uid::from_raw(65534);
    let as_nobody = || set_thread_res_uid(nobody, nobody, nobody).is_ok() && keeper::claim(&path, "ram").is_ok();
    assert!(!std::thread::scope(|threads| threads.spawn(as_nobody).join().unwrap()));
    kept(&path, "ram");
}

/// The outcome of a start.
enum Started {
    Runs(Arc<Store>),
    Refused,
}

/// Starts as the tool does.
fn start(path: &Path, name: &str) -> Started {
    let store = match keeper::claim(path, name) {
        Ok(Claim::Vacant(vacancy)) => {
            let store = create();
            vacancy.put(store.fds()).unwrap();
            store
        }
        Ok(Claim::Kept(fds)) => match Store::attach(fds) {
            Ok(store) => store,
            Err(Error::InUse { process }) => {
                assert_eq!(process, Some(std::process::id()));
                return Started::Refused;
            }
            Err(error) => panic!("{error}"),
        },
        Err(KeeperError::Claimed { name: refused, process }) => {
            assert_eq!((&refused[..], process), (name, Some(std::process::id())));
            return Started::Refused;
        }
        Err(error) => panic!("{error}"),
    };
    Started::Runs(Arc::new(store))
}

#[test]
fn of_two_servers_that_start_at_once_one_is_refused() {
    const RACES: usize = 200;
    const AT_ONCE: usize = 25;
    let (_folder, path) = keeper();
    for batch in 0..RACES / AT_ONCE {
        let names: Vec<String> = (0..AT_ONCE).map(|race| format!("race {batch}.{race}")).collect();
        let starting = Barrier::new(2 * AT_ONCE);
        let winners: Vec<Arc<Store>> = std::thread::scope(|scope| {
            let race = |name| {
                let (starting, path) = (&starting, &path);
                scope.spawn(move || {
                    starting.wait();
                    start(path, name)
                })
            };
            let races: Vec<_> = names.iter().map(|name| [race(name), race(name)]).collect();
            races
                .into_iter()
                .map(|race| match race.map(|server| server.join().unwrap()) {
                    [Started::Runs(winner), Started::Refused] | [Started::Refused, Started::Runs(winner)] => winner,
                    [Started::Refused, Started::Refused] => panic!("nobody runs"),
                    [Started::Runs(_), Started::Runs(_)] => panic!("both run"),
                })
                .collect()
        });
        // The winner is the one that is kept.
        for (name, winner) in names.iter().zip(winners) {
            let page = Generator::new(name.len() as u64).page();
            StoreHandle::new(&winner).unwrap().write_page(3, &page).unwrap();
            drop(winner);
            let next = Arc::new(kept(&path, name));
            let mut back = [0; PAGE_SIZE];
            StoreHandle::new(&next).unwrap().read_page(3, &mut back).unwrap();
            assert!(back == page, "{name}");
        }
    }
}

#[test]
fn a_claim_ends_with_its_connection() {
    let (_folder, path) = keeper();
    let claimed = || matches!(keeper::claim(&path, "ram"), Err(KeeperError::Claimed { .. }));
    let vacancy = vacant(&path, "ram");
    assert!(claimed() && claimed());
    vacant(&path, "other");
    drop(vacancy);
    let vacancy = vacant(&path, "ram");
    assert!(claimed());
    vacancy.put(create().fds()).unwrap();
    kept(&path, "ram");
}

#[test]
fn clients_that_say_nothing_delay_nobody() {
    let (_folder, path) = keeper();
    let vacancy = vacant(&path, "ram");
    // More than the keeper listens to at a time: those that came first have to leave. A claim stays.
    let silent: Vec<_> = (0..300).map(|_| UnixStream::connect(&path).unwrap()).collect();
    assert!(matches!(keeper::claim(&path, "ram"), Err(KeeperError::Claimed { .. })));
    vacancy.put(create().fds()).unwrap();
    kept(&path, "ram");
    let mut first = &silent[0];
    assert_eq!(first.read(&mut [0]).unwrap(), 0, "the connection is closed");
}

/// Sends a request as an older server does, and returns the answer.
fn send(path: &Path, request: &[u8], fds: &[BorrowedFd<'_>]) -> Vec<u8> {
    let mut stream = UnixStream::connect(path).unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
    }
    sendmsg(&stream, &[IoSlice::new(request)], &mut ancillary, SendFlags::empty()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}

#[test]
fn requests_without_a_claim_never_replace_a_store() {
    let (_folder, path) = keeper();
    let _claim = vacant(&path, "claimed");
    vacant(&path, "ram").put(create().fds()).unwrap();
    let other = Store::create(&StoreOptions::new(4096)).unwrap();
    for (request, fds) in [
        (&b"Pram"[..], &other.fds()[..]),
        (b"Pclaimed", &other.fds()),
        (b"Pnew", &other.fds()[..1]),
        (b"Pnew", &[]),
        (b"Gnew", &[]),
        (b"Zram", &[]),
    ] {
        assert_eq!(send(&path, request, fds), b"N", "{}", String::from_utf8_lossy(request));
    }
    assert_eq!(kept(&path, "ram").size_bytes(), SIZE);
    assert!(matches!(keeper::claim(&path, "claimed"), Err(KeeperError::Claimed { .. })));
    assert!(matches!(keeper::claim(&path, &"n".repeat(256)), Err(KeeperError::Io(_))));
    // A new name is free for older servers, too.
    assert_eq!(send(&path, b"Pnew", &other.fds()), b"D");
    assert_eq!(send(&path, b"Gnew", &[])[..1], *b"F");
}

#[test]
fn an_older_keeper_gives_what_it_has_and_gets_nothing_new() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("old");
    let listener = UnixListener::bind(&path).unwrap();
    let requests = std::thread::spawn(move || {
        [(); 2].map(|()| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 256];
            let len = stream.read(&mut request).unwrap();
            stream.write_all(b"N").unwrap();
            request[..len].to_vec()
        })
    });
    assert!(matches!(keeper::claim(&path, "ram"), Err(KeeperError::Outdated { .. })));
    assert_eq!(requests.join().unwrap(), [b"Cram", b"Gram"]);
}

#[test]
fn a_keeper_that_is_gone_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gone");
    assert!(matches!(keeper::claim(&path, "ram"), Err(KeeperError::Io(_))));
    let listener = UnixListener::bind(&path).unwrap();
    let accepted = std::thread::spawn(move || drop(listener.accept().unwrap()));
    assert!(matches!(keeper::claim(&path, "ram"), Err(KeeperError::Io(_))));
    accepted.join().unwrap();
}
