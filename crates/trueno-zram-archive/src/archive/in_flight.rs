//! Groups that threads work on now, so that another thread that needs one proven waits instead of proving it, too.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Groups that threads work on now.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    groups: Mutex<BTreeSet<u64>>,
    /// A thread is done with one of them.
    ended: Condvar,
}

impl InFlight {
    /// Notes that this thread works on a group, until the result is dropped; `None` if another one does already.
    pub(super) fn begin(&self, group: u64) -> Option<InFlightGuard<'_>> {
        self.lock().insert(group).then(|| InFlightGuard { all: self, group })
    }

    /// Waits until no thread works on a group.
    pub(super) fn wait_for(&self, group: u64) {
        let waited = self.ended.wait_while(self.lock(), |groups| groups.contains(&group));
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A group that a thread works on.
#[derive(Debug)]
pub(super) struct InFlightGuard<'a> {
    all: &'a InFlight,
    group: u64,
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.all.lock().remove(&self.group);
        self.all.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_one_thread_at_a_time() {
        let all = InFlight::default();
        let (one, other) = (all.begin(7), all.begin(8));
        assert!(one.is_some() && other.is_some());
        // A refusal leaves the note of the thread that works on it.
        assert!(all.begin(7).is_none() && all.begin(7).is_none());
        drop(one);
        assert!(all.begin(7).is_some());
        assert!(all.begin(8).is_none());
    }

    #[test]
    fn a_thread_waits_until_a_group_is_free() {
        let all = InFlight::default();
        let working = all.begin(7);
        std::thread::scope(|threads| {
            let waiting = threads.spawn(|| {
                all.wait_for(8);
                all.wait_for(7);
                all.begin(7).is_some()
            });
            drop(working);
            assert!(waiting.join().unwrap());
        });
    }
}
