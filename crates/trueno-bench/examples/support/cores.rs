//! Cores that measured threads run on, and threads that keep them awake.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::thread::{CpuSet, sched_setaffinity};

/// The cores that the handler and the VM run on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cores {
    Any,
    /// On one core each.
    Apart,
}

/// Keeps this thread, and all threads and processes that it starts, on one core. Where there is none of this number, they
/// share.
pub(crate) fn stay_on(core: usize, cores: Cores) {
    if cores == Cores::Apart {
        let mut one = CpuSet::new();
        one.set(core);
        let _ = sched_setaffinity(None, &one);
    }
}

/// Threads that keep all cores awake.
pub(crate) struct Awake {
    stop: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Awake {
    pub(crate) fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let spin = |stop: Arc<AtomicBool>| {
            move || {
                let _ = rustix::process::setpriority_process(None, 19);
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            }
        };
        let threads = (0..cores).map(|_| thread::spawn(spin(Arc::clone(&stop)))).collect();
        Self { stop, threads }
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}
