//! The batch API end to end without a GPU: the real kernels, run by the interpreter, through the ring.

use std::num::NonZeroUsize;
use std::sync::Arc;

use trueno_gpu::kernels::lz4::Mode;
use trueno_test_pages::generate::Generator;
use trueno_test_pages::{Page, corpus, oracle};
use trueno_zram_core::gpu::{FallbackStats, GpuBatchCompressor, GpuBatchConfig, GpuOptions, Interpreter};
use trueno_zram_core::{
    Algorithm, CompressedBatch, CompressedPage, CpuBatchCompressor, Error, PAGE_SIZE, PageData, PageKind, build_pool,
    fill_page,
};

/// Returns pages of every corpus, a few same-filled ones, and one that does not shrink.
fn few_pages() -> Vec<Page> {
    let mut generator = Generator::new(6);
    let real = corpus::all_pages().step_by(1 + corpus::all_pages().count() / 36).copied();
    let noise = std::array::from_fn(|_| generator.byte());
    [[0; PAGE_SIZE]].into_iter().chain(real).chain([noise, [9; PAGE_SIZE]]).collect()
}

fn compressor(batch_size: usize, ring_buffer_slots: usize, mode: Mode) -> GpuBatchCompressor<Interpreter> {
    let config = GpuBatchConfig { batch_size, ring_buffer_slots, ..GpuBatchConfig::default() };
    let options = GpuOptions::new().with_mode(mode);
    GpuBatchCompressor::interpreted(config, &options).expect("the interpreter runs everywhere")
}

/// Checks a compressed page with decoders from other projects.
fn assert_holds(data: PageData<'_>, page: &Page) {
    match data.kind() {
        PageKind::Lz4 => oracle::assert_decodes(data.bytes(), page),
        PageKind::Raw => assert!(data.bytes() == page, "a raw page differs"),
        PageKind::SameFilled => {
            let mut filled = [1; PAGE_SIZE];
            fill_page(&mut filled, data.bytes().try_into().expect("a word has 8 bytes"));
            assert!(filled == *page, "the fill word differs");
        }
        PageKind::Zstd => assert!(zstd::bulk::decompress(data.bytes(), PAGE_SIZE).expect("libzstd decodes it") == page),
    }
}

fn lz4_page(block: &[u8]) -> CompressedPage {
    PageData::new(PageKind::Lz4, block).expect("the block has 1 to 4096 bytes").into()
}

#[test]
fn other_decoders_read_the_blocks_of_both_modes() {
    let pages = few_pages();
    for mode in [Mode::Fast, Mode::Ratio] {
        let mut compressor = compressor(16, 3, mode);
        let result = compressor.compress_batch(&pages).unwrap();
        assert_eq!(result.pages.len(), pages.len());
        result.pages.iter().zip(&pages).for_each(|(held, page)| assert_holds(held.data(), page));
        let lz4 = result.pages.iter().filter(|page| page.kind() == PageKind::Lz4).count();
        assert!(lz4 > 20 && result.compression_ratio() > 1.5, "{lz4} blocks, {}", result.compression_ratio());
        let stats = compressor.stats();
        assert_eq!(stats.pages_compressed, pages.len() as u64);
        assert_eq!(stats.total_bytes_in, (pages.len() * PAGE_SIZE) as u64);
        assert_eq!((stats.fallback.batches, stats.fallback.pages), (0, 0), "nothing fell back to the CPU");
        assert!(result.kernel_time_ns > 0 && result.total_time_ns >= result.kernel_time_ns);
    }
}

fn zstd_compressor(level: i32) -> GpuBatchCompressor<Interpreter> {
    let algorithm = Algorithm::Zstd { level };
    let config = GpuBatchConfig { algorithm, batch_size: 8, ring_buffer_slots: 2, ..GpuBatchConfig::default() };
    GpuBatchCompressor::interpreted(config, &GpuOptions::new()).expect("the interpreter runs everywhere")
}

#[test]
fn libzstd_reads_the_frames_of_both_modes() {
    let pages: Vec<Page> = few_pages().into_iter().step_by(2).collect();
    let held_by = |level: i32| {
        let mut compressor = zstd_compressor(level);
        let result = compressor.compress_batch(&pages).unwrap();
        result.pages.iter().zip(&pages).for_each(|(held, page)| assert_holds(held.data(), page));
        assert!(result.pages.iter().filter(|page| page.kind() == PageKind::Zstd).count() > 10);
        let by_gpu = compressor.decompress_batch(&result.pages).unwrap();
        assert!(by_gpu.pages == pages, "level {level}");
        assert_eq!(compressor.stats().fallback, FallbackStats::default());
        result.pages
    };
    // Levels up to 3 are fast mode, above that ratio mode.
    let (fast, ratio) = (held_by(1), held_by(9));
    let len = |held: &[CompressedPage]| held.iter().map(|page| page.bytes().len()).sum::<usize>();
    assert!(len(&ratio) < len(&fast), "{} and {} bytes", len(&ratio), len(&fast));
}

