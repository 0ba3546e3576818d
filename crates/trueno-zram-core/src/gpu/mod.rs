//! Compression on NVIDIA GPUs.
//!
//! The driver is found at run time: the same binary runs with and without one, and nothing here panics if it is
//! missing. [`gpu_available`] tells whether there is a usable GPU, [`GpuDeviceInfo::all`] lists the GPUs, and
//! [`select_backend`] tells whether a batch should go there. [`GpuBatchCompressor`] compresses batches with LZ4 or
//! Zstandard, with the CPU as its fallback; [`GpuBatchConfig`] says what a Zstandard level means on a GPU. Pages may lie
//! anywhere: in ordinary memory, in page-locked memory ([`PinnedPages`], [`PinnedBatch`]), or on the GPU
//! ([`DevicePages`], [`PackedOnDevice`]).
//!
//! ```
//! use trueno_zram_core::gpu::{BackendSelection, gpu_available, select_backend};
//! if select_backend(50_000, gpu_available()) == BackendSelection::Gpu {
//!     println!("worth the transfer");
//! }
//! ```
//!
//! The feature `internals` exposes `raw`, the driver layer that the rest is built on: contexts, buffers, streams,
//! events, launches. It is for the project's own tools and tests.

mod backend;
pub(crate) mod bounded_drop;
mod bus;
pub(crate) mod codec;
mod config;
pub(crate) mod context;
mod device;
mod device_status;
mod driver;
pub(crate) mod error;
mod event;
mod kernel;
mod lane_rule;
mod launch_args;
mod launch_shape;
mod memory;
mod module;
pub(crate) mod pinned;
mod pinned_batch;
mod pinned_pages;
pub(crate) mod resident;
pub(crate) mod ring;
mod stream;

pub use crate::batch::{
    BatchResult, BatchTimes, Chooser, CompressStream, CompressedSlot, CpuProgress, DecompressStream, FallbackStats,
    GpuBatchCompressor, GpuBatchStats, GpuOptions, LazyGpu, PackedSlot, PageSlot, PageStream, RestoredBatch,
    RestoredSlot, SlotStream, gpu_is_opening,
};
pub(crate) use backend::MIN_GPU_PAGES;
pub use backend::{BackendSelection, meets_pcie_rule, select_backend};
pub use bus::BusBandwidth;
pub use config::GpuBatchConfig;
pub use device::{GpuBackend, GpuDeviceInfo, gpu_available};
pub use device_status::GpuDeviceStatus;
pub use error::{DriverError, GpuError};
pub use pinned_batch::PinnedBatch;
pub use pinned_pages::PinnedPages;
pub use resident::{DevicePages, PackedOnDevice};
pub use ring::cuda::Cuda;
pub use ring::device::BatchDevice;
pub use ring::interpreter::Interpreter;

/// A thin layer over the CUDA driver, for running custom kernels, or this crate's kernels on custom memory.
///
/// All of it is safe except launches ([`LoadedKernel::launch`](raw::LoadedKernel::launch) and the calls built on it): a
/// kernel can do anything.
///
/// - Every object keeps its [`GpuContext`](raw::GpuContext) alive. Objects can be dropped in any order, on any thread.
/// - Work in flight is guarded by the objects: device buffers wait when dropped, page-locked ones also when accessed.
///   They wait without a time limit, and also for other users of the context. The types outside this module do not.
/// - After an error has poisoned a context, all calls return that error at once, and nothing is freed.
///
/// ```
/// use trueno_zram_core::gpu::{GpuDeviceInfo, raw::GpuContext};
/// for device in GpuDeviceInfo::all() {
///     let context = GpuContext::new(device.index)?;
///     println!("{}: {} SMs", device.name, context.limits().multiprocessors);
/// }
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
#[cfg(feature = "internals")]
pub mod raw {
    pub use super::codec::{
        CompressBuffers, DecompressBuffers, MAX_BATCH_PAGES, PageCompressor, PageDecompressor, PageFormat,
    };
    pub use super::context::GpuContext;
    pub use super::device::DeviceLimits;
    pub use super::error::GpuResult;
    pub use super::event::CudaEvent;
    pub use super::kernel::{EntryPoint, KernelAttributes, LoadedKernel};
    pub use super::lane_rule::lane_rule;
    pub use super::launch_args::{LaunchArgs, ParamKind};
    pub use super::launch_shape::LaunchShape;
    pub use super::memory::DeviceBuffer;
    pub use super::pinned::{HostCaching, PinnedBuffer};
    pub use super::stream::CudaStream;
}
