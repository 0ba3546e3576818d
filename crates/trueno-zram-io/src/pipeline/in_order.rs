//! A stage that follows the order of the input, run by the thread that completes the next item.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::lock::lock;

/// Runs a stage on items in the order of their numbers. A thread that submits an early item leaves it behind; the thread
/// that submits the item before it handles both. So no thread waits for another.
pub(crate) struct InOrder<I, T> {
    queue: Mutex<EarlyItems<I, T>>,
}

struct EarlyItems<I, T> {
    /// Items that wait for those before them.
    early: BTreeMap<u64, I>,
    next_number: u64,
    /// The state of the stage. None while a thread runs it, and for good if that thread failed.
    stage: Option<T>,
}

impl<I, T> InOrder<I, T> {
    pub(crate) fn new(stage: T) -> Self {
        Self { queue: Mutex::new(EarlyItems { early: BTreeMap::new(), next_number: 0, stage: Some(stage) }) }
    }

    /// Adds item `number`. Unless another thread runs the stage, this one does, for all items that are due.
    pub(crate) fn submit<E>(
        &self,
        number: u64,
        item: I,
        mut work: impl FnMut(&mut T, I) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut queue = lock(&self.queue);
        queue.early.insert(number, item);
        let Some(mut stage) = queue.stage.take() else { return Ok(()) };
        loop {
            let due = queue.next_number;
            let Some(item) = queue.early.remove(&due) else { break };
            queue.next_number += 1;
            drop(queue);
            work(&mut stage, item)?;
            queue = lock(&self.queue);
        }
        // Put back under the lock that showed nothing due: the thread that submits the next item finds it.
        queue.stage = Some(stage);
        Ok(())
    }

    /// The state of the stage; none if its work failed.
    pub(crate) fn into_stage(self) -> Option<T> {
        self.queue.into_inner().unwrap_or_else(PoisonError::into_inner).stage
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_handled_in_order_by_any_thread() {
        let stage = InOrder::new(Vec::new());
        let take = |seen: &mut Vec<u64>, item| {
            seen.push(item);
            Ok::<(), ()>(())
        };
        std::thread::scope(|scope| {
            for start in [3_u64, 1, 2, 0] {
                let stage = &stage;
                scope.spawn(move || {
                    for number in (start..4000).step_by(4) {
                        stage.submit(number, number, take).unwrap();
                    }
                });
            }
        });
        assert_eq!(stage.into_stage().unwrap(), (0..4000).collect::<Vec<_>>());
    }

    #[test]
    fn a_failed_stage_is_gone() {
        let stage = InOrder::new(());
        assert_eq!(stage.submit(0, (), |(), ()| Err("full")), Err("full"));
        assert_eq!(stage.submit(1, (), |(), ()| Err("not reached")), Ok(()));
        assert_eq!(stage.into_stage(), None);
    }
}
