//! Tuning options not covered by `GpuBatchConfig`.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use rayon::ThreadPool;
use trueno_gpu::kernels::packed::Mode;

/// Tuning options not covered by [`GpuBatchConfig`](crate::gpu::GpuBatchConfig).
///
/// ```
/// use std::num::NonZeroU32;
/// use trueno_zram_core::gpu::GpuOptions;
/// // A quarter of an H200 fills the bus: the rest stays with the user's own kernels.
/// let options = GpuOptions::new().with_multiprocessors(NonZeroU32::new(33));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GpuOptions {
    /// Speed or ratio as the aim of the kernels. Zstandard at levels 4 to 9 always aims at ratio.
    pub mode: Mode,
    /// The most multiprocessors that the kernels may occupy, or `None` for all.
    pub multiprocessors: Option<NonZeroU32>,
    /// The time that a batch may stay in one stage before the GPU counts as hung and is abandoned. Dropping the compressor
    /// or its page-locked memory waits as long, at most, for kernels launched by other users of the context.
    pub time_limit: Duration,
    /// The threads that stage pages, take results and replace the GPU when it fails, or `None` for the process-wide
    /// [`default_gpu_pool`](crate::default_gpu_pool).
    pub pool: Option<Arc<ThreadPool>>,
}

impl GpuOptions {
    /// Returns the defaults: fast mode, all multiprocessors, a time limit of 10 seconds, the process-wide pool.
    ///
    /// ```
    /// use trueno_zram_core::gpu::GpuOptions;
    /// assert_eq!(GpuOptions::new().time_limit.as_secs(), 10);
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self { mode: Mode::Fast, multiprocessors: None, time_limit: Duration::from_secs(10), pool: None }
    }

    /// Sets the mode of the kernels.
    ///
    /// ```
    /// use trueno_gpu::kernels::packed::Mode;
    /// use trueno_zram_core::gpu::GpuOptions;
    /// assert_eq!(GpuOptions::new().with_mode(Mode::Ratio).mode, Mode::Ratio);
    /// ```
    #[must_use]
    pub fn with_mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// Limits the multiprocessors that the kernels may occupy.
    ///
    /// ```
    /// use std::num::NonZeroU32;
    /// use trueno_zram_core::gpu::GpuOptions;
    /// assert_eq!(GpuOptions::new().with_multiprocessors(NonZeroU32::new(8)).multiprocessors, NonZeroU32::new(8));
    /// ```
    #[must_use]
    pub fn with_multiprocessors(self, multiprocessors: Option<NonZeroU32>) -> Self {
        Self { multiprocessors, ..self }
    }

    /// Sets the time after which the GPU counts as hung.
    ///
    /// ```
    /// use std::time::Duration;
    /// use trueno_zram_core::gpu::GpuOptions;
    /// assert_eq!(GpuOptions::new().with_time_limit(Duration::from_secs(1)).time_limit.as_millis(), 1000);
    /// ```
    #[must_use]
    pub fn with_time_limit(self, time_limit: Duration) -> Self {
        Self { time_limit, ..self }
    }

    /// Sets the worker threads, which other compressors may share.
    ///
    /// ```
    /// use std::num::NonZeroUsize;
    /// use trueno_zram_core::{build_pool, gpu::GpuOptions};
    /// let options = GpuOptions::new().with_pool(build_pool(NonZeroUsize::new(2).expect("not zero"))?);
    /// # assert!(options.pool.is_some());
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn with_pool(self, pool: Arc<ThreadPool>) -> Self {
        Self { pool: Some(pool), ..self }
    }
}

impl Default for GpuOptions {
    fn default() -> Self {
        Self::new()
    }
}
