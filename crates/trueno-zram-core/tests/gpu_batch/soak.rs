//! The soak test: four threads run random batches in random forms through random rings and verify every page.

use std::num::NonZeroUsize;
use std::ops::AddAssign;
use std::thread;
use std::time::{Duration, Instant};

use trueno_gpu::kernels::lz4::Mode;
use trueno_test_pages::{corpus, edge_pages, generate::Generator};
use trueno_zram_core::build_pool;
use trueno_zram_core::gpu::raw::GpuContext;
use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions};
use trueno_zram_core::{Algorithm, CompressedBatch, PAGE_SIZE, Page};

use crate::harness::{Form, Memory, assert_no_fallback, assert_restored, check_batch, compressor, config, lock_device};

const THREADS: u64 = 4;
const MAX_PAGES: usize = 60_000;
const MAX_SLOT_PAGES: usize = 8192;
/// Maximum number of slots per batch: launches of single pages would take all the time.
const MAX_SLOTS_PER_BATCH: usize = 2000;
/// Batches through one ring before the next one is created.
const BATCHES_PER_RING: usize = 12;
/// Between two epochs the threads pause and memory use is measured.
const EPOCH: Duration = Duration::from_secs(20);
/// Memory use at the end of the warm-up is the baseline for later measurements.
const WARM_UP: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    rings: u64,
    batches: u64,
    pages: u64,
    bytes_held: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.rings += other.rings;
        self.batches += other.batches;
        self.pages += other.pages;
        self.bytes_held += other.bytes_held;
    }
}

/// A thread's pages and memory, kept across epochs.
struct Worker {
    generator: Generator,
    pages: Vec<Page>,
    memory: Memory,
}

impl Worker {
    fn new(seed: u64) -> Self {
        let mut generator = Generator::new(seed);
        let edges = edge_pages::all();
        let corpus: Vec<&Page> = corpus::all_pages().collect();
        let page = |_| match generator.below(10) {
            0 => generator.page(),
            1 => *edges[generator.below(edges.len())].page,
            2 => [generator.byte(); PAGE_SIZE],
            _ => *corpus[generator.below(corpus.len())],
        };
        let pages = (0..MAX_PAGES).map(page).collect();
        let mut memory = Memory::new(&compressor(config(1, 1), &GpuOptions::default()), MAX_PAGES);
        // Touch the memory now, so that it counts from the start.
        memory.restored.resize(MAX_PAGES, [0; PAGE_SIZE]);
        Self { generator, pages, memory }
    }

    /// Returns a number from 1 to `most`, with a logarithmic distribution.
    fn log_uniform(&mut self, most: usize) -> usize {
        // 53 bits, which an `f64` represents exactly.
        let unit = (self.generator.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let drawn = (most as f64).powf(unit).round();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Between 1 and `most`.
        (drawn as usize).clamp(1, most)
    }

    fn ring(&mut self) -> GpuBatchCompressor {
        let random = &mut self.generator;
        let mut options = GpuOptions::new().with_mode(if random.below(2) == 0 { Mode::Fast } else { Mode::Ratio });
        if let Some(threads) = [NonZeroUsize::new(1), NonZeroUsize::new(4), None][random.below(3)] {
            options = options.with_pool(build_pool(threads).unwrap());
        }
        let algorithm = [Algorithm::Lz4, Algorithm::Zstd { level: 3 }][random.below(2)];
        let (slots, async_dma) = (1 + random.below(4), random.below(4) > 0);
        let batch_size = self.log_uniform(MAX_SLOT_PAGES);
        compressor(GpuBatchConfig { algorithm, async_dma, ..config(batch_size, slots) }, &options)
    }

    fn run(&mut self, until: Instant) -> Counts {
        let mut counts = Counts::default();
        while Instant::now() < until {
            let mut ring = self.ring();
            counts.rings += 1;
            for _ in 0..BATCHES_PER_RING {
                if Instant::now() >= until {
                    break;
                }
                counts += self.batch(&mut ring);
            }
            assert_no_fallback(&ring);
        }
        // Memory use at rest must not depend on the last batch.
        self.memory.batch = CompressedBatch::new();
        counts
    }

    fn batch(&mut self, ring: &mut GpuBatchCompressor) -> Counts {
        let most = MAX_PAGES.min(ring.config().batch_size * MAX_SLOTS_PER_BATCH);
        let count = self.log_uniform(most);
        let first = self.generator.below(MAX_PAGES - count + 1);
        // Add some pages that no earlier batch had.
        for _ in 0..64 {
            let page = self.generator.page();
            self.pages[first + self.generator.below(count)] = page;
        }
        let (to, back) = (self.form(), self.form());
        let pages = &self.pages[first..first + count];
        let what = format!("{count} pages, {to:?} and back by {back:?}, {:?}", ring.config());
        self.memory.compress(ring, to, pages);
        check_batch(&self.memory.batch, pages);
        self.memory.restore(ring, back).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_restored(&self.memory.restored, pages, &what);
        let bytes_held = self.memory.batch.iter().map(|page| page.bytes().len() as u64).sum();
        Counts { rings: 0, batches: 1, pages: count as u64, bytes_held }
    }

    fn form(&mut self) -> Form {
        Form::ALL[self.generator.below(Form::ALL.len())]
    }
}

/// Memory in use, in MiB: the process's resident set and the device's memory.
#[derive(Clone, Copy, Debug)]
struct InUse {
    host_mib: u64,
    device_mib: u64,
}

#[cfg(target_env = "gnu")]
unsafe extern "C" {
    fn malloc_trim(pad: usize) -> std::ffi::c_int;
    fn mallopt(what: std::ffi::c_int, value: std::ffi::c_int) -> std::ffi::c_int;
}

/// Limits the allocator to one arena. With an arena per thread, and hundreds of threads that come and go, the memory it
/// keeps grows for an hour and would hide a leak or look like one.
fn one_arena() {
    #[cfg(target_env = "gnu")]
    {
        const M_ARENA_MAX: std::ffi::c_int = -8;
        // SAFETY: the function takes two numbers; no other thread of the test has started yet.
        let done = unsafe { mallopt(M_ARENA_MAX, 1) };
        assert_eq!(done, 1, "mallopt rejected the number of arenas");
    }
}

/// Makes the allocator return its free memory: that is not a leak, and it varies between runs.
fn trim() {
    // SAFETY: the function takes a number and may be called at any time from any thread.
    #[cfg(target_env = "gnu")]
    unsafe {
        malloc_trim(0);
    }
}

impl InUse {
    fn now(context: &GpuContext) -> Self {
        trim();
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        let resident: u64 = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
        let device = context.info().total_memory.saturating_sub(context.free_memory().unwrap());
        Self { host_mib: (resident * 4096) >> 20, device_mib: device >> 20 }
    }

