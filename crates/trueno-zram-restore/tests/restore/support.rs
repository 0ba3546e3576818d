//! Archives on disk, and a handler that serves them.

use std::fs;
use std::ops::Range;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;
use trueno_test_restore::archive_of;
use trueno_test_restore::stand_in::StandIn;
use trueno_test_restore::vmm::{self, GuestPages};
use trueno_zram_archive::Archive;
use trueno_zram_core::Page;
use trueno_zram_restore::{Error, Image, LazyRestore, Pages, RestoreOptions, RestoreReport};

/// Tests that nothing disturbs: faults only.
pub(crate) fn on_demand() -> RestoreOptions {
    RestoreOptions::default().with_background_fill(false).with_around_bytes(0)
}

/// An image whose reads are passed to a function first. A read that it refuses fails.
pub(crate) struct Hooked<F> {
    image: Image,
    hook: F,
}

impl<F: Fn(Range<u64>) -> bool + Send + Sync> Hooked<F> {
    pub(crate) fn new(pages: &[Page], hook: F) -> Self {
        Self { image: Image::new(pages.to_vec()), hook }
    }
}

/// Returns pages of which one is damaged.
pub(crate) fn damaged(pages: &[Page], page: u64) -> impl Pages + use<> {
    Hooked::new(pages, move |read| !read.contains(&page))
}

impl<F: Fn(Range<u64>) -> bool + Send + Sync> Pages for Hooked<F> {
    fn len_bytes(&self) -> u64 {
        self.image.len_bytes()
    }

    fn read(&self, first: u64, out: &mut [Page]) -> Result<(), trueno_zram_archive::Error> {
        let is_intact = (self.hook)(first..first + out.len() as u64);
        self.image.read(if is_intact { first } else { u64::MAX }, out)
    }

    fn is_zero(&self, page: u64) -> Result<bool, trueno_zram_archive::Error> {
        self.image.is_zero(page)
    }
}

/// A handler on a thread, and the image that its VMs must see.
pub(crate) struct Setup {
    pub(crate) dir: TempDir,
    reports: Receiver<Result<RestoreReport, Error>>,
}

impl Setup {
    /// Serves `pages` from an archive.
    pub(crate) fn new(pages: &[Page], options: RestoreOptions) -> Self {
        let reader = Archive::read_from(Arc::new(archive_of(pages))).expect("an archive").expect("with an index");
        Self::with(pages, LazyRestore::new(reader, options))
    }

    /// Serves VMs that expect `pages`.
    pub(crate) fn with(pages: &[Page], restore: LazyRestore) -> Self {
        Self::with_shared(pages, Arc::new(restore))
    }

    pub(crate) fn with_shared(pages: &[Page], restore: Arc<LazyRestore>) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        fs::write(dir.path().join("image"), pages.as_flattened()).expect("space");
        let listener = UnixListener::bind(dir.path().join("socket")).expect("a socket");
        let (sender, reports) = channel();
        // The thread ends with the process: it waits for VMs that never come.
        thread::spawn(move || {
            restore.serve_all(&listener, None, |ended| {
                let _ = sender.send(ended);
            })
        });
        Self { dir, reports }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    pub(crate) fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    pub(crate) fn vmm(&self) -> StandIn {
        self.vmm_with(GuestPages::Small)
    }

    pub(crate) fn vmm_with(&self, pages: GuestPages) -> StandIn {
        vmm::start(&self.socket(), &self.image(), pages, &[])
    }

    /// Returns the report on the next VM that ended.
    pub(crate) fn report(&self) -> Result<RestoreReport, Error> {
        self.reports.recv_timeout(Duration::from_secs(1200)).expect("the session ends with its VM")
    }
}
