//! Archives on disk, and a handler that serves them.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;
use trueno_zram_archive::{ArchiveWriter, SharedReader, WriteOptions};
use trueno_zram_core::{CpuBatchCompressor, PAGE_SIZE, Page};
use trueno_zram_restore::{Error, LazyRestore, Options, PagesByNumber, Report};

use crate::vmm::{Memory, StandIn};

/// Pages of all kinds: corpus pages, zeros, same-filled ones and noise.
pub(crate) fn pages(count: usize) -> Vec<Page> {
    let corpus: Vec<&Page> = trueno_test_pages::corpus::all_pages().take(64).collect();
    (0..count)
        .map(|number| match number % 8 {
            0 | 1 => [0; PAGE_SIZE],
            2 => [u8::try_from(number % 251).expect("small"); PAGE_SIZE],
            // Different from all others, so that a page in the wrong place is noticed.
            _ => {
                let mut page = *corpus[number % corpus.len()];
                page[..8].copy_from_slice(&(number as u64).to_le_bytes());
                page
            }
        })
        .collect()
}

/// Makes an archive of pages.
pub(crate) fn archive(pages: &[Page]) -> Vec<u8> {
    let options = WriteOptions { content_checksum: false, ..WriteOptions::default() };
    let mut archive = ArchiveWriter::new(Vec::new(), options).expect("memory");
    archive.write_batch(&CpuBatchCompressor::default().compress(pages).expect("pages")).expect("memory");
    archive.finish(None).expect("memory").0
}

/// Tests that nothing disturbs: faults only.
pub(crate) fn on_demand() -> Options {
    Options { background_fill: false, around_bytes: 0, ..Options::default() }
}

/// A handler on a thread, and the image that its VMs must see.
pub(crate) struct Setup {
    pub(crate) dir: TempDir,
    reports: Receiver<Result<Report, Error>>,
}

impl Setup {
    /// Serves `pages` from an archive.
    pub(crate) fn new(pages: &[Page], options: Options) -> Self {
        let reader = SharedReader::open(archive(pages)).expect("an archive").expect("with an index");
        Self::with(pages, LazyRestore::new(reader, options))
    }

    /// Serves VMs that expect `pages`.
    pub(crate) fn with<S: PagesByNumber + 'static>(pages: &[Page], restore: LazyRestore<S>) -> Self {
        Self::with_shared(pages, Arc::new(restore))
    }

    pub(crate) fn with_shared<S: PagesByNumber + 'static>(pages: &[Page], restore: Arc<LazyRestore<S>>) -> Self {
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
        self.vmm_with(Memory::Small)
    }

    pub(crate) fn vmm_with(&self, memory: Memory) -> StandIn {
        let (socket, image): (&Path, &Path) = (&self.socket(), &self.image());
        StandIn::start(socket, image, memory)
    }

    /// Returns the report on the next VM that ended.
    pub(crate) fn report(&self) -> Result<Report, Error> {
        self.reports.recv_timeout(Duration::from_secs(1200)).expect("the session ends with its VM")
    }
}
