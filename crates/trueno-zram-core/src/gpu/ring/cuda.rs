//! A GPU as the ring's device: three streams, and the kernels of a format.
#![allow(unsafe_code)]

use std::num::NonZeroU32;
use std::ops::Range;
use std::time::{Duration, Instant};

use trueno_gpu::kernels::packed::{Mode, PackedEntry};

use super::device::{Allocator, Buffer, HostRole, Mark, PinnedMemory, Queue, RingDevice};
use crate::gpu::codec::{PackedPages, PageCompressor, PageDecompressor, PageFormat};
use crate::gpu::context::GpuContext;
use crate::gpu::error::GpuResult;
use crate::gpu::event::Event;
use crate::gpu::memory::DeviceBuffer;
use crate::gpu::pinned::{HostCaching, PinnedBuffer};
use crate::gpu::stream::Stream;
use crate::page::PAGE_SIZE;

/// A GPU.
#[derive(Debug)]
pub struct Cuda {
    context: GpuContext,
    h2d: Stream,
    compute: Stream,
    d2h: Stream,
    compressor: PageCompressor,
    /// Made when it is first needed: compiling a kernel takes a tenth of a second.
    decompressor: Option<PageDecompressor>,
    multiprocessors: Option<NonZeroU32>,
}

impl Cuda {
    /// Compiles the compression kernel for the device. Kernels use at most `multiprocessors` of it.
    pub(crate) fn new(
        context: &GpuContext,
        format: PageFormat,
        mode: Mode,
        multiprocessors: Option<NonZeroU32>,
    ) -> GpuResult<Self> {
        let mut compressor = PageCompressor::new(context, format, mode)?;
        compressor.limit_multiprocessors(multiprocessors);
        Ok(Self {
            h2d: Stream::new(context)?,
            compute: Stream::new(context)?,
            d2h: Stream::new(context)?,
            compressor,
            decompressor: None,
            multiprocessors,
            context: context.clone(),
        })
    }

    pub(crate) fn context(&self) -> &GpuContext {
        &self.context
    }

    /// The stream and the kernel for pages that are on the device already.
    pub(crate) fn compressor(&mut self) -> (&Stream, &mut PageCompressor) {
        (&self.compute, &mut self.compressor)
    }

    /// The stream and the kernel for packed pages that are on the device already.
    pub(crate) fn decompressor(&mut self) -> GpuResult<(&Stream, &mut PageDecompressor)> {
        let decompressor = match self.decompressor.take() {
            Some(ready) => ready,
            None => {
                let mut made = PageDecompressor::new(&self.context, self.compressor.format())?;
                made.limit_multiprocessors(self.multiprocessors);
                made
            }
        };
        Ok((&self.compute, self.decompressor.insert(decompressor)))
    }

    fn stream(&self, queue: Queue) -> &Stream {
        match queue {
            Queue::H2d => &self.h2d,
            Queue::Compute => &self.compute,
            Queue::D2h => &self.d2h,
        }
    }
}

/// A slot's device memory and marks.
#[derive(Debug)]
pub struct CudaSlot {
    pages: DeviceBuffer,
    packed: DeviceBuffer,
    index: DeviceBuffer,
    status: DeviceBuffer,
    marks: [Event; Mark::COUNT],
}

impl CudaSlot {
    fn buffer(&self, buffer: Buffer) -> &DeviceBuffer {
        match buffer {
            Buffer::Pages => &self.pages,
            Buffer::Packed => &self.packed,
            Buffer::Index => &self.index,
            Buffer::Status => &self.status,
        }
    }

    fn event(&self, mark: Mark) -> &Event {
        &self.marks[mark as usize]
    }
}

/// Allocates memory in a GPU's context.
#[derive(Clone, Debug)]
pub struct CudaAllocator {
    context: GpuContext,
}

impl Allocator for CudaAllocator {
    type Pinned = PinnedBuffer;
    type Slot = CudaSlot;

