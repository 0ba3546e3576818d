//! Batches on the GPU, on the CPU and on both give the same pages, errors and counts.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};

use trueno_test_pages::{corpus, generate::Generator};

use super::*;
use crate::gpu::Interpreter;
use crate::gpu::ring::fake::{FakeDevice, Fault, Schedule};
use crate::page::{PageData, PageKind};
use crate::threads::build_pool;

const SIZES: [usize; 5] = [0, 1, 2, 63, 65];

fn options() -> GpuOptions {
    GpuOptions::new().pool(pool())
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
    BatchCompressor::with_parts(Some(GpuBatchCompressor::interpreted(config(), &options()).unwrap()), cpu())
}

fn pages(count: usize) -> Vec<Page> {
    let mut generator = Generator::new(11);
    let corpus = corpus::all_pages().copied().cycle();
    corpus.take(count).map(|page| if generator.below(4) == 0 { generator.page() } else { page }).collect()
}

/// Returns plans for one side alone, and for splits at both ends and in between.
fn plans(pages: usize) -> Vec<Plan> {
    let mut heads = vec![0, 1.min(pages), pages / 3, pages.saturating_sub(1), pages];
    heads.dedup();
    let shared = heads.into_iter().map(|head_pages| Plan::Both { head_pages });
    [Plan::Gpu, Plan::Cpu].into_iter().chain(shared).collect()
}

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
fn every_plan_compresses_all_pages_and_reports_each_once() {
    let (mut compressor, mut batch) = (with_gpu(), CompressedBatch::new());
    for count in SIZES {
        let pages = pages(count);
        for plan in plans(count) {
            let done = AtomicUsize::new(0);
            let sides = compressor.compress_as(plan, &pages, &mut batch, &done).unwrap();
            assert!(cpu().decompress(&batch).unwrap() == pages, "{count} pages, {plan:?}");
            assert_eq!(done.load(Ordering::Relaxed), count, "{count} pages, {plan:?}");
            let shared = sides.map(|(gpu, cpu)| (gpu.pages, cpu.pages));
            let expected =
                if let Plan::Both { head_pages } = plan { Some((head_pages, count - head_pages)) } else { None };
            assert_eq!(shared, expected, "{count} pages, {plan:?}");
        }
    }
}

/// The choice knows nothing of algorithms: with Zstandard, all plans give right pages, and each side reads the other's.
#[test]
fn every_plan_works_with_zstandard() {
    let algorithm = Algorithm::Zstd { level: 4 };
    let cpu = || CpuBatchCompressor::with_pool(algorithm, InstructionSet::detect(), pool()).unwrap();
    let gpu = GpuBatchCompressor::interpreted(GpuBatchConfig { algorithm, ..config() }, &options()).unwrap();
    let mut compressor = BatchCompressor::with_parts(Some(gpu), cpu());
    let (pages, mut batch) = (pages(20), CompressedBatch::new());
    let by_cpu = cpu().compress(&pages).unwrap();
    for plan in [Plan::Gpu, Plan::Cpu, Plan::Both { head_pages: 13 }] {
        compressor.compress_as(plan, &pages, &mut batch, &()).unwrap();
        let stats = batch.stats();
        assert!(stats.zstd > 10 && stats.lz4 == 0, "{plan:?}: {stats:?}");
        assert!(cpu().decompress(&batch).unwrap() == pages, "{plan:?}");
        for held in [&batch, &by_cpu] {
            let mut restored = vec![[0xee; PAGE_SIZE]; pages.len()];
            compressor.decompress_as(plan, held.into(), &mut restored, &()).unwrap();
            assert!(restored == pages, "{plan:?}");
        }
    }
    let fallback = &compressor.gpu_stats().unwrap().fallback;
    assert_eq!((fallback.pages, fallback.unsupported_pages), (0, 0), "{fallback:?}");
    assert_eq!(compressor.algorithm(), algorithm);
}

