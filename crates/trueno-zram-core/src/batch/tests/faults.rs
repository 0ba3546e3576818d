//! Every call failing in turn, in every way.

use super::{CallKind, NO_HURRY, SOON, SampleShape, Trial};
use crate::error::Error;
use crate::gpu::codec::PageFormat;
use crate::gpu::ring::fake::{Call, InjectedFault, Schedule};

const SHAPE: SampleShape = SampleShape { pages: 23, batch_size: 4, slots: 3, format: PageFormat::Lz4 };

/// The calls that a first batch makes.
fn list_of(form: CallKind, shape: SampleShape) -> Vec<Call> {
    let mut trial = Trial::new(form, shape, Schedule::Eager, NO_HURRY);
    trial.fake.arm([]);
    trial.run().unwrap();
    trial.fake.calls()
}

/// The number of faults.
pub(super) fn calls_of(form: CallKind, shape: SampleShape) -> usize {
    list_of(form, shape).len()
}

/// Lets call `at` of a batch fail; the batch, and one after it, come out right.
fn check(form: CallKind, shape: SampleShape, schedule: Schedule, at: usize, fault: InjectedFault) {
    let time_limit = if fault == InjectedFault::Hang { SOON } else { NO_HURRY };
    let mut trial = Trial::new(form, shape, schedule, time_limit);
    trial.fake.arm([(at, fault)]);
    let first = run(&mut trial, fault);
    let fired = trial.fake.fired();
    let what = format!("{form:?}, {shape:?}, {schedule:?}: {fault:?} at call {at}, {fired:?}");
    if fired.is_empty() {
        // A slot that is used again is waited for, a fresh one is not. Which of them is free first depends on the machine, and
        // so does the number of calls: this time there was none of that number.
        assert!(trial.fake.calls().len() <= at, "{what}: one fault comes to pass");
        trial.fake.arm([]);
        return trial.end();
    }
    let [(call, _)] = fired[..] else { panic!("{what}: one fault comes to pass") };
    let after_first = trial.compressor.stats().fallback.clone();
    let second = run(&mut trial, fault);
    let stats = trial.compressor.stats().fallback.clone();

    match fault {
        InjectedFault::OutOfMemory => {
            // The last call may be one that waits for what is done already.
            assert!(first > 0 || waits_at_the_end(call, form), "{what}");
            assert_eq!(after_first.batches, 1, "{what}: {after_first:?}");
            let reason = format!("{}: CUDA_ERROR_OUT_OF_MEMORY (2)", call.name());
            assert_eq!(after_first.last_reason, Some(reason), "{what}");
            assert_eq!((second, stats.batches), (0, 1), "{what}: the device is used again");
            assert!(trial.compressor.uses_device(), "{what}");
        }
        InjectedFault::WrongIndex => {
            // An index that lies is noticed; a page that is refused without cause is restored by the CPU, and counted.
            let why = if call == Call::Compress { "makes no sense" } else { "refused" };
            assert_eq!(after_first.batches, 1, "{what}: {after_first:?}");
            assert!(after_first.last_reason.is_some_and(|reason| reason.contains(why)), "{what}");
            assert_eq!(second, 0, "{what}: the device is used again");
        }
        // These may strike after the last call that matters: then the second batch finds out.
        InjectedFault::IllegalAddressLater | InjectedFault::Hang => assert!(second > 0, "{what}"),
        InjectedFault::IllegalAddress | InjectedFault::LaunchFailed | InjectedFault::DeviceLost => {
            assert!(first > 0 || waits_at_the_end(call, form), "{what}");
            let (code, _) = fault.error().unwrap();
            assert_eq!(after_first.last_reason.as_ref().map(|why| why.contains(code)), Some(true), "{what}");
        }
        InjectedFault::IllegalAddressInWorker | InjectedFault::Panic => unreachable!("not tried here"),
    }
    let seen = trial.fake.seen();
    if matches!(fault, InjectedFault::OutOfMemory | InjectedFault::WrongIndex) {
        assert_eq!((seen.slots, stats.device_given_up), (shape.slots, None), "{what}: no slot is lost");
    } else {
        let why = stats.device_given_up.unwrap_or_else(|| panic!("{what}: the stats say that the device was given up"));
        let code = fault.error().map_or("did not finish within 5 ms", |(code, _)| code);
        assert!(why.contains(code), "{what}: {why}");
        assert!(!trial.compressor.uses_device() && seen.calls_after_loss == 0, "{what}: {seen:?}");
        trial.fake.arm([]);
        assert_eq!(run(&mut trial, fault), shape.pages, "{what}: all by the CPU");
        assert_eq!(trial.fake.calls(), [], "{what}: a lost device is not called");
    }
    trial.end();
}

/// The last calls wait for what is done already.
fn waits_at_the_end(call: Call, form: CallKind) -> bool {
    match form {
        CallKind::CompressPinned => call == Call::Settle,
        _ if form.to_other_memory().is_some() => matches!(call, Call::Settle | Call::Wait),
        _ => false,
    }
}

/// A device that hangs may go on at any time, and of one that is lost nothing is known.
fn may_still_copy(fault: InjectedFault) -> bool {
    matches!(fault, InjectedFault::Hang | InjectedFault::DeviceLost)
}

