//! Memory that is restored lazily, of a VM or a process: the state shared by the handler and the workers of the background fill.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use trueno_zram_archive::Pages;
use trueno_zram_core::{Page, is_zero};

use crate::error::{Error, RegionProblem};
use crate::gate::Gate;
use crate::report::RestoreReport;
use crate::uffd::{Progress, Userfaultfd};
use crate::unit_states::UnitStates;

/// The source of missing memory, the state of its units, and the userfaultfd that it is filled through.
///
/// A **unit** is what the kernel fills at once: a page, which may be a huge one.
pub(crate) struct LazyMemory {
    pub(crate) uffd: Arc<Userfaultfd>,
    pub(crate) source: Arc<dyn Pages>,
    pub(crate) states: UnitStates,
    /// Keeps copies apart from the reading of events.
    pub(crate) gate: Gate,
    pub(crate) counters: Counters,
}

/// Content for missing units.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Content<'a> {
    Bytes(&'a [u8]),
    /// This many bytes.
    Zeros(usize),
}

impl<'a> Content<'a> {
    /// Returns runs of pages that are zero or not, and how many pages each has.
    pub(crate) fn runs_of(pages: &'a [Page]) -> impl Iterator<Item = (Self, usize)> {
        pages.chunk_by(|one, other| is_zero(one) == is_zero(other)).map(|run| (Self::of(run), run.len()))
    }

    /// Returns the content of pages: zeros if the first page is zero. The caller makes sure that then all are.
    pub(crate) fn of(pages: &'a [Page]) -> Self {
        let bytes = pages.as_flattened();
        if pages.first().is_some_and(|page| is_zero(page)) { Self::Zeros(bytes.len()) } else { Self::Bytes(bytes) }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Zeros(len) => *len,
        }
    }

    /// Returns a part of it, by bytes.
    pub(crate) fn part(&self, range: Range<usize>) -> Self {
        match self {
            Self::Bytes(bytes) => Self::Bytes(&bytes[range]),
            Self::Zeros(_) => Self::Zeros(range.len()),
        }
    }
}

/// The result of filling units by one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    /// The first ones are there: at least one.
    Units(usize),
    /// The process is changing its memory. Events must be read before it goes on.
    Changing,
    /// The address of the first one, or of any if there are several, is not mapped.
    Unmapped,
}

/// The reason why no more can be filled.
#[derive(Debug)]
pub(crate) enum Stop {
    Ended,
    NoMemory,
    Failed(Error),
}

impl Stop {
    /// Interprets an error of a fill. ENOSPC meant the same as ESRCH from Linux 4.11 to 4.13.
    pub(crate) fn new(error: Errno, is_gone: impl FnOnce() -> bool, call: &'static str) -> Self {
        match error {
            Errno::SRCH => Self::Ended,
            _ if is_gone() => Self::Ended,
            Errno::NOMEM => Self::NoMemory,
            error => Self::Failed(Error::system(call)(error)),
        }
    }
}

impl LazyMemory {
    pub(crate) fn new(uffd: Arc<Userfaultfd>, source: Arc<dyn Pages>, states: UnitStates) -> Self {
        Self { uffd, source, states, gate: Gate::default(), counters: Counters::default() }
    }

    /// Fills missing units that lie at `address`, and wakes the threads that wait for them.
    pub(crate) fn fill(&self, address: u64, units: Range<usize>, content: Content<'_>) -> Result<Filled, Errno> {
        let unit_len = (content.len() / units.len()) as u64;
        let Progress { done, stopped } = self.copy(address, content);
        let done = units.start + usize::try_from(done / unit_len).expect("units are in memory");
        (units.start..done).for_each(|unit| self.states.set_filled(unit));
        match stopped {
            None => Ok(Filled::Units(units.len())),
            // The next call returns the error of the next unit.
            Some(_) if done > units.start => Ok(Filled::Units(done - units.start)),
            Some(Errno::AGAIN) => Ok(Filled::Changing),
            Some(Errno::EXIST) => {
                let _ = self.uffd.wake(address, unit_len);
                self.states.set_filled(units.start);
                Ok(Filled::Units(1))
            }
            Some(Errno::NOENT) => Ok(Filled::Unmapped),
            Some(error) => Err(error),
        }
    }

