//! What a compressor has done so far, and what the CPU had to do in the GPU's stead.

use crate::page::PAGE_SIZE;

/// What a [`GpuBatchCompressor`](super::GpuBatchCompressor) has done so far.
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
    /// Pages compressed, wherever.
    pub pages_compressed: u64,
    /// Their bytes.
    pub total_bytes_in: u64,
    /// The bytes that hold them.
    pub total_bytes_out: u64,
    /// The time that compression took (ns).
    pub total_time_ns: u64,
    /// Pages restored, wherever.
    pub pages_decompressed: u64,
    /// The time that decompression took (ns).
    pub decompress_time_ns: u64,
    /// What the CPU did because the GPU could not.
    pub fallback: FallbackStats,
}

/// What the CPU did because the GPU could not.
///
/// ```
/// use trueno_zram_core::gpu::FallbackStats;
/// let stats = FallbackStats::default();
/// assert!(stats.pages == 0 && stats.last_reason.is_none());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FallbackStats {
    /// Batches in which the GPU failed, or was not used any more.
    pub batches: u64,
    /// Pages that the CPU did.
    pub pages: u64,
    /// Why, the last time: the driver call and the CUDA error by its name.
    pub last_reason: Option<String>,
    /// Why the device is not used any more, if it is not.
    pub device_given_up: Option<String>,
}

impl GpuBatchStats {
    /// Bytes in over bytes out; 1 if nothing was compressed.
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

    /// Bytes compressed a second, in 10^9; 0 if nothing was compressed.
    ///
    /// ```
    /// use trueno_zram_core::gpu::GpuBatchStats;
    /// let stats = GpuBatchStats { total_bytes_in: 4096, total_time_ns: 1024, ..GpuBatchStats::default() };
    /// assert_eq!(stats.throughput_gbps(), 4.0);
    /// ```
    #[must_use]
    pub fn throughput_gbps(&self) -> f64 {
        // Bytes a nanosecond are gigabytes a second.
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
