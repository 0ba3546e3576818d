//! Runs the kernels on pages that stay on the GPU, and waits for them.
#![allow(unsafe_code)]

mod packed;
mod pages;

use std::time::Duration;

use trueno_gpu::kernels::packed::PackedEntry;

use super::bounded_drop::BoundedDrop;
use super::codec::{CompressBuffers, DecompressBuffers, MAX_BATCH_PAGES, STATUS_BYTES};
use super::context::GpuContext;
use super::error::{GpuError, GpuResult};
use super::event::CudaEvent;
use super::memory::DeviceBuffer;
use super::ring::compressed_pages::{UnrestoredPage, UnrestoredReason};
use super::ring::cuda::Cuda;
use super::ring::slot_index;
use super::stream::CudaStream;
use crate::arena::check_room;
use crate::error::Result;
pub use packed::PackedOnDevice;
pub use pages::DevicePages;

/// The time limit for dropping one buffer. Both types have two buffers.
const DROP_LIMIT: Duration = Duration::from_secs(5);

/// Queues the compression of pages on the device and waits for it. Returns the kernel's time.
pub(crate) fn compress(
    device: &mut Cuda,
    pages: &DevicePages,
    packed: &mut PackedOnDevice,
    time_limit: Duration,
) -> Result<Duration> {
    check_room(pages.len, packed.capacity)?;
    (packed.len, packed.len_bytes) = (0, 0);
    let context = device.context().clone();
    let (stream, compressor) = device.compressor();
    let count = page_count(pages.len)?;
    if count == 0 {
        return Ok(Duration::ZERO);
    }
    let buffers = CompressBuffers { input: &pages.memory, output: &packed.bytes, index: &packed.index, pages: count };
    let time = timed(&context, stream, time_limit, |start| {
        // SAFETY: three different buffers used by no one else. `timed` returns when the kernel is done, or gives the context
        // up. Until then `packed` and `pages` are borrowed, and no safe code writes them.
        unsafe { compressor.compress(stream, buffers, Some(start)) }
    })?;
    packed.len_bytes = packed_bytes(stream, &packed.index, pages.len)?;
    packed.len = pages.len;
    Ok(time)
}

/// Queues the restoring of packed pages on the device and waits for it. Returns the kernel's time and the pages that it did not
/// restore.
pub(crate) fn decompress(
    device: &mut Cuda,
    packed: &PackedOnDevice,
    pages: &mut DevicePages,
    time_limit: Duration,
) -> Result<(Duration, Vec<UnrestoredPage>)> {
    check_room(packed.len, pages.capacity)?;
    pages.len = packed.len;
    if packed.is_empty() {
        return Ok((Duration::ZERO, Vec::new()));
    }
    let context = device.context().clone();
    let (stream, decompressor) = device.decompressor()?;
    let count = page_count(packed.len)?;
    // Widening: `usize` has 64 bits wherever CUDA runs.
    let buffers = DecompressBuffers {
        packed: &packed.bytes,
        packed_bytes: packed.len_bytes as u64,
        index: &packed.index,
        output: &pages.memory,
        status: &pages.status,
        pages: count,
    };
    let time = timed(&context, stream, time_limit, |start| {
        // A page counts as restored only if the kernel writes its status.
        stream.fill(&pages.status, 0..packed.len * STATUS_BYTES, 0xff)?;
        // SAFETY: four different buffers. Safe code only reads those of `packed` while it is borrowed, and nothing else
        // uses those of `pages`. `timed` returns when the kernel is done, or gives the context up.
        unsafe { decompressor.decompress(stream, buffers, Some(start)) }
    })?;
    let mut status = vec![0; packed.len * STATUS_BYTES];
    stream.download(&pages.status, 0, &mut status)?;
    let codes = status.as_chunks::<STATUS_BYTES>().0.iter().enumerate();
    let left =
        codes.filter_map(|(page, code)| Some(UnrestoredPage { page, reason: UnrestoredReason::of_status(*code)? }));
    Ok((time, left.collect()))
}

/// Runs `queue`, which records its argument before the work to be timed, and waits for all of it. When this returns,
/// all queued work has run, or the context is given up.
fn timed(
    context: &GpuContext,
    stream: &CudaStream,
    time_limit: Duration,
    queue: impl FnOnce(&CudaEvent) -> GpuResult<()>,
) -> GpuResult<Duration> {
    let (start, end) = (CudaEvent::timed(context)?, CudaEvent::timed(context)?);
    let queued = queue(&start);
    // Some of the work may be queued even if another part was rejected.
    let done = stream.record(&end).and_then(|()| end.wait_for(time_limit));
    if let Err(error) = &done {
        context.abandon(&error.to_string());
    }
    queued.and(done)?;
    end.since(&start)
}

/// Reads the length of the packed pages, of which there is at least one, from the kernel's index.
fn packed_bytes(stream: &CudaStream, index: &DeviceBuffer, pages: usize) -> GpuResult<usize> {
    let last = pages - 1;
    let mut bits = [0; PackedEntry::BYTES];
    stream.download(index, last * PackedEntry::BYTES, &mut bits)?;
    let entry = PackedEntry::from_bits(u64::from_le_bytes(bits));
    slot_index::packed_bytes(entry, pages).ok_or(GpuError::WrongIndex { page: last, bits: entry.bits() })
}

/// Returns a number of pages as kernels take it. A launch takes at most [`MAX_BATCH_PAGES`].
fn page_count(pages: usize) -> GpuResult<u32> {
    let count = u32::try_from(pages).ok().filter(|count| *count <= MAX_BATCH_PAGES);
    count.ok_or(GpuError::OutOfRange { what: "number of pages", value: pages as i128 })
}

/// Allocates device memory and queues its zeroing, so that no kernel reads what an earlier owner left.
fn zeroed(context: &GpuContext, stream: &CudaStream, len_bytes: usize) -> GpuResult<BoundedDrop<DeviceBuffer>> {
    let buffer = BoundedDrop::new(DeviceBuffer::new(context, len_bytes)?, DROP_LIMIT);
    if len_bytes > 0 {
        stream.fill(&buffer, 0..len_bytes, 0)?;
    }
    Ok(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_too_many_pages() {
        assert_eq!(page_count(MAX_BATCH_PAGES as usize), Ok(MAX_BATCH_PAGES));
        for pages in [MAX_BATCH_PAGES as usize + 1, usize::MAX] {
            assert!(matches!(page_count(pages), Err(GpuError::OutOfRange { .. })), "{pages} pages");
        }
    }
}
