//! The thread pools that compressors run on.
//!
//! A compressor is given its pool, or uses one that the whole process shares. No other place builds one.

use std::io;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::available_parallelism;

use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

use crate::error::{Error, Result};

/// The largest pool that [`build_pool`] makes.
///
/// ```
/// use std::num::NonZeroUsize;
/// use trueno_zram_core::{Error, MAX_THREADS, build_pool};
/// let too_many = NonZeroUsize::new(MAX_THREADS + 1).unwrap();
/// assert!(matches!(build_pool(too_many), Err(Error::Config { field: "threads", .. })));
/// ```
pub const MAX_THREADS: usize = 1024;

/// Starts a pool of `threads` workers, to be shared by any number of compressors.
///
/// ```
/// use std::num::NonZeroUsize;
/// use trueno_zram_core::{Algorithm, CpuBatchCompressor, build_pool, cpu::InstructionSet};
/// let pool = build_pool(NonZeroUsize::new(2).unwrap())?;
/// let compressor = CpuBatchCompressor::with_pool(Algorithm::Lz4, InstructionSet::detect(), pool)?;
/// assert_eq!(compressor.threads(), 2);
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Config`] for more than [`MAX_THREADS`] workers; [`Error::ThreadPool`] if the system starts no more threads.
pub fn build_pool(threads: NonZeroUsize) -> Result<Arc<ThreadPool>> {
    let threads = threads.get();
    if threads > MAX_THREADS {
        return Err(Error::Config {
            field: "threads",
            value: threads.to_string(),
            allowed: format!("1 to {MAX_THREADS}"),
        });
    }
    let builder = ThreadPoolBuilder::new().num_threads(threads).thread_name(|n| format!("trueno-{n}"));
    let pool = builder.build().map_err(|error| Error::ThreadPool { threads, reason: reason(&error) })?;
    Ok(Arc::new(pool))
}

/// Returns the reason in the system's words, without the number that the standard library adds.
fn reason(error: &ThreadPoolBuildError) -> String {
    let of_system = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    let mut reason = of_system.map_or_else(|| error.to_string(), ToString::to_string);
    if let Some(number) = of_system.and_then(io::Error::raw_os_error) {
        let added = format!(" (os error {number})");
        reason.truncate(reason.strip_suffix(&added).map_or(reason.len(), str::len));
    }
    reason
}

/// Returns the pool that all CPU compressors of this process share unless they are given another: one worker per core.
///
/// ```
/// use std::sync::Arc;
/// use trueno_zram_core::default_pool;
/// assert!(Arc::ptr_eq(&default_pool()?, &default_pool()?));
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::ThreadPool`] if the threads cannot be started.
pub fn default_pool() -> Result<Arc<ThreadPool>> {
    static POOL: Mutex<Option<Arc<ThreadPool>>> = Mutex::new(None);
    shared(&POOL, cores())
}

/// Returns the pool that all GPU compressors of this process share unless they are given another.
///
/// It has the number of workers that [`workers_beside_driver`] gives for all cores.
///
/// ```
/// use std::sync::Arc;
/// use trueno_zram_core::default_gpu_pool;
/// assert!(Arc::ptr_eq(&default_gpu_pool()?, &default_gpu_pool()?));
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::ThreadPool`] if the threads cannot be started.
#[cfg(feature = "gpu")]
pub fn default_gpu_pool() -> Result<Arc<ThreadPool>> {
    static POOL: Mutex<Option<Arc<ThreadPool>>> = Mutex::new(None);
    shared(&POOL, workers_beside_driver(cores()))
}

/// Returns how many of `threads` threads should be workers if a GPU is driven by the calling thread.
///
/// The driving thread needs a core to itself: sharing one with a busy worker, it is descheduled for milliseconds while the bus
/// idles. Below four threads that core is worth more as a worker.
///
/// ```
/// use std::num::NonZeroUsize;
/// use trueno_zram_core::workers_beside_driver;
/// let workers = |threads| workers_beside_driver(NonZeroUsize::new(threads).unwrap()).get();
/// assert_eq!((workers(2), workers(16)), (2, 15));
/// ```
#[cfg(feature = "gpu")]
#[must_use]
pub fn workers_beside_driver(threads: NonZeroUsize) -> NonZeroUsize {
    const FEW_THREADS: usize = 4;
    if threads.get() < FEW_THREADS { threads } else { NonZeroUsize::new(threads.get() - 1).unwrap_or(threads) }
}

fn cores() -> NonZeroUsize {
    let cores = available_parallelism().unwrap_or(NonZeroUsize::MIN);
    cores.min(NonZeroUsize::new(MAX_THREADS).unwrap_or(cores))
}

/// A failure to start the threads is not remembered: the next call tries again.
fn shared(pool: &Mutex<Option<Arc<ThreadPool>>>, threads: NonZeroUsize) -> Result<Arc<ThreadPool>> {
    // The option is consistent even after a panic.
    let mut pool = pool.lock().unwrap_or_else(PoisonError::into_inner);
    match &*pool {
        Some(pool) => Ok(Arc::clone(pool)),
        None => Ok(Arc::clone(pool.insert(build_pool(threads)?))),
    }
}
