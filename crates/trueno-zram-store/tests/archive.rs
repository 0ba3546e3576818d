//! Snapshots, saving and loading while requests go on.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod contents;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use trueno_test_pages::corpus;
use trueno_test_pages::generate::Generator;
use trueno_zram_core::{Algorithm, CpuBatchCompressor, PAGE_SIZE};
use trueno_zram_store::{RecompressOptions, Store, StoreHandle, StoreOptions};

use contents::{content, decoded};

const PAGES: u64 = 3000;

fn filled_store() -> Arc<Store> {
    let store = Arc::new(Store::create(&StoreOptions::new(PAGES * PAGE_SIZE as u64)).unwrap());
    let mut handle = StoreHandle::new(&store).unwrap();
    let mut random = Generator::new(1);
    for (page, content) in (0..PAGES).zip(corpus::all_pages().cycle()) {
        match random.below(4) {
            0 => {}
            1 => handle.write_page(page, &random.page()).unwrap(),
            _ => handle.write_page(page, content).unwrap(),
        }
    }
    store
}

#[test]
fn what_is_saved_while_pages_change_is_the_moment_of_the_start() {
    let store = filled_store();
    let before = content(&store);
    let done = AtomicBool::new(false);
    let mut snapshot = store.snapshot().unwrap();
    // Changes before anything was read, too.
    let mut handle = StoreHandle::new(&store).unwrap();
    handle.write_at(0, &[1; 40_000]).unwrap();
    handle.discard(50 << 12, 100 << 12).unwrap();
    let mut archive =
        trueno_zram_archive::ArchiveWriter::new(Vec::new(), trueno_zram_archive::WriteOptions::default()).unwrap();
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let mut handle = StoreHandle::new(&store).unwrap();
            let (done, store) = (&done, &store);
            scope.spawn(move || {
                let mut random = Generator::new(10 + seed);
                while !done.load(Ordering::Relaxed) {
                    let at = random.next_u64() % store.size_bytes();
                    let page = random.page();
                    let len = PAGE_SIZE.min(usize::try_from(store.size_bytes() - at).unwrap());
                    match random.below(3) {
                        0 => handle.discard(at, len as u64).unwrap(),
                        1 => handle.write_at(at, &page[..len]).unwrap(),
                        _ => handle.write_page(at / 4096, &page).unwrap(),
                    }
                    if seed == 0 && random.below(100) == 0 {
                        store.compact().unwrap();
                    }
                }
            });
        }
        while let Some(part) = snapshot.read(64).unwrap() {
            match part {
                trueno_zram_store::SnapshotPart::Holes(pages) => archive.write_zero_pages(pages).unwrap(),
                trueno_zram_store::SnapshotPart::Pages(batch) => archive.write_batch(&batch).unwrap(),
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    drop(snapshot);
    let (bytes, _) = archive.finish(None).unwrap();
    assert!(decoded(&bytes) == before);
    assert!(content(&store) != before);
    assert_nothing_leaked(&store);
}

/// An empty store takes no memory, unless slots were lost.
fn assert_nothing_leaked(store: &Arc<Store>) {
    StoreHandle::new(store).unwrap().discard(0, store.size_bytes()).unwrap();
    store.compact().unwrap();
    assert_eq!(store.stats().mm.mem_used_total, 0);
}

#[test]
fn a_snapshot_that_is_not_read_to_its_end_leaves_nothing() {
    let store = filled_store();
    let mut handle = StoreHandle::new(&store).unwrap();
    for parts in [0, 1, 5] {
        let mut snapshot = store.snapshot().unwrap();
        handle.write_at(0, &vec![3; usize::try_from(store.size_bytes()).unwrap()]).unwrap();
        for _ in 0..parts {
            snapshot.read(100).unwrap();
        }
        drop(snapshot);
    }
    assert_nothing_leaked(&store);
}

#[test]
fn saved_and_loaded_stores_are_equal_whatever_the_algorithms() {
    let store = filled_store();
    let mut lz4 = CpuBatchCompressor::default();
    let mut zstd = CpuBatchCompressor::new(Algorithm::Zstd { level: 1 }).unwrap();
    let expected = content(&store);
    (0..2).for_each(|_| store.tick());
    let recompressed = store.recompress(&mut zstd, &RecompressOptions::default()).unwrap();
    assert!(recompressed.pages_replaced > 100, "{recompressed:?}");
    assert!(content(&store) == expected);
    let (archive, summary) = store.save(Vec::new(), &mut lz4).unwrap();
    assert_eq!(summary.content_len, store.size_bytes());
    assert!(decoded(&archive) == expected);

    let options = StoreOptions::new(store.size_bytes()).with_algorithm(Algorithm::Zstd { level: 1 });
    let other = Arc::new(Store::create(&options).unwrap());
    StoreHandle::new(&other).unwrap().write_at(0, &[9; 1 << 20]).unwrap();
    assert_eq!(other.load(&archive[..], &mut lz4).unwrap(), store.size_bytes());
    assert!(content(&other) == expected);
    assert!(other.stats().mm.compr_data_size < store.stats().mm.orig_data_size);

    let small = Arc::new(Store::create(&StoreOptions::new(1 << 20)).unwrap());
    assert!(small.load(&archive[..], &mut lz4).is_err());
    assert!(small.load(&archive[..archive.len() / 2], &mut lz4).is_err());
}

#[test]
fn idle_pages_are_recompressed_once_and_changed_pages_again() {
    let store = filled_store();
    let mut zstd = CpuBatchCompressor::new(Algorithm::Zstd { level: 1 }).unwrap();
    let options = RecompressOptions::default().with_min_age(3);
    assert_eq!(store.recompress(&mut zstd, &options).unwrap().pages_tried, 0, "nothing is idle yet");
    (0..3).for_each(|_| store.tick());
    let mut handle = StoreHandle::new(&store).unwrap();
    let before = store.stats().mm.compr_data_size;
    let content: Vec<u8> = content(&store)[..4096].to_vec();
    (0..3).for_each(|_| store.tick());
    let first = store.recompress(&mut zstd, &options).unwrap();
    assert!(first.pages_tried > 1000 && first.bytes_saved > 0);
    assert_eq!(store.stats().mm.compr_data_size, before - first.bytes_saved);
    assert_eq!(store.recompress(&mut zstd, &options).unwrap().pages_tried, 0);

    let page = corpus::all_pages().find(|page| **page != [0; PAGE_SIZE]).unwrap();
    handle.write_page(7, page).unwrap();
    (0..3).for_each(|_| store.tick());
    assert_eq!(store.recompress(&mut zstd, &options).unwrap().pages_tried, 1);
    let mut back = vec![0; 4096];
    handle.read_at(0, &mut back).unwrap();
    assert_eq!(back, content);
}

#[test]
fn holes_at_the_end_are_saved_at_their_length() {
    let store = Arc::new(Store::create(&StoreOptions::new(100 * PAGE_SIZE as u64)).unwrap());
    StoreHandle::new(&store).unwrap().write_page(0, corpus::all_pages().next().unwrap()).unwrap();
    let mut codec = CpuBatchCompressor::new(Algorithm::Lz4).unwrap();
    let (archive, _) = store.save(Vec::new(), &mut codec).unwrap();
    assert!(decoded(&archive) == content(&store));
}

#[test]
fn recompression_takes_batches_of_the_length_that_was_set() {
    assert_eq!(RecompressOptions::default().with_batch_pages(16).batch_pages, 16);
}
