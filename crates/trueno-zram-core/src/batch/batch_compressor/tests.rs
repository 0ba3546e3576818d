//! Batches on the GPU and on the CPU give the same pages, errors and counts.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};

use trueno_test_pages::{corpus, generate::Generator};

use super::*;
use crate::gpu::Interpreter;
use crate::gpu::ring::fake::{FakeDevice, InjectedFault, Schedule};
use crate::page::{PageData, PageKind};
use crate::threads::build_pool;

const SIZES: [usize; 5] = [0, 1, 2, 63, 65];

fn options() -> GpuOptions {
    GpuOptions::new().with_pool(pool())
}

/// Slots of 16 pages, so that a batch takes several of them and the last one is not full.
fn config() -> GpuBatchConfig {
    GpuBatchConfig { batch_size: 16, ring_buffer_slots: 2, ..GpuBatchConfig::default() }
}

fn pool() -> Arc<ThreadPool> {
    build_pool(NonZeroUsize::new(2).unwrap()).unwrap()
}

fn cpu() -> CpuBatchCompressor {
    CpuBatchCompressor::with_pool(Algorithm::Lz4, InstructionSet::detect(), pool()).unwrap()
}

fn with_gpu() -> BatchCompressor<Interpreter> {
    BatchCompressor::with_parts(Some(GpuBatchCompressor::interpreted(config(), &options()).unwrap().into()), cpu())
}

fn pages(count: usize) -> Vec<Page> {
    let mut generator = Generator::new(11);
    let corpus = corpus::all_pages().copied().cycle();
    corpus.take(count).map(|page| if generator.below(4) == 0 { generator.page() } else { page }).collect()
}

const SIDES: [Placement; 2] = [Placement::Gpu, Placement::Cpu];

/// Compresses pages and truncates the blocks at the given numbers.
fn with_corrupt(pages: &[Page], corrupt: &[usize]) -> CompressedBatch {
    let whole = cpu().compress(pages).unwrap();
    let mut batch = CompressedBatch::new();
    for (number, page) in whole.iter().enumerate() {
        let cut_short = PageData::new(PageKind::Lz4, &[0x4f, 1, 2]).unwrap();
        batch.push(if corrupt.contains(&number) { cut_short } else { page });
    }
    batch
}

#[test]
fn every_side_compresses_all_pages_and_reports_each_once() {
    let (mut compressor, mut batch) = (with_gpu(), CompressedBatch::new());
    for count in SIZES {
        let pages = pages(count);
        for side in SIDES {
            let done = AtomicUsize::new(0);
            compressor.compress_on(side, &pages, &mut batch, &done).unwrap();
            assert!(cpu().decompress(&batch).unwrap() == pages, "{count} pages, {side:?}");
            assert_eq!(done.load(Ordering::Relaxed), count, "{count} pages, {side:?}");
        }
    }
}

/// The choice knows nothing of algorithms: with Zstandard, all sides give right pages, and each side reads the other's.
#[test]
fn every_side_works_with_zstandard() {
    let algorithm = Algorithm::Zstd { level: 4 };
    let cpu = || CpuBatchCompressor::with_pool(algorithm, InstructionSet::detect(), pool()).unwrap();
    let gpu = GpuBatchCompressor::interpreted(GpuBatchConfig { algorithm, ..config() }, &options()).unwrap();
    let mut compressor = BatchCompressor::with_parts(Some(gpu.into()), cpu());
    let (pages, mut batch) = (pages(20), CompressedBatch::new());
    let by_cpu = cpu().compress(&pages).unwrap();
    for side in SIDES {
        compressor.compress_on(side, &pages, &mut batch, &()).unwrap();
        let stats = batch.stats();
        assert!(stats.zstd > 10 && stats.lz4 == 0, "{side:?}: {stats:?}");
        assert!(cpu().decompress(&batch).unwrap() == pages, "{side:?}");
        for held in [&batch, &by_cpu] {
            let mut restored = vec![[0xee; PAGE_SIZE]; pages.len()];
            compressor.restore_on(side, held.into(), &mut restored, &()).unwrap();
            assert!(restored == pages, "{side:?}");
        }
    }
    let fallback = &compressor.gpu_stats().unwrap().fallback;
    assert_eq!((fallback.pages, fallback.unsupported_pages), (0, 0), "{fallback:?}");
    assert_eq!(compressor.algorithm(), algorithm);
}

#[test]
fn every_side_restores_all_pages_and_reports_each_once() {
    let mut compressor = with_gpu();
    for count in SIZES {
        let pages = pages(count);
        let batch = cpu().compress(&pages).unwrap();
        for side in SIDES {
            let (mut restored, done) = (vec![[0xee; PAGE_SIZE]; count], AtomicUsize::new(0));
            compressor.restore_on(side, (&batch).into(), &mut restored, &done).unwrap();
            assert!(restored == pages, "{count} pages, {side:?}");
            assert_eq!(done.load(Ordering::Relaxed), count, "{count} pages, {side:?}");
        }
    }
}

