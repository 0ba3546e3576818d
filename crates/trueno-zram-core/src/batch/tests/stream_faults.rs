//! Streams on a device that fails: every driver call in turn, in every way.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::stream::{Compressor, SHAPE, StreamKind, end, fill, run};
use super::{NO_HURRY, SOON, SampleShape, assert_freed, config, options, restored, sample, sample_in};
use crate::batch::{GpuBatchCompressor, PageStream};
use crate::gpu::codec::PageFormat;
use crate::gpu::ring::device::{DeviceQueue, RingDevice};
use crate::gpu::ring::fake::{Call, FakeDevice, InjectedFault, Schedule};
use crate::page::Page;

/// The calls of a first stream, which allocates its slots.
fn calls_of(way: StreamKind, format: PageFormat, schedule: Schedule) -> Vec<Call> {
    let fake = FakeDevice::with_format(schedule, format);
    let mut compressor = super::stream::compressor(&fake, SHAPE);
    fake.arm([]);
    assert_eq!(run(&mut compressor, way, &sample_in(format, SHAPE.pages)), 0);
    fake.calls()
}

fn compressor(fake: &FakeDevice, fault: InjectedFault) -> Compressor {
    let time_limit = if fault == InjectedFault::Hang { SOON } else { NO_HURRY };
    let shape = SampleShape { format: fake.format(), ..SHAPE };
    GpuBatchCompressor::on(fake.clone(), config(shape), &options(time_limit)).unwrap()
}

/// Lets call `at` of a stream fail; the stream, and one after it, come out right.
fn check(way: StreamKind, format: PageFormat, schedule: Schedule, at: usize, fault: InjectedFault) {
    let fake = FakeDevice::with_format(schedule, format);
    let mut compressor = compressor(&fake, fault);
    let sample = sample_in(format, SHAPE.pages);
    fake.arm([(at, fault)]);
    let first = run(&mut compressor, way, &sample);
    let fired = fake.fired();
    let what = format!("{way:?}, {format:?}, {schedule:?}: {fault:?} at call {at}, {fired:?}");
    let [(call, _)] = fired[..] else { panic!("{what}: one fault comes to pass") };
    let after_first = compressor.stats().fallback.clone();
    let second = run(&mut compressor, way, &sample);
    let stats = compressor.stats().fallback.clone();
    match fault {
        InjectedFault::OutOfMemory if matches!(call, Call::Pinned | Call::Slot) && first == 0 => {
            // The first slot is needed; of the others, fewer will do.
            assert!(at >= 4 || after_first.batches == 1, "{what}");
            assert_eq!((second, stats.batches), (0, after_first.batches), "{what}");
        }
        InjectedFault::OutOfMemory => {
            assert!(first > 0, "{what}");
            assert_eq!(after_first.batches, 1, "{what}: {after_first:?}");
            let reason = format!("{}: CUDA_ERROR_OUT_OF_MEMORY (2)", call.name());
            assert_eq!(after_first.last_reason, Some(reason), "{what}");
            assert_eq!((second, stats.batches), (0, 1), "{what}: the device is used again");
        }
        InjectedFault::WrongIndex => {
            let why = if call == Call::Compress { "makes no sense" } else { "refused" };
            assert_eq!(after_first.batches, 1, "{what}: {after_first:?}");
            assert!(after_first.last_reason.is_some_and(|reason| reason.contains(why)), "{what}");
            assert!(first > 0 && second == 0, "{what}: the device is used again");
        }
        // These may strike after the last call that matters: then the second stream finds out.
        InjectedFault::IllegalAddressLater | InjectedFault::Hang => assert!(second > 0, "{what}"),
        _ => assert!(first > 0, "{what}"),
    }
    let seen = fake.seen();
    if matches!(fault, InjectedFault::OutOfMemory | InjectedFault::WrongIndex) {
        assert!(compressor.uses_device() && stats.device_given_up.is_none(), "{what}");
    } else {
        let why = stats.device_given_up.unwrap_or_else(|| panic!("{what}: the device was given up"));
        let code = fault.error().map_or("did not finish within 5 ms", |(code, _)| code);
        assert!(why.contains(code), "{what}: {why}");
        assert!(!compressor.uses_device() && seen.calls_after_loss == 0, "{what}: {seen:?}");
        fake.arm([]);
        assert_eq!(run(&mut compressor, way, &sample), SHAPE.pages, "{what}: all by the CPU");
        assert_eq!(fake.calls(), [], "{what}: a lost device is not called");
    }
    end(compressor, &fake);
}

