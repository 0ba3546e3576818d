//! Messages that are not what Firecracker sends.

use std::fs::File;
use std::io::Write;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::channel;
use std::time::Duration;

use trueno_test_pages::corpus::numbered_pages as pages;
use trueno_test_restore::stand_in::SIGKILL;
use trueno_test_restore::stand_in::send;
use trueno_test_restore::vmm::{self, FEATURES, GuestPages, MESSAGE, is_allowed};
use trueno_zram_core::PAGE_SIZE;
use trueno_zram_restore::{Error, Image, LazyRestore, Notice, RegionProblem, RestoreOptions};

use crate::support::{Setup, on_demand};

const REGION: &[u8] = br#"[{"base_host_virt_addr":4096,"size":4096,"offset":0}]"#;

/// Serves one message, sent by this process. None of them may lead to its end.
fn refusal(connect: impl FnOnce(UnixStream) + Send) -> Error {
    let options = RestoreOptions::default().with_handshake_timeout(Duration::from_secs(1));
    let restore = LazyRestore::new(Image::new(vec![[1; PAGE_SIZE]; 4]), options);
    let (ours, theirs) = UnixStream::pair().unwrap();
    std::thread::scope(|threads| {
        threads.spawn(|| connect(theirs));
        let error = restore.serve(&ours).expect_err("no VM");
        drop(ours);
        error
    })
}

fn null() -> OwnedFd {
    File::open("/dev/null").unwrap().into()
}

#[test]
fn messages_without_a_userfaultfd_are_refused() {
    assert!(matches!(refusal(|socket| send(&socket, REGION, &[])), Error::NoFd));
    let other = refusal(|socket| send(&socket, REGION, &[&null()]));
    assert!(matches!(other, Error::NotUserfaultfd { what } if what == "/dev/null"));
    for count in [2, 3, 8] {
        let fds: Vec<OwnedFd> = (0..count).map(|_| null()).collect();
        let fds: Vec<&OwnedFd> = fds.iter().collect();
        assert!(matches!(refusal(|socket| send(&socket, REGION, &fds)), Error::ExtraFds), "{count}");
    }
    let spread = refusal(|socket| {
        send(&socket, &REGION[..9], &[&null()]);
        send(&socket, &REGION[9..], &[&null()]);
    });
    assert!(matches!(spread, Error::ExtraFds));
}