#[test]
fn shared_batch_has_the_gpu_bytes_then_the_cpu_bytes() {
    let (pages, head_pages) = (pages(40), 24);
    let mut compressor = with_gpu();
    let mut of = |plan| {
        let mut batch = CompressedBatch::new();
        compressor.compress_as(plan, &pages, &mut batch, &()).unwrap();
        batch
    };
    let (gpu, cpu, both) = (of(Plan::Gpu), of(Plan::Cpu), of(Plan::Both { head_pages }));
    assert_ne!(gpu, cpu, "GPU and CPU must differ for this test to be meaningful");
    let expected: Vec<_> = gpu.iter().take(head_pages).chain(cpu.iter().skip(head_pages)).collect();
    assert_eq!(both.iter().collect::<Vec<_>>(), expected);
}

#[test]
fn every_plan_restores_all_pages_and_reports_each_once() {
    let mut compressor = with_gpu();
    for count in SIZES {
        let pages = pages(count);
        let batch = cpu().compress(&pages).unwrap();
        for plan in plans(count) {
            let (mut restored, done) = (vec![[0xee; PAGE_SIZE]; count], AtomicUsize::new(0));
            compressor.decompress_as(plan, (&batch).into(), &mut restored, &done).unwrap();
            assert!(restored == pages, "{count} pages, {plan:?}");
            assert_eq!(done.load(Ordering::Relaxed), count, "{count} pages, {plan:?}");
        }
    }
}

#[test]
fn corrupt_pages_are_reported_by_number_and_others_restored() {
    let pages = pages(65);
    let mut compressor = with_gpu();
    for corrupt in [&[0][..], &[20], &[21], &[64], &[3, 50], &[50, 60]] {
        let batch = with_corrupt(&pages, corrupt);
        for plan in plans(65) {
            let mut restored = vec![[0xee; PAGE_SIZE]; 65];
            let error = compressor.decompress_as(plan, (&batch).into(), &mut restored, &()).unwrap_err();
            let Error::InPage { index, error } = error else { panic!("{plan:?}: {error}") };
            assert_eq!(index, corrupt[0], "{plan:?}");
            assert!(matches!(*error, Error::CorruptLz4(_)), "{plan:?}: {error}");
            for (number, page) in pages.iter().enumerate().filter(|(number, _)| !corrupt.contains(number)) {
                assert!(restored[number] == *page, "{plan:?}: page {number}");
            }
        }
    }
}

#[test]
fn tail_errors_count_pages_from_the_start_of_the_batch() {
    let failed = Error::ZstdFailed { reason: "no memory".to_owned() };
    assert_eq!(in_tail(failed.clone().in_page(3), 40), failed.clone().in_page(43));
    assert_eq!(in_tail(failed.clone(), 40), failed);
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
    let mut compressor = with_gpu();
    let pages = pages(70);
    for expected in [Cpu, Gpu, Gpu] {
        let batch = compressor.compress(&pages).unwrap();
        assert_eq!(compressor.last_placement(), Some(expected));
        assert!(compressor.decompress(&batch).unwrap() == pages);
        assert_eq!(compressor.last_placement(), Some(expected));
    }
    let stats = compressor.gpu_stats().unwrap();
    assert_eq!((stats.pages_compressed, stats.pages_decompressed), (140, 140));
}

#[test]
fn public_calls_adjust_the_split_of_shared_batches() {
    let mut compressor = with_gpu();
    let pages = pages(70);
    // Pretend that both sides were measured to be equal, and both together to be by far the best.
    for direction in [Direction::Compress, Direction::Decompress] {
        for (choice, time_ms) in [(Placement::Gpu, 1000), (Placement::Cpu, 1000), (Placement::Both, 1)] {
            for _warm_up_and_measurement in 0..2 {
                compressor.rates.record(direction, choice, 70, Duration::from_millis(time_ms));
            }
        }
        assert_eq!(compressor.rates.head_pages(direction, 70), 35);
    }
    let batch = compressor.compress(&pages).unwrap();
    assert_eq!(compressor.last_placement(), Some(Placement::Both));
    assert!(compressor.decompress(&batch).unwrap() == pages);
    assert_eq!(compressor.last_placement(), Some(Placement::Both));
    let stats = compressor.gpu_stats().unwrap();
    assert_eq!((stats.pages_compressed, stats.pages_decompressed), (35, 35));
    for direction in [Direction::Compress, Direction::Decompress] {
        // Which side is faster depends on the clock, but equal times to the nanosecond are not expected.
        assert_ne!(compressor.rates.head_pages(direction, 70), 35, "the split follows the measurement");
    }
}