    fn pinned(&self, len_bytes: usize, role: HostRole) -> GpuResult<PinnedBuffer> {
        // The GPU reads at less than half its speed what lies modified in a core's cache.
        let caching = match role {
            HostRole::Staging => HostCaching::WriteCombined,
            HostRole::Shared => HostCaching::Cached,
        };
        PinnedBuffer::new(&self.context, len_bytes, caching)
    }

    fn slot(&self, pages: u32) -> GpuResult<CudaSlot> {
        // Widening: `usize` has 64 bits wherever CUDA runs.
        let buffer = |bytes_per_page: usize| DeviceBuffer::new(&self.context, pages as usize * bytes_per_page);
        let mark = || Event::timed(&self.context);
        Ok(CudaSlot {
            pages: buffer(PAGE_SIZE)?,
            packed: buffer(PAGE_SIZE)?,
            index: buffer(PackedEntry::BYTES)?,
            status: buffer(size_of::<u32>())?,
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
        slot: &CudaSlot,
        to: Buffer,
        at: usize,
        from: &mut PinnedBuffer,
        part: Range<usize>,
    ) -> GpuResult<()> {
        self.h2d.upload_pinned(slot.buffer(to), at, from, part)
    }

    fn download(
        &self,
        queue: Queue,
        slot: &CudaSlot,
        from: Buffer,
        at: usize,
        to: &mut PinnedBuffer,
        part: Range<usize>,
    ) -> GpuResult<()> {
        self.stream(queue).download_pinned(slot.buffer(from), at, to, part)
    }

    fn compress(&mut self, slot: &CudaSlot, pages: u32) -> GpuResult<()> {
        let stream = &self.compute;
        stream.wait_for_event(slot.event(Mark::H2dEnd))?;
        self.compressor.zero(stream, pages, &slot.index)?;
        stream.record(slot.event(Mark::KernelStart))?;
        // SAFETY: three buffers of the slot, zeroed just before in the same stream; until its marks are reached the ring
        // queues nothing else that touches them.
        unsafe { self.compressor.launch_zeroed(stream, &slot.pages, pages, &slot.packed, &slot.index) }?;
        stream.record(slot.event(Mark::KernelEnd))
    }

    fn decompress(&mut self, slot: &CudaSlot, packed_bytes: usize, pages: u32) -> GpuResult<()> {
        let (stream, decompressor) = self.decompressor()?;
        stream.wait_for_event(slot.event(Mark::H2dEnd))?;
        // No page counts as restored unless the kernel says so.
        stream.fill(&slot.status, 0..pages as usize * size_of::<u32>(), 0xff)?;
        decompressor.zero(stream, pages)?;
        stream.record(slot.event(Mark::KernelStart))?;
        let (bytes, index) = (&slot.packed, &slot.index);
        let packed = PackedPages { bytes, len_bytes: packed_bytes as u64, index, pages };
        // SAFETY: four buffers of the slot; until its marks are reached the ring queues nothing else that touches them.
        unsafe { decompressor.launch_zeroed(stream, packed, &slot.pages, &slot.status) }?;
        stream.record(slot.event(Mark::KernelEnd))
    }

    fn mark(&self, slot: &CudaSlot, mark: Mark) -> GpuResult<()> {
        self.stream(mark.queue()).record(slot.event(mark))
    }

    fn is_reached(&self, slot: &CudaSlot, mark: Mark) -> GpuResult<bool> {
        slot.event(mark).is_reached()
    }

    fn elapsed(&self, slot: &CudaSlot, from: Mark, to: Mark) -> GpuResult<Duration> {
        slot.event(to).since(slot.event(from))
    }

    fn drain(&self, time_limit: Duration) -> GpuResult<()> {
        let start = Instant::now();
        for stream in [&self.h2d, &self.compute, &self.d2h] {
            let end = Event::ordering(&self.context)?;
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
        // If the copies can be neither waited for nor known to have stopped, the bytes stay out of reach.
        let settled = self.wait_for(time_limit);
        if settled.is_err() && self.context().has_stopped() {
            // SAFETY: a kernel's failure was reported, and with it the driver has stopped the context's copies.
            unsafe { self.assume_idle() };
        }
        settled
    }
}
