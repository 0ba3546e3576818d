//! Random requests of several threads against a plain array, while the store compacts, ages and recompresses.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use trueno_test_pages::corpus;
use trueno_test_pages::generate::Generator;
use trueno_zram_core::{Algorithm, CpuBatchCompressor, PAGE_SIZE, Page};
use trueno_zram_store::{Error, RecompressOptions, Store, StoreHandle, StoreOptions, ZeroPages};

const PAGES: usize = 600;
const THREADS: u64 = 4;

fn share() -> Vec<&'static Page> {
    corpus::all_pages().collect()
}

/// One random request on the store and on the model. A page's mutex keeps the two in step.
fn step(random: &mut Generator, handle: &mut StoreHandle, model: &[Mutex<Box<Page>>], real: &[&'static Page]) {
    let number = random.below(PAGES);
    let at = (number * PAGE_SIZE) as u64;
    let mut expected = model[number].lock().unwrap();
    match random.below(100) {
        0..30 => {
            let mut page = [0xaa; PAGE_SIZE];
            handle.read_page(number as u64, &mut page).unwrap();
            assert!(page == **expected, "page {number} was read wrong");
        }
        30..55 => {
            **expected = *real[random.below(real.len())];
            handle.write_at(at, &expected[..]).unwrap();
        }
        55..65 => {
            **expected = random.page();
            handle.write_at(at, &expected[..]).unwrap();
        }
        65..75 => {
            expected.fill(random.byte());
            handle.write_at(at, &expected[..]).unwrap();
        }
        75..83 => {
            let start = random.below(PAGE_SIZE);
            let len = random.below(PAGE_SIZE - start + 1);
            expected[start..start + len].fill_with(|| random.byte());
            handle.write_at(at + start as u64, &expected[start..start + len]).unwrap();
        }
        83..90 => {
            let start = random.below(PAGE_SIZE);
            let mut part = vec![0; random.below(PAGE_SIZE - start + 1)];
            handle.read_at(at + start as u64, &mut part).unwrap();
            assert!(part == expected[start..start + part.len()]);
        }
        90..95 => {
            let start = random.below(PAGE_SIZE);
            let len = random.below(PAGE_SIZE - start + 1);
            expected[start..start + len].fill(0);
            let pages = if random.below(2) == 0 { ZeroPages::Keep } else { ZeroPages::Discard };
            handle.write_zeroes(at + start as u64, len as u64, pages).unwrap();
        }
        _ => {
            expected.fill(0);
            handle.discard(at, PAGE_SIZE as u64).unwrap();
        }
    }
}

#[test]
fn a_million_requests_agree_with_a_plain_array() {
    let store = Arc::new(Store::create(&StoreOptions::new((PAGES * PAGE_SIZE) as u64)).unwrap());
    let model: Vec<_> = (0..PAGES).map(|_| Mutex::new(Box::new([0; PAGE_SIZE]))).collect();
    let (real, done) = (share(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|seed| {
                let mut handle = StoreHandle::new(&store).unwrap();
                let (model, real) = (&model, &real);
                scope.spawn(move || {
                    let mut random = Generator::new(seed);
                    (0..1_000_000 / THREADS).for_each(|_| step(&mut random, &mut handle, model, real));
                })
            })
            .collect();
        scope.spawn(|| {
            let mut codec = CpuBatchCompressor::new(Algorithm::Zstd { level: 1 }).unwrap();
            let options = RecompressOptions::default().with_min_age(1).with_batch_pages(64);
            while !done.load(Ordering::Relaxed) {
                store.compact().unwrap();
                store.tick();
                store.recompress(&mut codec, &options).unwrap();
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        });
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        done.store(true, Ordering::Relaxed);
    });
    check_all(&store, &model);
    let stats = store.stats();
    assert!(stats.mm.pages_compacted > 0 && stats.pages_recompressed > 0, "{stats:?}");
    assert_eq!(stats.io.failed_reads + stats.io.failed_writes + stats.io.invalid_io, 0);

    // Nothing is left behind: a store that is empty takes no memory.
    StoreHandle::new(&store).unwrap().discard(0, store.size_bytes()).unwrap();
    store.compact().unwrap();
    let mm = store.stats().mm;
    assert_eq!((mm.orig_data_size, mm.compr_data_size, mm.mem_used_total), (0, 0, 0));
    assert_eq!((mm.same_pages, mm.huge_pages), (0, 0));
}

fn check_all(store: &Arc<Store>, model: &[Mutex<Box<Page>>]) {
    let mut handle = StoreHandle::new(store).unwrap();
    let mut page = [0; PAGE_SIZE];
    let mut held = 0;
    for (number, expected) in model.iter().enumerate() {
        handle.read_page(number as u64, &mut page).unwrap();
        assert!(page == **expected.lock().unwrap(), "page {number}");
        held += u64::from(page != [0; PAGE_SIZE]);
    }
    assert!(store.stats().mm.orig_data_size >= held * PAGE_SIZE as u64);
}

/// Threads that write the same pages: a page is always one of the versions, whole.
#[test]
fn pages_are_never_torn() {
    const CONTENDED: u64 = 4;
    let store = Arc::new(Store::create(&StoreOptions::new(1 << 20)).unwrap());
    let version = |random: &mut Generator| -> Page {
        let word = random.next_u64() | 1;
        let step = random.next_u64() % 3;
        let mut page = [0; PAGE_SIZE];
        for (at, chunk) in (0u64..).zip(page.chunks_exact_mut(8)) {
            chunk.copy_from_slice(&word.wrapping_add(at * step).to_le_bytes());
        }
        page
    };
    let is_whole = |page: &Page| {
        let words: Vec<u64> = page.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        let step = words[1].wrapping_sub(words[0]);
        (0u64..).zip(&words).all(|(at, word)| *word == words[0].wrapping_add(at * step)) && step < 3
    };
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let mut handle = StoreHandle::new(&store).unwrap();
            let store = &store;
            scope.spawn(move || {
                let mut random = Generator::new(100 + seed);
                for round in 0..20_000 {
                    let number = random.next_u64() % CONTENDED;
                    if random.below(2) == 0 {
                        handle.write_page(number, &version(&mut random)).unwrap();
                    } else {
                        let mut page = [0; PAGE_SIZE];
                        handle.read_page(number, &mut page).unwrap();
                        assert!(is_whole(&page), "page {number} is torn");
                    }
                    if seed == 0 && round % 200 == 0 {
                        store.compact().unwrap();
                    }
                }
            });
        }
    });
}

