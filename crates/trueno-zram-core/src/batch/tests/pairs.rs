//! Every pair of calls failing.

use super::faults::calls_of;
use super::{CallKind, NO_HURRY, SampleShape, Trial};
use crate::gpu::codec::PageFormat;
use crate::gpu::ring::fake::{InjectedFault, Schedule};

const SHAPE: SampleShape = SampleShape { pages: 4, batch_size: 2, slots: 2, format: PageFormat::Lz4 };

/// Two faults in three batches. All come out right, and the stats agree with what was done.
fn check(form: CallKind, faults: [(usize, InjectedFault); 2]) {
    let mut trial = Trial::new(form, SHAPE, Schedule::Eager, NO_HURRY);
    trial.fake.arm(faults);
    for _ in 0..3 {
        trial.run().unwrap_or_else(|error| panic!("{form:?}, {faults:?}: {error}"));
    }
    let stats = &trial.compressor.stats().fallback;
    assert!(stats.batches > 0 && stats.last_reason.is_some(), "{form:?}, {faults:?}: {stats:?}");
    assert_eq!(trial.compressor.uses_device(), stats.device_given_up.is_none(), "{form:?}, {faults:?}");
    assert_eq!(trial.fake.seen().calls_after_loss, 0, "{form:?}, {faults:?}");
    if trial.compressor.uses_device() {
        assert_eq!(trial.fake.seen().slots, SHAPE.slots, "{form:?}, {faults:?}: no slot is lost");
    }
    trial.end();
}

/// A call refused, and each later one failing in one of the ways that differ.
fn every_pair(form: CallKind) {
    let calls = calls_of(form, SHAPE);
    for first_at in 0..calls {
        // The batch after the failed one makes calls, too; so does the clearing up.
        for second_at in first_at + 1..calls + 4 {
            const SECOND: [InjectedFault; 3] =
                [InjectedFault::OutOfMemory, InjectedFault::IllegalAddress, InjectedFault::IllegalAddressLater];
            let turn = (2 * first_at + second_at) % SECOND.len();
            // Right after the first comes the clearing up: there, all of them.
            let seconds = if second_at < first_at + 4 { &SECOND[..] } else { &SECOND[turn..=turn] };
            seconds.iter().for_each(|fault| check(form, [(first_at, InjectedFault::OutOfMemory), (second_at, *fault)]));
        }
    }
}

#[test]
fn every_pair_of_calls_compressing() {
    every_pair(CallKind::CompressInto);
}

#[test]
fn every_pair_of_calls_compressing_pinned_pages() {
    every_pair(CallKind::CompressPinned);
}

#[test]
fn every_pair_of_calls_decompressing() {
    every_pair(CallKind::DecompressInto);
}

#[test]
fn every_pair_of_calls_decompressing_to_pinned_pages() {
    every_pair(CallKind::DecompressPinned);
}

#[test]
fn every_pair_of_calls_compressing_from_pinned_pages_to_a_pinned_batch() {
    every_pair(CallKind::CompressAllPinned);
}

#[test]
fn every_pair_of_calls_decompressing_from_a_pinned_batch_to_pinned_pages() {
    every_pair(CallKind::DecompressAllPinned);
}
