//! Resizing: what grows reads as zeros, what is cut off is refused and gone, and requests, snapshots and attaching see one length.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use proptest::prelude::*;
use trueno_test_pages::corpus;
use trueno_zram_core::{Algorithm, CpuBatchCompressor, PAGE_SIZE};
use trueno_zram_store::{Error, RecompressOptions, ResizeRefusal, Store, StoreHandle, StoreOptions, ZeroPages};

const PAGE: u64 = PAGE_SIZE as u64;

fn store(pages: u64, max_pages: u64) -> Arc<Store> {
    Arc::new(Store::create(&StoreOptions::new(pages * PAGE).with_max_size_bytes(max_pages * PAGE)).unwrap())
}

fn refusal(store: &Store, size_bytes: u64) -> ResizeRefusal {
    match store.resize(size_bytes) {
        Err(Error::Resize { size_bytes: asked, reason }) if asked == size_bytes => reason,
        other => panic!("{other:?}"),
    }
}

fn fds(store: &Store) -> [OwnedFd; 2] {
    store.fds().map(|fd| fd.try_clone_to_owned().unwrap())
}

#[test]
fn lengths_that_cannot_be_are_refused_by_name() {
    let store = store(4, 8);
    for size in [0, 1, PAGE - 1, 3 * PAGE + 512] {
        assert_eq!(refusal(&store, size), ResizeRefusal::PartialPage);
    }
    assert_eq!(refusal(&store, 9 * PAGE), ResizeRefusal::TooLarge { max_bytes: 8 * PAGE });
    assert_eq!(refusal(&store, u64::MAX - PAGE + 1), ResizeRefusal::TooLarge { max_bytes: 8 * PAGE });
    StoreHandle::new(&store).unwrap().write_at(2 * PAGE, &[1]).unwrap();
    assert_eq!(refusal(&store, PAGE), ResizeRefusal::NotEmpty { page: 2 });
    {
        let _snapshot = store.snapshot().unwrap();
        assert_eq!(refusal(&store, 8 * PAGE), ResizeRefusal::Snapshot);
    }
    assert_eq!(store.size_bytes(), 4 * PAGE);
    store.resize(3 * PAGE).unwrap();
    store.resize(8 * PAGE).unwrap();
    assert_eq!((store.size_bytes(), store.max_size_bytes()), (8 * PAGE, 8 * PAGE));
    let without_room = Store::create(&StoreOptions::new(PAGE)).unwrap();
    assert_eq!(refusal(&without_room, 2 * PAGE), ResizeRefusal::TooLarge { max_bytes: PAGE });
}

/// A store without a limit has room for pages that do not shrink, also in its new part.
#[test]
fn all_pages_of_a_store_that_grew_can_be_full_of_noise() {
    let store = store(64, 4096);
    let mut handle = StoreHandle::new(&store).unwrap();
    let noise = |page: u64| {
        let mut state = page + 1;
        std::array::from_fn::<u8, PAGE_SIZE, _>(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state.to_be_bytes()[0]
        })
    };
    for pages in [64, 1000, 4096] {
        store.resize(pages * PAGE).unwrap();
        (0..pages).for_each(|page| handle.write_page(page, &noise(page)).unwrap());
    }
    let held = store.stats().mm.mem_used_total;
    let store = attached_again(store, handle);
    assert_eq!((store.page_count(), store.stats().mm.huge_pages), (4096, 4096));
    assert!(store.stats().mm.mem_used_total.abs_diff(held) < 32 << 20);
    let mut handle = StoreHandle::new(&store).unwrap();
    let mut page = [0; PAGE_SIZE];
    for number in 0..4096 {
        handle.read_page(number, &mut page).unwrap();
        assert!(page == noise(number), "{number}");
    }
}

