//! The background thread: ages pages, compacts, and recompresses idle pages.

mod compact;
mod recompress;

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use trueno_zram_core::BatchCodec;

use crate::error::{Error, Result};
use crate::store::Store;

pub use compact::Compaction;
pub use recompress::{RecompressOptions, Recompression};

/// The schedule of the background thread.
///
/// ```
/// use trueno_zram_store::MaintenanceOptions;
/// assert!(MaintenanceOptions::default().max_waste_percent < 100);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MaintenanceOptions {
    /// The time between two checks for work.
    pub interval: Duration,
    /// The length of a tick. After each tick, pages become one tick older and idle ones are recompressed.
    pub tick: Duration,
    /// The waste above which to compact, in percent of the compressed bytes. Up to 1 MiB more is never compacted.
    pub max_waste_percent: u8,
    /// The choice of pages to recompress, and the part of the time to spend.
    pub recompress: RecompressOptions,
}

impl Default for MaintenanceOptions {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(1),
            tick: Duration::from_secs(60),
            max_waste_percent: 10,
            recompress: RecompressOptions::default().with_cpu_percent(20),
        }
    }
}

impl MaintenanceOptions {
    /// Sets how often to look for work.
    #[must_use]
    pub fn with_interval(self, interval: Duration) -> Self {
        Self { interval, ..self }
    }

    /// Sets the length of a tick.
    #[must_use]
    pub fn with_tick(self, tick: Duration) -> Self {
        Self { tick, ..self }
    }

    /// Sets the part of unused memory above which to compact.
    #[must_use]
    pub fn with_max_waste_percent(self, max_waste_percent: u8) -> Self {
        Self { max_waste_percent, ..self }
    }

    /// Sets the options of recompression.
    #[must_use]
    pub fn with_recompress(self, recompress: RecompressOptions) -> Self {
        Self { recompress, ..self }
    }
}

/// A running background thread. Dropping it stops the thread.
///
/// ```
/// # use std::sync::Arc;
/// # use trueno_zram_store::{Maintenance, MaintenanceOptions, Store, StoreOptions};
/// use trueno_zram_core::{Algorithm, CpuBatchCompressor};
/// let store = Arc::new(Store::create(&StoreOptions::new(1 << 20))?);
/// let codec = Box::new(CpuBatchCompressor::new(Algorithm::Zstd { level: 3 })?);
/// let maintenance = Maintenance::start(&store, MaintenanceOptions::default(), Some(codec))?;
/// drop(maintenance);
/// # Ok::<(), trueno_zram_store::Error>(())
/// ```
#[derive(Debug)]
pub struct Maintenance {
    stop: Arc<StopSignal>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct StopSignal {
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl StopSignal {
    /// Waits for `time`. Returns `true` as soon as the thread is to stop.
    fn wait(&self, time: Duration) -> bool {
        let stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(stopped, time, |stopped| !*stopped);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn stop(&self) {
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }
}

impl Maintenance {
    /// Starts the thread. Without a codec it does not recompress.
    ///
    /// # Errors
    /// [`Error::System`] if the thread cannot be started.
    pub fn start(store: &Arc<Store>, options: MaintenanceOptions, codec: Option<Box<dyn BatchCodec>>) -> Result<Self> {
        let stop = Arc::new(StopSignal::default());
        let thread = std::thread::Builder::new().name("store".to_owned()).spawn({
            let (store, stop) = (Arc::clone(store), Arc::clone(&stop));
            move || run(&store, &options, codec, &stop)
        });
        let thread = thread.map_err(Error::system("the background thread could not be started"))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Maintenance {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

fn run(store: &Store, options: &MaintenanceOptions, mut codec: Option<Box<dyn BatchCodec>>, stop: &StopSignal) {
    let mut last_tick = Instant::now();
    while !stop.wait(options.interval) {
        // An error here occurs again in the next round, or in the request that it concerns.
        if is_wasteful(store, options.max_waste_percent) {
            let _ = store.compact();
        }
        if last_tick.elapsed() >= options.tick {
            last_tick = Instant::now();
            store.tick();
            if let Some(codec) = &mut codec {
                let _ = store.recompress_until(&mut **codec, &options.recompress, &mut |time| stop.wait(time));
            }
        }
    }
}

fn is_wasteful(store: &Store, max_waste_percent: u8) -> bool {
    let mm = store.stats().mm;
    let waste = mm.compr_data_size / 100 * u64::from(max_waste_percent) + (1 << 20);
    mm.mem_used_total > mm.compr_data_size.saturating_add(waste)
}
