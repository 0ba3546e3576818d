//! Statistics of a GPU compressor, including its fallback to the CPU.

use crate::page::PAGE_SIZE;

/// Totals of a [`GpuBatchCompressor`](super::GpuBatchCompressor).
///
/// ```
/// use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, gpu_available};
/// # fn main() -> Result<(), trueno_zram_core::Error> {
/// # if !gpu_available() { return Ok(()); }
/// # let mut compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
/// let stats = compressor.stats();
///
/// println!("Pages compressed: {}", stats.pages_compressed);
/// println!("Input bytes: {}", stats.total_bytes_in);
/// println!("Output bytes: {}", stats.total_bytes_out);
/// println!("Time: {} ns", stats.total_time_ns);
/// println!("Ratio: {:.2}x", stats.compression_ratio());
/// println!("Throughput: {:.2} GB/s", stats.throughput_gbps());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuBatchStats {
    /// Pages compressed, on the GPU or the CPU.
    pub pages_compressed: u64,
    /// Bytes of those pages.
    pub total_bytes_in: u64,
    /// Bytes that hold them.
    pub total_bytes_out: u64,
    /// Time spent on compression (ns).
    pub total_time_ns: u64,
    /// Pages restored, on the GPU or the CPU.
    pub pages_decompressed: u64,
    /// Time spent on decompression (ns).
    pub decompress_time_ns: u64,
    /// Work that fell back to the CPU.
    pub fallback: FallbackStats,
}

/// Work that the CPU did because the GPU failed or does not support it.
///
/// ```
/// use trueno_zram_core::gpu::FallbackStats;
/// let stats = FallbackStats::default();
/// assert!(stats.pages == 0 && stats.last_reason.is_none());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FallbackStats {
    /// Batches in which the GPU failed or was no longer in use.
    pub batches: u64,
    /// Pages processed by the CPU instead.
    pub pages: u64,
    /// Pages that the CPU restored because the GPU's kernel does not decode them: pages of another algorithm, and
    /// Zstandard frames in forms that libzstd does not write for a page, such as several blocks. The GPU did not fail, so
    /// `batches` and `pages` do not count them.
    pub unsupported_pages: u64,
    /// The reason for the last fallback: the driver call and the name of the CUDA error.
    pub last_reason: Option<String>,
    /// The reason why the device is no longer used, if it was given up.
    pub device_given_up: Option<String>,
}

impl FallbackStats {
    /// Counts a batch whose last `pages` pages are the CPU's.
    pub(crate) fn add(&mut self, pages: usize, reason: String) {
        self.batches += 1;
        self.pages += pages as u64;
        self.last_reason = Some(reason);
    }
}

impl GpuBatchStats {
    /// Returns the ratio of bytes in to bytes out, or 1 if nothing was compressed.
    ///
    /// ```
    /// use trueno_zram_core::gpu::GpuBatchStats;
    /// let stats = GpuBatchStats { total_bytes_in: 8192, total_bytes_out: 2048, ..GpuBatchStats::default() };
    /// assert_eq!(stats.compression_ratio(), 4.0);
    /// ```
    #[must_use]
    pub fn compression_ratio(&self) -> f64 {
        if self.total_bytes_out == 0 { 1.0 } else { self.total_bytes_in as f64 / self.total_bytes_out as f64 }
    }

    /// Returns the compression throughput in 10^9 bytes per second, or 0 if nothing was compressed.
    ///
    /// ```
    /// use trueno_zram_core::gpu::GpuBatchStats;
    /// let stats = GpuBatchStats { total_bytes_in: 4096, total_time_ns: 1024, ..GpuBatchStats::default() };
    /// assert_eq!(stats.throughput_gbps(), 4.0);
    /// ```
    #[must_use]
    pub fn throughput_gbps(&self) -> f64 {
        // Bytes per nanosecond equal gigabytes per second.
        if self.total_time_ns == 0 { 0.0 } else { self.total_bytes_in as f64 / self.total_time_ns as f64 }
    }

    pub(crate) fn add_compressed(&mut self, pages: usize, bytes_out: u64, time_ns: u64) {
        self.pages_compressed += pages as u64;
        self.total_bytes_in += pages as u64 * PAGE_SIZE as u64;
        self.total_bytes_out += bytes_out;
        self.total_time_ns += time_ns;
    }

    pub(crate) fn add_decompressed(&mut self, pages: usize, time_ns: u64) {
        self.pages_decompressed += pages as u64;
        self.decompress_time_ns += time_ns;
    }
}
