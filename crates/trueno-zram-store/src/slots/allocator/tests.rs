//! Threads that take and free slots at the same time.

use std::sync::mpsc::channel;
use std::time::Duration;

use trueno_zram_core::PageKind;

use super::*;

fn all_slabs(mapping: MemfdMapping, limit_bytes: u64, residency: Residency) -> io::Result<SlotAllocator> {
    let slabs = (mapping.len_bytes() / SLAB_BYTES) as u64;
    SlotAllocator::new(mapping, slabs, limit_bytes, residency)
}

#[test]
fn a_rewrite_needs_no_lock_of_its_class() {
    let mapping = MemfdMapping::create("trueno-test", 4 * SLAB_BYTES).unwrap();
    let allocator = all_slabs(mapping, u64::MAX, Residency::OnDemand).unwrap();
    let stripe = allocator.next_stripe();
    let stored = |place| StoredPage { kind: PageKind::Lz4, len_bytes: 1000, place };
    let class = stored(0).class();
    let place = allocator.allocate(stripe, class, 5).unwrap();
    let held = allocator.class(class);
    std::thread::scope(|scope| {
        let (sender, receiver) = channel();
        let allocator = &allocator;
        scope.spawn(move || {
            allocator.free(stripe, stored(place));
            sender.send(allocator.allocate(stripe, class, 6)).unwrap();
        });
        let again = receiver.recv_timeout(Duration::from_secs(60));
        drop(held);
        assert_eq!(again.expect("the thread waits for the lock"), Some(place));
    });
    assert_eq!(allocator.owner(class.slot_at(place).unwrap()), 6);
}

#[test]
fn threads_that_share_classes_never_hold_the_same_slot() {
    let mapping = MemfdMapping::create("trueno-test", 64 * SLAB_BYTES).unwrap();
    let allocator = all_slabs(mapping, u64::MAX, Residency::OnDemand).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let allocator = &allocator;
            // Two threads share a stripe, as the handles of a large server do.
            let stripe = if thread < 2 { Stripe::BACKGROUND } else { allocator.next_stripe() };
            scope.spawn(move || {
                let mut held = std::collections::VecDeque::new();
                for round in 0..20_000u32 {
                    let len_bytes = u16::try_from(round.wrapping_mul(0x9e37_79b9) >> 25).unwrap() * 8 + 1;
                    let class = SizeClass::of_len(len_bytes.into());
                    let place = allocator.allocate(stripe, class, thread.into()).expect("there is room");
                    allocator.slot_words(place, len_bytes.into())[0]
                        .store(u64::from(thread) << 32 | u64::from(round), Relaxed);
                    held.push_back((round, StoredPage { kind: PageKind::Lz4, len_bytes, place }));
                    if held.len() > 40 {
                        let (round, stored) = held.pop_front().unwrap();
                        let word = allocator.slot_words(stored.place, 8)[0].load(Relaxed);
                        assert_eq!(word, u64::from(thread) << 32 | u64::from(round), "another thread has the slot");
                        allocator.free(stripe, stored);
                    }
                    if round % 1000 == 0 {
                        allocator.return_spares(&mut allocator.class(class), class);
                    }
                }
                held.into_iter().for_each(|(_, stored)| allocator.free(stripe, stored));
            });
        }
    });
    SizeClass::all().for_each(|class| allocator.return_spares(&mut allocator.class(class), class));
    allocator.return_free_slabs().unwrap();
    assert_eq!(allocator.budget().held(), 0);
}

