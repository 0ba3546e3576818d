//! Pages files, and a daemon that serves them.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;
use std::{io, num::NonZeroUsize};

use tempfile::TempDir;
use trueno_test_restore::archive_of;
use trueno_test_restore::stand_in::StandIn;
use trueno_zram_archive::{Archive, Pages, PlainPages, ReadAt};
use trueno_zram_core::{PAGE_SIZE, Page};
use trueno_zram_criu::{DumpedMemory, Error, LAZY_PAGES_SOCKET, LazyPages, Pagemap, PagemapEntry};
use trueno_zram_restore::{RestoreOptions, RestoreReport};

use crate::memory::{ADDRESS, GAP_PAGES, split};
use crate::process;

/// The file in a setup's folder with the content that a process must see.
pub(crate) const IMAGE: &str = "image";
/// The number of the process in the images, and of a second one.
pub(crate) const PID: u32 = 7;
pub(crate) const OTHER_PID: u32 = 8;

/// The pagemap of a stand-in: its two ranges that can wait, and a page that cannot, which comes first in the file.
pub(crate) fn pagemap(pages: usize) -> Pagemap {
    let entry =
        |address, pages: usize, lazy| PagemapEntry { address, pages: pages as u64, parent: false, lazy, present: true };
    let split = split(pages);
    let second = ADDRESS + ((split + GAP_PAGES) * PAGE_SIZE) as u64;
    let entries = vec![
        entry(ADDRESS - PAGE_SIZE as u64, 1, false),
        entry(ADDRESS, split, true),
        entry(second, pages - split, true),
    ];
    Pagemap { pages_id: 1, entries }
}

/// Returns the content of the pages file: the page that cannot wait comes first.
pub(crate) fn file_content(pages: &[Page]) -> Vec<Page> {
    [&[[1; PAGE_SIZE]], pages].concat()
}

fn memory(pages: usize, files: impl IntoIterator<Item = Arc<dyn Pages>>) -> DumpedMemory {
    let mut memory = DumpedMemory::default();
    for (pid, file) in [PID, OTHER_PID].into_iter().zip(files) {
        memory.add(pid.into(), &pagemap(pages), file, "pagemap".as_ref()).unwrap();
    }
    memory
}

/// A daemon on a thread, and the image that its processes must see.
pub(crate) struct Setup {
    pub(crate) dir: TempDir,
    pub(crate) daemon: Arc<LazyPages>,
    served: Receiver<Result<RestoreReport, Error>>,
}

impl Setup {
    /// Serves one process from an archive.
    pub(crate) fn new(pages: &[Page]) -> Self {
        Self::with(pages, [archived(pages)], RestoreOptions::default())
    }

    pub(crate) fn with(
        pages: &[Page],
        files: impl IntoIterator<Item = Arc<dyn Pages>>,
        options: RestoreOptions,
    ) -> Self {
        Idle::with(pages, files, options).serve()
    }

    /// Serves one process by one thread in the background, for which pages from a number on are held back.
    pub(crate) fn holding_back(pages: &[Page], held: (Held, usize)) -> (Self, Arc<HeldBack>) {
        let held = HeldBack::new(pages, held, None);
        let file = PlainPages::new(Arc::clone(&held) as _).unwrap();
        (Self::with(pages, [Arc::new(file) as _], one_worker()), held)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join(LAZY_PAGES_SOCKET)
    }

    pub(crate) fn image(&self) -> PathBuf {
        self.dir.path().join(IMAGE)
    }

    pub(crate) fn process(&self) -> StandIn {
        process::start(&self.socket(), &self.image(), &[])
    }

    /// Waits for the end of the daemon.
    pub(crate) fn served(&self) -> Result<RestoreReport, Error> {
        self.served.recv_timeout(Duration::from_secs(1200)).expect("the daemon ends with its processes")
    }
}

/// A daemon that listens, but does not serve yet.
pub(crate) struct Idle {
    pub(crate) dir: TempDir,
    daemon: LazyPages,
    listener: UnixListener,
}

impl Idle {
    pub(crate) fn with(
        pages: &[Page],
        files: impl IntoIterator<Item = Arc<dyn Pages>>,
        options: RestoreOptions,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(IMAGE), pages.as_flattened()).unwrap();
        let listener = UnixListener::bind(dir.path().join(LAZY_PAGES_SOCKET)).unwrap();
        LazyPages::prepare_socket(&listener).unwrap();
        let daemon = LazyPages::new(memory(pages.len(), files), options, |_| {}).unwrap();
        Self { dir, daemon, listener }
    }

    /// Starts a process with more variables in its environment.
    pub(crate) fn process(&self, environment: &[(&str, &str)]) -> StandIn {
        let dir = self.dir.path();
        process::start(&dir.join(LAZY_PAGES_SOCKET), &dir.join(IMAGE), environment)
    }

    pub(crate) fn serve(self) -> Setup {
        let Self { dir, daemon, listener } = self;
        let daemon = Arc::new(daemon);
        let (sender, served) = channel();
        let shared = Arc::clone(&daemon);
        // It ends with its processes, or with this one.
        thread::spawn(move || {
            let _ = sender.send(shared.serve(&listener));
        });
        Setup { dir, daemon, served }
    }
}

pub(crate) fn archived(pages: &[Page]) -> Arc<dyn Pages> {
    Arc::new(Archive::read_from(Arc::new(archive_of(&file_content(pages)))).unwrap().unwrap())
}

pub(crate) fn one_worker() -> RestoreOptions {
    RestoreOptions::default().with_workers(NonZeroUsize::MIN)
}

/// The readers that have to wait for pages that are held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// The background fill, which reads many pages at a time.
    Fill,
    Everybody,
}

/// Pages of which those behind `held_from` can only be read once they are released, and one cannot be read at all.
#[derive(Debug)]
pub(crate) struct HeldBack {
    content: Vec<u8>,
    held: Held,
    held_from: u64,
    damaged: Option<usize>,
    released: Mutex<bool>,
    changed: Condvar,
}

impl HeldBack {
    /// Holds back all pages of a process from a number on.
    pub(crate) fn new(pages: &[Page], (held, held_from): (Held, usize), damaged: Option<usize>) -> Arc<Self> {
        let content = file_content(pages).as_flattened().to_vec();
        // The page that cannot wait comes first in the file.
        let (held_from, damaged) = (((held_from + 1) * PAGE_SIZE) as u64, damaged.map(|page| page + 1));
        Arc::new(Self { content, held, held_from, damaged, released: Mutex::default(), changed: Condvar::new() })
    }

    pub(crate) fn release(&self) {
        *self.released.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

impl ReadAt for HeldBack {
    fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        let end = at + bytes.len() as u64;
        let has_to_wait = self.held == Held::Everybody || bytes.len() > PAGE_SIZE;
        if has_to_wait && end > self.held_from {
            let released = self.released.lock().unwrap();
            drop(self.changed.wait_while(released, |released| !*released).unwrap());
        }
        let damaged = self.damaged.map(|page| (page * PAGE_SIZE) as u64);
        if damaged.is_some_and(|page| at <= page && page < end) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.content.read_exact_at(bytes, at)
    }

    fn len_bytes(&self) -> io::Result<u64> {
        self.content.len_bytes()
    }
}
