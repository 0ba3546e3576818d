//! A GPU as the ring's device: its streams, and the kernels of a format.
#![allow(unsafe_code)]

use std::num::{NonZeroU32, NonZeroUsize};
use std::ops::Range;
use std::time::{Duration, Instant};

use trueno_gpu::kernels::packed::Mode;

use super::device::{DeviceAllocator, DeviceQueue, Mark, PinnedMemory, RingDevice, SlotBuffer};
use crate::gpu::codec::{
    CompressBuffers, DecompressBuffers, PageCompressor, PageDecompressor, PageFormat, STATUS_BYTES,
};
use crate::gpu::context::GpuContext;
use crate::gpu::error::GpuResult;
use crate::gpu::event::CudaEvent;
use crate::gpu::memory::DeviceBuffer;
use crate::gpu::pinned::{HostCaching, PinnedBuffer};
use crate::gpu::stream::CudaStream;

/// Returns how many slots should have kernels running at the same time.
///
/// A warp takes one page at a time, and some pages take several times as long as others. So a kernel for few pages per warp
/// leaves most warps idle while its last pages are done, and a kernel for fewer pages than warps never has work for all. The
/// kernels of the next slots fill the gaps. On an H200 with Zstandard, four slots of 4,096 pages: 0.85 of the bus with one
/// kernel at a time, 0.95 with two; eight of 1,000: 0.31 with one, 0.57 with two, 0.81 with three.
fn concurrent_kernels(resident_warps: u32, slot_pages: usize) -> NonZeroUsize {
    // Widening: `usize` has 64 bits wherever CUDA runs.
    let to_fill_twice = (2 * resident_warps as usize).div_ceil(slot_pages.max(1));
    NonZeroUsize::new(to_fill_twice.clamp(2, 4)).expect("at least 2")
}

/// A GPU: the device that a [`GpuBatchCompressor`](crate::gpu::GpuBatchCompressor) has unless another is named.
///
/// ```
/// use trueno_zram_core::gpu::{Cuda, GpuBatchCompressor};
/// fn needs_a_gpu(compressor: &GpuBatchCompressor<Cuda>) -> trueno_zram_core::Result<()> {
///     compressor.device_pages(100).map(drop) // memory on the device
/// }
/// ```
#[derive(Debug)]
pub struct Cuda {
    context: GpuContext,
    h2d: CudaStream,
    /// Kernels of slots go to these streams in turn, so that the last pages of one slot do not hold up the next.
    compute: Vec<CudaStream>,
    /// The stream for the next kernel.
    next_compute: usize,
    d2h: CudaStream,
    compressor: PageCompressor,
    /// Made when it is first needed: compiling a kernel takes a tenth of a second.
    decompressor: Option<PageDecompressor>,
    multiprocessors: Option<NonZeroU32>,
}

impl Cuda {
    /// Compiles the compression kernel for the device. Kernels use at most `multiprocessors` of it. Slots will have up to
    /// `slot_pages` pages.
    pub(crate) fn new(
        context: &GpuContext,
        format: PageFormat,
        mode: Mode,
        multiprocessors: Option<NonZeroU32>,
        slot_pages: usize,
    ) -> GpuResult<Self> {
        let mut compressor = PageCompressor::new(context, format, mode)?;
        compressor.limit_multiprocessors(multiprocessors);
        let concurrent = match multiprocessors {
            None => concurrent_kernels(compressor.loaded().resident_warps(), slot_pages),
            // Several kernels at a time would use several times the share.
            Some(_) => NonZeroUsize::MIN,
        };
        compressor.allow_concurrent(concurrent)?;
        Ok(Self {
            h2d: CudaStream::new(context)?,
            compute: (0..concurrent.get()).map(|_| CudaStream::new(context)).collect::<GpuResult<_>>()?,
            next_compute: 0,
            d2h: CudaStream::new(context)?,
            compressor,
            decompressor: None,
            multiprocessors,
            context: context.clone(),
        })
    }

    pub(crate) fn context(&self) -> &GpuContext {
        &self.context
    }

    /// Returns the stream and the kernel for pages that are on the device already.
    pub(crate) fn compressor(&mut self) -> (&CudaStream, &mut PageCompressor) {
        (&self.compute[0], &mut self.compressor)
    }