#[test]
fn no_write_is_refused_while_another_thread_has_spare_slots() {
    let mapping = MemfdMapping::create("trueno-test", SLAB_BYTES).unwrap();
    let allocator = all_slabs(mapping, SLAB_BYTES as u64, Residency::OnDemand).unwrap();
    let stripes = [(); 4].map(|()| allocator.next_stripe());
    let stored = |place| StoredPage { kind: PageKind::Lz4, len_bytes: 1000, place };
    let class = stored(0).class();
    let places: Vec<u64> = std::iter::from_fn(|| allocator.allocate(stripes[0], class, 1)).collect();
    places[..REFILL_SLOTS].iter().for_each(|place| allocator.free(stripes[0], stored(*place)));
    allocator.return_spares(&mut allocator.class(class), class);
    // One thread takes a slot, and the others that are free as spare ones.
    assert!(allocator.allocate(stripes[1], class, 2).is_some());
    assert_eq!(usize::from(allocator.slab(0).used()), places.len());

    // Two more threads need one each. The first must not take all spare slots for itself.
    for _ in 0..500 {
        let barrier = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            let (allocator, barrier) = (&allocator, &barrier);
            let taken = [stripes[2], stripes[3]].map(|stripe| {
                scope.spawn(move || {
                    barrier.wait();
                    allocator.allocate(stripe, class, 3)
                })
            });
            for thread in taken {
                let place = thread.join().unwrap().expect("a slot is free");
                allocator.free(stripes[1], stored(place));
            }
        });
    }
    assert!((1..REFILL_SLOTS).all(|_| allocator.allocate(stripes[0], class, 4).is_some()), "the last ones");
    assert!(stripes.iter().all(|stripe| allocator.allocate(*stripe, class, 5).is_none()), "all slots are used");
}

#[test]
fn a_slab_that_is_trimmed_grows_again_within_the_budget() {
    let mapping = MemfdMapping::create("trueno-test", SLAB_BYTES).unwrap();
    let allocator = all_slabs(mapping, u64::MAX, Residency::OnDemand).unwrap();
    let stripe = allocator.next_stripe();
    let stored = |place| StoredPage { kind: PageKind::Lz4, len_bytes: 1000, place };
    let class = stored(0).class();
    let places: Vec<u64> = std::iter::from_fn(|| allocator.allocate(stripe, class, 1)).collect();
    assert_eq!(places.len(), usize::from(class.slots()));
    assert_eq!(allocator.budget().held(), SLAB_BYTES as u64);
    assert_eq!(allocator.slab(0).state(), SlabState::Full);

    places[1..].iter().for_each(|place| allocator.free(stripe, stored(*place)));
    allocator.mapping().words().iter().for_each(|word| word.store(u64::MAX, Relaxed));
    let mut lists = allocator.class(class);
    allocator.return_spares(&mut lists, class);
    assert_eq!((allocator.slab(0).state(), lists.growing()), (SlabState::Partial, None));
    for _ in 0..2 {
        allocator.trim_to_growing(&mut lists, class, 0).unwrap();
        assert_eq!((allocator.slab(0).state(), lists.growing()), (SlabState::Growing, Some(0)));
        assert_eq!(allocator.partial(&lists).count(), 0);
        assert_eq!(allocator.budget().held(), bytes(class.granules_for(1)));
    }
    drop(lists);
    let (kept, returned) =
        allocator.mapping().words().split_at(usize::from(class.granules_for(1)) * GRANULE_BYTES / WORD_BYTES);
    assert!(kept.iter().all(|word| word.load(Relaxed) == u64::MAX));
    assert!(returned.iter().all(|word| word.load(Relaxed) == 0), "memory that was returned reads as zeros");

    let again: Vec<u64> = std::iter::from_fn(|| allocator.allocate(stripe, class, 2)).collect();
    assert_eq!(again, places[1..]);
    assert_eq!(allocator.budget().held(), SLAB_BYTES as u64);
}

#[test]
fn a_locked_slab_is_not_trimmed() {
    let mapping = MemfdMapping::create("trueno-test", SLAB_BYTES).unwrap();
    let Ok(allocator) = all_slabs(mapping, u64::MAX, Residency::Locked) else {
        return; // The system does not allow this process to lock so much memory.
    };
    let class = SizeClass::of_len(1000);
    allocator.allocate(allocator.next_stripe(), class, 1).unwrap();
    let mut lists = allocator.class(class);
    allocator.return_spares(&mut lists, class);
    allocator.trim_to_growing(&mut lists, class, 0).unwrap();
    assert_eq!(allocator.budget().held(), SLAB_BYTES as u64);
    assert_eq!(allocator.slab(0).touched(), SLAB_GRANULES);
}