#[test]
fn changes_of_parts_of_a_page_are_not_lost() {
    let store = Arc::new(Store::create(&StoreOptions::new(4096)).unwrap());
    let rounds = 3000u64;
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let mut handle = StoreHandle::new(&store).unwrap();
            scope.spawn(move || {
                for count in 1..=rounds {
                    let mut word = [0; 8];
                    handle.read_at(thread * 512, &mut word).unwrap();
                    assert_eq!(u64::from_le_bytes(word), count - 1);
                    handle.write_at(thread * 512, &count.to_le_bytes()).unwrap();
                }
            });
        }
    });
    let mut handle = StoreHandle::new(&store).unwrap();
    for thread in 0..4 {
        let mut word = [0; 8];
        handle.read_at(thread * 512, &mut word).unwrap();
        assert_eq!(u64::from_le_bytes(word), rounds);
    }
}

#[test]
fn at_the_limit_writes_fail_and_change_nothing() {
    let limit = 4 << 20;
    let options = StoreOptions::new(32 << 20).with_limit_bytes(limit);
    let store = Arc::new(Store::create(&options).unwrap());
    let pages = store.page_count();
    let refused = AtomicU64::new(0);
    let written: Vec<_> = (0..pages).map(|_| Mutex::new(None::<u64>)).collect();
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let mut handle = StoreHandle::new(&store).unwrap();
            let (refused, written, store) = (&refused, &written, &store);
            scope.spawn(move || {
                let mut random = Generator::new(seed);
                for _ in 0..20_000 {
                    let number = random.next_u64() % pages;
                    let mut last = written[usize::try_from(number).unwrap()].lock().unwrap();
                    let seed = random.next_u64();
                    match handle.write_page(number, &Generator::new(seed).page()) {
                        Ok(()) => *last = Some(seed),
                        Err(Error::NoSpace { page, limit_bytes, .. }) => {
                            assert_eq!((page, limit_bytes), (number, limit));
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => panic!("{error}"),
                    }
                    assert!(store.stats().mm.mem_used_total <= limit);
                    if random.below(8) == 0 {
                        handle.discard(number * 4096, 4096).unwrap();
                        *last = None;
                    }
                }
            });
        }
    });
    assert!(refused.load(Ordering::Relaxed) > 1000);
    assert_eq!(store.stats().io.failed_writes, 0, "write_page is counted by write_at");
    let mut handle = StoreHandle::new(&store).unwrap();
    for (number, seed) in (0..).zip(&written) {
        let mut page = [1; PAGE_SIZE];
        handle.read_page(number, &mut page).unwrap();
        let expected = seed.lock().unwrap().map_or([0; PAGE_SIZE], |seed| Generator::new(seed).page());
        assert!(page == expected, "page {number}");
    }
    // Discarding makes room again.
    handle.discard(0, store.size_bytes()).unwrap();
    handle.write_page(0, &Generator::new(1).page()).unwrap();
}