#[test]
fn messages_that_are_not_lists_of_regions_are_refused() {
    for message in [b"hello".as_slice(), b"{}", b"[1]", b"[{}]", b"[]]", b"\0", b"[\"\xff\xfe\"]"] {
        let error = refusal(|socket| send(&socket, message, &[]));
        assert!(matches!(error, Error::Message(_)), "{message:?}: {error}");
    }
    assert!(matches!(refusal(|socket| send(&socket, b"[]", &[])), Error::NoRegions));
    let beyond = refusal(|socket| send(&socket, br#"[{"base_host_virt_addr":4096,"size":20480,"offset":0}]"#, &[]));
    assert!(matches!(beyond, Error::Region { index: 0, problem: RegionProblem::BeyondArchive { end: 20480, .. } }));
}

#[test]
fn messages_may_come_in_pieces() {
    let error = refusal(|mut socket| REGION.iter().for_each(|byte| socket.write_all(&[*byte]).unwrap()));
    assert!(matches!(error, Error::NoFd));
}

#[test]
fn messages_of_the_longest_length_are_read() {
    const LIMIT: usize = 32 << 10;
    let padded = |len: usize| [vec![b' '; len - REGION.len()], REGION.to_vec()].concat();
    let longest = refusal(|mut socket| socket.write_all(&padded(LIMIT)).unwrap());
    assert!(matches!(longest, Error::NoFd), "{longest}");
    let longer = refusal(|mut socket| socket.write_all(&padded(LIMIT + 1)).unwrap());
    assert!(matches!(longer, Error::MessageTooLong { limit: LIMIT }), "{longer}");
}

#[test]
fn messages_that_never_end_are_refused() {
    assert!(matches!(refusal(drop), Error::HandshakeEnded { received: 0 }));
    assert!(matches!(refusal(|socket| send(&socket, &REGION[..20], &[])), Error::HandshakeEnded { received: 20 }));
    let (sender, kept) = channel();
    let silent = refusal(move |socket| sender.send(socket).unwrap());
    assert!(matches!(silent, Error::HandshakeTimeout { seconds: 1 }), "{silent}");
    drop(kept);
    let long = refusal(|mut socket| {
        // Stops when the handler closes its end.
        while socket.write_all(&[b'['; 64]).is_ok() {}
    });
    assert!(matches!(long, Error::MessageTooLong { .. } | Error::Message(_)), "{long}");
    let long = refusal(|mut socket| while socket.write_all(&[b' '; 4096]).is_ok() {});
    assert!(matches!(long, Error::MessageTooLong { .. }), "{long}");
}

#[test]
fn a_vmm_that_cannot_be_served_is_ended() {
    if !is_allowed() {
        return;
    }
    let setup = Setup::new(&pages(16), on_demand());
    let start = |environment: &[(&str, &str)]| {
        vmm::start(&setup.socket(), &setup.image(), GuestPages::Small, environment).signal()
    };
    // It has a userfaultfd, and would wait for its first page for ever.
    assert_eq!(start(&[(MESSAGE, "[]")]), SIGKILL);
    assert!(matches!(setup.report(), Err(Error::NoRegions)));
    assert_eq!(start(&[(MESSAGE, "no JSON")]), SIGKILL);
    assert!(matches!(setup.report(), Err(Error::Message(_))));
    assert_eq!(start(&[(FEATURES, "0")]), SIGKILL);
    assert!(matches!(setup.report(), Err(Error::NoEvents { name: "EVENT_REMOVE" })));
    assert_eq!(start(&[(FEATURES, "12")]), SIGKILL);
    assert!(matches!(setup.report(), Err(Error::Feature { name: "EVENT_REMAP" })));
    // Regions that the VMM has not registered: nothing can be filled, and nothing goes wrong here.
    let mut vmm = vmm::start(
        &setup.socket(),
        &setup.image(),
        GuestPages::Small,
        &[(MESSAGE, r#"[{"base_host_virt_addr":4096,"size":4096,"offset":0}]"#)],
    );
    assert_eq!(vmm.ask("touch 0"), None);
    assert_eq!(vmm.signal(), SIGKILL);
    assert!(matches!(setup.report(), Err(Error::Event { event: 0x12, .. })));
}

#[test]
fn that_a_vm_has_to_wait_is_reported() {
    if !is_allowed() {
        return;
    }
    let (report, crowded) = channel();
    let options = on_demand().with_vms_at_a_time(NonZeroUsize::MIN).with_handshake_timeout(Duration::from_secs(3600));
    let pages = pages(16);
    let restore = LazyRestore::new(Image::new(pages.clone()), options).on_notice(move |notice| {
        if let Notice::Crowded { vms_at_a_time } = notice {
            report.send(vms_at_a_time.get()).unwrap();
        }
    });
    let setup = Setup::with(&pages, restore);
    let mut first = setup.vmm();
    first.must("touch 0");
    let mut second = UnixStream::connect(setup.socket()).unwrap();
    assert_eq!(crowded.recv_timeout(Duration::from_secs(600)), Ok(1));
    // A VM that is served does not leave for another one.
    first.must("touch 1");
    first.end();
    assert!(setup.report().is_ok());
    second.write_all(REGION).unwrap();
    assert!(matches!(setup.report(), Err(Error::NoFd)));
}

#[test]
fn silent_connections_do_not_keep_vms_out() {
    let options = on_demand().with_handshake_timeout(Duration::from_secs(3600));
    let setup = Setup::new(&pages(16), options);
    let connect = || UnixStream::connect(setup.socket()).unwrap();
    let silent: Vec<UnixStream> = (0..options.vms_at_a_time.get()).map(|_| connect()).collect();
    connect().write_all(REGION).unwrap();
    assert!(matches!(setup.report(), Err(Error::Displaced)), "the oldest leaves first");
    assert!(matches!(setup.report(), Err(Error::NoFd)), "the VMM's message is read");
    if is_allowed() {
        let _more: Vec<UnixStream> = (0..options.vms_at_a_time.get()).map(|_| connect()).collect();
        let mut vmm = setup.vmm();
        vmm.must("touch 0");
        vmm.end();
    }
    drop(silent);
}

#[test]
fn silent_connections_do_not_count_as_vms() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let options = on_demand().with_handshake_timeout(Duration::from_millis(50));
    let restore = LazyRestore::new(Image::new(vec![[1; PAGE_SIZE]; 4]), options);
    std::thread::scope(|threads| {
        let (sender, ended) = channel();
        let (restore, listener) = (&restore, &listener);
        threads.spawn(move || restore.serve_all(listener, Some(1), |end| sender.send(end).unwrap()).unwrap());
        let _silent = [(); 3].map(|()| UnixStream::connect(&path).unwrap());
        for _ in 0..3 {
            assert!(matches!(ended.recv(), Ok(Err(Error::HandshakeTimeout { .. }))));
        }
        // The limit of one VM is reached by the first that speaks or leaves.
        drop(UnixStream::connect(&path).unwrap());
        assert!(matches!(ended.recv(), Ok(Err(Error::HandshakeEnded { received: 0 }))));
        assert!(ended.recv().is_err(), "nothing else is served");
    });
    assert!(UnixStream::connect(&path).is_err());
}