/// Returns the number of pages that the CPU did. A hung copy to the caller's memory may keep that inaccessible: then it is an error.
fn run(trial: &mut Trial, fault: InjectedFault) -> usize {
    match trial.run() {
        Ok(done) => done.by_cpu,
        Err(Error::Gpu(_)) if may_still_copy(fault) && trial.form.to_other_memory().is_some() => {
            assert!(!trial.compressor.uses_device(), "it was given up");
            let seen = match trial.form {
                CallKind::CompressAllPinned => trial.packed.as_ref().unwrap().arena().is_ok(),
                _ => trial.pinned.as_ref().unwrap().pages().is_ok(),
            };
            assert!(!seen, "a copy may come yet: the bytes are not seen");
            // The same pages to other memory come out right.
            let form = trial.form;
            trial.form = form.to_other_memory().unwrap();
            let done = trial.run().unwrap().by_cpu;
            trial.form = form;
            done
        }
        Err(other) => panic!("{:?}: {other}", trial.form),
    }
}

fn forms_and_formats<const N: usize>(
    forms: [CallKind; N],
    shape: SampleShape,
) -> impl Iterator<Item = (CallKind, SampleShape)> {
    forms.into_iter().flat_map(move |form| shape.in_all_formats().map(|shape| (form, shape)))
}

fn every_call(form: CallKind, shape: SampleShape, schedule: Schedule, faults: &[InjectedFault]) {
    for at in 0..calls_of(form, shape) {
        faults.iter().for_each(|fault| check(form, shape, schedule, at, *fault));
    }
}

#[test]
fn every_call_refused_in_turn() {
    for (form, shape) in forms_and_formats(CallKind::ALL, SHAPE) {
        every_call(form, shape, Schedule::Eager, &[InjectedFault::OutOfMemory]);
    }
}

#[test]
fn every_kernel_lying_in_turn() {
    // With one slot, calls come in one order.
    for (form, shape) in forms_and_formats(CallKind::ALL, SampleShape { slots: 1, ..SHAPE }) {
        let kernel = if form.compresses() { Call::Compress } else { Call::Decompress };
        let calls = list_of(form, shape);
        let kernels = calls.iter().enumerate().filter(|(_, call)| **call == kernel);
        kernels.for_each(|(at, _)| check(form, shape, Schedule::Eager, at, InjectedFault::WrongIndex));
    }
}

#[test]
fn every_call_poisoning_the_device_in_turn() {
    const KINDS: [InjectedFault; 3] =
        [InjectedFault::IllegalAddress, InjectedFault::LaunchFailed, InjectedFault::DeviceLost];
    for (form, shape) in forms_and_formats(CallKind::ALL, SampleShape { slots: 2, ..SHAPE }) {
        for at in 0..calls_of(form, shape) {
            check(form, shape, Schedule::Eager, at, KINDS[at % KINDS.len()]);
        }
    }
}

#[test]
fn every_call_poisoning_the_device_for_the_next_one_in_turn() {
    let shape = SampleShape { slots: 4, ..SHAPE };
    for form in CallKind::ALL {
        every_call(form, shape, Schedule::Eager, &[InjectedFault::IllegalAddressLater]);
    }
}

#[test]
fn every_call_failing_in_turn_while_the_queues_lag() {
    for form in CallKind::RINGS {
        for (slots, schedule) in [(1, Schedule::OneByOne), (2, Schedule::LastFirst), (4, Schedule::Random(3))] {
            let shape = SampleShape { pages: 7, batch_size: 2, slots, format: PageFormat::Lz4 };
            every_call(form, shape, schedule, &[InjectedFault::OutOfMemory, InjectedFault::IllegalAddressLater]);
        }
    }
}

#[test]
fn every_call_failing_in_turn_with_slots_in_pieces() {
    let shape = SampleShape { pages: 300, batch_size: 300, slots: 1, format: PageFormat::Lz4 };
    for form in CallKind::RINGS {
        every_call(form, shape, Schedule::OneByOne, &[InjectedFault::OutOfMemory]);
    }
}

#[test]
fn every_call_followed_by_a_hang_in_turn() {
    let shape = SampleShape { pages: 7, batch_size: 4, slots: 2, format: PageFormat::Lz4 };
    for (form, shape) in forms_and_formats(CallKind::RINGS, shape) {
        every_call(form, shape, Schedule::Eager, &[InjectedFault::Hang]);
    }
}

/// A worker that waits for memory sees the device's failure first. Before it can report that, the thread that drives the
/// ring gets the error of a lost device. The driver has stopped all copies: the pages are accessible.
#[test]
fn a_failure_that_a_worker_saw_first_is_the_one_that_counts() {
    for form in CallKind::ALL {
        let shape = SampleShape { pages: 64, ..SHAPE };
        let mut trial = Trial::new(form, shape, Schedule::OneByOne, NO_HURRY);
        trial.run().unwrap();
        trial.fake.arm_always(Call::Wait, InjectedFault::IllegalAddressInWorker);
        let done = trial.run().unwrap_or_else(|error| panic!("{form:?}: {error}"));
        assert!(done.by_cpu > 0, "{form:?}");
        let why = trial.compressor.stats().fallback.device_given_up.clone().unwrap();
        assert!(why.contains("CUDA_ERROR_ILLEGAL_ADDRESS (700)"), "{form:?}: {why}");
        trial.end();
    }
}
