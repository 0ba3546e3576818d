//! Panics of the caller's code and of workers: passed on when no copy is in flight, and survived by the compressor.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use super::faults::calls_of;
use super::{CallKind, NO_HURRY, SOON, SampleShape, Trial};
use crate::error::Error;
use crate::gpu::codec::PageFormat;
use crate::gpu::ring::device::{DeviceQueue, RingDevice};
use crate::gpu::ring::fake::{Call, InjectedFault, Schedule};
use crate::gpu::{GpuError, PinnedBatch};
use crate::page::PAGE_SIZE;

const SHAPE: SampleShape = SampleShape { pages: 23, batch_size: 4, slots: 3, format: PageFormat::Lz4 };

fn message(panic: &(dyn Any + Send)) -> &str {
    panic.downcast_ref::<String>().map_or_else(|| panic.downcast_ref().copied().unwrap_or("?"), String::as_str)
}

/// Does a batch whose progress panics as soon as there is any.
fn panic_of_progress(trial: &mut Trial) -> Option<Box<dyn Any + Send>> {
    let progress = |_: usize| panic!("the caller's own");
    let Trial { compressor, pages, sample, pinned, packed, batch, form, .. } = trial;
    let (mut pinned, mut packed) = (pinned.as_mut(), packed.as_mut());
    let ended = catch_unwind(AssertUnwindSafe(|| match form {
        CallKind::CompressInto => compressor.compress_into(pages, batch, &progress),
        CallKind::CompressPinned => compressor.compress_pinned_into(pinned.take().unwrap(), batch, &progress),
        CallKind::CompressAllPinned => {
            compressor.compress_all_pinned(pinned.take().unwrap(), packed.take().unwrap(), &progress)
        }
        CallKind::DecompressInto => compressor.decompress_into(&sample.held, &mut [[0; PAGE_SIZE]; 23], &progress),
        CallKind::DecompressPinned => {
            compressor.decompress_pinned_into(&sample.held, pinned.take().unwrap(), &progress)
        }
        CallKind::DecompressAllPinned => {
            compressor.decompress_all_pinned(packed.take().unwrap(), pinned.take().unwrap(), &progress)
        }
        CallKind::CompressBatch | CallKind::DecompressBatch => panic!("{form:?} reports no progress"),
    }));
    ended.err()
}

/// After a panic: no copy is in flight, nothing was freed under one, and the device goes on with all of its slots.
fn assert_survived(mut trial: Trial, what: &str) {
    let seen = trial.fake.seen();
    assert_eq!((trial.fake.pending(), seen.slots), (0, SHAPE.slots), "{what}");
    assert_eq!(seen.misuses, Vec::<String>::new(), "{what}");
    let done = trial.run().unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(done.by_device, SHAPE.pages, "{what}");
    trial.end();
}

/// The forms that report their progress, one for each way through the ring.
const REPORTING: [CallKind; 6] = [
    CallKind::CompressInto,
    CallKind::CompressPinned,
    CallKind::CompressAllPinned,
    CallKind::DecompressInto,
    CallKind::DecompressPinned,
    CallKind::DecompressAllPinned,
];

/// With these, copies of other slots are queued when the first slot is delivered.
const LAGGING: [Schedule; 3] = [Schedule::OneByOne, Schedule::LastFirst, Schedule::Starved(DeviceQueue::H2d, 9)];

#[test]
fn a_progress_that_panics_is_passed_on() {
    for (form, schedule) in REPORTING.into_iter().flat_map(|form| LAGGING.map(|schedule| (form, schedule))) {
        let mut trial = Trial::new(form, SHAPE, schedule, NO_HURRY);
        let panic = panic_of_progress(&mut trial).expect("it panicked");
        let what = format!("{form:?}, {schedule:?}");
        assert_eq!(message(&*panic), "the caller's own", "{what}");
        assert!(trial.batch.is_empty(), "{what}: no part of a batch is left");
        assert!(!form.compresses() || trial.packed.as_ref().is_none_or(PinnedBatch::is_empty), "{what}");
        assert_survived(trial, &what);
    }
}

