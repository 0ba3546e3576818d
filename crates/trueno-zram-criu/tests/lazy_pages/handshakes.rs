//! Messages that are not what `criu restore` sends.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use trueno_test_pages::corpus::numbered_pages as pages;
use trueno_test_restore::stand_in::{SIGKILL, send};
use trueno_zram_criu::Error;

use crate::process::{self, FEATURES, FINISHED, NUMBER, is_allowed};
use crate::support::{PID, Setup};

/// Serves one connection of this process. None of them may lead to its end.
fn refusal(connect: impl FnOnce(&UnixStream)) -> Error {
    let setup = Setup::new(&pages(16));
    let socket = UnixStream::connect(setup.socket()).unwrap();
    connect(&socket);
    drop(socket);
    setup.served().expect_err("no process")
}

fn null() -> OwnedFd {
    File::open("/dev/null").unwrap().into()
}

#[test]
fn connections_that_end_early_are_refused() {
    assert!(matches!(refusal(|_| {}), Error::RestoreEnded));
    assert!(matches!(refusal(|socket| send(socket, &[1, 2], &[])), Error::RestoreEnded));
    assert!(matches!(refusal(|socket| send(socket, &PID.to_ne_bytes(), &[])), Error::RestoreEnded));
    assert!(matches!(refusal(|socket| send(socket, &(-5i32).to_ne_bytes(), &[])), Error::RestoreEnded));
}

#[test]
fn processes_without_a_userfaultfd_are_refused_and_go_on() {
    for fds in [0, 2] {
        let error = refusal(|socket| {
            send(socket, &PID.to_ne_bytes(), &[]);
            let null = null();
            send(socket, &[0], &vec![&null; fds]);
        });
        assert!(matches!(error, Error::NotOneFd { pid: 7 }), "{error}");
    }
    let other = refusal(|socket| {
        send(socket, &PID.to_ne_bytes(), &[]);
        send(socket, &[0], &[&null()]);
    });
    assert!(matches!(other, Error::Restore(trueno_zram_restore::Error::NotUserfaultfd { .. })), "{other}");
    let unknown = refusal(|socket| {
        send(socket, &99i32.to_ne_bytes(), &[]);
        send(socket, &[0], &[&null()]);
    });
    assert!(matches!(unknown, Error::UnknownProcess { pid: 99 }), "{unknown}");
}

#[test]
fn a_process_that_cannot_be_served_is_ended() {
    if !is_allowed() {
        return;
    }
    let setup = Setup::new(&pages(16));
    let start = |environment: &[(&str, &str)]| process::start(&setup.socket(), &setup.image(), environment).signal();
    assert_eq!(start(&[(NUMBER, "99")]), SIGKILL);
    assert!(matches!(setup.served(), Err(Error::UnknownProcess { pid: 99 })));
    let setup = Setup::new(&pages(16));
    // Only the events of VMs.
    assert_eq!(process::start(&setup.socket(), &setup.image(), &[(FEATURES, "8")]).signal(), SIGKILL);
    let error = setup.served().unwrap_err();
    assert!(matches!(error, Error::Restore(trueno_zram_restore::Error::NoEvents { name: "EVENT_FORK" })), "{error}");
}

#[test]
fn a_restore_without_processes_is_complete() {
    let setup = Setup::new(&pages(16));
    let socket = UnixStream::connect(setup.socket()).unwrap();
    send(&socket, &FINISHED.to_ne_bytes(), &[]);
    let report = setup.served().unwrap();
    assert_eq!((report.memory_bytes, report.complete), (0, true));
}

#[test]
fn silent_connections_do_not_keep_criu_out() {
    let setup = Setup::new(&pages(16));
    let connect = || UnixStream::connect(setup.socket()).unwrap();
    // More than are served at a time.
    let mut silent: Vec<UnixStream> = (0..150).map(|_| connect()).collect();
    send(&silent[149], &[1, 2], &[]);
    if is_allowed() {
        let mut process = setup.process();
        process.must("all");
        process.end();
        assert!(setup.served().is_ok());
    } else {
        send(&connect(), &FINISHED.to_ne_bytes(), &[]);
        assert!(setup.served().unwrap().complete);
    }
    assert!(silent.iter_mut().all(|stream| stream.read(&mut [0]).unwrap_or(0) == 0), "they have been disconnected");
}
