//! Writes at the limit: one that finds no room changes nothing, wherever it starts and ends.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "the tests of archives use more of it")]
mod contents;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use contents::content;
use trueno_test_pages::generate::Generator;
use trueno_zram_core::PAGE_SIZE;
use trueno_zram_store::{Error, MAX_UNDIVIDED_WRITE_BYTES, Store, StoreHandle, StoreOptions, ZeroPages};

const SIZE: usize = 4 << 20;

fn tight_store() -> Arc<Store> {
    let options = StoreOptions::new(SIZE as u64).with_limit_bytes(1 << 20);
    Arc::new(Store::create(&options).unwrap())
}

/// Bytes of which most do not shrink.
fn data(random: &mut Generator, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    match random.below(4) {
        0 => data.fill(random.byte()),
        1 => data.iter_mut().enumerate().for_each(|(at, byte)| *byte = at.to_le_bytes()[1]),
        _ => data.fill_with(|| random.byte()),
    }
    data
}

/// One random request within `model`, which starts at byte `start` of the store. Returns whether there was room.
///
/// The model changes with the store if there was, and both stay as they were if not.
fn step(random: &mut Generator, handle: &mut StoreHandle, start: usize, model: &mut [u8]) -> bool {
    let at = random.below(model.len());
    let most = (model.len() - at).min(MAX_UNDIVIDED_WRITE_BYTES);
    let len = if random.below(2) == 0 { random.below(most) + 1 } else { random.below(most.min(3 * PAGE_SIZE)) + 1 };
    let offset = (start + at) as u64;
    let changed = match random.below(10) {
        0..6 => {
            let data = data(random, len);
            handle.write_at(offset, &data).map(|()| model[at..at + len].copy_from_slice(&data))
        }
        6..8 => {
            let pages = if random.below(2) == 0 { ZeroPages::Keep } else { ZeroPages::Discard };
            handle.write_zeroes(offset, len as u64, pages).map(|()| model[at..at + len].fill(0))
        }
        _ => handle.discard(offset, len as u64).map(|()| {
            let whole = (start + at).next_multiple_of(PAGE_SIZE)..(start + at + len) / PAGE_SIZE * PAGE_SIZE;
            if !whole.is_empty() {
                model[whole.start - start..whole.end - start].fill(0);
            }
        }),
    };
    match changed {
        Ok(()) => true,
        Err(Error::NoSpace { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

fn check(handle: &mut StoreHandle, start: usize, model: &[u8], when: &str) {
    let mut found = vec![0xee; model.len()];
    handle.read_at(start as u64, &mut found).unwrap();
    if let Some(at) = found.iter().zip(model).position(|(found, expected)| found != expected) {
        panic!("byte {at} of {} differs {when}", model.len());
    }
}

/// A store that is empty takes no memory.
fn check_nothing_is_lost(store: &Arc<Store>) {
    StoreHandle::new(store).unwrap().discard(0, store.size_bytes()).unwrap();
    store.compact().unwrap();
    let mm = store.stats().mm;
    assert_eq!((mm.orig_data_size, mm.compr_data_size, mm.mem_used_total), (0, 0, 0));
}

#[test]
fn a_write_without_room_changes_nothing() {
    let store = tight_store();
    let mut handle = StoreHandle::new(&store).unwrap();
    let (mut model, mut random) = (vec![0; SIZE], Generator::new(1));
    let mut refused = 0;
    for request in 0..1500 {
        if !step(&mut random, &mut handle, 0, &mut model) {
            refused += 1;
            check(&mut handle, 0, &model, &format!("after request {request}, which found no room"));
        }
        if request % 50 == 49 {
            store.compact().unwrap();
        }
    }
    check(&mut handle, 0, &model, "at the end");
    assert!((100..1400).contains(&refused), "{refused} refused");
    assert_eq!(store.stats().io.failed_writes, refused);
    drop(handle);
    check_nothing_is_lost(&store);
}

/// Neighbours share a page: their parts do not end at page boundaries.
#[test]
fn writers_at_the_limit_change_nothing_of_each_other() {
    const THREADS: usize = 4;
    const PART: usize = SIZE / THREADS - 300;
    let store = tight_store();
    let refused = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (store, refused) = (&store, &refused);
            scope.spawn(move || {
                let mut handle = StoreHandle::new(store).unwrap();
                let (mut model, mut random) = (vec![0; PART], Generator::new(thread as u64));
                for request in 0..400 {
                    if !step(&mut random, &mut handle, thread * PART, &mut model) {
                        refused.fetch_add(1, Ordering::Relaxed);
                        check(&mut handle, thread * PART, &model, &format!("after request {request} of {thread}"));
                    }
                    if thread == 0 && request % 50 == 49 {
                        store.compact().unwrap();
                    }
                }
                check(&mut handle, thread * PART, &model, "at the end");
            });
        }
    });
    assert!(refused.into_inner() > 100);
    check_nothing_is_lost(&store);
}

/// Requests that begin and end within the same few pages, in every order: each needs the locks of two of them.
#[test]
fn writers_of_parts_of_the_same_pages_do_not_wait_for_ever() {
    const PAGES: usize = 5;
    let store = Arc::new(Store::create(&StoreOptions::new((PAGES * PAGE_SIZE) as u64)).unwrap());
    std::thread::scope(|scope| {
        for thread in 1..=4u8 {
            let store = &store;
            scope.spawn(move || {
                let mut handle = StoreHandle::new(store).unwrap();
                let mut random = Generator::new(thread.into());
                for _ in 0..3000 {
                    let at = random.below(PAGES * PAGE_SIZE - 1);
                    let len = 1 + random.below(PAGES * PAGE_SIZE - at - 1);
                    handle.write_at(at as u64, &vec![thread; len]).unwrap();
                    if random.below(16) == 0 {
                        drop(store.snapshot().unwrap());
                        store.compact().unwrap();
                    }
                }
            });
        }
    });
    assert!(content(&store).iter().all(|byte| *byte <= 4));
    check_nothing_is_lost(&store);
}

#[test]
fn a_longer_write_is_cut_between_parts() {
    let store = tight_store();
    let mut handle = StoreHandle::new(&store).unwrap();
    let mut random = Generator::new(3);
    let noise: Vec<u8> = (0..2 << 20).map(|_| random.byte()).collect();
    let offset = 1000;
    assert!(matches!(handle.write_at(offset, &noise), Err(Error::NoSpace { .. })));
    let mut found = vec![0; noise.len()];
    handle.read_at(offset, &mut found).unwrap();
    let written = found.iter().zip(&noise).take_while(|(found, wanted)| found == wanted).count();
    // The parts end at page boundaries. Noise and the zeros behind it may agree in a few bytes more.
    let cut = (written + 1000) / MAX_UNDIVIDED_WRITE_BYTES * MAX_UNDIVIDED_WRITE_BYTES - 1000;
    assert!(written >= MAX_UNDIVIDED_WRITE_BYTES && written < cut + 100, "{written} bytes are written");
    assert!(found[cut..].iter().all(|byte| *byte == 0), "the part that did not fit changed nothing");
}
