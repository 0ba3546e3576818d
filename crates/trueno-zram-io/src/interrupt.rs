//! Actions to run before a signal ends the process: temporary files are removed, stopped processes continue.
//!
//! The crate handles no signals. A program that handles them calls [`pending_actions`] and then [`PendingActions::run_all`] before it exits.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use crate::lock::lock;

static PENDING: Mutex<PendingActions> = Mutex::new(PendingActions { actions: BTreeMap::new(), next_id: 0 });

/// The registered actions. While this is locked, no other thread can run them.
pub struct PendingActions {
    actions: BTreeMap<u64, Box<dyn FnOnce() + Send>>,
    next_id: u64,
}

/// Identifies an action, to remove it.
#[derive(Debug)]
pub struct ActionId(u64);

/// An action that runs once: when this is dropped, or before a signal ends the process.
///
/// ```
/// use trueno_zram_io::interrupt::pending_actions;
/// let cleanup = pending_actions().add_cleanup(|| println!("removes a temporary file"));
/// cleanup.cancel(&mut pending_actions()); // the file is complete
/// ```
#[derive(Debug)]
pub struct Cleanup(ActionId);

impl Cleanup {
    /// Drops the action without running it.
    pub fn cancel(self, pending: &mut PendingActions) {
        pending.remove(&self.0);
        // `drop` has nothing left to do, and would lock `pending` again.
        std::mem::forget(self);
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        let mut pending = pending_actions();
        if let Some(action) = pending.actions.remove(&self.0.0) {
            action();
        }
    }
}

/// Locks the registered actions. No signal runs them until the result is dropped, so that they can be changed together with
/// the files or processes that they are about.
///
/// ```
/// use trueno_zram_io::interrupt::pending_actions;
/// let id = pending_actions().add(|| println!("cleaning up"));
/// pending_actions().remove(&id);
/// ```
pub fn pending_actions() -> MutexGuard<'static, PendingActions> {
    lock(&PENDING)
}

impl PendingActions {
    /// Adds an action. It must not call [`pending_actions`].
    pub fn add(&mut self, action: impl FnOnce() + Send + 'static) -> ActionId {
        let id = self.next_id;
        self.next_id += 1;
        self.actions.insert(id, Box::new(action));
        ActionId(id)
    }

    /// Adds an action that runs when the result is dropped, too. It must not call [`pending_actions`].
    pub fn add_cleanup(&mut self, action: impl FnOnce() + Send + 'static) -> Cleanup {
        Cleanup(self.add(action))
    }

    /// Removes an action.
    pub fn remove(&mut self, id: &ActionId) {
        self.actions.remove(&id.0);
    }

    /// Runs all actions, and removes them.
    ///
    /// ```
    /// use trueno_zram_io::interrupt::pending_actions;
    /// pending_actions().add(|| println!("cleaning up"));
    /// // In the thread that waits for signals, which exits next. The lock is held until then: no action is added any more.
    /// let mut pending = pending_actions();
    /// pending.run_all();
    /// ```
    pub fn run_all(&mut self) {
        for action in std::mem::take(&mut self.actions).into_values() {
            action();
        }
    }
}

impl std::fmt::Debug for PendingActions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PendingActions({} actions)", self.actions.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_cleanup_runs_once_unless_it_is_cancelled() {
        let runs = Arc::new(AtomicUsize::new(0));
        let cleanup = || {
            let runs = Arc::clone(&runs);
            pending_actions().add_cleanup(move || {
                runs.fetch_add(1, Ordering::Relaxed);
            })
        };
        drop(cleanup());
        assert_eq!(runs.load(Ordering::Relaxed), 1, "dropped");
        cleanup().cancel(&mut pending_actions());
        assert_eq!(runs.load(Ordering::Relaxed), 1, "cancelled");
        let both = cleanup();
        let action = pending_actions().actions.remove(&both.0.0).unwrap();
        // As a signal would.
        action();
        drop(both);
        assert_eq!(runs.load(Ordering::Relaxed), 2, "run before it is dropped");
    }
}
