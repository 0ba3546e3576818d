//! The threads that a pipeline runs on, and the observer that follows it.

use std::fmt;
use std::time::Duration;

use rayon::ThreadPool;

use crate::pipeline::timeline::Stage;

/// Follows the progress of a pipeline. `()` ignores everything.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use trueno_zram_io::Observer;
///
/// #[derive(Default)]
/// struct Progress(AtomicU64);
///
/// impl Observer for Progress {
///     fn progress(&self, content_bytes: u64, _archive_bytes: u64) {
///         self.0.store(content_bytes, Ordering::Relaxed);
///     }
/// }
/// # Progress::default().progress(1, 1);
/// ```
pub trait Observer: Sync {
    /// Receives the length of the content, once it is known.
    fn total(&self, _content_bytes: Option<u64>) {}

    /// Receives the bytes of content done so far, and the bytes of archive that hold them.
    fn progress(&self, _content_bytes: u64, _archive_bytes: u64) {}

    /// Receives the time that a thread spent on a stage.
    fn spent(&self, _stage: Stage, _time: Duration) {}
}

impl Observer for () {}

/// The thread pool that runs a pipeline, and the observer that follows it.
///
/// ```
/// use trueno_zram_io::Workers;
/// let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build()?;
/// let workers = Workers::new(&pool).with_observer(&());
/// # drop(format!("{workers:?}"));
/// # Ok::<(), rayon::ThreadPoolBuildError>(())
/// ```
#[derive(Clone, Copy)]
pub struct Workers<'a> {
    pub(crate) pool: &'a ThreadPool,
    pub(crate) observer: &'a dyn Observer,
}

impl<'a> Workers<'a> {
    /// Runs pipelines on the threads of `pool`, without an observer.
    #[must_use]
    pub fn new(pool: &'a ThreadPool) -> Self {
        Self { pool, observer: &() }
    }

    /// Sets the observer.
    #[must_use]
    pub fn with_observer(self, observer: &'a dyn Observer) -> Self {
        Self { observer, ..self }
    }

    /// Returns the number of threads.
    pub(crate) fn threads(&self) -> usize {
        self.pool.current_num_threads()
    }
}

impl fmt::Debug for Workers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Workers({} threads)", self.threads())
    }
}
