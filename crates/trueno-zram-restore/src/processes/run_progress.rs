//! The progress of a process's runs: those taken, those finished, and the next one to take.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::unit_states::AtomicBitSet;

/// Faults that workers know of. They fill what these wait for first.
const URGENT: usize = 4;

/// The runs that are taken and finished, and the units that threads wait for.
#[derive(Debug)]
pub(super) struct RunProgress {
    count: usize,
    taken: AtomicBitSet,
    finished: AtomicBitSet,
    /// The run to take next.
    cursor: AtomicUsize,
    left: AtomicUsize,
    urgent: [AtomicUsize; URGENT],
    next_urgent: AtomicUsize,
}

impl RunProgress {
    pub(super) fn new(count: usize) -> Self {
        Self {
            count,
            taken: AtomicBitSet::new(count),
            finished: AtomicBitSet::new(count),
            cursor: AtomicUsize::new(0),
            left: AtomicUsize::new(count),
            urgent: [const { AtomicUsize::new(usize::MAX) }; URGENT],
            next_urgent: AtomicUsize::new(0),
        }
    }

    /// Takes a run that is not taken: the one that was asked for, or the next one after it.
    pub(super) fn take_next(&self) -> Option<usize> {
        let start = self.cursor.load(Ordering::Relaxed);
        let mut runs = (start..self.count).chain(0..start.min(self.count));
        let run = runs.find(|run| self.take(*run))?;
        // Unless another one has been asked for since.
        let _ = self.cursor.compare_exchange(start, run + 1, Ordering::Relaxed, Ordering::Relaxed);
        Some(run)
    }

    /// Takes a run. Returns `false` if it was taken already.
    pub(super) fn take(&self, run: usize) -> bool {
        self.taken.insert(run)
    }

    /// Returns `true` if the run is being filled.
    pub(super) fn is_being_filled(&self, run: usize) -> bool {
        self.taken.contains(run) && !self.finished.contains(run)
    }

    /// Makes workers go on with this run.
    pub(super) fn ask_for(&self, run: usize) {
        self.cursor.store(run, Ordering::Relaxed);
    }

    /// Records that a run that was taken is done. Returns `true` if it was the last one.
    pub(super) fn finish(&self, run: usize) -> bool {
        self.finished.insert(run);
        self.left.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Returns `true` if a run is not finished.
    pub(super) fn has_unfinished(&self) -> bool {
        self.left.load(Ordering::Acquire) > 0
    }

    /// Asks the worker that fills the run of a unit to fill this one first.
    pub(super) fn set_urgent(&self, unit: usize) {
        let slot = self.next_urgent.fetch_add(1, Ordering::Relaxed) % URGENT;
        self.urgent[slot].store(unit, Ordering::Relaxed);
    }

    /// Returns the units that threads wait for.
    pub(super) fn urgent(&self) -> impl Iterator<Item = usize> {
        self.urgent.iter().map(|unit| unit.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_taken_once_from_the_one_that_was_asked_for() {
        let progress = RunProgress::new(5);
        assert_eq!([(); 2].map(|()| progress.take_next()), [Some(0), Some(1)]);
        progress.ask_for(3);
        assert!(progress.take(4) && !progress.take(4));
        assert_eq!([(); 3].map(|()| progress.take_next()), [Some(3), Some(2), None]);
        progress.ask_for(5);
        assert_eq!(progress.take_next(), None);
    }

    #[test]
    fn the_last_run_that_is_finished_is_reported() {
        let progress = RunProgress::new(2);
        assert!(!progress.is_being_filled(1));
        assert!(progress.take(1) && progress.is_being_filled(1) && !progress.is_being_filled(0));
        assert!(!progress.finish(1) && !progress.is_being_filled(1) && progress.has_unfinished());
        assert!(progress.take(0) && progress.finish(0) && !progress.has_unfinished());
    }

    #[test]
    fn the_latest_faults_are_urgent() {
        let progress = RunProgress::new(1);
        (0..URGENT + 2).for_each(|unit| progress.set_urgent(unit));
        let mut urgent: Vec<usize> = progress.urgent().collect();
        urgent.sort_unstable();
        assert_eq!(urgent, (2..URGENT + 2).collect::<Vec<_>>());
    }
}