#[test]
fn frames_of_every_level_are_restored() {
    let pages: Vec<Page> = few_pages().into_iter().step_by(9).collect();
    let mut compressor = zstd_compressor(3);
    for level in [-7, -1, 1, 3, 9, 13, 19] {
        let held = CpuBatchCompressor::new(Algorithm::Zstd { level }).unwrap().compress(&pages).unwrap().into_pages();
        let restored = compressor.decompress_batch(&held).unwrap();
        assert!(restored.pages == pages, "level {level}");
    }
    assert_eq!(compressor.stats().fallback, FallbackStats::default());
}

#[test]
fn bytes_do_not_depend_on_slots_or_page_location() {
    let pages = few_pages();
    let expected = compressor(1000, 4, Mode::Fast).compress_batch(&pages).unwrap().pages;
    for (batch_size, slots) in [(7, 1), (16, 2), (pages.len(), 3)] {
        let mut compressor = compressor(batch_size, slots, Mode::Fast);
        let mut batch = CompressedBatch::new();
        compressor.compress_into(&pages, &mut batch, &()).unwrap();
        assert!(batch.into_pages() == expected, "{batch_size} pages in each of {slots} slots");
    }
    let mut compressor = compressor(9, 2, Mode::Fast);
    let mut pinned = compressor.pinned_pages(pages.len()).unwrap();
    pinned.pages_mut().unwrap().copy_from_slice(&pages);
    let mut batch = CompressedBatch::new();
    compressor.compress_pinned_into(&mut pinned, &mut batch, &()).unwrap();
    assert!(batch.into_pages() == expected, "from page-locked memory");
    let mut packed = compressor.pinned_batch(pages.len()).unwrap();
    compressor.compress_all_pinned(&mut pinned, &mut packed, &()).unwrap();
    for (page, expected) in expected.iter().enumerate() {
        assert_eq!(packed.get(page).unwrap(), Some(expected.data()), "page {page} to page-locked memory");
    }
}

#[test]
fn restores_pages_of_any_encoder() {
    let pages = few_pages();
    let mut by_cpu = CpuBatchCompressor::default();
    let zstd = CpuBatchCompressor::new(Algorithm::Zstd { level: 1 }).unwrap().compress(&pages).unwrap().into_pages();
    let mut held: Vec<CompressedPage> = by_cpu.compress(&pages).unwrap().into_pages();
    let mut expected = pages.clone();
    for (page, zstd) in pages.iter().zip(zstd).step_by(5) {
        // A block longer than a page is not a valid way to hold a page.
        let foreign = oracle::foreign_blocks(page).into_iter().filter(|(_, block)| block.len() < PAGE_SIZE);
        held.extend(foreign.map(|(_, block)| lz4_page(&block)).chain([zstd]));
        expected.resize(held.len(), *page);
    }
    let mut compressor = compressor(11, 3, Mode::Fast);
    let restored = compressor.decompress_batch(&held).unwrap();
    assert!(restored.pages == expected);
    assert!(restored.times.kernel_time_ns > 0);
    assert_eq!(compressor.stats().pages_decompressed, held.len() as u64);
    assert_eq!(compressor.stats().fallback.batches, 0);
}

#[test]
fn round_trips_through_page_locked_memory() {
    let pages = few_pages();
    let mut compressor = compressor(16, 2, Mode::Fast);
    let mut pinned = compressor.pinned_pages(pages.len()).unwrap();
    pinned.pages_mut().unwrap().copy_from_slice(&pages);
    let mut batch = CompressedBatch::new();
    compressor.compress_pinned_into(&mut pinned, &mut batch, &()).unwrap();
    pinned.pages_mut().unwrap().fill([0xee; PAGE_SIZE]);
    compressor.decompress_pinned_into(&batch, &mut pinned, &()).unwrap();
    assert!(pinned.pages().unwrap() == pages);
    let mut restored = vec![[0xee; PAGE_SIZE]; pages.len()];
    compressor.decompress_into(&batch, &mut restored, &()).unwrap();
    assert!(restored == pages);
    let mut packed = compressor.pinned_batch(pages.len()).unwrap();
    compressor.compress_all_pinned(&mut pinned, &mut packed, &()).unwrap();
    pinned.pages_mut().unwrap().fill([0xee; PAGE_SIZE]);
    compressor.decompress_all_pinned(&mut packed, &mut pinned, &()).unwrap();
    assert!(pinned.pages().unwrap() == pages);
    assert_eq!(compressor.stats().fallback.batches, 0);
}

