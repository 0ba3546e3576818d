//! Memory is allocated once for each kind of call, and all of it is bounded.

use super::{CallKind, NO_HURRY, SampleShape, Trial};
use crate::gpu::codec::PageFormat;
use crate::gpu::ring::fake::{InjectedFault, Schedule};

#[test]
fn nothing_is_allocated_after_the_first_batch_of_a_kind() {
    for form in CallKind::ALL {
        let shape = SampleShape { pages: 23, batch_size: 4, slots: 3, format: PageFormat::Lz4 };
        let mut trial = Trial::new(form, shape, Schedule::Random(9), NO_HURRY);
        trial.run().unwrap();
        let allocations = trial.fake.seen().allocations;
        for _ in 0..5 {
            trial.run().unwrap();
        }
        trial.fake.arm([(7, InjectedFault::OutOfMemory)]);
        trial.run().unwrap();
        trial.run().unwrap();
        assert_eq!(trial.fake.seen().allocations, allocations, "{form:?}");
        trial.end();
    }
}

#[test]
fn memory_does_not_grow_with_the_batch() {
    for form in CallKind::ALL {
        let of = |pages| {
            let mut trial = Trial::new(
                form,
                SampleShape { pages, batch_size: 4, slots: 2, format: PageFormat::Lz4 },
                Schedule::Eager,
                NO_HURRY,
            );
            trial.run().unwrap();
            let seen = trial.fake.seen();
            trial.end();
            (seen.slots, seen.pinned)
        };
        assert_eq!(of(8), of(200), "{form:?}");
    }
}
