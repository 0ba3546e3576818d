//! What bounds a pipeline: the bus both ways, and how fast the cores copy.

use std::time::{Duration, Instant};

use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, GpuResult, HostCaching, PinnedBuffer, Stream};

/// Bytes of one copy, as in the ring.
const COPY_BYTES: usize = 16 << 20;
/// Page-locked memory that is copied over and over.
const WINDOW_BYTES: usize = 1 << 30;

/// Times of copying so many bytes, rounded up to whole copies, to the device and back, one direction at a time; and how many.
pub(crate) fn bus(
    context: &GpuContext,
    len_bytes: usize,
    reps: usize,
) -> GpuResult<(Vec<Duration>, Vec<Duration>, usize)> {
    let stream = Stream::new(context)?;
    let mut host = PinnedBuffer::new(context, WINDOW_BYTES, HostCaching::Cached)?;
    let device = DeviceBuffer::new(context, WINDOW_BYTES)?;
    let mut times = (Vec::new(), Vec::new());
    // One more, to warm up.
    for _ in 0..=reps {
        let start = Instant::now();
        for offset in offsets(len_bytes) {
            stream.upload_pinned(&device, offset, &mut host, offset..offset + COPY_BYTES)?;
        }
        stream.synchronize()?;
        times.0.push(start.elapsed());
        let start = Instant::now();
        for offset in offsets(len_bytes) {
            stream.download_pinned(&device, offset, &mut host, offset..offset + COPY_BYTES)?;
        }
        stream.synchronize()?;
        times.1.push(start.elapsed());
    }
    times.0.remove(0);
    times.1.remove(0);
    Ok((times.0, times.1, len_bytes.next_multiple_of(COPY_BYTES)))
}

fn offsets(len_bytes: usize) -> impl Iterator<Item = usize> {
    (0..len_bytes.div_ceil(COPY_BYTES)).map(|copy| copy * COPY_BYTES % WINDOW_BYTES)
}