#[test]
fn a_worker_that_panics_is_passed_on() {
    for (form, schedule) in CallKind::ALL.into_iter().flat_map(|form| LAGGING.map(|schedule| (form, schedule))) {
        // Workers wait for page-locked memory, to stage and to deliver.
        for earlier in 0..4 {
            let mut trial = Trial::new(form, SHAPE, schedule, NO_HURRY);
            trial.run().unwrap(); // so that there is memory that was used before
            trial.fake.arm_worker(Call::Wait, earlier, InjectedFault::Panic);
            let panic = catch_unwind(AssertUnwindSafe(|| trial.run())).expect_err("it panicked");
            let what = format!("{form:?}, {schedule:?}, after {earlier} calls");
            assert_eq!(message(&*panic), "injected panic in Wait", "{what}");
            assert_survived(trial, &what);
        }
    }
}

/// Work that is queued when the panic comes never ends: it is waited for no longer than the limit, and nothing that it may still use
/// is freed while the device counts as alive.
#[test]
fn a_panic_while_the_device_hangs_ends_within_the_limit() {
    for form in REPORTING {
        // On a busy machine the first delivery may take longer than a short limit, and the hang is noticed before the panic.
        let found = [1, 20, 400].into_iter().any(|factor| panics_while_hanging(form, SOON * factor) > 0);
        assert!(found, "{form:?}: no hang came between the first delivery and the panic");
    }
}

/// Lets each call hang in turn. Returns how often the device was given up for the panic.
fn panics_while_hanging(form: CallKind, time_limit: Duration) -> usize {
    let mut given_up_for_it = 0;
    for at in 0..calls_of(form, SHAPE) {
        let mut trial = Trial::new(form, SHAPE, Schedule::Eager, time_limit);
        trial.fake.arm([(at, InjectedFault::Hang)]);
        let start = Instant::now();
        let panic = panic_of_progress(&mut trial);
        let what = format!("{form:?}, hung at call {at}");
        // A wait without a limit would never end.
        assert!(start.elapsed() < NO_HURRY, "{what}: {:?}", start.elapsed());
        // A copy to the caller's memory that hangs is an error, before there is any progress.
        if let Some(panic) = panic {
            assert_eq!(message(&*panic), "the caller's own", "{what}");
        } else {
            assert!(form.to_other_memory().is_some(), "{what}");
        }
        let loss = trial.fake.loss();
        assert!(trial.fake.pending() == 0 || loss.is_some(), "{what}: what still runs cannot be waited for");
        given_up_for_it += usize::from(loss.is_some_and(|why| why.starts_with("a run ended in a panic")));
        trial.end();
    }
    given_up_for_it
}

/// A panic of `progress` while the CPU compresses what the device left.
#[test]
fn a_progress_that_panics_in_the_fallback_leaves_an_empty_batch() {
    for form in [CallKind::CompressInto, CallKind::CompressPinned, CallKind::CompressAllPinned] {
        let mut trial = Trial::new(form, SHAPE, Schedule::Eager, NO_HURRY);
        trial.run().unwrap();
        trial.fake.arm_always(Call::Compress, InjectedFault::OutOfMemory);
        let panic = panic_of_progress(&mut trial).expect("it panicked");
        assert_eq!(message(&*panic), "the caller's own", "{form:?}");
        assert!(trial.batch.is_empty() && trial.packed.as_ref().is_none_or(PinnedBatch::is_empty), "{form:?}");
        trial.end();
    }
}

/// Neither the pool's threads nor the device exist in a forked child: every call is an error, at once.
#[test]
fn a_compressor_of_another_process_is_an_error_and_makes_no_call() {
    for form in CallKind::ALL {
        let mut trial = Trial::new(form, SHAPE, Schedule::Eager, NO_HURRY);
        let owner = std::process::id() ^ 1;
        trial.compressor.process = owner;
        trial.fake.arm([]);
        assert_eq!(trial.run().err(), Some(Error::Gpu(GpuError::OtherProcess { owner })), "{form:?}");
        assert!(
            trial.compressor.compress_stream::<()>().is_err() && trial.compressor.decompress_stream::<()>().is_err()
        );
        assert!(trial.compressor.pinned_pages(1).is_err());
        assert_eq!(trial.fake.calls(), [], "{form:?}");
        trial.end();
    }
}
