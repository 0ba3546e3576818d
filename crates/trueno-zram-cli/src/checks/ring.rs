//! Whole batches through the ring that feeds a device, as compression runs it.

use trueno_zram_core::gpu::{Cuda, FallbackStats, GpuBatchCompressor, GpuBatchConfig, Interpreter};
use trueno_zram_core::{CompressedBatch, PAGE_SIZE, Page};

use super::Codec;

/// A ring that is filled several times over by a sample of any size.
pub(super) fn config(device_index: u32, batch_size: usize) -> GpuBatchConfig {
    GpuBatchConfig { device_index, batch_size, ring_buffer_slots: 2, ..GpuBatchConfig::default() }
}

/// That the CPU stood in for the device is a failure here.
fn check_fallback(fallback: &FallbackStats) -> Result<(), String> {
    if fallback.pages == 0 && fallback.last_reason.is_none() {
        return Ok(());
    }
    Err(format!(
        "the CPU did {} pages: {}",
        fallback.pages,
        fallback.last_reason.as_deref().unwrap_or("no reason given")
    ))
}

/// One for each device, since the trait that devices have in common is the library's own.
macro_rules! codec_on {
    ($($device:ty),*) => {$(
        impl Codec for GpuBatchCompressor<$device> {
            fn compress(&mut self, pages: &[Page]) -> Result<CompressedBatch, String> {
                let mut batch = CompressedBatch::new();
                self.compress_into(pages, &mut batch, &()).map_err(|e| e.to_string())?;
                check_fallback(&self.stats().fallback)?;
                Ok(batch)
            }

            fn decompress(&mut self, batch: &CompressedBatch) -> Result<Vec<Option<Page>>, String> {
                let mut pages = vec![[0xee; PAGE_SIZE]; batch.len()];
                self.decompress_into(batch, &mut pages, &()).map_err(|e| e.to_string())?;
                check_fallback(&self.stats().fallback)?;
                Ok(pages.into_iter().map(Some).collect())
            }
        }
    )*};
}

codec_on!(Cuda, Interpreter);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_that_stood_in_is_a_failure() {
        assert_eq!(check_fallback(&FallbackStats::default()), Ok(()));
        let stood_in = FallbackStats { pages: 7, last_reason: Some("cuX".into()), ..FallbackStats::default() };
        assert_eq!(check_fallback(&stood_in), Err("the CPU did 7 pages: cuX".into()));
    }
}
