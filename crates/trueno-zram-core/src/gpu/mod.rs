//! Compression on NVIDIA GPUs, where there is one.
//!
//! The driver is looked for at run time: the same binary runs with and without one, and nothing here panics for want of
//! it. [`gpu_available`] says whether there is a GPU, [`GpuDeviceInfo::all`] which, [`select_backend`] whether a batch
//! should go there. [`GpuBatchCompressor`] does batches, with the CPU behind it: of pages that lie anywhere, in page-locked
//! memory ([`PinnedPages`], [`PinnedBatch`]), or on the GPU ([`DevicePages`], [`PackedOnDevice`]).
//!
//! ```
//! use trueno_zram_core::gpu::{BackendSelection, gpu_available, select_backend};
//! if select_backend(50_000, gpu_available()) == BackendSelection::Gpu {
//!     println!("worth the way over the bus");
//! }
//! ```
//!
//! The feature `internals` exposes `raw`, the layer over the driver that the rest is built on: contexts, buffers, streams, events,
//! launches. It is for the project's own tools and tests.

mod backend;
pub(crate) mod bounded_drop;
mod codec;
mod config;
pub(crate) mod context;
mod device;
mod driver;
mod error;
mod event;
mod kernel;
mod lane_rule;
mod launch;
mod memory;
mod module;
mod pinned;
mod pinned_batch;
mod pinned_pages;
pub(crate) mod resident;
pub(crate) mod ring;
mod stream;

pub use crate::batch::{
    BatchResult, BatchTimes, CompressStream, CompressedSlot, DecompressStream, FallbackStats, GpuBatchCompressor,
    GpuBatchStats, GpuOptions, PackedSlot, PageSlot, RestoredBatch, RestoredSlot,
};
pub use backend::{BackendSelection, meets_pcie_rule, select_backend};
pub use config::GpuBatchConfig;
pub use device::{GpuBackend, GpuDeviceInfo, gpu_available};
pub use error::{DriverError, GpuError};
pub use pinned_batch::PinnedBatch;
pub use pinned_pages::PinnedPages;
pub use resident::{DevicePages, PackedOnDevice};
pub use ring::cuda::Cuda;
pub use ring::interpreter::Interpreter;

/// The thin layer over the CUDA driver, for those who bring their own kernels, or run ours on memory of their own.
///
/// All of it is safe but launches ([`Launcher::launch`](raw::Launcher::launch) and those built on it): a kernel is
/// foreign code, and may do anything.
///
/// - Every object keeps its [`GpuContext`](raw::GpuContext) alive; drop them in any order, on any thread.
/// - What is in flight is guarded by the objects: device buffers wait when dropped, page-locked ones also when touched.
///   They wait as long as it takes, and for what others do in the context, too; the types outside this module do not.
/// - Once an error has poisoned a context, all calls give that error, at once, and nothing is freed.
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
    pub use super::codec::{Lz4Compressor, Lz4Decompressor, MAX_BATCH_PAGES, PackedPages};
    pub use super::context::GpuContext;
    pub use super::device::DeviceLimits;
    pub use super::error::GpuResult;
    pub use super::event::Event;
    pub use super::kernel::{BlockShape, LoadedKernel};
    pub use super::lane_rule::lane_rule;
    pub use super::launch::{KernelAttributes, LaunchArgs, Launcher, ParamKind};
    pub use super::memory::DeviceBuffer;
    pub use super::module::Module;
    pub use super::pinned::{HostCaching, PinnedBuffer};
    pub use super::stream::Stream;
}