    /// Returns the stream and the kernel for packed pages that are on the device already.
    pub(crate) fn decompressor(&mut self) -> GpuResult<(&CudaStream, &mut PageDecompressor)> {
        self.ensure_decompressor()?;
        let decompressor = self.decompressor.as_mut().expect("made just now");
        Ok((&self.compute[0], decompressor))
    }

    fn ensure_decompressor(&mut self) -> GpuResult<()> {
        if self.decompressor.is_none() {
            let mut made = PageDecompressor::new(&self.context, self.compressor.format())?;
            made.limit_multiprocessors(self.multiprocessors);
            made.allow_concurrent(NonZeroUsize::new(self.compute.len()).unwrap_or(NonZeroUsize::MIN))?;
            self.decompressor = Some(made);
        }
        Ok(())
    }

    /// Chooses the stream for the next kernel of a slot.
    fn assign_compute(&mut self, slot: &mut CudaSlot) {
        slot.compute = self.next_compute;
        self.next_compute = (self.next_compute + 1) % self.compute.len();
    }

    fn stream(&self, queue: DeviceQueue, slot: &CudaSlot) -> &CudaStream {
        match queue {
            DeviceQueue::H2d => &self.h2d,
            DeviceQueue::Compute => &self.compute[slot.compute],
            DeviceQueue::D2h => &self.d2h,
        }
    }
}

/// A slot's device memory and marks.
#[derive(Debug)]
pub struct CudaSlot {
    buffers: [DeviceBuffer; SlotBuffer::ALL.len()],
    /// The stream of its last kernel.
    compute: usize,
    marks: [CudaEvent; Mark::COUNT],
}

impl CudaSlot {
    fn buffer(&self, buffer: SlotBuffer) -> &DeviceBuffer {
        &self.buffers[buffer as usize]
    }

    fn event(&self, mark: Mark) -> &CudaEvent {
        &self.marks[mark as usize]
    }
}

/// Allocates memory in a GPU's context.
#[derive(Clone, Debug)]
pub struct CudaAllocator {
    context: GpuContext,
}

impl DeviceAllocator for CudaAllocator {
    type Pinned = PinnedBuffer;
    type Slot = CudaSlot;

    fn pinned(&self, len_bytes: usize, caching: HostCaching) -> GpuResult<PinnedBuffer> {
        PinnedBuffer::new(&self.context, len_bytes, caching)
    }

    fn slot(&self, pages: u32) -> GpuResult<CudaSlot> {
        // Widening: `usize` has 64 bits wherever CUDA runs.
        let buffer = |buffer: SlotBuffer| DeviceBuffer::new(&self.context, pages as usize * buffer.bytes_per_page());
        let mark = || CudaEvent::timed(&self.context);
        let [pages, packed, index, status] = SlotBuffer::ALL.map(buffer);
        Ok(CudaSlot {
            buffers: [pages?, packed?, index?, status?],
            compute: 0,
            marks: [mark()?, mark()?, mark()?, mark()?, mark()?, mark()?, mark()?],
        })
    }
}

impl RingDevice for Cuda {
    const NAME: &'static str = "gpu";
    const DESCRIPTION: &'static str = "GPU";

    type Pinned = PinnedBuffer;
    type Slot = CudaSlot;
    type Allocator = CudaAllocator;

    fn allocator(&self) -> CudaAllocator {
        CudaAllocator { context: self.context.clone() }
    }

    fn format(&self) -> PageFormat {
        self.compressor.format()
    }

    fn adopt(&self, memory: &mut PinnedBuffer) -> GpuResult<()> {
        memory.adopt(&self.context)
    }

    fn upload(
        &self,
        slot: &mut CudaSlot,
        to: SlotBuffer,
        at: usize,
        from: &mut PinnedBuffer,
        part: Range<usize>,
    ) -> GpuResult<()> {
        self.h2d.upload_pinned(slot.buffer(to), at, from, part)
    }

