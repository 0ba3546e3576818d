//! Counts of pages and bytes, by how the pages are held.

use crate::page::{PAGE_SIZE, PageData, PageKind};

/// What a batch of pages came to.
///
/// ```
/// use trueno_zram_core::{CpuBatchCompressor, PAGE_SIZE};
/// let batch = CpuBatchCompressor::default().compress(&vec![[0; PAGE_SIZE]; 100])?;
/// let stats = batch.stats();
/// assert_eq!((stats.pages(), stats.same_filled), (100, 100));
/// assert_eq!((stats.bytes_in(), stats.bytes_out), (409_600, 800));
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageStats {
    /// Pages held as one word.
    pub same_filled: u64,
    /// Pages held as LZ4 blocks.
    pub lz4: u64,
    /// Pages held as Zstandard frames.
    pub zstd: u64,
    /// Pages held as they are.
    pub raw: u64,
    /// Bytes held in all.
    pub bytes_out: u64,
}

impl PageStats {
    /// Pages in all.
    ///
    /// ```
    /// use trueno_zram_core::PageStats;
    /// let stats = PageStats { same_filled: 2, lz4: 5, raw: 1, ..PageStats::default() };
    /// println!("{:.0} % would not shrink", 100.0 * stats.raw as f64 / stats.pages() as f64);
    /// # assert_eq!(stats.pages(), 8);
    /// ```
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.same_filled + self.lz4 + self.zstd + self.raw
    }

    /// Bytes of the pages before compression.
    ///
    /// ```
    /// use trueno_zram_core::PageStats;
    /// let stats = PageStats { lz4: 2, bytes_out: 3000, ..PageStats::default() };
    /// assert_eq!(stats.bytes_in() - stats.bytes_out, 5192, "bytes saved");
    /// ```
    #[must_use]
    pub fn bytes_in(&self) -> u64 {
        self.pages() * PAGE_SIZE as u64
    }

    /// Bytes in over bytes out; 1 for no pages at all.
    ///
    /// ```
    /// use trueno_zram_core::PageStats;
    /// let stats = PageStats { lz4: 3, raw: 1, bytes_out: 8192, ..PageStats::default() };
    /// assert_eq!(stats.ratio(), 2.0);
    /// assert_eq!(PageStats::default().ratio(), 1.0);
    /// ```
    #[must_use]
    pub fn ratio(&self) -> f64 {
        if self.bytes_out == 0 { 1.0 } else { self.bytes_in() as f64 / self.bytes_out as f64 }
    }

    /// Counts one page more.
    ///
    /// ```
    /// use trueno_zram_core::{PageData, PageKind, PageStats};
    /// let mut stats = PageStats::default();
    /// stats.add(PageData::new(PageKind::Lz4, &[0; 1024])?);
    /// assert_eq!((stats.lz4, stats.ratio()), (1, 4.0));
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    pub fn add(&mut self, page: PageData<'_>) {
        *match page.kind() {
            PageKind::SameFilled => &mut self.same_filled,
            PageKind::Lz4 => &mut self.lz4,
            PageKind::Zstd => &mut self.zstd,
            PageKind::Raw => &mut self.raw,
        } += 1;
        self.bytes_out += page.bytes().len() as u64;
    }
}