#[test]
fn corrupt_pages_are_reported_by_number_and_others_restored() {
    let pages = pages(65);
    let mut compressor = with_gpu();
    for corrupt in [&[0][..], &[20], &[21], &[64], &[3, 50], &[50, 60]] {
        let batch = with_corrupt(&pages, corrupt);
        for side in SIDES {
            let mut restored = vec![[0xee; PAGE_SIZE]; 65];
            let error = compressor.restore_on(side, (&batch).into(), &mut restored, &()).unwrap_err();
            let Error::InPage { index, error } = error else { panic!("{side:?}: {error}") };
            assert_eq!(index, corrupt[0], "{side:?}");
            assert!(matches!(*error, Error::CorruptLz4(_)), "{side:?}: {error}");
            for (number, page) in pages.iter().enumerate().filter(|(number, _)| !corrupt.contains(number)) {
                assert!(restored[number] == *page, "{side:?}: page {number}");
            }
        }
    }
}

#[test]
fn rejects_a_destination_of_another_size() {
    let batch = cpu().compress(&pages(3)).unwrap();
    let refused = with_gpu().decompress_into(&batch, &mut [[0; PAGE_SIZE]; 2], &());
    assert_eq!(refused, Err(Error::PageCount { batch_pages: 3, destination_pages: 2 }));
}

#[test]
fn measures_each_side_and_direction_once_the_gpu_is_warm() {
    use Placement::{Cpu, Gpu};
    let gpu = GpuBatchCompressor::on(FakeDevice::new(Schedule::Eager), config(), &options()).unwrap();
    let mut compressor = BatchCompressor::with_parts(Some(gpu.into()), cpu());
    let pages = pages(Placement::MIN_GPU_PAGES);
    for expected in [Cpu, Gpu, Gpu] {
        let batch = compressor.compress(&pages).unwrap();
        assert_eq!(compressor.last_placement(), Some(expected));
        assert!(compressor.decompress(&batch).unwrap() == pages);
        assert_eq!(compressor.last_placement(), Some(expected));
    }
    let stats = compressor.gpu_stats().unwrap();
    assert_eq!((stats.pages_compressed, stats.pages_decompressed), (2000, 2000));
}

#[test]
fn lost_device_is_not_chosen_again() {
    let fake = FakeDevice::new(Schedule::Eager);
    let gpu = GpuBatchCompressor::on(fake.clone(), config(), &options()).unwrap();
    let mut compressor = BatchCompressor::with_parts(Some(gpu.into()), cpu());
    let pages = pages(1000);
    assert_eq!(compressor.why_no_gpu(), None);
    assert_eq!(compressor.to_string(), "GPU 0 and 2 CPU threads");
    compressor.compress(&pages).unwrap();
    assert_eq!(compressor.last_placement(), Some(Placement::Cpu), "the CPU comes first");
    fake.arm([(5, InjectedFault::DeviceLost)]);
    let batch = compressor.compress(&pages).unwrap();
    assert_eq!(compressor.last_placement(), Some(Placement::Gpu));
    assert!(cpu().decompress(&batch).unwrap() == pages);
    let why = compressor.why_no_gpu().expect("lost").to_owned();
    assert_eq!(compressor.to_string(), format!("2 CPU threads (no GPU: {why})"));
    for _ in 0..5 {
        assert!(cpu().decompress(&compressor.compress(&pages).unwrap()).unwrap() == pages);
        assert_eq!(compressor.last_placement(), Some(Placement::Cpu));
    }
}

#[test]
fn the_gpu_is_opened_after_300_ms_of_large_batches_and_used_from_then_on() {
    let gpu = LazyGpu::with(|| GpuBatchCompressor::on(FakeDevice::new(Schedule::Eager), config(), &options()));
    let mut compressor = BatchCompressor::with_parts(Some(gpu), cpu());
    let was_opened = |compressor: &mut BatchCompressor<_>| compressor.lazy_gpu().unwrap().was_opened();
    assert_eq!(
        (compressor.to_string().as_str(), compressor.why_no_gpu()),
        ("2 CPU threads (no GPU opened so far)", None)
    );
    let ms = Duration::from_millis;
    compressor.open_gpu_if_worthwhile(Placement::Cpu, Placement::MIN_GPU_PAGES - 1, ms(10_000));
    compressor.open_gpu_if_worthwhile(Placement::Cpu, Placement::MIN_GPU_PAGES, ms(299));
    assert!(!was_opened(&mut compressor), "small batches do not count");
    compressor.open_gpu_if_worthwhile(Placement::Cpu, Placement::MIN_GPU_PAGES, ms(1));
    assert!(was_opened(&mut compressor));
    assert!(compressor.wait_for_gpu());
    let pages = pages(Placement::MIN_GPU_PAGES);
    for expected in SIDES.iter().rev() {
        let batch = compressor.compress(&pages).unwrap();
        assert_eq!(compressor.last_placement(), Some(*expected), "each is tried");
        assert!(cpu().decompress(&batch).unwrap() == pages);
    }
}

