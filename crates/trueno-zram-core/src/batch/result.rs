//! The result of a batch: its pages and times.

use std::time::Duration;

use crate::codec::nanoseconds;
use crate::page::{CompressedPage, PAGE_SIZE, Page};

/// The time of a batch, by stage.
///
/// The times of the three stages come from events on the device. They are summed over the slots of the ring, which
/// overlap, so their sum can exceed the total. Pages processed by the CPU do not count in them.
///
/// ```
/// use trueno_zram_core::gpu::BatchTimes;
/// let times = BatchTimes { h2d_time_ns: 75_000, kernel_time_ns: 13_000, d2h_time_ns: 30_000, total_time_ns: 90_000 };
/// assert!(times.h2d_time_ns + times.kernel_time_ns + times.d2h_time_ns > times.total_time_ns, "they overlap");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchTimes {
    /// Host-to-device transfer time (ns).
    pub h2d_time_ns: u64,
    /// Kernel execution time (ns).
    pub kernel_time_ns: u64,
    /// Device-to-host transfer time (ns).
    pub d2h_time_ns: u64,
    /// Total wall clock time (ns).
    pub total_time_ns: u64,
}

impl BatchTimes {
    /// Adds the times of the stages of another slot.
    pub(crate) fn add_stages(&mut self, other: Self) {
        self.h2d_time_ns += other.h2d_time_ns;
        self.kernel_time_ns += other.kernel_time_ns;
        self.d2h_time_ns += other.d2h_time_ns;
    }

    pub(crate) fn with_total(self, total: Duration) -> Self {
        Self { total_time_ns: nanoseconds(total), ..self }
    }
}

/// Compressed pages and the time of each stage.
///
/// ```
/// use trueno_zram_core::gpu::{BatchResult, GpuBatchCompressor, GpuBatchConfig, gpu_available};
/// use trueno_zram_core::PAGE_SIZE;
///
/// # fn main() -> Result<(), trueno_zram_core::Error> {
/// if gpu_available() {
///     let mut compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
///     let pages = vec![[0u8; PAGE_SIZE]; 1000];
///     let result = compressor.compress_batch(&pages)?;
///
///     // Timing components
///     println!("H2D transfer: {} ns", result.h2d_time_ns);
///     println!("Kernel execution: {} ns", result.kernel_time_ns);
///     println!("D2H transfer: {} ns", result.d2h_time_ns);
///     println!("Total time: {} ns", result.total_time_ns);
///
///     // Metrics
///     let throughput = result.throughput_bytes_per_sec(pages.len() * PAGE_SIZE);
///     println!("Throughput: {:.2} GB/s", throughput / 1e9);
///     println!("Compression ratio: {:.2}x", result.compression_ratio());
///     println!("PCIe 5x rule satisfied: {}", result.pcie_rule_satisfied());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchResult {
    /// Compressed pages.
    pub pages: Vec<CompressedPage>,
    /// Host-to-device transfer time (ns).
    pub h2d_time_ns: u64,
    /// Kernel execution time (ns).
    pub kernel_time_ns: u64,
    /// Device-to-host transfer time (ns).
    pub d2h_time_ns: u64,
    /// Total wall clock time (ns).
    pub total_time_ns: u64,
}

impl BatchResult {
    pub(crate) fn new(pages: Vec<CompressedPage>, times: BatchTimes) -> Self {
        let BatchTimes { h2d_time_ns, kernel_time_ns, d2h_time_ns, total_time_ns } = times;
        Self { pages, h2d_time_ns, kernel_time_ns, d2h_time_ns, total_time_ns }
    }

    /// Returns the throughput in bytes per second for `input_bytes` of input, or 0 if no time passed.
    ///
    /// ```
    /// use trueno_zram_core::gpu::BatchResult;
    /// let result =
    ///     BatchResult { pages: vec![], h2d_time_ns: 0, kernel_time_ns: 0, d2h_time_ns: 0, total_time_ns: 1_000_000 };
    /// assert_eq!(result.throughput_bytes_per_sec(4_096_000), 4.096e9);
    /// ```
    #[must_use]
    pub fn throughput_bytes_per_sec(&self, input_bytes: usize) -> f64 {
        if self.total_time_ns == 0 { 0.0 } else { input_bytes as f64 * 1e9 / self.total_time_ns as f64 }
    }

    /// Returns the ratio of the pages' bytes to the bytes that hold them, or 1 for no pages.
    ///
    /// ```
    /// use trueno_zram_core::{CompressedPage, PageData, PageKind, gpu::BatchResult};
    /// let page = CompressedPage::from(PageData::new(PageKind::Lz4, &[0; 1024])?);
    /// let result = BatchResult {
    ///     pages: vec![page; 3], h2d_time_ns: 0, kernel_time_ns: 0, d2h_time_ns: 0, total_time_ns: 0,
    /// };
    /// assert_eq!(result.compression_ratio(), 4.0);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn compression_ratio(&self) -> f64 {
        let held: usize = self.pages.iter().map(|page| page.bytes().len()).sum();
        if held == 0 { 1.0 } else { (self.pages.len() * PAGE_SIZE) as f64 / held as f64 }
    }

    /// Returns `true` if the kernel took more than five times as long as both transfers together: the "PCIe 5x rule".
    ///
    /// ```
    /// use trueno_zram_core::gpu::BatchResult;
    /// let of = |kernel_time_ns| BatchResult {
    ///     pages: vec![], h2d_time_ns: 70, kernel_time_ns, d2h_time_ns: 30, total_time_ns: 1000,
    /// };
    /// assert!(!of(500).pcie_rule_satisfied() && of(501).pcie_rule_satisfied());
    /// ```
    #[must_use]
    pub fn pcie_rule_satisfied(&self) -> bool {
        let transfers = u128::from(self.h2d_time_ns) + u128::from(self.d2h_time_ns);
        u128::from(self.kernel_time_ns) > 5 * transfers
    }
}

/// Restored pages and the time of each stage.
///
/// ```no_run
/// use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
/// let mut compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
/// let compressed = compressor.compress_batch(&vec![[5u8; 4096]; 1000])?;
/// let restored = compressor.decompress_batch(&compressed.pages)?;
/// assert_eq!(restored.pages[999], [5; 4096]);
/// println!("{:?}", restored.times);
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredBatch {
    /// The restored pages.
    pub pages: Vec<Page>,
    /// The time of each stage.
    pub times: BatchTimes,
}
