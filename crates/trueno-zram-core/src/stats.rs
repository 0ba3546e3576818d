//! Counts of pages and bytes by page kind.

use crate::page::{PAGE_SIZE, PageData, PageKind};

/// The number of pages of each kind, and the bytes that hold them.
///
/// ```
/// use trueno_zram_core::{CpuBatchCompressor, PAGE_SIZE};
/// let batch = CpuBatchCompressor::default().compress(&vec![[0; PAGE_SIZE]; 100])?;
/// let stats = batch.stats();
/// assert_eq!((stats.pages(), stats.zero, stats.same_filled), (100, 100, 0));
/// assert_eq!((stats.bytes_in(), stats.bytes_out), (409_600, 800));
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageStats {
    /// Zero pages, which are held as one word.
    pub zero: u64,
    /// Pages held as one repeated word other than zero.
    pub same_filled: u64,
    /// Pages held as LZ4 blocks.
    pub lz4: u64,
    /// Pages held as Zstandard frames.
    pub zstd: u64,
    /// Pages held uncompressed.
    pub raw: u64,
    /// The total compressed length.
    pub bytes_out: u64,
}

impl PageStats {
    /// Returns the total number of pages.
    ///
    /// ```
    /// use trueno_zram_core::PageStats;
    /// let stats = PageStats { same_filled: 2, lz4: 5, raw: 1, ..PageStats::default() };
    /// println!("{:.0} % would not shrink", 100.0 * stats.raw as f64 / stats.pages() as f64);
    /// # assert_eq!(stats.pages(), 8);
    /// ```
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.zero + self.same_filled + self.lz4 + self.zstd + self.raw
    }

    /// Returns the length of the pages before compression.
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

    /// Returns the compression ratio, bytes in over bytes out, or 1 if there are no pages.
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

    /// Counts a page.
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
            PageKind::SameFilled if page.bytes().iter().all(|byte| *byte == 0) => &mut self.zero,
            PageKind::SameFilled => &mut self.same_filled,
            PageKind::Lz4 => &mut self.lz4,
            PageKind::Zstd => &mut self.zstd,
            PageKind::Raw => &mut self.raw,
        } += 1;
        self.bytes_out += page.bytes().len() as u64;
    }

    /// Adds the counts of other pages.
    ///
    /// ```
    /// use trueno_zram_core::PageStats;
    /// let mut all = PageStats { raw: 1, bytes_out: 4096, ..PageStats::default() };
    /// all.merge(PageStats { raw: 2, bytes_out: 8192, ..PageStats::default() });
    /// assert_eq!((all.raw, all.bytes_out), (3, 12288));
    /// ```
    pub fn merge(&mut self, other: Self) {
        self.zero += other.zero;
        self.same_filled += other.same_filled;
        self.lz4 += other.lz4;
        self.zstd += other.zstd;
        self.raw += other.raw;
        self.bytes_out += other.bytes_out;
    }
}
