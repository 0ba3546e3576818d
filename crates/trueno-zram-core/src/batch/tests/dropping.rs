//! Dropping while a kernel launched by another user of the context runs: memory can be freed when it ends, and that may be never.

use std::sync::{Arc, RwLock};
use std::time::Instant;

use super::{CallKind, NO_HURRY, SOON, SampleShape, Trial, assert_freed};
use crate::gpu::codec::PageFormat;
use crate::gpu::ring::device::RingDevice;
use crate::gpu::ring::fake::{Call, InjectedFault, Schedule};

const SHAPE: SampleShape = SampleShape { pages: 23, batch_size: 4, slots: 3, format: PageFormat::Lz4 };

/// Does what must not wait without a limit; however busy the machine is.
fn soon<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    assert!(start.elapsed() < NO_HURRY, "{what}: {:?}", start.elapsed());
    result
}

#[test]
fn a_compressor_and_its_pages_are_dropped_within_the_limit() {
    for form in CallKind::ALL {
        let mut trial = Trial::new(form, SHAPE, Schedule::Eager, SOON);
        trial.run().unwrap();
        let before = trial.fake.seen();
        let kernel = Arc::default();
        let runs = RwLock::write(&kernel).unwrap();
        trial.fake.share_with(&kernel);
        let Trial { fake, compressor, pinned, packed, .. } = trial;
        soon("drop", || drop((compressor, pinned, packed)));
        let seen = fake.seen();
        assert_eq!((seen.slots, seen.pinned), (before.slots, before.pinned), "{form:?}: nothing is freed under it");
        assert_eq!(fake.loss(), None, "{form:?}: it is no fault of the device");
        drop(runs);
        assert_freed(&fake);
        assert_eq!(fake.seen().misuses, Vec::<String>::new(), "{form:?}");
    }
}

#[test]
fn a_device_that_is_given_up_is_let_go_within_the_limit() {
    let mut trial = Trial::new(CallKind::CompressInto, SHAPE, Schedule::Eager, SOON);
    trial.run().unwrap();
    let kernel = Arc::default();
    let runs = RwLock::write(&kernel).unwrap();
    trial.fake.share_with(&kernel);
    trial.fake.arm_always(Call::Compress, InjectedFault::OutOfMemory);
    for _ in 0..3 {
        let done = soon("a batch", || trial.run().unwrap());
        assert_eq!(done.by_cpu, SHAPE.pages);
    }
    assert!(!trial.compressor.uses_device());
    assert_eq!(trial.fake.seen().slots, SHAPE.slots, "they are freed when the kernel ends");
    drop(runs);
    trial.end();
}

#[test]
fn what_can_be_freed_at_once_is_freed_when_dropping_returns() {
    let mut trial = Trial::new(CallKind::CompressPinned, SHAPE, Schedule::Eager, NO_HURRY);
    trial.run().unwrap();
    let Trial { fake, compressor, pinned, .. } = trial;
    drop((compressor, pinned));
    assert_eq!((fake.seen().slots, fake.seen().pinned), (0, 0));
}