fn ways_and_formats() -> impl Iterator<Item = (StreamKind, PageFormat)> {
    StreamKind::BOTH.into_iter().flat_map(|way| PageFormat::ALL.map(|format| (way, format)))
}

fn every_call(schedule: Schedule, faults: &[InjectedFault]) {
    for (way, format) in ways_and_formats() {
        for at in 0..calls_of(way, format, schedule).len() {
            faults.iter().for_each(|fault| check(way, format, schedule, at, *fault));
        }
    }
}

#[test]
fn every_call_refused_in_turn() {
    for schedule in [Schedule::Eager, Schedule::OneByOne] {
        every_call(schedule, &[InjectedFault::OutOfMemory]);
    }
}

#[test]
fn every_call_poisoning_the_device_in_turn() {
    every_call(Schedule::Eager, &[InjectedFault::IllegalAddress, InjectedFault::DeviceLost]);
    every_call(Schedule::LastFirst, &[InjectedFault::LaunchFailed, InjectedFault::IllegalAddressLater]);
}

#[test]
fn every_call_followed_by_a_hang_in_turn() {
    every_call(Schedule::Eager, &[InjectedFault::Hang]);
}

#[test]
fn every_kernel_lying_in_turn() {
    for (way, format) in ways_and_formats() {
        let calls = calls_of(way, format, Schedule::Eager);
        let kernels = calls.iter().enumerate().filter(|(_, call)| matches!(call, Call::Compress | Call::Decompress));
        kernels.for_each(|(at, _)| check(way, format, Schedule::Eager, at, InjectedFault::WrongIndex));
    }
}

#[test]
fn three_failures_in_a_row_end_the_use_of_the_device() {
    for way in StreamKind::BOTH {
        let fake = FakeDevice::new(Schedule::Eager);
        let mut compressor = compressor(&fake, InjectedFault::OutOfMemory);
        let kernel = if way == StreamKind::Compress { Call::Compress } else { Call::Decompress };
        fake.arm_always(kernel, InjectedFault::OutOfMemory);
        assert_eq!(run(&mut compressor, way, &sample(SHAPE.pages)), SHAPE.pages);
        let why = compressor.stats().fallback.device_given_up.clone().unwrap();
        assert!(why.contains("3 batches") && why.contains("cuLaunchKernel: CUDA_ERROR_OUT_OF_MEMORY (2)"), "{why}");
        end(compressor, &fake);
    }
}

/// A panic inside the device is passed on. The stream goes on after it, and no page is lost.
#[test]
fn every_call_panicking_in_turn() {
    let pages = sample(12).pages.clone();
    let calls = {
        let fake = FakeDevice::new(Schedule::OneByOne);
        let mut compressor = compressor(&fake, InjectedFault::Panic);
        fake.arm([]);
        assert_eq!(stream_with_panics(&mut compressor, &pages), 0);
        fake.calls()
    };
    for at in 0..calls.len() {
        let fake = FakeDevice::new(Schedule::OneByOne);
        let mut compressor = compressor(&fake, InjectedFault::Panic);
        fake.arm([(at, InjectedFault::Panic)]);
        assert_eq!(stream_with_panics(&mut compressor, &pages), 1, "call {at}");
        let fallback = compressor.stats().fallback.clone();
        assert_eq!((fallback.batches, fallback.device_given_up), (1, None), "call {at}");
        assert_eq!(fake.pending(), 0, "call {at}");
        fake.arm([]);
        assert_eq!(run(&mut compressor, StreamKind::Compress, &sample(23)), 0, "call {at}: the device is used again");
        end(compressor, &fake);
    }
}

