//! The groups that threads work on, so that others wait for them instead of doing the same.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// Groups that a thread restores or compares with the index now.
#[derive(Debug, Default)]
pub(super) struct InWork(Mutex<BTreeSet<u64>>);

impl InWork {
    /// Notes that this thread works on a group, until the result is dropped; `None` if another one does already.
    pub(super) fn begin(&self, group: u64) -> Option<Working<'_>> {
        let is_new = self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(group);
        is_new.then_some(Working { all: self, group })
    }
}

/// A group that a thread works on.
#[derive(Debug)]
pub(super) struct Working<'a> {
    all: &'a InWork,
    group: u64,
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.all.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_one_thread_at_a_time() {
        let all = InWork::default();
        let (one, other) = (all.begin(7), all.begin(8));
        assert!(one.is_some() && other.is_some() && all.begin(7).is_none());
        drop(one);
        assert!(all.begin(7).is_some());
        assert!(all.begin(8).is_none());
    }
}
