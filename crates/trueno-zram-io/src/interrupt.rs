//! Actions to run before a signal ends the process: temporary files are removed, stopped processes continue.
//!
//! The crate handles no signals. A program that does calls [`hold_off`] and then [`Pending::run_all`] before it exits.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

static PENDING: Mutex<Pending> = Mutex::new(Pending { actions: BTreeMap::new(), next_id: 0 });

/// The registered actions. While this is locked, no other thread can run them.
pub struct Pending {
    actions: BTreeMap<u64, Box<dyn FnOnce() + Send>>,
    next_id: u64,
}

/// Identifies an action, to remove it.
#[derive(Debug)]
pub struct ActionId(u64);

/// Locks the actions, to change them together with whatever they are about.
///
/// ```
/// use trueno_zram_io::interrupt::hold_off;
/// let id = hold_off().add(|| println!("cleaning up"));
/// hold_off().remove(&id);
/// ```
pub fn hold_off() -> MutexGuard<'static, Pending> {
    // The actions are consistent even after a panic.
    PENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pending {
    /// Adds an action. It must not call [`hold_off`].
    pub fn add(&mut self, action: impl FnOnce() + Send + 'static) -> ActionId {
        let id = self.next_id;
        self.next_id += 1;
        self.actions.insert(id, Box::new(action));
        ActionId(id)
    }

    /// Removes an action.
    pub fn remove(&mut self, id: &ActionId) {
        self.actions.remove(&id.0);
    }

    /// Runs all actions, and removes them.
    pub fn run_all(&mut self) {
        for action in std::mem::take(&mut self.actions).into_values() {
            action();
        }
    }
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pending({} actions)", self.actions.len())
    }
}
