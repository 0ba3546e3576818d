//! How batches are to go through the GPU.

use crate::algorithm::Algorithm;

/// How batches are to go through the GPU.
///
/// A call may pass more pages than `batch_size`: they are cut into batches that run through the ring. `async_dma: false`
/// with one slot is a serial run: copy in, compress, copy out.
///
/// ```
/// use trueno_zram_core::gpu::GpuBatchConfig;
/// use trueno_zram_core::Algorithm;
///
/// let config = GpuBatchConfig {
///     device_index: 0,        // CUDA device (0 = first GPU)
///     algorithm: Algorithm::Lz4,
///     batch_size: 1000,       // Pages per batch
///     async_dma: true,        // Enable async transfers
///     ring_buffer_slots: 4,   // Pipeline depth
/// };
/// # assert_eq!(config, GpuBatchConfig::default());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuBatchConfig {
    /// CUDA device index (0 = first GPU).
    pub device_index: u32,
    /// Compression algorithm.
    pub algorithm: Algorithm,
    /// Number of pages per batch.
    pub batch_size: usize,
    /// Enable async DMA transfers.
    pub async_dma: bool,
    /// Ring buffer slots for pipelining.
    pub ring_buffer_slots: usize,
}

impl Default for GpuBatchConfig {
    fn default() -> Self {
        Self { device_index: 0, algorithm: Algorithm::Lz4, batch_size: 1000, async_dma: true, ring_buffer_slots: 4 }
    }
}
