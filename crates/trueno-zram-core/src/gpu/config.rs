//! The configuration of a GPU compressor.

use trueno_gpu::kernels::packed::Mode;

use super::codec::PageFormat;
use crate::algorithm::Algorithm;
use crate::error::{Error, Result};

/// The highest level that runs the Zstandard kernel in fast mode: its frames are smaller than libzstd's of this level on
/// most pages.
const MAX_FAST_ZSTD_LEVEL: i32 = 3;

/// The configuration of a GPU compressor.
///
/// A call may pass more pages than `batch_size`; they are split into batches that run through the ring, several small ones in
/// one slot. With `async_dma: false` and one slot, the stages run one after the other: copy in, compress, copy out.
///
/// `batch_size` is 1 to [`MAX_SLOT_PAGES`](Self::MAX_SLOT_PAGES) and `ring_buffer_slots` is 1 to
/// [`MAX_RING_SLOTS`](Self::MAX_RING_SLOTS). Their product is at most [`MAX_RING_PAGES`](Self::MAX_RING_PAGES), because
/// every slot takes page-locked and device memory for all of its pages.
///
/// # Sizes
///
/// With page-locked memory on both ends, four slots of 4,096 pages fill the bus of an H200 with either algorithm (0.95 of
/// it). The default of four slots of 1,000 pages takes a quarter of the memory and reaches 0.84 of the bus with LZ4 and
/// 0.63 with Zstandard. The kernels of two to four slots run at the same time, more of them the
/// smaller the slots are, unless [`GpuOptions::multiprocessors`](super::GpuOptions::multiprocessors) is set.
///
/// Zstandard pages are restored with one warp per page, which is faster than the bus. Batches that fill the device, on an
/// H200 those of 18,480 pages and more, are restored in groups at twice the speed. Slots of ordinary sizes are smaller than
/// that. So groups serve [`decompress_resident`](super::GpuBatchCompressor::decompress_resident), where no bus is the limit
/// and the batch is not split.
///
/// # Zstandard levels
///
/// The GPU's Zstandard compressor has two modes. What they reach lies between libzstd's levels 3 and 9.
///
/// | level | on the GPU |
/// | --- | --- |
/// | up to 3 | fast mode, unless [`GpuOptions::mode`](super::GpuOptions::mode) asks for ratio mode |
/// | 4 to 9 | ratio mode: about 1 % smaller at about 0.92 of the speed |
/// | above 9 | [`Error::Unsupported`]; [`BatchCompressor`](crate::BatchCompressor) uses the CPU alone |
///
/// If the CPU replaces the GPU, it uses libzstd at exactly this level. Frames of all levels, and of every encoder,
/// are restored on the GPU. Without the cargo feature `zstd` nothing could replace the GPU, and Zstandard is
/// [`Error::Unsupported`].
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

    /// The highest Zstandard level that the GPU compresses with. No kernel searches as long as libzstd's higher levels do.
    ///
    /// ```
    /// use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions};
    /// use trueno_zram_core::{Algorithm, Error};
    /// let level = GpuBatchConfig::MAX_ZSTD_LEVEL + 1;
    /// let config = GpuBatchConfig { algorithm: Algorithm::Zstd { level }, ..GpuBatchConfig::default() };
    /// let refused = GpuBatchCompressor::interpreted(config, &GpuOptions::default());
    /// assert!(matches!(refused, Err(Error::Unsupported { .. })));
    /// ```
    pub const MAX_ZSTD_LEVEL: i32 = 9;

    /// Checks the configuration before anything is allocated for it. Returns the format of the kernels.
    pub(crate) fn check(&self) -> Result<PageFormat> {
        let within = |field, value: usize, most: usize| {
            if (1..=most).contains(&value) {
                return Ok(());
            }
            Err(Error::Config { field, value: value.to_string(), allowed: format!("1 to {most}") })
        };
        within("batch_size", self.batch_size, Self::MAX_SLOT_PAGES)?;
        within("ring_buffer_slots", self.ring_buffer_slots, Self::MAX_RING_SLOTS)?;
        let ring_pages = self.batch_size * self.ring_buffer_slots;
        within("batch_size * ring_buffer_slots", ring_pages, Self::MAX_RING_PAGES)?;
        let algorithm = self.algorithm;
        match algorithm {
            Algorithm::Zstd { .. } if !cfg!(feature = "zstd") => {
                Err(Error::Unsupported { what: "Zstandard".to_owned(), by: "this build (without the feature `zstd`)" })
            }
            Algorithm::Zstd { level } if level > Self::MAX_ZSTD_LEVEL => {
                let what = format!("the algorithm {algorithm}: levels above {} run on the CPU", Self::MAX_ZSTD_LEVEL);
                Err(Error::Unsupported { what, by: "the GPU" })
            }
            _ => PageFormat::of(algorithm)
                .ok_or_else(|| Error::Unsupported { what: format!("the algorithm {algorithm}"), by: "the GPU" }),
        }
    }

    /// Returns the mode of the kernels, given that of the options.
    pub(crate) fn mode(&self, wanted: Mode) -> Mode {
        match self.algorithm {
            Algorithm::Zstd { level } if level > MAX_FAST_ZSTD_LEVEL => Mode::Ratio,
            _ => wanted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_sizes_out_of_range() {
        let refused = |batch_size, ring_buffer_slots| {
            let config = GpuBatchConfig { batch_size, ring_buffer_slots, ..GpuBatchConfig::default() };
            match config.check() {
                Ok(_) => None,
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

    fn zstd(level: i32) -> GpuBatchConfig {
        GpuBatchConfig { algorithm: Algorithm::Zstd { level }, ..GpuBatchConfig::default() }
    }

    #[cfg(feature = "zstd")]
    #[test]
    fn zstandard_levels_choose_the_mode_and_end_at_9() {
        for (level, fast) in [(-7, Mode::Fast), (0, Mode::Fast), (3, Mode::Fast), (4, Mode::Ratio), (9, Mode::Ratio)] {
            assert_eq!(zstd(level).check(), Ok(PageFormat::Zstd), "level {level}");
            assert_eq!((zstd(level).mode(Mode::Fast), zstd(level).mode(Mode::Ratio)), (fast, Mode::Ratio));
        }
        assert!(matches!(zstd(10).check(), Err(Error::Unsupported { by: "the GPU", .. })));
        assert_eq!(GpuBatchConfig::default().mode(Mode::Fast), Mode::Fast, "LZ4 has no levels");
    }

    #[cfg(not(feature = "zstd"))]
    #[test]
    fn without_the_feature_zstandard_is_refused() {
        assert!(matches!(zstd(3).check(), Err(Error::Unsupported { .. })));
    }
}
