//! Restores a batch in one launch of one kernel: one page per warp.
#![allow(unsafe_code)]

use std::num::NonZeroU32;

use super::decompressor::DecompressBatch;
use super::kernels::{DecompressKernel, PageFormat};
use super::{LaunchWorkspaces, MAX_BATCH_PAGES, grid_of};
use crate::gpu::context::GpuContext;
use crate::gpu::error::GpuResult;
use crate::gpu::kernel::{LaunchShape, LoadedKernel};
use crate::gpu::stream::CudaStream;

/// A decompression kernel on the device, and its page counters.
#[derive(Debug)]
pub(super) struct OneKernel {
    kernel: DecompressKernel,
    loaded: LoadedKernel,
    workspaces: LaunchWorkspaces,
}

impl OneKernel {
    pub(super) fn new(context: &GpuContext, format: PageFormat, shape: LaunchShape) -> GpuResult<Self> {
        let kernel = DecompressKernel::new(format, MAX_BATCH_PAGES, shape);
        let loaded = LoadedKernel::new(context, kernel.kernel().ir())?;
        Ok(Self { kernel, loaded, workspaces: LaunchWorkspaces::one(context, 0)? })
    }

    pub(super) fn format(&self) -> PageFormat {
        self.kernel.format()
    }

    pub(super) fn loaded(&self) -> &LoadedKernel {
        &self.loaded
    }

    /// Allows that many launches to run at the same time, or fewer if the device is out of memory.
    pub(super) fn allow_concurrent(&mut self, launches: usize) -> GpuResult<()> {
        self.workspaces.grow(self.loaded.context(), 0, launches)
    }

    /// Queues the zeroing of a page counter, behind the previous launch that used it.
    pub(super) fn zero(&mut self, stream: &CudaStream) -> GpuResult<()> {
        self.workspaces.reset_next(stream)
    }

    /// Queues the kernel.
    ///
    /// # Safety
    /// The batch has four different buffers. Until the stream has run the kernel, no other work writes the packed bytes or
    /// the index. [`zero`](Self::zero) was the last call before, with the same stream.
    pub(super) unsafe fn launch(
        &self,
        stream: &CudaStream,
        batch: DecompressBatch<'_>,
        multiprocessors: Option<NonZeroU32>,
    ) -> GpuResult<()> {
        let packed = batch.packed;
        if packed.pages == 0 {
            return Ok(());
        }
        let workspace = self.workspaces.current();
        let args = batch.launch_args(&workspace.next_page);
        let grid = grid_of(self.kernel.kernel(), &self.loaded, multiprocessors, packed.pages);
        // SAFETY: by `DecompressBatch::checked`, all buffers are large enough for that many pages. The kernel checks every entry
        // against the packed length and every block against the page. By the caller's guarantee, checked data does not
        // change.
        unsafe { self.loaded.launch(stream, grid, &args) }?;
        stream.record(&workspace.last_launch)
    }
}
