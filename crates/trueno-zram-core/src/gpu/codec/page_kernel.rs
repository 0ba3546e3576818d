//! A kernel on the device that takes one page per warp, and the memory of its launches.
#![allow(unsafe_code)]

use trueno_gpu::kernels::Kernel;

use super::allocate_scratch;
use crate::gpu::context::GpuContext;
use crate::gpu::error::GpuResult;
use crate::gpu::event::CudaEvent;
use crate::gpu::kernel::LoadedKernel;
use crate::gpu::launch_args::LaunchArgs;
use crate::gpu::memory::DeviceBuffer;
use crate::gpu::stream::CudaStream;

const COUNTER_BYTES: usize = size_of::<u32>();

/// Device memory that a launch needs besides the caller's buffers. Each launch waits for the previous one that used it, even
/// across streams, so only one uses it at a time.
#[derive(Debug)]
pub(super) struct LaunchWorkspace {
    pub(super) next_page: DeviceBuffer,
    pub(super) scratch: DeviceBuffer,
    last_launch: CudaEvent,
}

impl LaunchWorkspace {
    fn new(context: &GpuContext, scratch_bytes: u64) -> GpuResult<Self> {
        Ok(Self {
            next_page: DeviceBuffer::new(context, COUNTER_BYTES)?,
            scratch: allocate_scratch(context, scratch_bytes)?,
            last_launch: CudaEvent::ordering(context)?,
        })
    }
}

/// A loaded kernel, and workspaces that its launches use in turn. As many launches as there are workspaces can run at the
/// same time.
#[derive(Debug)]
pub(super) struct PageKernel {
    pub(super) loaded: LoadedKernel,
    /// The scratch memory of one launch.
    scratch_bytes: u64,
    workspaces: Vec<LaunchWorkspace>,
    /// The workspace that was reset last.
    current: usize,
}

impl PageKernel {
    /// Loads a kernel, with one workspace. `scratch_bytes` returns the scratch memory that a grid of that many blocks needs.
    pub(super) fn new(
        context: &GpuContext,
        kernel: &dyn Kernel,
        scratch_bytes: impl FnOnce(u32) -> u64,
    ) -> GpuResult<Self> {
        let loaded = LoadedKernel::new(context, kernel.ir())?;
        let scratch_bytes = scratch_bytes(loaded.resident_blocks());
        let workspaces = vec![LaunchWorkspace::new(context, scratch_bytes)?];
        Ok(Self { loaded, scratch_bytes, workspaces, current: 0 })
    }

    /// Returns the scratch memory of all workspaces.
    pub(super) fn scratch_bytes(&self) -> usize {
        self.workspaces.iter().map(|workspace| workspace.scratch.len_bytes()).sum()
    }

    /// Allows that many launches to run at the same time, or fewer if the device is out of memory.
    pub(super) fn allow_concurrent(&mut self, launches: usize) -> GpuResult<()> {
        while self.workspaces.len() < launches {
            match LaunchWorkspace::new(self.loaded.context(), self.scratch_bytes) {
                Ok(workspace) => self.workspaces.push(workspace),
                Err(error) if error.is_out_of_memory() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Chooses the next workspace and queues the zeroing of its page counter, behind the launch that used it last.
    pub(super) fn reset_next(&mut self, stream: &CudaStream) -> GpuResult<()> {
        self.current = (self.current + 1) % self.workspaces.len();
        let workspace = self.workspace();
        stream.wait_for_event(&workspace.last_launch)?;
        stream.fill(&workspace.next_page, 0..COUNTER_BYTES, 0)
    }

    /// Returns the workspace for the next launch.
    pub(super) fn workspace(&self) -> &LaunchWorkspace {
        &self.workspaces[self.current]
    }

    /// Queues the kernel.
    ///
    /// # Safety
    /// The requirements of [`LoadedKernel::launch`]. The arguments name this [`workspace`](Self::workspace), and
    /// [`reset_next`](Self::reset_next) was the last call before, with the same stream.
    pub(super) unsafe fn launch(&self, stream: &CudaStream, grid: u32, args: &LaunchArgs<'_>) -> GpuResult<()> {
        // SAFETY: the caller upholds the requirements. No other launch uses the workspace: the reset waits for the one before.
        unsafe { self.loaded.launch(stream, grid, args) }?;
        stream.record(&self.workspace().last_launch)
    }
}
