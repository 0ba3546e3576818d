//! What can be set beside the configuration of the documents.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use trueno_gpu::kernels::lz4::Mode;

/// How a GPU is to be used, beside what [`GpuBatchConfig`](crate::gpu::GpuBatchConfig) says.
///
/// ```
/// use std::num::NonZeroU32;
/// use trueno_zram_core::gpu::GpuOptions;
/// // A quarter of an H200 fills the bus: the rest stays with the user's own kernels.
/// let options = GpuOptions { multiprocessors: NonZeroU32::new(33), ..GpuOptions::default() };
/// assert_eq!(options.time_limit.as_secs(), 10);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuOptions {
    /// Speed or ratio.
    pub mode: Mode,
    /// The most multiprocessors that the kernels may take; `None` for all.
    pub multiprocessors: Option<NonZeroU32>,
    /// How long a batch may stay in one stage before the GPU counts as hung and is given up; and how long dropping the
    /// compressor, or its page-locked pages, may wait for kernels of others.
    pub time_limit: Duration,
    /// Threads that stage pages, take results, and stand in for the GPU; `None` for one a core, but for one
    /// that is left to the thread that calls.
    pub threads: Option<NonZeroUsize>,
}

impl Default for GpuOptions {
    fn default() -> Self {
        Self { mode: Mode::Fast, multiprocessors: None, time_limit: Duration::from_secs(10), threads: None }
    }
}
