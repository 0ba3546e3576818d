//! Threads that take and free slots at the same time.

use std::sync::mpsc::channel;
use std::time::Duration;

use trueno_zram_core::PageKind;

use super::*;

#[test]
fn a_rewrite_needs_no_lock_of_its_class() {
    let mapping = Mapping::create("trueno-test", 4 * SLAB_BYTES).unwrap();
    let allocator = Allocator::new(mapping, u64::MAX, Residency::OnDemand).unwrap();
    let stripe = allocator.next_stripe();
    let stored = |place| Stored { kind: PageKind::Lz4, len_bytes: 1000, place };
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
    let mapping = Mapping::create("trueno-test", 64 * SLAB_BYTES).unwrap();
    let allocator = Allocator::new(mapping, u64::MAX, Residency::OnDemand).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let allocator = &allocator;
            // Two threads share a stripe, as the handles of a large server do.
            let stripe = if thread < 2 { Stripe::BACKGROUND } else { allocator.next_stripe() };
            scope.spawn(move || {
                let mut held = std::collections::VecDeque::new();
                for round in 0..20_000u32 {
                    let len_bytes = u16::try_from(round.wrapping_mul(0x9e37_79b9) >> 25).unwrap() * 8 + 1;
                    let class = Class::of_len(len_bytes.into());
                    let place = allocator.allocate(stripe, class, thread.into()).expect("there is room");
                    allocator.slot_words(place, len_bytes.into())[0]
                        .store(u64::from(thread) << 32 | u64::from(round), Relaxed);
                    held.push_back((round, Stored { kind: PageKind::Lz4, len_bytes, place }));
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
    Class::all().for_each(|class| allocator.return_spares(&mut allocator.class(class), class));
    allocator.return_free_slabs().unwrap();
    assert_eq!(allocator.budget().held(), 0);
}

#[test]
fn no_write_is_refused_while_another_thread_has_spare_slots() {
    let mapping = Mapping::create("trueno-test", SLAB_BYTES).unwrap();
    let allocator = Allocator::new(mapping, SLAB_BYTES as u64, Residency::OnDemand).unwrap();
    let stripes = [(); 4].map(|()| allocator.next_stripe());
    let stored = |place| Stored { kind: PageKind::Lz4, len_bytes: 1000, place };
    let class = stored(0).class();
    let next = Class::all().nth(class.index() + 1).unwrap();
    let places: Vec<u64> = std::iter::from_fn(|| allocator.allocate(stripes[0], class, 1)).collect();
    places[..LOT].iter().for_each(|place| allocator.free(stripes[0], stored(*place)));
    allocator.return_spares(&mut allocator.class(class), class);
    // One thread takes a slot, and the others that are free as spare ones.
    assert!(allocator.allocate(stripes[1], class, 2).is_some());
    let used = allocator.slab(0).used();
    assert_eq!(usize::from(used), places.len());

    std::thread::scope(|scope| {
        let allocator = &allocator;
        let allocate = |stripe: Stripe| scope.spawn(move || allocator.allocate(stripe, class, 3));
        // Two more threads need one each. The first of them is held up while it takes spare slots back, after those of this
        // class if it takes them class by class. The other one must not get them all.
        let held = allocator.class(next);
        let first = allocate(stripes[2]);
        wait_a_while_until(|| allocator.slab(0).used() < used);
        let second = allocate(stripes[3]);
        wait_a_while_until(|| second.is_finished());
        drop(held);
        assert!(first.join().unwrap().is_some() && second.join().unwrap().is_some());
    });
    assert!(allocator.allocate(stripes[0], class, 4).is_some(), "the last one");
    assert!(stripes.iter().all(|stripe| allocator.allocate(*stripe, class, 5).is_none()), "all slots are used");
}

/// Waits for something that need not happen.
fn wait_a_while_until(happened: impl Fn() -> bool) {
    for _ in 0..100 {
        if happened() {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
