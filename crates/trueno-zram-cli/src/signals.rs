//! Signals that end the process: what must be undone first, is.

use std::collections::BTreeMap;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU, SIGXFSZ};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

/// Signals that are sent to end a process, or end it unless it knows them.
const ENDING: [i32; 9] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGALRM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU];

/// What is to be done before a signal ends the process.
static PENDING: Mutex<Pending> = Mutex::new(Pending { actions: BTreeMap::new(), next_id: 0 });

static LISTEN: Once = Once::new();

/// The actions that a signal runs before it ends the process. While this is held, no signal ends the process.
pub(crate) struct Pending {
    actions: BTreeMap<u64, Box<dyn FnOnce() + Send>>,
    next_id: u64,
}

/// Names an action, to take it back.
#[derive(Debug)]
pub(crate) struct ActionId(u64);

/// Holds signals off, to add an action or take one back together with what it is about.
pub(crate) fn hold_off() -> MutexGuard<'static, Pending> {
    LISTEN.call_once(|| {
        let (ready, is_ready) = sync_channel(1);
        // Where the thread cannot start, no handler is set either: a signal ends the process at once.
        if std::thread::Builder::new().name("signals".into()).spawn(move || listen(&ready)).is_ok() {
            let _ = is_ready.recv();
        }
    });
    // Actions stay valid whatever panicked while they were held.
    PENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has a write beyond the limit of file sizes (`ulimit -f`) fail as any other write, rather than end the process.
pub(crate) fn survive_file_limits() {
    // Nobody looks at the flag: a signal that has a handler does not end the process. Without one, it does so as before.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
}

impl Pending {
    /// Adds an action. It must not call [`hold_off`].
    pub(crate) fn add(&mut self, action: impl FnOnce() + Send + 'static) -> ActionId {
        let id = self.next_id;
        self.next_id += 1;
        self.actions.insert(id, Box::new(action));
        ActionId(id)
    }

    /// Takes an action back.
    pub(crate) fn remove(&mut self, id: &ActionId) {
        self.actions.remove(&id.0);
    }
}

/// Sets the handlers, says so, and waits for a signal.
fn listen(ready: &SyncSender<()>) {
    // A signal that was ignored when we started (nohup) stays ignored.
    let wanted = ENDING.into_iter().filter(|signal| !is_ignored(*signal));
    let signals = Signals::new(wanted);
    let _ = ready.send(());
    let Some(signal) = signals.ok().and_then(|mut signals| signals.forever().next()) else { return };
    // Never given back: no file is made or renamed any more.
    let mut pending = PENDING.lock().unwrap_or_else(PoisonError::into_inner);
    for action in std::mem::take(&mut pending.actions).into_values() {
        action();
    }
    // Ends the process by the same signal, so that a shell sees 128 + its number.
    let _ = emulate_default_handler(signal);
}

/// Whether whoever started us wants `signal` ignored, by the mask in `/proc/self/status`.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}
