//! The state of every group's proof: a byte per group, which readers change without a lock.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::error::Error;
use crate::index::layout::GROUP_PAGES;

/// A page of the group was read, and the proof is due.
const DUE: u8 = 1;
/// All blocks of the group were compared with the index.
const COMPARED: u8 = 2;
/// A stream ends with an error in the group.
const REFUSED: u8 = 4;
/// The group is proven, and those before it as far as that is asked for.
const PROVEN: u8 = 8;
/// The proof has failed.
const DISPROVEN: u8 = 16;

/// The proofs of all groups.
///
/// A thread of low priority proves groups while others read pages. A reader never waits for a lock that such a thread may hold.
#[derive(Debug)]
pub(super) struct GroupProofs {
    states: Box<[AtomicU8]>,
    /// Groups whose proof is due.
    due: AtomicU64,
    /// The first group whose proof has failed; `u64::MAX` if none has.
    first_disproven: AtomicU64,
    /// The group to look at first for the next proof, so that one that cannot be read now does not hold up the others.
    next: AtomicUsize,
    reasons: Mutex<BTreeMap<u64, String>>,
}

impl GroupProofs {
    pub(super) fn new(groups: u64) -> Self {
        Self {
            states: (0..groups).map(|_| AtomicU8::new(0)).collect(),
            due: AtomicU64::new(0),
            first_disproven: AtomicU64::new(u64::MAX),
            next: AtomicUsize::new(0),
            reasons: Mutex::default(),
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&self.states[..])
    }

    fn state(&self, number: u64) -> u8 {
        self.slot(number).map_or(0, |state| state.load(Ordering::Acquire))
    }

    fn slot(&self, number: u64) -> Option<&AtomicU8> {
        self.states.get(usize::try_from(number).ok()?)
    }

    /// Replaces a state unless `change` returns `None`. Returns the state before.
    fn update(&self, number: u64, change: impl Fn(u8) -> Option<u8>) -> Option<u8> {
        self.slot(number)?.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).ok()
    }

    /// Notes that a page of a group was read, so that its proof is due once.
    pub(super) fn touch(&self, number: u64) {
        let settled = DUE | PROVEN | DISPROVEN;
        if self.state(number) & settled != 0 {
            return;
        }
        // Counted first: a thread that settles the group at once takes it off again.
        self.due.fetch_add(1, Ordering::AcqRel);
        if self.update(number, |state| (state & settled == 0).then_some(state | DUE)).is_none() {
            self.due.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Returns `true` if the proof of a group is due.
    pub(super) fn is_due(&self) -> bool {
        self.due.load(Ordering::Acquire) > 0
    }

    pub(super) fn is_proven(&self, number: u64) -> bool {
        self.state(number) & PROVEN != 0
    }

    /// Notes that a group was compared with the index.
    pub(super) fn set_compared(&self, number: u64, is_refused: IsRefused) {
        let found = if is_refused == IsRefused::Yes { COMPARED | REFUSED } else { COMPARED };
        self.update(number, |state| Some(state | found));
    }

    /// Returns the result if a group was compared with the index.
    pub(super) fn compared(&self, number: u64) -> Option<IsRefused> {
        let state = self.state(number);
        let refused = if state & REFUSED == 0 { IsRefused::No } else { IsRefused::Yes };
        (state & COMPARED != 0).then_some(refused)
    }

    /// Notes that a group is proven, and those before it as far as that is asked for.
    pub(super) fn set_proven(&self, number: u64) {
        self.settle(number, PROVEN);
    }

    /// Notes for good that the proof of a group has failed.
    pub(super) fn disprove(&self, number: u64, reason: String) {
        self.reasons.lock().unwrap_or_else(PoisonError::into_inner).entry(number).or_insert(reason);
        self.first_disproven.fetch_min(number, Ordering::AcqRel);
        self.settle(number, DISPROVEN);
    }

    fn settle(&self, number: u64, settled: u8) {
        // A failure is final: no success that another thread was on the way to undoes it.
        let kept = if settled == DISPROVEN { !(DUE | PROVEN) } else { !DUE };
        let change = |state: u8| (settled == DISPROVEN || state & DISPROVEN == 0).then_some(state & kept | settled);
        if self.update(number, change).is_some_and(|before| before & DUE != 0) {
            self.due.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Returns `true` if a group lies before all that were disproven.
    pub(super) fn is_before_disproven(&self, number: u64) -> bool {
        number < self.first_disproven.load(Ordering::Acquire)
    }

    /// Fails if the proof of a group has failed.
    pub(super) fn check(&self, number: u64) -> Result<(), Error> {
        if self.state(number) & DISPROVEN == 0 {
            return Ok(());
        }
        let reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        Err(disproof(number, reasons.get(&number).cloned().unwrap_or_default()))
    }

    /// Returns the groups whose proof has failed, in order.
    pub(super) fn disproven(&self) -> Vec<u64> {
        self.reasons.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
    }

    /// Returns the groups whose proof is due and that were not compared yet, each once.
    pub(super) fn due_to_compare(&self) -> impl Iterator<Item = u64> {
        let (start, count) = (self.next.load(Ordering::Relaxed), self.states.len());
        let numbers = (start..count).chain(0..start.min(count));
        numbers.map(|number| number as u64).filter(|number| self.state(*number) & (DUE | COMPARED) == DUE)
    }

    /// Makes the group after this one the first of [`due_to_compare`](Self::due_to_compare).
    pub(super) fn go_on_after(&self, number: u64) {
        self.next.store(usize::try_from(number).map_or(0, |number| number + 1), Ordering::Relaxed);
    }

    /// Returns the first group whose proof is due and that was compared, so that only groups before it are left to prove.
    pub(super) fn first_compared_and_due(&self) -> Option<u64> {
        let is_found = |number: &u64| self.state(*number) & (DUE | COMPARED) == DUE | COMPARED;
        (0..self.states.len() as u64).find(is_found)
    }
}

/// A stream's treatment of a group whose blocks were compared with the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IsRefused {
    /// It goes on to the next group.
    No,
    /// It ends with an error at a damaged block.
    Yes,
}

/// Returns the error of every read of a group whose proof has failed.
pub(super) fn disproof(number: u64, reason: String) -> Error {
    let Range { start, end } = pages_of_group(number);
    Error::Disproven { start, end, reason }
}

/// Returns the page numbers of a group, also those past the end of the content.
pub(super) fn pages_of_group(number: u64) -> Range<u64> {
    number * GROUP_PAGES as u64..(number + 1) * GROUP_PAGES as u64
}
