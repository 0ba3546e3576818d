//! How a caller watches a batch being worked on.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Told, from any worker thread, each time that some pages more are done.
///
/// A closure will do, or an [`AtomicUsize`] that counts the pages, or `()` for those who do not look.
///
/// ```
/// use trueno_zram_core::{CompressedBatch, CpuBatchCompressor, PAGE_SIZE};
/// let watch = |pages: usize| assert!(pages > 0);
/// let mut batch = CompressedBatch::new();
/// CpuBatchCompressor::default().compress_into(&[[0; PAGE_SIZE]; 64], &mut batch, &watch)?;
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
pub trait Progress: Sync {
    /// `pages` more pages are done.
    fn pages_done(&self, pages: usize);
}

impl<F: Fn(usize) + Sync> Progress for F {
    fn pages_done(&self, pages: usize) {
        self(pages);
    }
}

impl Progress for AtomicUsize {
    fn pages_done(&self, pages: usize) {
        self.fetch_add(pages, Ordering::Relaxed);
    }
}

impl Progress for () {
    fn pages_done(&self, _pages: usize) {}
}
