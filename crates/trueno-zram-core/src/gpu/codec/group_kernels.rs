//! Restores a large batch of Zstandard pages in two launches: one orders the pages, one restores them in groups.
#![allow(unsafe_code)]

use std::num::NonZeroU32;

use trueno_gpu::kernels::Kernel;
use trueno_gpu::kernels::zstd::{ZstdGroupDecompressKernel, ZstdGroupOrderKernel};

use super::decompressor::DecompressBuffers;
use super::{MAX_BATCH_PAGES, allocate_scratch};
use crate::gpu::context::GpuContext;
use crate::gpu::error::{GpuError, GpuResult};
use crate::gpu::event::CudaEvent;
use crate::gpu::kernel::LoadedKernel;
use crate::gpu::launch_shape::LaunchShape;
use crate::gpu::memory::DeviceBuffer;
use crate::gpu::stream::CudaStream;

/// Bytes at the start of the scratch memory that must be 0 before the first launch.
const ZEROED_BYTES: usize = ZstdGroupOrderKernel::ZEROED_BYTES as usize;

/// The two kernels on the device, and their scratch memory.
#[derive(Debug)]
pub(super) struct GroupKernels {
    order: (ZstdGroupOrderKernel, LoadedKernel),
    decompress: (ZstdGroupDecompressKernel, LoadedKernel),
    /// Allocated for the first large batch, and replaced for a larger one.
    scratch: Option<DeviceBuffer>,
    last_launch: CudaEvent,
}

impl GroupKernels {
    pub(super) fn new(context: &GpuContext) -> GpuResult<Self> {
        // The target decides how many registers a thread may have. More than four warps per block are slower.
        let target = LaunchShape::best_for(context.info().compute_capability, context.limits()).target;
        let order = ZstdGroupOrderKernel::new(MAX_BATCH_PAGES).with_target(target);
        let decompress = ZstdGroupDecompressKernel::new(MAX_BATCH_PAGES).with_target(target);
        let loaded_order = LoadedKernel::new(context, order.ir())?;
        let loaded_decompress = LoadedKernel::new(context, decompress.ir())?;
        Ok(Self {
            order: (order, loaded_order),
            decompress: (decompress, loaded_decompress),
            scratch: None,
            last_launch: CudaEvent::ordering(context)?,
        })
    }

    /// Returns the number of pages from which a batch is restored faster in groups.
    pub(super) fn least_pages(&self) -> u32 {
        ZstdGroupDecompressKernel::LEAST_PAGES_PER_BLOCK.saturating_mul(self.loaded().resident_blocks())
    }

    /// Limits the grid of the second kernel, and with it the memory and the number of pages above.
    pub(super) fn limit_multiprocessors(&mut self, most: Option<NonZeroU32>) {
        self.decompress.1.limit_multiprocessors(most);
    }

    pub(super) fn loaded(&self) -> &LoadedKernel {
        &self.decompress.1
    }

    pub(super) fn scratch_bytes(&self) -> usize {
        self.scratch.as_ref().map_or(0, DeviceBuffer::len_bytes)
    }

    /// Makes the scratch memory large enough for a batch. Returns `false` if the device is out of memory.
    pub(super) fn reserve(&mut self, pages: u32) -> GpuResult<bool> {
        if self.needed_bytes(pages) <= self.scratch_bytes() as u64 {
            return Ok(true);
        }
        // Replacing a buffer waits for the device. Room for more pages makes that rare and costs 128 bytes per page.
        let needed_bytes = self.needed_bytes(pages.next_power_of_two().min(MAX_BATCH_PAGES));
        match allocate_scratch(self.decompress.1.context(), needed_bytes) {
            Ok(scratch) => {
                self.scratch = Some(scratch);
                Ok(true)
            }
            Err(error) if error.is_out_of_memory() => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn needed_bytes(&self, pages: u32) -> u64 {
        self.decompress.0.scratch_bytes(self.grid(pages), pages)
    }

    fn grid(&self, pages: u32) -> u32 {
        let (kernel, loaded) = &self.decompress;
        kernel.grid(pages).min(loaded.resident_blocks())
    }

    /// Queues the zeroing of the counters, behind the previous launch, and both kernels. The first kernel is short, and its grid
    /// is not limited: it has one thread per page. Records `kernel_start`, if given, before it.
    ///
    /// # Errors
    /// [`GpuError::ShortBuffer`] if [`reserve`](Self::reserve) was not called for that many pages, or the driver's error.
    ///
    /// # Safety
    /// The buffers are four different ones, large enough for their pages. Until the stream has run the kernels, no other work
    /// writes the packed bytes or the index.
    pub(super) unsafe fn launch(
        &self,
        stream: &CudaStream,
        buffers: DecompressBuffers<'_>,
        kernel_start: Option<&CudaEvent>,
    ) -> GpuResult<()> {
        let (what, len_bytes) = ("scratch", self.scratch_bytes());
        let needed_bytes = self.needed_bytes(buffers.pages);
        let scratch = self.scratch.as_ref().filter(|_| needed_bytes <= len_bytes as u64);
        let scratch = scratch.ok_or(GpuError::ShortBuffer { what, len_bytes, needed_bytes })?;
        stream.wait_for_event(&self.last_launch)?;
        stream.fill(scratch, 0..ZEROED_BYTES, 0)?;
        kernel_start.map_or(Ok(()), |event| stream.record(event))?;
        let args = buffers.launch_args(scratch);
        let order = (&self.order.1, self.order.0.grid(buffers.pages));
        let decompress = (&self.decompress.1, self.grid(buffers.pages));
        let launched = [order, decompress].into_iter().try_for_each(|(kernel, grid)| {
            // SAFETY: the caller's buffers are large enough for that many pages; by the check above, the scratch memory is large
            // enough for them and for the grid of the second kernel. Buffers are aligned to 256 bytes. The counters were
            // zeroed above, and the second kernel runs after the first, in the same stream and with the same arguments. Both
            // check every entry against the packed length, and the second every frame against the page. By the caller's
            // guarantee, checked data does not change.
            unsafe { kernel.launch(stream, grid, &args) }
        });
        // If only the second launch fails, the first one still uses the memory.
        stream.record(&self.last_launch)?;
        launched
    }
}