    /// Fills missing memory, and counts it.
    pub(crate) fn copy(&self, address: u64, content: Content<'_>) -> Progress {
        let (progress, counter) = match content {
            Content::Bytes(bytes) => (self.uffd.copy(address, bytes), &self.counters.copied_bytes),
            Content::Zeros(len) => (self.uffd.zero(address, len as u64), &self.counters.zero_bytes),
        };
        counter.fetch_add(progress.done, Ordering::Relaxed);
        progress
    }
}

/// Checks that memory of `len` bytes is possible at `start`, with the content from `offset` on. Returns its end.
pub(crate) fn check_region(start: u64, len: u64, offset: u64, content_len: u64) -> Result<u64, RegionProblem> {
    if len == 0 {
        return Err(RegionProblem::Empty);
    }
    let end = start.checked_add(len).filter(|end| usize::try_from(*end).is_ok()).ok_or(RegionProblem::AddressRange)?;
    let content_end = offset.saturating_add(len);
    if content_end > content_len {
        return Err(RegionProblem::BeyondArchive { end: content_end, content_len });
    }
    Ok(end)
}

/// Counts what was done so far.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) faults: AtomicU64,
    pub(crate) copied_bytes: AtomicU64,
    pub(crate) zero_bytes: AtomicU64,
    pub(crate) removed_bytes: AtomicU64,
    pub(crate) poisoned: AtomicU64,
}

impl Counters {
    /// Adds what was done to a report.
    pub(crate) fn add_to(&self, report: &mut RestoreReport) {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        report.faults += value(&self.faults);
        report.copied_bytes += value(&self.copied_bytes);
        report.zero_bytes += value(&self.zero_bytes);
        report.removed_bytes += value(&self.removed_bytes);
        report.poisoned += value(&self.poisoned);
    }
}

#[cfg(test)]
mod tests {
    use trueno_zram_core::PAGE_SIZE;

    use super::*;

    #[test]
    fn errors_of_a_fill_end_it_pause_it_or_fail_it() {
        let stop = |error, is_gone| Stop::new(error, || is_gone, "filling");
        assert!(matches!(stop(Errno::SRCH, false), Stop::Ended));
        for error in [Errno::NOSPC, Errno::NOMEM, Errno::INVAL] {
            assert!(matches!(stop(error, true), Stop::Ended), "{error}");
        }
        assert!(matches!(stop(Errno::NOMEM, false), Stop::NoMemory));
        assert!(matches!(stop(Errno::INVAL, false), Stop::Failed(Error::System { call: "filling", .. })));
    }

    #[test]
    fn pages_that_are_zero_and_others_make_runs() {
        let pages = [[0; PAGE_SIZE], [0; PAGE_SIZE], [1; PAGE_SIZE], [2; PAGE_SIZE], [0; PAGE_SIZE]];
        let runs = Content::runs_of(&pages).map(|(content, count)| {
            assert_eq!(content.len(), count * PAGE_SIZE);
            match content.part(PAGE_SIZE / 2..content.len()) {
                Content::Bytes(bytes) => (Some(bytes[0]), bytes.len()),
                Content::Zeros(len) => (None, len),
            }
        });
        let half = PAGE_SIZE / 2;
        assert_eq!(runs.collect::<Vec<_>>(), [(None, 3 * half), (Some(1), 3 * half), (None, half)]);
    }

    #[test]
    fn regions_may_end_with_the_content_and_with_the_address_space() {
        assert_eq!(check_region(5, 10, 20, 30), Ok(15));
        assert_eq!(check_region(u64::MAX - 10, 10, 0, 10), Ok(u64::MAX));
        assert_eq!(check_region(u64::MAX - 10, 11, 0, 11), Err(RegionProblem::AddressRange));
        assert_eq!(check_region(5, 0, 0, 30), Err(RegionProblem::Empty));
        assert_eq!(check_region(5, 10, 21, 30), Err(RegionProblem::BeyondArchive { end: 31, content_len: 30 }));
    }
}
