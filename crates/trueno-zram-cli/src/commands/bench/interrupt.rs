//! How far the run is, and its end by a signal: what was set up in the kernel is taken down first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::args::Global;
use crate::failure::Failure;
use crate::signals;

/// One round of one engine takes less than this, or hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// Shows the steps of a run, and notices a signal between two of them.
#[derive(Debug)]
pub(crate) struct Watch {
    bar: ProgressBar,
    stop: Arc<AtomicBool>,
}

impl Watch {
    pub(crate) fn start(global: &Global, steps: usize) -> Self {
        let bar = ProgressBar::hidden();
        let style = ProgressStyle::with_template("{prefix:.bold} {wide_bar} {percent:>3}% {msg} eta {eta}");
        bar.set_style(style.expect("the template is well-formed").progress_chars("=> "));
        bar.set_prefix("bench");
        bar.set_length(steps as u64);
        if !global.quiet {
            // Draws on a terminal alone.
            bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
        }
        Self { bar, stop: Arc::default() }
    }

    /// Runs the work. A signal waits for its end: devices in the kernel outlive the process if they are not removed.
    pub(crate) fn guard<T>(&self, work: impl FnOnce(&Self) -> Result<T, Failure>) -> Result<T, Failure> {
        let (working, done) = channel::<()>();
        let stop = Arc::clone(&self.stop);
        let action = signals::hold_off().add(move || {
            stop.store(true, Ordering::Relaxed);
            // It answers by going away, or takes too long.
            let _ = done.recv_timeout(PATIENCE);
        });
        let result = work(self);
        self.bar.finish_and_clear();
        drop(working);
        // After a signal, this waits for the end of the process.
        signals::hold_off().remove(&action);
        result
    }

    /// Says what comes next.
    pub(crate) fn say(&self, what: String) {
        self.bar.set_message(what);
    }

    /// One more step is done; an error if that was the last.
    pub(crate) fn step(&self) -> Result<(), Failure> {
        self.bar.inc(1);
        match self.stop.load(Ordering::Relaxed) {
            true => Err(Failure::at("bench", "stopped by a signal")),
            false => Ok(()),
        }
    }
}