/// Sends pages through a stream, does again what panicked, and checks every page. Returns the number of panics.
fn stream_with_panics(compressor: &mut Compressor, pages: &[Page]) -> usize {
    let stream = compressor.compress_stream().unwrap();
    let panics = std::cell::Cell::new(0);
    let retried = |work: &mut dyn FnMut()| {
        if catch_unwind(AssertUnwindSafe(&mut *work)).is_err() {
            panics.set(panics.get() + 1);
        }
    };
    let mut results: Vec<Page> = Vec::new();
    for chunk in pages.chunks(4) {
        let mut slot = None;
        while slot.is_none() {
            retried(&mut || slot = Some(stream.slot().unwrap()));
        }
        let mut slot = slot.unwrap();
        fill(&mut slot, chunk);
        let mut slot = Some(slot);
        // A slot whose submission panicked was submitted.
        retried(&mut || stream.submit(slot.take().unwrap(), ()).unwrap());
    }
    stream.close();
    let mut is_done = false;
    while !is_done {
        retried(&mut || match stream.next().unwrap() {
            Some((compressed, ())) => results.extend(compressed.iter().map(restored)),
            None => is_done = true,
        });
    }
    assert!(results == pages);
    panics.get()
}

/// Slots in flight when a stream is dropped never end: the device is given up when the limit has passed, and nothing that a
/// copy may still use is freed before. The fake waits for no limit, so none is noticed earlier.
#[test]
fn a_stream_dropped_while_the_device_hangs_gives_the_device_up() {
    for call in [Call::Upload, Call::Compress, Call::Download] {
        let fake = FakeDevice::new(Schedule::Eager);
        let mut compressor = super::stream::compressor(&fake, SHAPE);
        fake.arm_always(call, InjectedFault::Hang);
        let stream = compressor.compress_stream().unwrap();
        for _ in 0..3 {
            stream.submit(stream.slot().unwrap(), ()).unwrap();
        }
        let unused = stream.try_slot().unwrap();
        drop(stream);
        assert!(fake.loss().is_some_and(|why| why.starts_with("a stream was dropped")), "{call:?}: {:?}", fake.loss());
        drop(unused);
        assert_eq!(run(&mut compressor, StreamKind::Compress, &sample(23)), 23, "{call:?}");
        assert!(!compressor.uses_device());
        end(compressor, &fake);
    }
}

#[test]
fn a_device_lost_to_one_compressor_is_lost_to_both_and_no_page_is() {
    let fake = FakeDevice::new(Schedule::Random(8));
    let mut both = [0, 1].map(|_| super::stream::compressor(&fake, SampleShape { slots: 2, ..SHAPE }));
    fake.arm([(60, InjectedFault::LaunchFailed)]);
    std::thread::scope(|scope| {
        for (compressor, way) in both.iter_mut().zip(StreamKind::BOTH) {
            scope.spawn(move || (0..3).map(|_| run(compressor, way, &sample(70))).sum::<usize>());
        }
    });
    for compressor in both {
        assert!(!compressor.uses_device());
        drop(compressor);
    }
    assert_freed(&fake);
    assert_eq!(fake.seen().misuses, Vec::<String>::new());
}

/// Results that were ready before a failure, and slots filled after it, keep their order.
#[test]
fn slots_leave_in_order_around_a_failure() {
    let fake = FakeDevice::new(Schedule::Starved(DeviceQueue::D2h, 7));
    let mut compressor = super::stream::compressor(&fake, SampleShape { slots: 2, ..SHAPE });
    let pages = &sample(24).pages;
    let stream = compressor.compress_stream().unwrap();
    let slots: Vec<_> = (0..6).map(|_| stream.slot().unwrap()).collect();
    for (number, (mut slot, chunk)) in slots.into_iter().zip(pages.chunks(4)).enumerate() {
        if number == 3 {
            fake.arm([(0, InjectedFault::OutOfMemory)]);
        }
        fill(&mut slot, chunk);
        stream.submit(slot, ()).unwrap();
    }
    assert_eq!(stream.pending(), 6);
    stream.close();
    let mut results = Vec::new();
    while let Some((compressed, ())) = stream.next().unwrap() {
        results.extend(compressed.iter().map(restored));
    }
    assert!(results == *pages);
    drop(stream);
    let fallback = &compressor.stats().fallback;
    assert!((4..=16).contains(&fallback.pages) && fallback.batches == 1, "{fallback:?}");
    end(compressor, &fake);
}
