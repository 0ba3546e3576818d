//! CPU batches: the same bytes with any number of threads, errors by page, reused memory.

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use trueno_test_pages::{corpus, generate::Generator};
use trueno_zram_core::cpu::InstructionSet;
use trueno_zram_core::{
    Algorithm, BatchCodec, CompressedBatch, CompressedPage, CpuBatchCompressor, Error, IndexEntry, PAGE_SIZE, Page,
    PageCodec, PageKind, build_pool,
};

fn compressor(threads: usize) -> CpuBatchCompressor {
    let threads = NonZeroUsize::new(threads).expect("not zero");
    let pool = build_pool(threads).expect("threads can be started");
    CpuBatchCompressor::with_pool(Algorithm::Lz4, InstructionSet::detect(), pool)
        .expect("a detected instruction set is available")
}

/// Returns `count` pages of the corpus and the generator, some of them same-filled.
fn pages(count: usize) -> Vec<Page> {
    let mut generator = Generator::new(7);
    let corpus = corpus::all_pages().copied().cycle();
    corpus.take(count).map(|page| if generator.below(5) == 0 { generator.page() } else { page }).collect()
}

#[test]
fn bytes_do_not_depend_on_threads_or_earlier_batches() {
    let mut codec = PageCodec::default();
    for count in [0, 1, 15, 16, 17, 1023, 1024, 1025, 5000] {
        let pages = pages(count);
        // The reference: one page at a time.
        let (mut arena, mut index) = (Vec::new(), Vec::new());
        for page in &pages {
            let mut out = [0; PAGE_SIZE];
            let data = codec.compress(page, &mut out).expect("LZ4 does not fail");
            let len_bytes = u16::try_from(data.bytes().len()).expect("at most 4096");
            index.push(IndexEntry { offset: arena.len() as u64, len_bytes, kind: data.kind() });
            arena.extend_from_slice(data.bytes());
        }
        let expected = CompressedBatch::from_parts(arena, index).expect("the index matches the arena");
        for threads in [1, 2, 3, 8] {
            let mut compressor = compressor(threads);
            let mut batch = compressor.compress(&pages[..count / 2]).expect("LZ4 does not fail");
            compressor.compress_into(&pages, &mut batch, &()).expect("LZ4 does not fail");
            assert!(batch == expected, "{count} pages on {threads} threads");
            assert!(compressor.decompress(&batch) == Ok(pages.clone()), "{count} pages on {threads} threads");
        }
    }
}

#[test]
fn progress_counts_every_page_once_in_both_directions() {
    let pages = pages(3001);
    let mut compressor = compressor(2);
    let (mut batch, done) = (CompressedBatch::new(), AtomicUsize::new(0));
    compressor.compress_into(&pages, &mut batch, &done).expect("LZ4 does not fail");
    assert_eq!(done.swap(0, Ordering::Relaxed), 3001);
    let mut restored = vec![[0; PAGE_SIZE]; 3001];
    compressor.decompress_into(&batch, &mut restored, &done).expect("the batch is intact");
    assert_eq!(done.load(Ordering::Relaxed), 3001);
}

#[test]
fn corrupt_page_is_reported_and_others_are_restored() {
    let pages = pages(2000);
    let mut compressor = compressor(2);
    let batch = compressor.compress(&pages).expect("LZ4 does not fail");
    let mut broken: Vec<usize> =
        [1234, 77, 1999].into_iter().filter(|i| batch.index()[*i].kind == PageKind::Lz4).collect();
    broken.sort_unstable();
    assert!(broken.len() > 1, "the sample has LZ4 pages at these positions");
    let mut arena = batch.arena().to_vec();
    for i in &broken {
        let entry = batch.index()[*i];
        let start = usize::try_from(entry.offset).expect("small");
        arena[start..start + usize::from(entry.len_bytes)].fill(0xff);
    }
    let batch = CompressedBatch::from_parts(arena, batch.index().to_vec()).expect("the index is intact");
    for _ in 0..10 {
        let mut restored = vec![[0; PAGE_SIZE]; pages.len()];
        let error = compressor.decompress_into(&batch, &mut restored, &()).expect_err("some pages are corrupt");
        assert!(matches!(&error, Error::InPage { index, .. } if *index == broken[0]), "{error}");
        for (i, (restored, page)) in restored.iter().zip(&pages).enumerate() {
            assert!(broken.contains(&i) || restored == page, "page {i}");
        }
    }
}

