//! Progress reporting for batches.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Receives progress reports, from any worker thread, each time more pages are done.
///
/// Implemented for closures, for [`AtomicUsize`] (counts the pages) and for `()` (ignores the reports).
///
/// ```
/// use trueno_zram_core::{CompressedBatch, CpuBatchCompressor, PAGE_SIZE};
/// let watch = |pages: usize| assert!(pages > 0);
/// let mut batch = CompressedBatch::new();
/// CpuBatchCompressor::default().compress_into(&[[0; PAGE_SIZE]; 64], &mut batch, &watch)?;
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
pub trait Progress: Sync {
    /// Reports that `pages` more pages are done.
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