    fn download(
        &self,
        queue: DeviceQueue,
        slot: &mut CudaSlot,
        from: SlotBuffer,
        to: &mut PinnedBuffer,
        part: Range<usize>,
    ) -> GpuResult<()> {
        self.stream(queue, slot).download_pinned(slot.buffer(from), 0, to, part)
    }

    fn compress(&mut self, slot: &mut CudaSlot, pages: u32) -> GpuResult<()> {
        self.assign_compute(slot);
        let stream = &self.compute[slot.compute];
        let [input, output, index, _] = &slot.buffers;
        stream.wait_for_event(slot.event(Mark::H2dEnd))?;
        let buffers = CompressBuffers { input, output, index, pages };
        // SAFETY: three buffers of the slot; until its marks are reached the ring queues nothing else that touches them.
        unsafe { self.compressor.compress(stream, buffers, Some(slot.event(Mark::KernelStart))) }?;
        stream.record(slot.event(Mark::KernelEnd))
    }

    fn decompress(&mut self, slot: &mut CudaSlot, packed_bytes: usize, pages: u32) -> GpuResult<()> {
        self.assign_compute(slot);
        self.ensure_decompressor()?;
        let (stream, decompressor) = (&self.compute[slot.compute], self.decompressor.as_mut().expect("made just now"));
        let [output, packed, index, status] = &slot.buffers;
        stream.wait_for_event(slot.event(Mark::H2dEnd))?;
        // A page counts as restored only if the kernel writes its status.
        stream.fill(status, 0..pages as usize * STATUS_BYTES, 0xff)?;
        let packed_bytes = packed_bytes as u64;
        let buffers = DecompressBuffers { packed, packed_bytes, index, output, status, pages };
        // SAFETY: four buffers of the slot; until its marks are reached the ring queues nothing else that touches them.
        unsafe { decompressor.decompress(stream, buffers, Some(slot.event(Mark::KernelStart))) }?;
        stream.record(slot.event(Mark::KernelEnd))
    }

    fn mark(&self, slot: &mut CudaSlot, mark: Mark) -> GpuResult<()> {
        self.stream(mark.queue(), slot).record(slot.event(mark))
    }

    fn is_reached(&self, slot: &CudaSlot, mark: Mark) -> GpuResult<bool> {
        slot.event(mark).is_reached()
    }

    fn elapsed(&self, slot: &CudaSlot, from: Mark, to: Mark) -> GpuResult<Duration> {
        slot.event(to).since(slot.event(from))
    }

    fn drain(&self, time_limit: Duration) -> GpuResult<()> {
        let start = Instant::now();
        for stream in [&self.h2d, &self.d2h].into_iter().chain(&self.compute) {
            let end = CudaEvent::ordering(&self.context)?;
            stream.record(&end)?;
            end.wait_for(time_limit.saturating_sub(start.elapsed()))?;
        }
        Ok(())
    }

    fn give_up(&self, reason: &str) {
        self.context.abandon(reason);
    }

    fn loss(&self) -> Option<String> {
        self.context.loss().map(str::to_owned)
    }
}

impl PinnedMemory for PinnedBuffer {
    fn bytes(&self) -> GpuResult<&[u8]> {
        Self::bytes(self)
    }

    fn bytes_mut(&mut self) -> GpuResult<&mut [u8]> {
        Self::bytes_mut(self)
    }

    fn settle(&mut self, time_limit: Duration) -> GpuResult<()> {
        // If the copies can be neither waited for nor known to have stopped, the bytes stay inaccessible.
        let settled = self.wait_for(time_limit);
        if settled.is_err() && self.context().has_stopped() {
            // SAFETY: a kernel's failure was reported, and with it the driver has stopped the context's copies.
            unsafe { self.assume_idle() };
        }
        settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_slots_have_more_kernels_at_a_time() {
        // An H200 has 132 multiprocessors with 28 warps each.
        let kernels = |slot_pages| concurrent_kernels(132 * 28, slot_pages).get();
        assert_eq!([1, 1000, 2048, 3000, 4096, 8192, 1 << 20].map(kernels), [4, 4, 4, 3, 2, 2, 2]);
        assert_eq!((concurrent_kernels(0, 0).get(), concurrent_kernels(u32::MAX, 1).get()), (2, 4));
    }
}
