//! Archives on disk, and a handler that serves them.

use std::fs;
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
use trueno_zram_restore::{Error, LazyRestore, RestoreOptions, RestoreReport};

/// Tests that nothing disturbs: faults only.
pub(crate) fn on_demand() -> RestoreOptions {
    RestoreOptions::default().with_background_fill(false).with_around_bytes(0)
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
