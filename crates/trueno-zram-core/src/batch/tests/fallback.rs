//! When the device is given up, and what the stats say then.

use std::time::Instant;

use super::{CallKind, NO_HURRY, SOON, SampleShape, Trial, config, options};
use crate::batch::GpuBatchCompressor;
use crate::error::Error;
use crate::gpu::codec::PageFormat;
use crate::gpu::ring::fake::{Call, FakeDevice, InjectedFault, Schedule};

const SHAPE: SampleShape = SampleShape { pages: 23, batch_size: 4, slots: 3, format: PageFormat::Lz4 };

#[test]
fn a_call_that_fails_at_creation_is_named_and_nothing_leaks() {
    for shape in SHAPE.in_all_formats() {
        check_creation(shape);
    }
}

fn check_creation(shape: SampleShape) {
    let device = || FakeDevice::with_format(Schedule::Eager, shape.format);
    let fake = device();
    drop(GpuBatchCompressor::on(fake.clone(), config(shape), &options(NO_HURRY)).unwrap());
    let calls = fake.calls();
    assert!(calls.contains(&Call::Slot) && calls.contains(&Call::Pinned), "{calls:?}");
    for (at, call) in calls.iter().enumerate() {
        for fault in [
            InjectedFault::OutOfMemory,
            InjectedFault::IllegalAddress,
            InjectedFault::LaunchFailed,
            InjectedFault::DeviceLost,
        ] {
            let fake = device();
            fake.arm([(at, fault)]);
            let made = GpuBatchCompressor::on(fake.clone(), config(shape), &options(NO_HURRY));
            let Err(Error::GpuNotAvailable(why)) = made else { panic!("another answer to {fault:?} at {call:?}") };
            let (code, number) = fault.error().unwrap();
            assert_eq!(why, format!("{}: {code} ({number})", call.name()));
            let seen = fake.seen();
            assert_eq!((seen.slots, seen.pinned, seen.calls_after_loss), (0, 0, 0), "{fault:?} at {call:?}");
        }
    }
}

#[test]
fn three_failures_in_a_row_end_the_use_of_the_device() {
    for (form, shape) in CallKind::ALL.into_iter().flat_map(|form| SHAPE.in_all_formats().map(|shape| (form, shape))) {
        let mut trial = Trial::new(form, shape, Schedule::Eager, NO_HURRY);
        let kernel = if form.compresses() { Call::Compress } else { Call::Decompress };
        trial.fake.arm_always(kernel, InjectedFault::OutOfMemory);
        for batch in 1..=3 {
            assert!(trial.compressor.uses_device(), "before batch {batch}");
            assert_eq!(trial.run().unwrap().by_cpu, SHAPE.pages);
        }
        let fallback = trial.compressor.stats().fallback.clone();
        assert_eq!((fallback.batches, fallback.pages), (3, 3 * 23));
        let why = fallback.device_given_up.unwrap();
        assert!(why.contains("3 batches") && why.contains("cuLaunchKernel: CUDA_ERROR_OUT_OF_MEMORY (2)"), "{why}");
        assert!(!trial.compressor.uses_device());
        assert_eq!(trial.fake.seen().slots, 0, "its memory is given back");
        trial.fake.arm([]);
        assert_eq!(trial.run().unwrap().by_cpu, SHAPE.pages);
        assert_eq!(trial.fake.calls(), [], "a device that was given up is not called");
        let fallback = &trial.compressor.stats().fallback;
        assert_eq!((fallback.batches, fallback.pages), (4, 4 * 23), "batches after that count, too");
        trial.end();
    }
}

#[test]
fn a_batch_that_succeeds_starts_the_count_of_failures_again() {
    let mut trial = Trial::new(CallKind::CompressInto, SHAPE, Schedule::Eager, NO_HURRY);
    for round in 0..3 {
        for _ in 0..2 {
            trial.fake.arm([(0, InjectedFault::OutOfMemory)]);
            assert!(trial.run().unwrap().by_cpu > 0, "round {round}");
        }
        trial.fake.arm([]);
        assert_eq!(trial.run().unwrap().by_cpu, 0, "round {round}");
    }
    assert_eq!(trial.compressor.stats().fallback.batches, 6);
    trial.end();
}

#[test]
fn pages_that_the_device_had_delivered_are_kept() {
    let shape = SampleShape { pages: 23, batch_size: 4, slots: 1, format: PageFormat::Lz4 };
    // With one slot, calls come in one order: the fifth kernel finds the pages of four delivered, and where pages are
    // staged, the four before it that need no kernel.
    for (form, kernel, delivered) in [
        (CallKind::CompressPinned, Call::Compress, 16),
        (CallKind::CompressAllPinned, Call::Compress, 16),
        (CallKind::CompressBatch, Call::Compress, 20),
        (CallKind::CompressInto, Call::Compress, 20),
        (CallKind::DecompressPinned, Call::Decompress, 16),
        (CallKind::DecompressAllPinned, Call::Decompress, 16),
        (CallKind::DecompressInto, Call::Decompress, 20),
    ] {
        let mut trial = Trial::new(form, shape, Schedule::Eager, NO_HURRY);
        trial.run().unwrap(); // so that what is counted is the same in each batch
        trial.fake.arm([]);
        trial.run().unwrap();
        let kernels: Vec<usize> =
            trial.fake.calls().iter().enumerate().filter(|(_, call)| **call == kernel).map(|(at, _)| at).collect();
        trial.fake.arm([(kernels[4], InjectedFault::OutOfMemory)]);
        assert_eq!(trial.run().unwrap().by_device, delivered, "{form:?}");
        trial.end();
    }
}

#[test]
fn a_hang_ends_within_the_limit() {
    for form in CallKind::ALL {
        for call in [Call::Upload, Call::Compress, Call::Decompress, Call::Download] {
            let mut trial = Trial::new(form, SHAPE, Schedule::Eager, SOON);
            trial.fake.arm_always(call, InjectedFault::Hang);
            let start = Instant::now();
            let result = trial.run();
            // A wait without a limit would never end.
            assert!(start.elapsed() < NO_HURRY, "{form:?}, {call:?}: {:?}", start.elapsed());
            if trial.fake.fired().is_empty() {
                continue; // not one of this form's calls
            }
            assert!(!trial.compressor.uses_device(), "{form:?}, {call:?}");
            let why = trial.compressor.stats().fallback.device_given_up.clone();
            assert_eq!(why.as_deref(), Some("the GPU did not finish within 5 ms"), "{form:?}, {call:?}");
            match result {
                Ok(done) => assert!(done.by_cpu > 0, "{form:?}, {call:?}"),
                Err(error) => {
                    assert!(form.to_other_memory().is_some() && call == Call::Download, "{form:?}, {call:?}: {error}");
                    assert!(matches!(&error, Error::Gpu(why) if why.to_string().contains("5 ms")), "{error}");
                }
            }
            trial.end();
        }
    }
}
