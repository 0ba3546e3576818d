//! The configuration of a GPU compressor.

use crate::algorithm::Algorithm;
use crate::error::{Error, Result};

/// The configuration of a GPU compressor.
///
/// A call may pass more pages than `batch_size`; they are split into batches that run through the ring. With
/// `async_dma: false` and one slot, the stages run one after the other: copy in, compress, copy out.
///
/// `batch_size` is 1 to [`MAX_SLOT_PAGES`](Self::MAX_SLOT_PAGES) and `ring_buffer_slots` is 1 to
/// [`MAX_RING_SLOTS`](Self::MAX_RING_SLOTS). Their product is at most [`MAX_RING_PAGES`](Self::MAX_RING_PAGES), because
/// every slot takes page-locked and device memory for all of its pages.
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

impl GpuBatchConfig {
    /// The largest `batch_size`: 4 GiB of pages.
    pub const MAX_SLOT_PAGES: usize = 1 << 20;
    /// The largest `ring_buffer_slots`.
    pub const MAX_RING_SLOTS: usize = 256;
    /// The largest product of the two: 8 GiB of pages.
    pub const MAX_RING_PAGES: usize = 1 << 21;

    /// Checks the configuration before anything is allocated for it.
    pub(crate) fn check(&self) -> Result<()> {
        let within = |field, value: usize, most: usize| {
            let allowed = || format!("1 to {most}");
            if (1..=most).contains(&value) { Ok(()) } else { Err(out_of_range(field, value, allowed())) }
        };
        within("batch_size", self.batch_size, Self::MAX_SLOT_PAGES)?;
        within("ring_buffer_slots", self.ring_buffer_slots, Self::MAX_RING_SLOTS)?;
        let ring_pages = self.batch_size * self.ring_buffer_slots;
        within("batch_size * ring_buffer_slots", ring_pages, Self::MAX_RING_PAGES)?;
        match self.algorithm {
            Algorithm::Lz4 => Ok(()),
            algorithm => Err(Error::Unsupported { what: format!("the algorithm {algorithm}"), by: "the GPU" }),
        }
    }
}

fn out_of_range(field: &'static str, value: usize, allowed: String) -> Error {
    Error::Config { field, value: value.to_string(), allowed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_sizes_out_of_range() {
        let refused = |batch_size, ring_buffer_slots| {
            let config = GpuBatchConfig { batch_size, ring_buffer_slots, ..GpuBatchConfig::default() };
            match config.check() {
                Ok(()) => None,
                Err(Error::Config { field, .. }) => Some(field),
                Err(other) => panic!("{other}"),
            }
        };
        assert_eq!(refused(1000, 4), None);
        assert_eq!(refused(0, 4), Some("batch_size"));
        assert_eq!(refused(1 << 24, 4), Some("batch_size"));
        assert_eq!(refused(usize::MAX, usize::MAX), Some("batch_size"));
        assert_eq!(refused(1000, 0), Some("ring_buffer_slots"));
        assert_eq!(refused(1, usize::MAX), Some("ring_buffer_slots"));
        assert_eq!(refused(1 << 20, 3), Some("batch_size * ring_buffer_slots"));
        assert_eq!(refused(1 << 13, 256), None);
    }
}