#[test]
fn what_is_cut_off_is_refused_and_does_not_come_back() {
    let store = store(8, 8);
    let mut handle = StoreHandle::new(&store).unwrap();
    handle.write_at(0, &corpus::ALL[0].pages[..8].concat()).unwrap();
    handle.discard(4 * PAGE, 2 * PAGE).unwrap();
    handle.write_zeroes(6 * PAGE, 2 * PAGE, ZeroPages::Keep).unwrap();
    let before = store.stats().mm;
    store.resize(4 * PAGE).unwrap();
    assert_eq!(before.orig_data_size - store.stats().mm.orig_data_size, 2 * PAGE, "zero pages do not count any more");
    let mut bytes = [0; PAGE_SIZE];
    for offset in [4 * PAGE, 4 * PAGE - 1, 7 * PAGE] {
        assert!(matches!(handle.read_at(offset, &mut bytes), Err(Error::OutOfRange { .. })));
        assert!(matches!(handle.write_at(offset, &bytes), Err(Error::OutOfRange { .. })));
    }
    assert!(handle.discard(3 * PAGE, 2 * PAGE).is_err() && handle.write_page(4, &bytes).is_err());
    assert_eq!(store.page_state(4), None);
    let store = attached_again(store, handle);
    assert_eq!((store.page_count(), store.max_size_bytes()), (4, 8 * PAGE));
    store.resize(8 * PAGE).unwrap();
    let mut handle = StoreHandle::new(&store).unwrap();
    let mut back = vec![1; 8 * PAGE_SIZE];
    handle.read_at(0, &mut back).unwrap();
    assert!(
        back[..4 * PAGE_SIZE] == corpus::ALL[0].pages[..4].concat() && back[4 * PAGE_SIZE..].iter().all(|b| *b == 0)
    );
}

/// Ends a store, and attaches to its memory.
fn attached_again(store: Arc<Store>, handle: StoreHandle) -> Arc<Store> {
    let left = fds(&store);
    drop((store, handle));
    Arc::new(Store::attach(left).unwrap())
}