#[test]
fn lost_device_is_not_chosen_again() {
    let fake = FakeDevice::new(Schedule::Eager);
    let gpu = GpuBatchCompressor::on(fake.clone(), config(), &options()).unwrap();
    let mut compressor = BatchCompressor::with_parts(Some(gpu), cpu());
    let pages = pages(1000);
    assert_eq!(compressor.why_no_gpu(), None);
    assert_eq!(compressor.to_string(), "GPU 0 and 2 CPU threads");
    fake.arm([(5, Fault::DeviceLost)]);
    let batch = compressor.compress(&pages).unwrap();
    assert_eq!(compressor.last_placement(), Some(Placement::Gpu));
    assert!(cpu().decompress(&batch).unwrap() == pages);
    let why = compressor.why_no_gpu().expect("lost").to_owned();
    assert_eq!(compressor.to_string(), format!("2 CPU threads; {why}"));
    for _ in 0..5 {
        assert!(cpu().decompress(&compressor.compress(&pages).unwrap()).unwrap() == pages);
        assert_eq!(compressor.last_placement(), Some(Placement::Cpu));
    }
}

#[test]
fn failing_device_corrupts_no_page_of_a_shared_batch() {
    let (pages, plan) = (pages(65), Plan::Both { head_pages: 40 });
    let packed = cpu().compress(&pages).unwrap();
    let mut fired = 0;
    for (at, fault) in (0..60).step_by(3).flat_map(|at| [(at, Fault::LaunchFailed), (at, Fault::OutOfMemory)]) {
        let fake = FakeDevice::new(Schedule::Eager);
        let gpu = GpuBatchCompressor::on(fake.clone(), config(), &options()).unwrap();
        let mut compressor = BatchCompressor::with_parts(Some(gpu), cpu());
        fake.arm([(at, fault)]);
        let (mut batch, mut restored, done) =
            (CompressedBatch::new(), vec![[0xee; PAGE_SIZE]; 65], AtomicUsize::new(0));
        compressor.compress_as(plan, &pages, &mut batch, &done).unwrap();
        assert_eq!(batch.len(), 65, "{fault:?} at {at}");
        assert!(cpu().decompress(&batch).unwrap() == pages, "{fault:?} at {at}");
        compressor.decompress_as(plan, (&packed).into(), &mut restored, &done).unwrap();
        assert!(restored == pages, "{fault:?} at {at}");
        assert_eq!(done.load(Ordering::Relaxed), 130, "{fault:?} at {at}");
        fired += fake.fired().len();
    }
    assert!(fired >= 20, "only {fired} faults fired");
}

#[test]
fn cpu_takes_every_batch_without_a_gpu() {
    let mut compressor = BatchCompressor::<Interpreter>::with_parts(None, cpu());
    assert!(compressor.gpu_stats().is_none() && compressor.device().is_none());
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
    for plan in plans(30) {
        let pages = pages(30);
        assert_eq!(compressor.compress_as(plan, &pages, &mut batch, &()), Ok(None), "{plan:?}");
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

#[test]
fn tail_runs_even_if_the_head_fails() {
    let mut tails = 0;
    let failed = Error::ZstdFailed { reason: "no memory".to_owned() };
    let (head, tail) = side_by_side(
        || Err(failed.clone()),
        || {
            tails += 1;
            Ok(())
        },
    );
    assert_eq!((head.0, tail.0), (Err(failed), Ok(())));
    assert_eq!(tails, 1);
}