    /// Asserts that memory use has grown by no more than a tenth.
    fn assert_not_grown(self, since: Self) {
        let grown = |now: u64, then: u64| now > then + then / 10;
        assert!(!grown(self.host_mib, since.host_mib), "host memory grew: {self:?}, {since:?} before");
        assert!(!grown(self.device_mib, since.device_mib), "device memory grew: {self:?}, {since:?} before");
    }
}

fn seconds_to_run() -> Duration {
    let text = std::env::var("TRUENO_SOAK_SECONDS").unwrap_or_else(|_| "600".to_owned());
    Duration::from_secs(text.parse().expect("TRUENO_SOAK_SECONDS is a number of seconds"))
}

#[test]
#[ignore = "needs a GPU"]
fn soak() {
    let _device = lock_device();
    one_arena();
    let context = GpuContext::new(0).expect("these tests need an NVIDIA GPU");
    let (in_all, start) = (seconds_to_run(), Instant::now());
    // A short run also has a warm-up and a measurement.
    let (epoch, warm_up) = (EPOCH.min(in_all / 3), WARM_UP.min(in_all / 3));
    let mut workers: Vec<Worker> = (1..=THREADS).map(Worker::new).collect();
    let (mut totals, mut warm) = (Counts::default(), None);
    loop {
        let until = (Instant::now() + epoch).min(start + in_all);
        let counts: Vec<Counts> = thread::scope(|scope| {
            let running: Vec<_> = workers.iter_mut().map(|worker| scope.spawn(move || worker.run(until))).collect();
            running.into_iter().map(|thread| thread.join().expect("no thread of the soak test panics")).collect()
        });
        counts.into_iter().for_each(|of_thread| totals += of_thread);
        // All rings are dropped, so memory in use is what the workers keep, or a leak.
        let in_use = InUse::now(&context);
        println!("{:4} s: {totals:?}, {in_use:?}", start.elapsed().as_secs());
        if warm.is_none() && start.elapsed() >= warm_up {
            warm = Some(in_use);
        }
        if start.elapsed() >= in_all {
            // Checked at the end: all pages are verified first, and the lines above show the history.
            in_use.assert_not_grown(warm.expect("the warm-up is shorter than the run"));
            break;
        }
    }
    let Counts { rings, batches, pages, bytes_held } = totals;
    let gib = pages as f64 * PAGE_SIZE as f64 / f64::from(1 << 30);
    let ratio = pages as f64 * PAGE_SIZE as f64 / bytes_held as f64;
    println!("{batches} batches through {rings} rings: {pages} pages ({gib:.1} GiB), ratio {ratio:.3}, all identical");
    assert!(batches >= THREADS);
}
