//! Batches through a fake device: whatever it does, every page comes out right, and the stats say who made it.

mod allocations;
mod dropping;
mod fallback;
mod faults;
mod malformed;
mod order;
mod pairs;
mod panics;
mod pinned;
mod stream;
mod stream_faults;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use trueno_test_pages::generate::Generator;

use super::{BatchTimes, FallbackStats, GpuBatchCompressor, GpuOptions};
use crate::algorithm::Algorithm;
use crate::arena::CompressedBatch;
use crate::cpu::CpuBatchCompressor;
use crate::error::Result;
use crate::fill_page;
use crate::gpu::codec::PageFormat;
use crate::gpu::ring::device::RingDevice;
use crate::gpu::ring::fake::{FakeDevice, FakePinned, Schedule};
use crate::gpu::{GpuBatchConfig, PinnedBatch, PinnedPages};
use crate::lz4::decode_simple;
use crate::page::{CompressedPage, PAGE_SIZE, Page, PageData, PageKind};
use crate::threads::build_pool;

/// The calls of a compressor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallKind {
    CompressBatch,
    CompressInto,
    CompressPinned,
    CompressAllPinned,
    DecompressBatch,
    DecompressInto,
    DecompressPinned,
    DecompressAllPinned,
}

impl CallKind {
    const ALL: [Self; 8] = [
        Self::CompressBatch,
        Self::CompressInto,
        Self::CompressPinned,
        Self::CompressAllPinned,
        Self::DecompressBatch,
        Self::DecompressInto,
        Self::DecompressPinned,
        Self::DecompressAllPinned,
    ];

    /// One for each way through the ring.
    const RINGS: [Self; 7] = [
        Self::CompressBatch,
        Self::CompressInto,
        Self::CompressPinned,
        Self::CompressAllPinned,
        Self::DecompressInto,
        Self::DecompressPinned,
        Self::DecompressAllPinned,
    ];

    /// Returns `true` if the pages lie in page-locked memory.
    fn is_pinned(self) -> bool {
        matches!(self, Self::CompressPinned | Self::DecompressPinned) || self.is_all_pinned()
    }

    /// Returns `true` if the compressed pages do, too.
    fn is_all_pinned(self) -> bool {
        matches!(self, Self::CompressAllPinned | Self::DecompressAllPinned)
    }

    fn compresses(self) -> bool {
        matches!(self, Self::CompressBatch | Self::CompressInto | Self::CompressPinned | Self::CompressAllPinned)
    }

    /// The same to memory that is not the caller's page-locked memory, if this is to such memory.
    fn to_other_memory(self) -> Option<Self> {
        match self {
            Self::CompressAllPinned => Some(Self::CompressPinned),
            Self::DecompressPinned | Self::DecompressAllPinned => Some(Self::DecompressInto),
            _ => None,
        }
    }
}

/// Batch sizes and slot counts to test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SampleShape {
    pages: usize,
    batch_size: usize,
    slots: usize,
    /// The format of the device's kernels.
    format: PageFormat,
}

impl SampleShape {
    /// The same for each format.
    fn in_all_formats(self) -> [Self; 2] {
        PageFormat::ALL.map(|format| Self { format, ..self })
    }
}

/// Long enough for any machine, however busy.
const NO_HURRY: Duration = Duration::from_secs(1200);
/// For devices that hang: the test waits as long.
const SOON: Duration = Duration::from_millis(5);

/// Same-filled, random and compressible pages; of the four from page 16 on, none is for a device.
fn some_pages(count: usize) -> Vec<Page> {
    let mut generator = Generator::new(count as u64);
    let mut page = |number: usize| match number % 64 {
        0 | 5 | 16..20 => [u8::try_from(number % 251).unwrap(); PAGE_SIZE],
        1 | 7 | 14 => std::array::from_fn(|_| generator.byte()),
        _ => std::array::from_fn(|i| u8::try_from((i / 48 * (number + 3)) % 256).unwrap() ^ (generator.byte() & 1)),
    };
    (0..count).map(&mut page).collect()
}

fn restored(data: PageData<'_>) -> Page {
    let mut page = [0; PAGE_SIZE];
    match data.kind() {
        PageKind::SameFilled => fill_page(&mut page, data.bytes().try_into().unwrap()),
        PageKind::Raw => page.copy_from_slice(data.bytes()),
        PageKind::Lz4 => decode_simple(data.bytes(), &mut page).unwrap(),
        PageKind::Zstd => assert_eq!(zstd::bulk::decompress_to_buffer(data.bytes(), &mut page).unwrap(), PAGE_SIZE),
    }
    page
}

