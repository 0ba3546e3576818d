//! The background thread: ages pages, compacts, and recompresses idle pages.

mod compact;
mod recompress;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use trueno_zram_core::BatchCodec;

use crate::error::{Error, Result};
use crate::stats::MmStat;
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
    /// The thread ends when it is dropped. Nothing is ever sent.
    running: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Maintenance {
    /// Starts the maintenance thread of a store. Without a codec it does not recompress.
    ///
    /// # Errors
    /// [`Error::System`] if the thread cannot be started.
    pub fn start(store: &Arc<Store>, options: MaintenanceOptions, codec: Option<Box<dyn BatchCodec>>) -> Result<Self> {
        let (running, stopped) = channel();
        let store = Arc::clone(store);
        let thread = std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || run(&store, &options, codec, &stopped))
            .map_err(Error::system("the background thread could not be started"))?;
        Ok(Self { running: Some(running), thread: Some(thread) })
    }
}

impl Drop for Maintenance {
    fn drop(&mut self) {
        drop(self.running.take());
        if let Some(thread) = self.thread.take() {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

fn run(store: &Store, options: &MaintenanceOptions, mut codec: Option<Box<dyn BatchCodec>>, stopped: &Receiver<()>) {
    // Returns `true` as soon as the thread is to end.
    let mut pause = |time| stopped.recv_timeout(time) == Err(RecvTimeoutError::Disconnected);
    let mut last_tick = Instant::now();
    while !pause(options.interval) {
        // An error here occurs again in the next round, or in the request that it concerns.
        if is_wasteful(&store.stats().mm, options.max_waste_percent) {
            let _ = store.compact();
        }
        if last_tick.elapsed() >= options.tick {
            last_tick = Instant::now();
            store.tick();
            if let Some(codec) = &mut codec {
                let _ = store.recompress_until(&mut **codec, &options.recompress, &mut pause);
            }
        }
    }
}

/// Returns `true` if more memory is held than compressed bytes, by this part of them and a MiB.
fn is_wasteful(mm: &MmStat, max_waste_percent: u8) -> bool {
    let waste = mm.compr_data_size / 100 * u64::from(max_waste_percent) + (1 << 20);
    mm.mem_used_total > mm.compr_data_size.saturating_add(waste)
}

#[cfg(test)]
mod tests {
    use trueno_zram_core::{Algorithm, CpuBatchCompressor};

    use super::*;
    use crate::handle::StoreHandle;
    use crate::options::StoreOptions;

    #[test]
    fn waste_is_a_part_of_the_compressed_bytes_and_a_mib() {
        const MIB: u64 = 1 << 20;
        let held = |mem_used_total| MmStat { compr_data_size: 100 * MIB, mem_used_total, ..MmStat::default() };
        assert!(!is_wasteful(&held(111 * MIB), 11) && is_wasteful(&held(112 * MIB + 1), 11));
        assert!(!is_wasteful(&held(101 * MIB), 0) && is_wasteful(&held(101 * MIB + 1), 0));
    }

    #[test]
    fn the_thread_compacts_and_recompresses_idle_pages() {
        let store = Arc::new(Store::create(&StoreOptions::new(4 << 20)).unwrap());
        let mut handle = StoreHandle::new(&store).unwrap();
        let bytes: Vec<u8> = (0..1u32 << 20).flat_map(|number| (number * 13 / 5).to_le_bytes()).collect();
        handle.write_at(0, &bytes).unwrap();
        handle.discard(0, 3 << 20).unwrap();
        let held = store.stats().mm.mem_used_total;
        let codec = Box::new(CpuBatchCompressor::new(Algorithm::Zstd { level: 1 }).unwrap());
        let options = MaintenanceOptions::default()
            .with_interval(Duration::from_millis(1))
            .with_tick(Duration::from_millis(1))
            .with_max_waste_percent(0)
            .with_recompress(RecompressOptions::default().with_min_age(1));
        let owners = Arc::strong_count(&store);
        let maintenance = Maintenance::start(&store, options, Some(codec)).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while store.stats().pages_recompressed == 0 || store.stats().mm.mem_used_total >= held {
            assert!(Instant::now() < deadline, "{:?}", store.stats());
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(maintenance);
        assert_eq!(Arc::strong_count(&store), owners, "the thread has ended");
        let mut back = vec![0; 1 << 20];
        handle.read_at(3 << 20, &mut back).unwrap();
        assert!(back == bytes[3 << 20..]);
    }
}