/// Returns the number of incompressible pages that fit into a store.
fn pages_that_fit(handle: &mut StoreHandle) -> u64 {
    let pages = handle.store().page_count();
    let mut random = Generator::new(11);
    let mut raw = || -> Page { std::array::from_fn(|_| random.byte()) };
    let fits = |page: &u64| match handle.write_page(*page, &raw()) {
        Ok(()) => true,
        Err(Error::NoSpace { .. }) => false,
        Err(error) => panic!("{error}"),
    };
    (0..pages).take_while(fits).count() as u64
}

/// Slots that threads keep for later are free memory for all others.
#[test]
fn what_other_threads_have_freed_can_be_written() {
    for locked in [false, true] {
        let options = StoreOptions::new(32 << 20).with_limit_bytes(4 << 20).with_locked(locked);
        let fresh = Arc::new(Store::create(&options).unwrap());
        assert_eq!(fresh.is_locked(), locked);
        let room = pages_that_fit(&mut StoreHandle::new(&fresh).unwrap());
        assert!(room > 900, "{room}");
        drop(fresh);

        let store = Arc::new(Store::create(&options).unwrap());
        let mut others: Vec<_> = (0..5).map(|_| StoreHandle::new(&store).unwrap()).collect();
        let mut random = Generator::new(5);
        for round in 0..3000 {
            let other = &mut others[round % 5];
            let number = random.next_u64() % 300;
            // A locked store has fewer slabs than there are lengths of slots, and so refuses some pages.
            match other.write_page(number, &random.page()) {
                Ok(()) => {}
                Err(Error::NoSpace { .. }) => assert!(locked),
                Err(error) => panic!("{error}"),
            }
        }
        for (number, other) in (0..300).zip((0..5).cycle()) {
            others[other].discard(number * 4096, 4096).unwrap();
        }
        assert_eq!(store.stats().mm.compr_data_size, 0);
        assert_eq!(pages_that_fit(&mut StoreHandle::new(&store).unwrap()), room, "locked: {locked}");
    }
}

#[test]
fn memory_held_is_within_four_percent_of_the_compressed_bytes() {
    let real = share();
    let pages = 16_384;
    let store = Arc::new(Store::create(&StoreOptions::new((pages * PAGE_SIZE) as u64)).unwrap());
    let mut handle = StoreHandle::new(&store).unwrap();
    let mut random = Generator::new(7);
    for number in 0..pages {
        handle.write_page(number as u64, real[number % real.len()]).unwrap();
    }
    for _ in 0..pages {
        handle.write_page(random.next_u64() % pages as u64, real[random.below(real.len())]).unwrap();
    }
    let before = store.stats().mm;
    store.compact().unwrap();
    let mm = store.stats().mm;
    assert!(mm.mem_used_total <= before.mem_used_total);
    let ratio = mm.mem_used_total as f64 / mm.compr_data_size as f64;
    println!("held / compressed: {ratio:.4}, before compaction {:.4}", {
        before.mem_used_total as f64 / before.compr_data_size as f64
    });
    assert!(ratio <= 1.04, "{ratio}");
}

#[test]
fn statistics_count_pages_and_requests() {
    let store = Arc::new(Store::create(&StoreOptions::new(1 << 20)).unwrap());
    let mut handle = StoreHandle::new(&store).unwrap();
    let mut random = Generator::new(3);
    let raw: Page = std::array::from_fn(|_| random.byte());
    let text: Page = std::array::from_fn(|at| u8::try_from(at / 32).unwrap());
    handle.write_page(0, &raw).unwrap();
    handle.write_page(1, &text).unwrap();
    handle.write_at(2 * 4096, &[7; 2 * PAGE_SIZE]).unwrap();
    let stats = store.stats();
    assert_eq!((stats.mm.orig_data_size, stats.mm.same_pages), (4 * 4096, 2));
    assert_eq!((stats.mm.huge_pages, stats.mm.huge_pages_since), (1, 1));
    assert!((4097..2 * 4096).contains(&stats.mm.compr_data_size));
    assert!(stats.mm.mem_used_total > 0 && stats.mm.mem_used_max >= stats.mm.mem_used_total);
    assert_eq!((stats.pages_written, stats.pages_read, stats.size_bytes), (4, 0, 1 << 20));

    handle.write_page(0, &text).unwrap();
    handle.discard(4096, 2 * 4096).unwrap();
    let mut page = [0; PAGE_SIZE];
    handle.read_page(0, &mut page).unwrap();
    assert!(handle.read_at(1 << 20, &mut page).is_err() && handle.write_at(u64::MAX, &page).is_err());
    let stats = store.stats();
    assert_eq!((stats.mm.orig_data_size, stats.mm.same_pages), (2 * 4096, 1));
    assert_eq!((stats.mm.huge_pages, stats.mm.huge_pages_since), (0, 1));
    assert_eq!((stats.pages_written, stats.pages_read), (5, 1));
    assert_eq!((stats.io.notify_free, stats.io.invalid_io), (2, 2));
    assert_eq!((stats.io.failed_reads, stats.io.failed_writes), (0, 0));
}