/// A Zstandard frame of two blocks, which holds a page: half of it `x`, half of it `y`. The kernel decodes one block.
const TWO_BLOCKS: [u8; 15] = [0x28, 0xb5, 0x2f, 0xfd, 0x60, 0x00, 0x0f, 0x02, 0x40, 0x00, b'x', 0x03, 0x40, 0x00, b'y'];

/// Pages, and what the CPU makes of them.
struct Sample {
    pages: Vec<Page>,
    held: CompressedBatch,
    values: Vec<CompressedPage>,
}

/// The given number of pages, compressed with LZ4; the same each time, made once.
fn sample(pages: usize) -> Arc<Sample> {
    sample_in(PageFormat::Lz4, pages)
}

/// The same in any format.
fn sample_in(format: PageFormat, pages: usize) -> Arc<Sample> {
    static MADE: [Mutex<BTreeMap<usize, Arc<Sample>>>; 2] = [const { Mutex::new(BTreeMap::new()) }; 2];
    let made = &mut *MADE[format as usize].lock().unwrap();
    let sample = made.entry(pages).or_insert_with(|| {
        let pages = some_pages(pages);
        let mut cpu = CpuBatchCompressor::new(algorithm(format)).unwrap();
        let held = cpu.compress(&pages).unwrap();
        let values = cpu.compress(&pages).unwrap().into_pages();
        Arc::new(Sample { pages, held, values })
    });
    Arc::clone(sample)
}

/// A compressor on a fake device, and all that one of its calls needs, made once.
struct Trial {
    fake: FakeDevice,
    compressor: GpuBatchCompressor<FakeDevice>,
    form: CallKind,
    sample: Arc<Sample>,
    /// Those of the sample, unless the test has others.
    pages: Vec<Page>,
    pinned: Option<PinnedPages<FakePinned>>,
    packed: Option<PinnedBatch<FakePinned>>,
    batch: CompressedBatch,
}

/// The encoder of the pages of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Done {
    by_device: usize,
    by_cpu: usize,
    times: BatchTimes,
}

fn algorithm(format: PageFormat) -> Algorithm {
    match format {
        PageFormat::Lz4 => Algorithm::Lz4,
        PageFormat::Zstd => Algorithm::Zstd { level: 3 },
    }
}

fn config(shape: SampleShape) -> GpuBatchConfig {
    GpuBatchConfig {
        algorithm: algorithm(shape.format),
        batch_size: shape.batch_size,
        ring_buffer_slots: shape.slots,
        ..GpuBatchConfig::default()
    }
}

fn pool_of(threads: usize) -> Arc<rayon::ThreadPool> {
    build_pool(NonZeroUsize::new(threads).unwrap()).unwrap()
}

fn options(time_limit: Duration) -> GpuOptions {
    GpuOptions::new().with_time_limit(time_limit).with_pool(pool_of(1))
}

impl Trial {
    fn new(form: CallKind, shape: SampleShape, schedule: Schedule, time_limit: Duration) -> Self {
        // With one thread, the one that drives the ring stages pages, too; with more, those do.
        let threads = if shape.slots.is_multiple_of(2) { 1 } else { 3 };
        let options = options(time_limit).with_pool(pool_of(threads));
        let fake = FakeDevice::with_format(schedule, shape.format);
        Self::with(form, shape.pages, fake, config(shape), &options)
    }

    fn with(form: CallKind, pages: usize, fake: FakeDevice, config: GpuBatchConfig, options: &GpuOptions) -> Self {
        let compressor = GpuBatchCompressor::on(fake.clone(), config, options).unwrap();
        let sample = sample_in(fake.format(), pages);
        let pages = sample.pages.clone();
        let mut pinned = form.is_pinned().then(|| compressor.pinned_pages(pages.len()).unwrap());
        if let Some(pinned) = pinned.as_mut().filter(|_| form.compresses()) {
            pinned.pages_mut().unwrap().copy_from_slice(&pages);
        }
        let mut packed = form.is_all_pinned().then(|| compressor.pinned_batch(pages.len()).unwrap());
        if let Some(packed) = packed.as_mut().filter(|_| !form.compresses()) {
            sample.held.iter().for_each(|page| packed.push(page).unwrap());
        }
        Self { fake, compressor, form, sample, pages, pinned, packed, batch: CompressedBatch::new() }
    }

