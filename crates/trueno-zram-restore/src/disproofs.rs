//! Pages whose proof has failed after some of them may have been restored: how handlers learn of them.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use trueno_zram_archive::{Error, Pages};

use crate::wake::Wake;

/// The failed proofs of a source that several handlers restore from.
#[derive(Debug, Default)]
pub(crate) struct Disproofs {
    /// Pages that are known to be disproven. A page that is disproven stays so.
    known_pages: AtomicU64,
    /// Handlers that wait for events.
    handlers: Mutex<Vec<Weak<Wake>>>,
}

impl Disproofs {
    /// Returns the number of pages that were disproven when the source was last asked.
    pub(crate) fn known_pages(&self) -> u64 {
        self.known_pages.load(Ordering::Acquire)
    }

    /// Asks the source, and wakes all handlers if more pages are disproven than were known. Returns their number.
    pub(crate) fn refresh(&self, source: &dyn Pages) -> u64 {
        let pages = count(&source.disproven());
        if self.known_pages.fetch_max(pages, Ordering::AcqRel) < pages {
            self.wake_handlers();
        }
        self.known_pages()
    }

    /// Wakes the thread that waits for this from now on, whenever a proof fails.
    pub(crate) fn add_handler(&self, wake: &Arc<Wake>) {
        let mut handlers = self.lock();
        handlers.retain(|handler| handler.strong_count() > 0);
        handlers.push(Arc::downgrade(wake));
    }

    fn wake_handlers(&self) {
        self.lock().iter().filter_map(Weak::upgrade).for_each(|handler| handler.wake());
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Wake>>> {
        self.handlers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Disproven pages that a handler has acted upon.
#[derive(Debug, Default)]
pub(crate) struct HandledDisproofs {
    ranges: Vec<Range<u64>>,
    pages: u64,
}

impl HandledDisproofs {
    /// Returns the number of pages.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// Takes the disproven pages of the source. Returns those that are new.
    pub(crate) fn extend(&mut self, source: &dyn Pages) -> Vec<Range<u64>> {
        let disproven = source.disproven();
        let known = std::mem::replace(&mut self.ranges, disproven);
        self.pages = count(&self.ranges);
        self.ranges.iter().flat_map(|pages| without(pages.clone(), &known)).collect()
    }
}

/// Returns the parts of a range that are not in ranges that are in order.
fn without(pages: Range<u64>, known: &[Range<u64>]) -> Vec<Range<u64>> {
    let (mut start, mut parts) = (pages.start, Vec::new());
    for known in known.iter().filter(|known| known.start < pages.end && pages.start < known.end) {
        parts.push(start..known.start.max(start));
        start = start.max(known.end);
    }
    parts.push(start..pages.end.max(start));
    parts.retain(|part| !part.is_empty());
    parts
}

/// Returns the number of pages of ranges that do not overlap.
pub(crate) fn count(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|pages| pages.end.saturating_sub(pages.start)).sum()
}

/// Returns the reason why pages are disproven: the error of reading one of them.
pub(crate) fn reason(source: &dyn Pages, pages: &Range<u64>) -> Error {
    match source.read(pages.start, &mut [[0; trueno_zram_core::PAGE_SIZE]]) {
        Err(error @ Error::Disproven { .. }) => error,
        // The source says that they are, whatever the reason.
        Ok(()) | Err(_) => Error::Disproven { start: pages.start, end: pages.end, reason: "it is unknown".to_owned() },
    }
}

/// Proves all that is left of a source, after the last reader has ended. Returns `true` if everything is proven or disproven, and
/// `false` if that cannot be found out now.
pub(crate) fn prove_remaining(source: &dyn Pages, is_abandoned: impl Fn() -> bool) -> bool {
    while source.is_proof_due() && !is_abandoned() {
        match source.prove_next() {
            Ok(_) | Err(Error::Disproven { .. }) => {}
            Err(_) => return false,
        }
    }
    !source.is_proof_due()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_new_parts_are_acted_upon() {
        assert_eq!(without(10..20, &[]), vec![10..20]);
        assert_eq!(without(10..20, &[0..5, 12..14, 16..30]), [10..12, 14..16]);
        assert_eq!(without(10..20, &[0..10, 20..30]), vec![10..20]);
        assert!(without(10..20, &[0..3, 5..20]).is_empty());
    }
}
