//! The progress line: bytes, speed, ratio and remaining time on a terminal, and nothing anywhere else.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use trueno_zram_io::{Observer, Stage, Timeline};

use crate::args::Global;
use crate::print::{messages, printable::printable};

/// Work that takes less time has no bar.
const QUIET_MS: u64 = 300;

/// Time between two updates of the bar.
const PACE_MS: u64 = 50;

/// The progress line of one file.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    start: Instant,
    /// When the bar is to be moved next, in milliseconds from the start.
    next_ms: AtomicU64,
    stages: Stages,
}

/// The time of all threads per stage, for `-vv`.
#[derive(Debug, Default)]
pub(crate) struct Stages {
    timeline: Timeline,
}

impl Stages {
    /// Prints the line under `-vv`.
    pub(crate) fn print(&self, global: &Global) {
        if global.verbose > 1 {
            messages::line(format_args!("time of all threads: {}", self.timeline));
        }
    }
}

impl Observer for Stages {
    fn spent(&self, stage: Stage, time: Duration) {
        self.timeline.spent(stage, time);
    }
}

impl Progress {
    /// Starts on a file of `total_bytes`, if that is known.
    pub(crate) fn start(global: &Global, name: &str, total_bytes: Option<u64>) -> Self {
        let bar = ProgressBar::hidden();
        let next_ms = AtomicU64::new(QUIET_MS);
        let progress = Self { bar, start: Instant::now(), next_ms, stages: Stages::default() };
        progress.bar.set_prefix(short_name(&printable(name), columns()));
        progress.set_total(total_bytes);
        if !global.quiet {
            // Draws on a terminal alone.
            progress.bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
        }
        progress
    }

    /// Sets the number of bytes that are expected, once it is known.
    fn set_total(&self, total_bytes: Option<u64>) {
        let template = template(columns(), total_bytes.is_some());
        let style = ProgressStyle::with_template(template).expect("the templates are well-formed");
        self.bar.set_style(style.progress_chars("=> "));
        match total_bytes {
            Some(total_bytes) => self.bar.set_length(total_bytes),
            None => self.bar.unset_length(),
        }
    }

    /// Shows how many bytes of content are done, and how many bytes hold them.
    fn update(&self, content_bytes: u64, compressed_bytes: u64) {
        let now_ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        if now_ms < self.next_ms.load(Ordering::Relaxed) {
            return;
        }
        self.next_ms.store(now_ms.saturating_add(PACE_MS), Ordering::Relaxed);
        self.bar.set_message(format!("ratio {:.2}", content_bytes as f64 / compressed_bytes.max(1) as f64));
        self.bar.set_position(content_bytes);
    }

    /// Takes the bar away and prints the stages under `-vv`. Returns the time that the user has waited for the file.
    pub(crate) fn finish(self, global: &Global) -> Duration {
        let time = global.stopwatch.lap();
        self.bar.finish_and_clear();
        self.stages.print(global);
        time
    }
}

/// Narrower terminals get a shorter line.
const WIDE_COLUMNS: usize = 72;

/// Columns of the terminal that the line is drawn on.
fn columns() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stderr());
    size.ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0).unwrap_or(WIDE_COLUMNS)
}

/// The line: all of it where there is room, else how much is done and how fast.
fn template(columns: usize, total_is_known: bool) -> &'static str {
    match (columns >= WIDE_COLUMNS, total_is_known) {
        (true, true) => {
            "{prefix:.bold} {wide_bar} {percent:>3}% {bytes}/{total_bytes} {binary_bytes_per_sec} {msg} eta {eta}"
        }
        (true, false) => "{prefix:.bold} {spinner} {bytes} {binary_bytes_per_sec} {msg} {elapsed}",
        (false, true) => "{prefix:.bold} {percent:>3}% {binary_bytes_per_sec}",
        (false, false) => "{prefix:.bold} {bytes} {binary_bytes_per_sec}",
    }
}

/// The end of a name that leaves half of the line to the figures.
fn short_name(name: &str, columns: usize) -> String {
    let most = (columns / 2).saturating_sub(4).max(8);
    if name.chars().count() <= most {
        return name.to_owned();
    }
    let start: String = name.chars().take(most - 3).collect();
    start + "..."
}

impl Observer for Progress {
    fn total(&self, content_bytes: Option<u64>) {
        self.set_total(content_bytes);
    }

    fn progress(&self, content_bytes: u64, archive_bytes: u64) {
        self.update(content_bytes, archive_bytes);
    }

    fn spent(&self, stage: Stage, time: Duration) {
        self.stages.spent(stage, time);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