#[test]
fn damaged_blocks_give_the_cpus_errors_and_others_are_restored() {
    let pages = few_pages();
    let whole = CpuBatchCompressor::default().compress(&pages).unwrap().into_pages();
    let mut generator = Generator::new(17);
    let held: Vec<CompressedPage> = whole
        .iter()
        .enumerate()
        .map(|(number, page)| {
            let mut block = page.bytes().to_vec();
            if number % 3 != 1 || page.kind() != PageKind::Lz4 {
                return page.clone();
            }
            generator.corrupt(&mut block);
            block.truncate(PAGE_SIZE);
            if block.is_empty() { lz4_page(&[0]) } else { lz4_page(&block) }
        })
        .collect();
    let (mut arena, mut index) = (Vec::new(), Vec::new());
    for page in &held {
        let len_bytes = u16::try_from(page.bytes().len()).unwrap();
        index.push(trueno_zram_core::IndexEntry { offset: arena.len() as u64, len_bytes, kind: page.kind() });
        arena.extend_from_slice(page.bytes());
    }
    let batch = CompressedBatch::from_parts(arena, index).unwrap();
    let mut by_cpu = vec![[0; PAGE_SIZE]; held.len()];
    let expected = CpuBatchCompressor::default().decompress_into(&batch, &mut by_cpu, &());
    assert!(matches!(expected, Err(Error::InPage { .. })), "some blocks are damaged: {expected:?}");

    let mut compressor = compressor(8, 2, Mode::Fast);
    assert_eq!(compressor.decompress_batch(&held).map(drop), expected);
    let mut restored = vec![[0; PAGE_SIZE]; held.len()];
    assert_eq!(compressor.decompress_into(&batch, &mut restored, &()).map(drop), expected);
    let mut pinned = compressor.pinned_pages(held.len()).unwrap();
    assert_eq!(compressor.decompress_pinned_into(&batch, &mut pinned, &()).map(drop), expected);
    let mut packed = compressor.pinned_batch(held.len()).unwrap();
    batch.iter().for_each(|page| packed.push(page).unwrap());
    let mut all_pinned = compressor.pinned_pages(held.len()).unwrap();
    assert_eq!(compressor.decompress_all_pinned(&mut packed, &mut all_pinned, &()).map(drop), expected);
    assert!(all_pinned.pages().unwrap() == pinned.pages().unwrap());
    for (number, (held, whole)) in held.iter().zip(&whole).enumerate().filter(|(_, (held, whole))| held == whole) {
        assert_eq!(held.kind(), whole.kind());
        assert!(restored[number] == pages[number], "page {number}");
        assert!(pinned.pages().unwrap()[number] == pages[number], "page {number} in page-locked memory");
    }
}

#[test]
fn rejects_unsupported_configurations() {
    let refused = |config| GpuBatchCompressor::interpreted(config, &GpuOptions::default()).map(drop).unwrap_err();
    let config = GpuBatchConfig::default;
    for algorithm in [Algorithm::Zstd { level: 10 }, Algorithm::None] {
        let error = refused(GpuBatchConfig { algorithm, ..config() });
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    }
    for out_of_range in [0, usize::MAX] {
        let error = refused(GpuBatchConfig { batch_size: out_of_range, ..config() });
        assert!(matches!(error, Error::Config { field: "batch_size", .. }), "{error}");
        let error = refused(GpuBatchConfig { ring_buffer_slots: out_of_range, ..config() });
        assert!(matches!(error, Error::Config { field: "ring_buffer_slots", .. }), "{error}");
    }
}

#[test]
fn a_caller_on_a_thread_of_the_pool_is_served() {
    let pages = few_pages();
    for threads in [1, 2] {
        let pool = build_pool(NonZeroUsize::new(threads).expect("not zero")).expect("threads can be started");
        let config = GpuBatchConfig { batch_size: 8, ring_buffer_slots: 2, ..GpuBatchConfig::default() };
        let options = GpuOptions::new().with_pool(Arc::clone(&pool));
        let mut compressor =
            GpuBatchCompressor::interpreted(config, &options).expect("the interpreter runs everywhere");
        let restored = pool.install(|| {
            let mut batch = CompressedBatch::new();
            compressor.compress_into(&pages, &mut batch, &()).expect("LZ4 does not fail");
            let mut restored = vec![[0; PAGE_SIZE]; pages.len()];
            compressor.decompress_into(&batch, &mut restored, &()).expect("just compressed");
            restored
        });
        assert!(restored == pages, "{threads} threads");
        assert_eq!(compressor.stats().fallback.pages, 0);
    }
}
