//! Whether a GPU makes a stream faster than the CPU alone, by the speed of the stream itself.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::ordered::lock;

/// Time over which the stream's speed is measured.
const WINDOW: Duration = Duration::from_millis(10);

/// Content that lanes have to have done themselves before their speed counts.
const MIN_HELPED_BYTES: u64 = 4 << 20;

/// How much faster the CPU alone has to look. The estimate ignores that lanes compete for memory.
const CLEARLY: f64 = 1.1;

/// Chooses between a GPU with lanes that help it, and lanes alone.
///
/// Lanes that help know how long they take for their own pages. If all lanes, at that speed, are faster than the stream was
/// over the last windows, the GPU gets no more slots. Should the stream be slower without it, that was wrong, and the GPU is
/// used to the end.
#[derive(Debug)]
pub(crate) struct Choice {
    lanes: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    mode: Mode,
    done_bytes: u64,
    helped_bytes: u64,
    helped_time: Duration,
    /// The window that is being measured.
    window: Option<Window>,
    /// The stream's speed with the GPU, in bytes per second.
    gpu_rate: f64,
    /// Windows in a row in which the CPU looked faster.
    doubts: u32,
}

#[derive(Clone, Copy, Debug)]
struct Window {
    start: Instant,
    done_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Gpu,
    /// Without the GPU, for this number of windows so far.
    Cpu(u32),
    /// The GPU was tried without, and is faster.
    Settled,
}

impl Choice {
    pub(crate) fn new(lanes: usize) -> Self {
        let state = State {
            mode: Mode::Gpu,
            done_bytes: 0,
            helped_bytes: 0,
            helped_time: Duration::ZERO,
            window: None,
            gpu_rate: 0.0,
            doubts: 0,
        };
        Self { lanes, state: Mutex::new(state) }
    }

    /// Counts content that a lane did without the GPU, and its time for it.
    pub(crate) fn helped(&self, bytes: u64, time: Duration) {
        let mut state = lock(&self.state);
        state.helped_bytes += bytes;
        state.helped_time += time;
    }

    /// Counts content that is done. Returns nothing; ask [`uses_gpu`](Self::uses_gpu) for the consequences.
    pub(crate) fn done(&self, bytes: u64, now: Instant) {
        let mut state = lock(&self.state);
        state.done_bytes += bytes;
        let Some(window) = state.window else {
            state.window = Some(Window { start: now, done_bytes: state.done_bytes });
            return;
        };
        let elapsed = now.saturating_duration_since(window.start);
        if elapsed >= WINDOW {
            let rate = (state.done_bytes - window.done_bytes) as f64 / elapsed.as_secs_f64();
            state.window = Some(Window { start: now, done_bytes: state.done_bytes });
            state.judge(rate, self.lanes);
        }
    }

    /// Whether the GPU gets more slots.
    pub(crate) fn uses_gpu(&self) -> bool {
        !matches!(lock(&self.state).mode, Mode::Cpu(_))
    }

    /// Whether the speed of lanes is known.
    pub(crate) fn knows_lanes(&self) -> bool {
        lock(&self.state).helped_bytes >= MIN_HELPED_BYTES
    }
}

impl State {
    /// Takes the stream's speed over a window into account.
    fn judge(&mut self, rate: f64, lanes: usize) {
        match self.mode {
            Mode::Settled => {}
            Mode::Gpu => {
                self.gpu_rate = if self.gpu_rate == 0.0 { rate } else { (self.gpu_rate + rate) / 2.0 };
                let helped_s = self.helped_time.as_secs_f64();
                let is_known = self.helped_bytes >= MIN_HELPED_BYTES && helped_s > 0.0;
                let lanes_rate = lanes as f64 * self.helped_bytes as f64 / helped_s;
                self.doubts = if is_known && lanes_rate > CLEARLY * self.gpu_rate { self.doubts + 1 } else { 0 };
                // The first windows include the allocation of slots.
                if self.doubts >= 3 {
                    self.mode = Mode::Cpu(0);
                }
            }
            // Slots that were on their way count as the lanes' work in the first window.
            Mode::Cpu(windows) if windows < 2 => self.mode = Mode::Cpu(windows + 1),
            Mode::Cpu(_) if rate < self.gpu_rate => self.mode = Mode::Settled,
            Mode::Cpu(windows) => self.mode = Mode::Cpu(windows.saturating_add(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Lets the stream run for a number of windows at a speed, in MiB per window.
    fn run(choice: &Choice, now: &mut Instant, windows: u32, mib: u64) {
        for _ in 0..windows {
            *now += WINDOW;
            choice.done(mib * MIB, *now);
        }
    }

    #[test]
    fn a_gpu_that_is_slower_than_the_lanes_is_left_out() {
        let (choice, mut now) = (Choice::new(4), Instant::now());
        choice.done(0, now);
        // Each lane does 100 MiB per window: all of them 400.
        choice.helped(100 * MIB, WINDOW);
        run(&choice, &mut now, 6, 200);
        assert!(!choice.uses_gpu());
        run(&choice, &mut now, 20, 390);
        assert!(!choice.uses_gpu());
    }

    #[test]
    fn a_gpu_that_is_faster_stays() {
        let (choice, mut now) = (Choice::new(4), Instant::now());
        choice.done(0, now);
        choice.helped(100 * MIB, WINDOW);
        run(&choice, &mut now, 50, 500);
        assert!(choice.uses_gpu());
    }

    #[test]
    fn a_wrong_estimate_is_taken_back() {
        let (choice, mut now) = (Choice::new(4), Instant::now());
        choice.done(0, now);
        choice.helped(100 * MIB, WINDOW);
        run(&choice, &mut now, 6, 200);
        assert!(!choice.uses_gpu());
        // Together the lanes are slower than their estimate, and slower than the GPU.
        run(&choice, &mut now, 6, 150);
        assert!(choice.uses_gpu());
        run(&choice, &mut now, 20, 200);
        assert!(choice.uses_gpu(), "and stays");
    }

    #[test]
    fn without_help_nothing_is_known() {
        let (choice, mut now) = (Choice::new(4), Instant::now());
        choice.done(0, now);
        assert!(!choice.knows_lanes());
        run(&choice, &mut now, 20, 1);
        assert!(choice.uses_gpu());
    }
}
