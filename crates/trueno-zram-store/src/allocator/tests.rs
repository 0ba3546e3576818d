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
