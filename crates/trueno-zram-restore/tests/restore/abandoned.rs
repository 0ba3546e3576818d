//! VMMs that have connected and are not served, and memory that is not that of the process that connected.

use std::env;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use trueno_test_pages::corpus::numbered_pages as pages;
use trueno_test_restore::stand_in::{self, SIGBUS, SIGKILL, StandIn, say};
use trueno_test_restore::vmm::{self, GuestPages, HELPER, MESSAGE, is_allowed};
use trueno_zram_core::Page;
use trueno_zram_restore::{Ending, Error, Image, LazyRestore, Notice, OnDamage, RestoreOptions};

use crate::support::{Setup, damaged, on_demand};

/// A socket that nobody accepts from, and the image of its VMMs.
struct Queue {
    dir: tempfile::TempDir,
    listener: UnixListener,
}

impl Queue {
    fn new(pages: &[Page]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("image"), pages.as_flattened()).unwrap();
        let listener = UnixListener::bind(dir.path().join("socket")).unwrap();
        Self { dir, listener }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    /// Starts a VMM, and returns it when it has handed its userfaultfd over and has closed its own: it sees zeros if nobody has it.
    fn vmm(&self, environment: &[(&str, &str)]) -> StandIn {
        let mut vmm = vmm::start(&self.socket(), &self.dir.path().join("image"), GuestPages::Small, environment);
        vmm.must("close");
        vmm
    }
}

#[test]
fn vmms_in_the_queue_are_ended_when_no_more_are_served() {
    if !is_allowed() {
        return;
    }
    let pages = pages(16);
    let queue = Queue::new(&pages);
    let (report, endings) = channel();
    let restore = LazyRestore::new(Image::new(pages), on_demand()).on_notice(move |notice| {
        if let Notice::Ended(ending) = notice {
            report.send(ending).unwrap();
        }
    });
    // This process is left alone: it has handed nothing over.
    let _silent = UnixStream::connect(queue.socket()).unwrap();
    let mut vmms = [(); 2].map(|()| queue.vmm(&[]));
    restore.serve_all(&queue.listener, Some(0), |_| panic!("nobody is served")).unwrap();
    assert!(UnixStream::connect(queue.socket()).is_err());
    assert_eq!(endings.try_iter().collect::<Vec<_>>(), [Ending::Killed; 2]);
    for vmm in &mut vmms {
        assert_eq!(vmm.ask("touch 0"), None);
    }
    assert_eq!(vmms.map(StandIn::signal), [SIGKILL; 2]);
}

#[test]
fn of_more_vmms_than_are_served_the_others_are_ended() {
    if !is_allowed() {
        return;
    }
    let pages = pages(16);
    let queue = Queue::new(&pages);
    let mut vmms = [(); 4].map(|()| queue.vmm(&[]));
    let restore = LazyRestore::new(Image::new(pages), on_demand());
    thread::scope(|threads| {
        threads.spawn(|| restore.serve_all(&queue.listener, Some(1), |_| {}).unwrap());
        let answers: Vec<_> = vmms.iter_mut().filter_map(|vmm| vmm.ask("all")).collect();
        assert_eq!(answers, ["ok"], "one was served, and the others have ended");
        drop(vmms);
    });
}

#[test]
fn a_handler_that_shuts_down_ends_vmms_that_wait_to_be_served() {
    if !is_allowed() {
        return;
    }
    let pages = pages(16);
    let queue = Queue::new(&pages);
    let restore = LazyRestore::new(Image::new(pages), on_demand());
    restore.adopt_socket(queue.listener.as_fd()).unwrap();
    let _silent = UnixStream::connect(queue.socket()).unwrap();
    let vmm = queue.vmm(&[]);
    restore.end_all();
    assert_eq!(vmm.signal(), SIGKILL);
    assert!(UnixStream::connect(queue.socket()).is_err());
    restore.serve_all(&queue.listener, None, |_| panic!("nobody is served")).unwrap();
}

#[test]
fn a_handler_that_shuts_down_ends_vmms_whose_message_is_not_complete() {
    if !is_allowed() {
        return;
    }
    let pages = pages(16);
    let restore = Arc::new(LazyRestore::new(Image::new(pages.clone()), on_demand()));
    let setup = Setup::with_shared(&pages, Arc::clone(&restore));
    let mut vmm = vmm::start(&setup.socket(), &setup.image(), GuestPages::Small, &[(MESSAGE, "[")]);
    vmm.must("close");
    restore.end_all();
    assert_eq!(vmm.signal(), SIGKILL);
}

#[test]
fn memory_is_served_until_its_own_process_ends() {
    if !is_allowed() {
        return;
    }
    let pages = pages(300);
    for options in [on_demand(), RestoreOptions::default()] {
        let setup = Setup::new(&pages, options);
        let mut vmm = vmm::start(&setup.socket(), &setup.image(), GuestPages::Small, &[(HELPER, "1")]);
        vmm.must("verify 0 10");
        vmm.must("close");
        vmm.must("end_helper");
        vmm.must("all");
        vmm.end();
        setup.report().unwrap();
    }
}

#[test]
fn memory_of_a_process_that_is_not_known_is_poisoned_when_it_cannot_be_served() {
    if !is_allowed() {
        return;
    }
    let pages = pages(200);
    let (report, endings) = channel();
    let source = damaged(&pages, 77);
    let options = on_demand().with_on_damage(OnDamage::Kill);
    let restore = LazyRestore::new(source, options).on_notice(move |notice| {
        if let Notice::Ended(ending) = notice {
            report.send(ending).unwrap();
        }
    });
    let setup = Setup::with(&pages, restore);
    let mut vmm = vmm::start(&setup.socket(), &setup.image(), GuestPages::Small, &[(HELPER, "1")]);
    vmm.must("verify 0 10");
    vmm.must("close");
    assert_eq!(vmm.ask("touch 77"), None);
    assert_eq!(vmm.signal(), SIGBUS);
    assert!(matches!(setup.report(), Err(Error::Damaged { page: 77, .. })));
    assert_eq!(endings.recv(), Ok(Ending::Poisoned));
}

const SOCKET: &str = "TRUENO_HANDLER_SOCKET";

/// A handler that has no descriptor left for a userfaultfd, in a process of its own.
#[test]
#[ignore = "run by another test as a second process"]
fn stand_in_handler() {
    let Some(path) = env::var_os(SOCKET) else { return };
    let restore = LazyRestore::new(Image::new(pages(16)), on_demand());
    let listener = UnixListener::bind(path).unwrap();
    say("listens");
    let connection = listener.accept().unwrap().0;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..limit }).unwrap();
    let mut files: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    // For the copy of the connection, and for the process.
    files.truncate(files.len() - 2);
    let error = restore.serve(&connection).unwrap_err();
    drop(files);
    assert!(matches!(error, Error::System { call: "receiving a file descriptor", .. }), "{error}");
}

#[test]
fn a_vmm_whose_userfaultfd_is_lost_is_ended() {
    if !is_allowed() {
        return;
    }
    let pages = pages(16);
    let dir = tempfile::tempdir().unwrap();
    let (socket, image) = (dir.path().join("socket"), dir.path().join("image"));
    std::fs::write(&image, pages.as_flattened()).unwrap();
    let mut command = stand_in::command("abandoned::stand_in_handler");
    command.env(SOCKET, &socket);
    let mut handler = StandIn::start(command);
    assert_eq!(handler.answer().as_deref(), Some("listens"));
    assert_eq!(vmm::start(&socket, &image, GuestPages::Small, &[]).signal(), SIGKILL);
    handler.end();
}