    /// Does a batch, and checks every page of it.
    fn run(&mut self) -> Result<Done> {
        let Self { compressor, sample, pages, batch, .. } = self;
        let Sample { held, values, .. } = &**sample;
        let fallback_before = compressor.stats().fallback.pages;
        let (by_ring, by_cpu) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let progress = |pages: usize| {
            // The ring reports from the thread that drives it, the CPU's codec from its pool.
            let who = if rayon::current_thread_index().is_none() { &by_ring } else { &by_cpu };
            who.fetch_add(pages, Ordering::Relaxed);
        };
        let mut places = vec![[0xaa; PAGE_SIZE]; pages.len()];
        let times = match self.form {
            CallKind::CompressBatch => {
                let result = compressor.compress_batch(pages)?;
                places = result.pages.iter().map(|page| restored(page.data())).collect();
                let (h2d_time_ns, kernel_time_ns) = (result.h2d_time_ns, result.kernel_time_ns);
                let (d2h_time_ns, total_time_ns) = (result.d2h_time_ns, result.total_time_ns);
                BatchTimes { h2d_time_ns, kernel_time_ns, d2h_time_ns, total_time_ns }
            }
            CallKind::CompressInto => compressor.compress_into(pages, batch, &progress)?,
            CallKind::CompressPinned => {
                compressor.compress_pinned_into(self.pinned.as_mut().unwrap(), batch, &progress)?
            }
            CallKind::CompressAllPinned => {
                let packed = self.packed.as_mut().unwrap();
                let times = compressor.compress_all_pinned(self.pinned.as_mut().unwrap(), packed, &progress)?;
                places = (0..packed.len()).map(|page| restored(packed.get(page).unwrap().unwrap())).collect();
                times
            }
            CallKind::DecompressBatch => {
                let result = compressor.decompress_batch(values)?;
                places = result.pages;
                result.times
            }
            CallKind::DecompressInto => compressor.decompress_into(held, &mut places, &progress)?,
            CallKind::DecompressPinned | CallKind::DecompressAllPinned => {
                let pinned = self.pinned.as_mut().unwrap();
                if let Ok(places) = pinned.pages_mut() {
                    places.fill([0xaa; PAGE_SIZE]);
                }
                let times = match &mut self.packed {
                    Some(packed) => compressor.decompress_all_pinned(packed, pinned, &progress)?,
                    None => compressor.decompress_pinned_into(held, pinned, &progress)?,
                };
                places = pinned.pages()?.to_vec();
                times
            }
        };
        if matches!(self.form, CallKind::CompressInto | CallKind::CompressPinned) {
            places = (0..batch.len()).map(|page| restored(batch.get(page).unwrap())).collect();
        }
        assert_eq!(places.len(), pages.len());
        let wrong = places.iter().zip(&*pages).position(|(place, page)| place != page);
        assert_eq!(wrong, None, "the first wrong page");
        let fallback = usize::try_from(compressor.stats().fallback.pages - fallback_before).unwrap();
        if !matches!(self.form, CallKind::CompressBatch | CallKind::DecompressBatch) {
            let (by_ring, by_cpu) = (by_ring.into_inner(), by_cpu.into_inner());
            assert_eq!(by_ring + by_cpu, pages.len(), "progress adds up to the batch");
            // Pages that the device refused without cause are reported with their slot.
            let reason = compressor.stats().fallback.last_reason.as_ref();
            let refused = reason.is_some_and(|why| why.contains("refused"));
            assert!(refused || by_cpu == fallback, "the stats count what the CPU did: {by_cpu}, {fallback}");
        }
        Ok(Done { by_device: pages.len() - fallback, by_cpu: fallback, times })
    }

    fn fallback(&self) -> &FallbackStats {
        &self.compressor.stats().fallback
    }

    /// Ends it: all memory is freed.
    fn end(self) {
        let Self { fake, compressor, pinned, packed, .. } = self;
        drop((compressor, pinned, packed));
        assert_freed(&fake);
        assert_eq!(fake.seen().misuses, Vec::<String>::new());
    }
}

/// All memory is freed; soon, where the time limit was too short to wait for it.
fn assert_freed(fake: &FakeDevice) {
    let left = || Some(fake.seen()).filter(|seen| (seen.slots, seen.pinned) != (0, 0));
    let start = Instant::now();
    while left().is_some() && start.elapsed() < NO_HURRY {
        std::thread::yield_now();
    }
    assert_eq!(left(), None, "slots and page-locked buffers that leak");
}