/// Writers, discards, saving, recompression and compaction, while another thread resizes.
#[test]
fn requests_and_maintenance_go_on_while_the_length_changes() {
    const PAGES: u64 = 96;
    let store = store(PAGES, 4 * PAGES);
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let pages = corpus::ALL[0].pages;
    std::thread::scope(|scope| {
        // This part always exists. Each thread checks its own pages.
        for thread in 0..2u64 {
            let mut handle = StoreHandle::new(&store).unwrap();
            let (stop, rounds) = (&stop, &rounds);
            scope.spawn(move || {
                let mut round = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    round += 1;
                    let number = (round % (PAGES / 2)) * 2 + thread;
                    let content = &pages[usize::try_from((round * 7 + thread) % pages.len() as u64).unwrap()];
                    handle.write_page(number, content).unwrap();
                    let mut page = [0; PAGE_SIZE];
                    handle.read_page(number, &mut page).unwrap();
                    assert!(page == *content);
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // This part comes and goes: a write is complete, or refused.
        for thread in 0..2u64 {
            let mut handle = StoreHandle::new(&store).unwrap();
            let stop = &stop;
            scope.spawn(move || {
                // Not for ever: while they are at work, hardly anything can be cut off.
                for round in (0..20_000u64).take_while(|_| !stop.load(Ordering::Relaxed)) {
                    let number = PAGES + thread + 2 * (round % PAGES);
                    match handle.write_page(number, &pages[0]) {
                        // It is not cut off while it has data. It may be refused while that is found out.
                        Ok(()) => loop {
                            match handle.discard(number * PAGE, PAGE) {
                                Ok(()) => break,
                                Err(Error::OutOfRange { .. }) => std::thread::yield_now(),
                                Err(error) => panic!("page {number}: {error}"),
                            }
                        },
                        Err(Error::OutOfRange { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        scope.spawn(|| {
            let mut codec = CpuBatchCompressor::new(Algorithm::Zstd { level: 1 }).unwrap();
            while !stop.load(Ordering::Relaxed) {
                store.tick();
                store
                    .recompress(&mut codec, &RecompressOptions::default().with_min_age(1).with_batch_pages(8))
                    .unwrap();
                store.compact().unwrap();
            }
        });
        scope.spawn(|| {
            // Not for ever: while a snapshot is read, the length stays.
            for _ in (0..50).take_while(|_| !stop.load(Ordering::Relaxed)) {
                let (archive, summary) = store.save(Vec::new(), &mut CpuBatchCompressor::default()).unwrap();
                assert!(!archive.is_empty() && summary.content_len.is_multiple_of(PAGE));
            }
        });
        let (mut grown, mut cut) = (0u32, 0);
        let failed = AtomicBool::new(false);
        for round in 0u64.. {
            if (grown >= 20 && cut >= 20 && rounds.load(Ordering::Relaxed) > 200) || failed.load(Ordering::Relaxed) {
                break;
            }
            let (before, new) = (store.size_bytes(), (PAGES + (round * 37) % (3 * PAGES)) * PAGE);
            match store.resize(new) {
                Ok(()) if new > before => grown += 1,
                Ok(()) => cut += u32::from(new < before),
                Err(Error::Resize { reason: ResizeRefusal::NotEmpty { .. } | ResizeRefusal::Snapshot, .. }) => {
                    std::thread::yield_now();
                }
                Err(_) => failed.store(true, Ordering::Relaxed),
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(!failed.load(Ordering::Relaxed) && grown >= 20 && cut >= 20, "{grown} {cut}");
    });
    // The counters are those of the table.
    let held = store.stats().mm;
    let attached = Store::attach(fds(&store));
    assert!(attached.is_err(), "it is in use");
    let left = fds(&store);
    drop(store);
    let attached = Store::attach(left).unwrap().stats().mm;
    assert_eq!((held.orig_data_size, held.compr_data_size), (attached.orig_data_size, attached.compr_data_size));
}

#[test]
fn an_archive_beneath_is_never_cut_off() {
    let below = store(4, 4);
    StoreHandle::new(&below).unwrap().write_at(0, &corpus::ALL[0].pages[..4].concat()).unwrap();
    let (archive, _) = below.save(Vec::new(), &mut CpuBatchCompressor::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("base.lz4");
    std::fs::write(&path, archive).unwrap();
    let archive = trueno_zram_archive::Archive::open(&path).unwrap();
    let options = StoreOptions::new(6 * PAGE).with_max_size_bytes(8 * PAGE);
    let store = Arc::new(Store::create(&options).unwrap().with_base(archive).unwrap());
    let mut handle = StoreHandle::new(&store).unwrap();
    handle.discard(0, 6 * PAGE).unwrap();
    assert_eq!(refusal(&store, 3 * PAGE), ResizeRefusal::Base { base_bytes: 4 * PAGE });
    store.resize(4 * PAGE).unwrap();
    store.resize(8 * PAGE).unwrap();
    let mut back = vec![1; 8 * PAGE_SIZE];
    handle.read_at(0, &mut back).unwrap();
    assert!(back.iter().all(|byte| *byte == 0), "what was discarded stays so");
}

/// An operation on the store, or on the model of it.
#[derive(Clone, Debug)]
enum Step {
    Write(usize, u8),
    Discard(usize),
    Resize(usize),
    Attach,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..32usize, 1..=255u8).prop_map(|(page, byte)| Step::Write(page, byte)),
        2 => (0..32usize).prop_map(Step::Discard),
        3 => (0..40usize).prop_map(Step::Resize),
        1 => Just(Step::Attach),
    ]
}

/// A page that is compressed, and differs from those of other bytes.
fn content(byte: u8) -> [u8; PAGE_SIZE] {
    std::array::from_fn(|at| byte.wrapping_add(u8::try_from(at / 8 % 100).unwrap()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_store_is_as_long_as_a_vector_that_is_resized_like_it(steps in prop::collection::vec(step(), 1..60)) {
        let mut model = vec![0u8; 8];
        let mut store = store(8, 32);
        let mut handle = StoreHandle::new(&store).unwrap();
        for step in steps {
            match step {
                Step::Write(page, byte) => {
                    let written = handle.write_page(page as u64, &content(byte));
                    let known = model.get_mut(page).map(|known| *known = byte);
                    prop_assert_eq!(written.is_ok(), known.is_some());
                }
                Step::Discard(page) => {
                    let known = model.get_mut(page).map(|known| *known = 0);
                    prop_assert_eq!(handle.discard(page as u64 * PAGE, PAGE).is_ok(), known.is_some());
                }
                Step::Resize(pages) => {
                    let fits = (1..=32).contains(&pages);
                    let is_free = model.iter().skip(pages).all(|byte| *byte == 0);
                    let done = store.resize(pages as u64 * PAGE).is_ok();
                    prop_assert_eq!(done, fits && is_free);
                    if done {
                        model.resize(pages, 0);
                    }
                }
                Step::Attach => {
                    store = attached_again(store, handle);
                    handle = StoreHandle::new(&store).unwrap();
                }
            }
            prop_assert_eq!(store.page_count(), model.len() as u64);
        }
        for (page, byte) in model.iter().enumerate() {
            let mut found = [1; PAGE_SIZE];
            handle.read_page(page as u64, &mut found).unwrap();
            let expected = if *byte == 0 { [0; PAGE_SIZE] } else { content(*byte) };
            prop_assert!(found == expected, "page {}", page);
        }
    }
}