#[test]
fn rejects_an_index_that_exceeds_its_arena() {
    let entry = |offset, len_bytes, kind| IndexEntry { offset, len_bytes, kind };
    let whole = entry(0, 8, PageKind::SameFilled);
    for (bad, is_outside) in [
        (entry(1, 8, PageKind::SameFilled), true),
        (entry(u64::MAX, 8, PageKind::SameFilled), true),
        (entry(u64::MAX - 4, 8, PageKind::SameFilled), true),
        (entry(0, 4096, PageKind::Raw), true),
        (entry(0, 7, PageKind::SameFilled), false),
        (entry(0, 8, PageKind::Raw), false),
        (entry(0, 0, PageKind::Lz4), false),
    ] {
        let error = CompressedBatch::from_parts(vec![0; 8], vec![whole, bad]).expect_err("the second entry is bad");
        let Error::InPage { index: 1, error } = error else { panic!("{error}") };
        assert_eq!(matches!(*error, Error::OutsideArena { .. }), is_outside, "{error}");
    }
}

#[test]
fn rejects_a_destination_of_another_size() {
    let mut compressor = compressor(1);
    let batch = compressor.compress(&pages(3)).expect("LZ4 does not fail");
    let error =
        compressor.decompress_into(&batch, &mut [[0; PAGE_SIZE]; 2], &()).expect_err("the destination is too small");
    assert_eq!(error, Error::PageCount { batch_pages: 3, destination_pages: 2 });
}

#[test]
fn pages_outlive_their_batch_and_can_be_detached() {
    let pages = pages(300);
    let batch = compressor(2).compress(&pages).expect("LZ4 does not fail");
    let held: Vec<CompressedPage> = batch.clone().into_pages();
    let detached: Vec<CompressedPage> = held.iter().map(CompressedPage::detached).collect();
    assert_eq!(held, detached);
    drop(held);
    let mut codec = PageCodec::default();
    for ((page, data), original) in detached.iter().zip(batch.iter()).zip(&pages) {
        assert_eq!(page.data(), data);
        let mut back = [0; PAGE_SIZE];
        codec.decompress(page.data(), &mut back).expect("the page is intact");
        assert!(back == *original);
    }
}

#[test]
fn stats_count_every_page_by_its_kind() {
    let pages = pages(2000);
    let batch = compressor(2).compress(&pages).expect("LZ4 does not fail");
    let stats = batch.stats();
    assert_eq!(stats.pages(), 2000);
    assert_eq!(stats.bytes_out, batch.arena().len() as u64);
    let count = |kind| batch.index().iter().filter(|entry| entry.kind == kind).count() as u64;
    assert_eq!(
        (stats.zero + stats.same_filled, stats.lz4, stats.zstd, stats.raw),
        (count(PageKind::SameFilled), count(PageKind::Lz4), 0, count(PageKind::Raw))
    );
    assert_eq!(stats.zero, pages.iter().filter(|page| **page == [0; PAGE_SIZE]).count() as u64);
    assert!(stats.zero > 0 && stats.same_filled > 0 && stats.raw > 0 && stats.lz4 > 1000);
}

#[test]
fn round_trips_zstd_batches() {
    let pages = pages(600);
    let mut compressor = CpuBatchCompressor::new(Algorithm::Zstd { level: 1 }).expect("a valid level");
    let batch = compressor.compress(&pages).expect("there is enough memory");
    assert!(batch.stats().zstd > 300 && batch.stats().lz4 == 0);
    assert!(compressor.decompress(&batch) == Ok(pages));
}

#[test]
fn a_panic_in_progress_leaves_no_part_of_a_batch() {
    let pages = pages(5000);
    let (mut compressor, mut batch) = (compressor(2), CompressedBatch::new());
    let done = AtomicUsize::new(0);
    let panics =
        |pages: usize| assert!(done.fetch_add(pages, Ordering::Relaxed) < 4000, "the progress callback panics");
    let outcome = catch_unwind(AssertUnwindSafe(|| compressor.compress_into(&pages, &mut batch, &panics)));
    assert!(outcome.is_err() && batch.is_empty(), "{} pages", batch.len());
    compressor.compress_into(&pages, &mut batch, &()).expect("usable after a panic");
    assert!(compressor.decompress(&batch).expect("intact") == pages);
}

#[test]
fn every_codec_counts_its_pages() {
    let pages = pages(100);
    let mut codec: Box<dyn BatchCodec> = Box::new(compressor(2));
    let (mut batch, mut restored) = (CompressedBatch::new(), vec![[0; PAGE_SIZE]; 100]);
    codec.compress_into(&pages, &mut batch, &()).expect("LZ4 does not fail");
    codec.decompress_into(&batch, &mut restored, &()).expect("intact");
    let data: Vec<_> = batch.iter().collect();
    codec.decompress_pages(&data, &mut restored).expect("intact");
    let stats = codec.stats();
    assert!(restored == pages);
    assert_eq!((stats.pages_compressed, stats.bytes_out), (100, batch.arena().len() as u64));
    assert_eq!(stats.pages_decompressed, 200);
}