#[test]
fn a_gpu_that_cannot_be_opened_leaves_everything_to_the_cpu() {
    let gpu = LazyGpu::<Interpreter>::with(|| Err(Error::GpuNotAvailable("no driver".to_owned())));
    let mut compressor = BatchCompressor::with_parts(Some(gpu), cpu());
    assert!(!compressor.wait_for_gpu());
    assert_eq!(compressor.why_no_gpu(), Some("no driver"));
    let pages = pages(Placement::MIN_GPU_PAGES);
    for _ in 0..3 {
        let batch = compressor.compress(&pages).unwrap();
        assert!(compressor.decompress(&batch).unwrap() == pages);
        assert_eq!(compressor.last_placement(), Some(Placement::Cpu));
    }
}

#[test]
fn failing_device_corrupts_no_page() {
    let (pages, side) = (pages(65), Placement::Gpu);
    let packed = cpu().compress(&pages).unwrap();
    let mut fired = 0;
    for (at, fault) in
        (0..60).step_by(3).flat_map(|at| [(at, InjectedFault::LaunchFailed), (at, InjectedFault::OutOfMemory)])
    {
        let fake = FakeDevice::new(Schedule::Eager);
        let gpu = GpuBatchCompressor::on(fake.clone(), config(), &options()).unwrap();
        let mut compressor = BatchCompressor::with_parts(Some(gpu.into()), cpu());
        fake.arm([(at, fault)]);
        let (mut batch, mut restored, done) =
            (CompressedBatch::new(), vec![[0xee; PAGE_SIZE]; 65], AtomicUsize::new(0));
        compressor.compress_on(side, &pages, &mut batch, &done).unwrap();
        assert_eq!(batch.len(), 65, "{fault:?} at {at}");
        assert!(cpu().decompress(&batch).unwrap() == pages, "{fault:?} at {at}");
        compressor.restore_on(side, (&packed).into(), &mut restored, &done).unwrap();
        assert!(restored == pages, "{fault:?} at {at}");
        assert_eq!(done.load(Ordering::Relaxed), 130, "{fault:?} at {at}");
        fired += fake.fired().len();
    }
    assert!(fired >= 20, "only {fired} faults fired");
}

#[test]
fn cpu_takes_every_batch_without_a_gpu() {
    let mut compressor = BatchCompressor::<Interpreter>::with_parts(None, cpu());
    assert!(compressor.gpu_stats().is_none() && compressor.lazy_gpu().is_none() && !compressor.wait_for_gpu());
    let mut batch = CompressedBatch::new();
    for count in [0, 1, 63, 65, 3000] {
        let pages = pages(count);
        let done = AtomicUsize::new(0);
        compressor.compress_into(&pages, &mut batch, &done).unwrap();
        assert_eq!(batch, cpu().compress(&pages).unwrap(), "{count} pages");
        assert_eq!(compressor.last_placement(), (count > 0).then_some(Placement::Cpu));
        let mut restored = vec![[0xee; PAGE_SIZE]; count];
        compressor.decompress_into(&batch, &mut restored, &done).unwrap();
        assert!(restored == pages, "{count} pages");
        assert_eq!(done.load(Ordering::Relaxed), 2 * count);
    }
    for side in SIDES {
        let pages = pages(30);
        assert_eq!(compressor.compress_on(side, &pages, &mut batch, &()), Ok(()), "{side:?}");
        assert!(cpu().decompress(&batch).unwrap() == pages);
    }
}

#[test]
fn other_algorithms_use_the_cpu_and_bad_configs_are_rejected() {
    let above_9 = "zstd:10: levels above 9 run on the CPU";
    for (algorithm, name) in [(Algorithm::Zstd { level: 10 }, above_9), (Algorithm::None, "none")] {
        let mut compressor = BatchCompressor::new(GpuBatchConfig { algorithm, ..config() }, &options()).unwrap();
        let why = compressor.why_no_gpu().unwrap();
        assert_eq!(why, format!("the GPU does not support the algorithm {name}"));
        assert_eq!(compressor.algorithm(), algorithm);
        let pages = pages(100);
        let batch = compressor.compress(&pages).unwrap();
        assert!(compressor.decompress(&batch).unwrap() == pages);
    }
    let no_pages = GpuBatchConfig { batch_size: 0, ..config() };
    assert!(matches!(BatchCompressor::new(no_pages, &options()), Err(Error::Config { field: "batch_size", .. })));
    let no_level = GpuBatchConfig { algorithm: Algorithm::Zstd { level: 99 }, ..config() };
    assert!(matches!(BatchCompressor::new(no_level, &options()), Err(Error::ZstdLevel { level: 99, .. })));
}
