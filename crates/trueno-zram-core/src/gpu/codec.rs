//! The kernels of both formats, for pages in device memory.

mod compressor;
mod decompressor;
mod group_kernels;
mod kernels;
mod page_kernel;

use super::context::GpuContext;
use super::error::{GpuError, GpuResult};
use super::memory::DeviceBuffer;

pub use compressor::{CompressBuffers, PageCompressor};
pub use decompressor::{DecompressBuffers, PageDecompressor};
pub use kernels::PageFormat;
pub(crate) use kernels::{CompressKernel, DecompressKernel};

/// Maximum number of pages per launch: an index entry stores a 32-bit offset in units of 16 bytes.
///
/// ```
/// assert_eq!(trueno_zram_core::gpu::raw::MAX_BATCH_PAGES, 16 << 20);
/// ```
pub const MAX_BATCH_PAGES: u32 = 16 << 20;

/// Bytes of a page's status, which the decompression kernels write.
pub(crate) const STATUS_BYTES: usize = size_of::<u32>();

fn allocate_scratch(context: &GpuContext, scratch_bytes: u64) -> GpuResult<DeviceBuffer> {
    let out_of_range = |_| GpuError::OutOfRange { what: "scratch memory", value: scratch_bytes.into() };
    DeviceBuffer::new(context, usize::try_from(scratch_bytes).map_err(out_of_range)?)
}

fn check_pages(pages: u32) -> GpuResult<()> {
    if pages > MAX_BATCH_PAGES {
        return Err(GpuError::OutOfRange { what: "batch", value: pages.into() });
    }
    Ok(())
}

/// Checks that a buffer has room for that many pages.
fn check_buffer(what: &'static str, len_bytes: usize, pages: u32, bytes_per_page: usize) -> GpuResult<()> {
    let needed_bytes = u64::from(pages) * bytes_per_page as u64;
    if (len_bytes as u64) < needed_bytes {
        return Err(GpuError::ShortBuffer { what, len_bytes, needed_bytes });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use trueno_gpu::kernels::packed::PACK_ALIGN_BYTES;

    use super::*;
    use crate::page::PAGE_SIZE;

    #[test]
    fn check_buffer_rejects_short_buffers() {
        assert_eq!(check_buffer("input", 8192, 2, PAGE_SIZE), Ok(()));
        assert_eq!(check_buffer("input", 0, 0, PAGE_SIZE), Ok(()));
        let short = check_buffer("input", 8191, 2, PAGE_SIZE);
        assert_eq!(short, Err(GpuError::ShortBuffer { what: "input", len_bytes: 8191, needed_bytes: 8192 }));
        // The products do not wrap.
        assert!(check_buffer("index", usize::MAX >> 1, u32::MAX, 8).is_ok());
        assert!(check_buffer("output", 1 << 40, u32::MAX, PAGE_SIZE).is_err());
    }

    #[test]
    fn check_pages_rejects_more_pages_than_an_index_can_address() {
        assert_eq!(check_pages(MAX_BATCH_PAGES), Ok(()));
        assert!(check_pages(MAX_BATCH_PAGES + 1).is_err());
        let last = u64::from(MAX_BATCH_PAGES - 1) * PAGE_SIZE as u64 / u64::from(PACK_ALIGN_BYTES);
        assert!(u32::try_from(last).is_ok());
    }
}
