//! Progress of a run, and its end by a signal: what was added to the kernel is removed first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use trueno_bench::{Error, Observer};

use crate::args::Global;
use crate::failure::Failure;
use crate::signals;

/// A round of an engine that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// Shows the parts of a run, and stops it after a signal.
#[derive(Debug)]
pub(crate) struct Watch {
    bar: ProgressBar,
    stop: Arc<AtomicBool>,
}

impl Watch {
    pub(crate) fn start(global: &Global, parts: usize) -> Self {
        let bar = ProgressBar::hidden();
        let style = ProgressStyle::with_template("{prefix:.bold} {wide_bar} {pos}/{len} {msg}");
        bar.set_style(style.expect("the template is well-formed").progress_chars("=> "));
        bar.set_prefix("bench");
        bar.set_length(parts as u64);
        if !global.quiet {
            // Draws only on a terminal.
            bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
        }
        Self { bar, stop: Arc::default() }
    }

    /// Runs the work. A signal waits for its end: devices in the kernel would outlive the process.
    pub(crate) fn guard<T>(&self, work: impl FnOnce(&Self) -> Result<T, Failure>) -> Result<T, Failure> {
        let (working, done) = channel::<()>();
        let stop = Arc::clone(&self.stop);
        let action = signals::hold_off().add(move || {
            stop.store(true, Ordering::Relaxed);
            // The work ends and drops the sender, or takes too long.
            let _ = done.recv_timeout(PATIENCE);
        });
        let result = work(self);
        self.bar.finish_and_clear();
        drop(working);
        // After a signal, this waits for the end of the process.
        signals::hold_off().remove(&action);
        result
    }
}

impl Observer for Watch {
    fn begin(&self, what: &str) {
        self.bar.inc(1);
        self.bar.set_message(what.to_owned());
    }

    fn step(&self) -> trueno_bench::Result<()> {
        self.bar.tick();
        if self.stop.load(Ordering::Relaxed) { Err(Error::Stopped) } else { Ok(()) }
    }
}
