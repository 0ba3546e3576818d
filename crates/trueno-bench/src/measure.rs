//! The one loop that times engines: all of them in turn, round after round, so that a noisy moment hits them alike.

use std::time::Duration;

use trueno_zram_core::{PAGE_SIZE, Page};

use crate::engine::{Engine, verify};
use crate::engines::Engines;
use crate::error::Result;
use crate::timing::{median, repeat};

/// A timing is repeated until it has taken this long.
pub(crate) const LEAST_TIME: Duration = Duration::from_millis(5);

/// Follows a run, and may stop it.
///
/// ```
/// struct Lines;
///
/// impl trueno_bench::Observer for Lines {
///     fn begin(&self, what: &str) {
///         eprintln!("measuring {what}");
///     }
/// }
/// ```
pub trait Observer {
    /// A part of the run begins.
    fn begin(&self, _what: &str) {}

    /// One round of one engine is done.
    ///
    /// # Errors
    /// Ends the run.
    fn step(&self) -> Result<()> {
        Ok(())
    }
}

impl Observer for () {}

/// An engine and its timings, one per round.
pub(crate) struct Timed<'a> {
    pub(crate) engine: Box<dyn Engine + 'a>,
    pub(crate) pages: usize,
    pub(crate) compress_s: Vec<f64>,
    pub(crate) decompress_s: Vec<f64>,
    /// By direction, compress first: the stages of each round.
    stages: [Vec<Vec<(&'static str, Duration)>>; 2],
}

impl Timed<'_> {
    fn round(&mut self, pages: &[Page], restored: &mut [Page]) -> Result<()> {
        let engine = &mut self.engine;
        self.compress_s.push(repeat(LEAST_TIME, || engine.compress(pages))?);
        self.stages[0].push(engine.stages());
        self.decompress_s.push(repeat(LEAST_TIME, || engine.decompress(restored))?);
        self.stages[1].push(engine.stages());
        Ok(())
    }

    /// Median nanoseconds per page of each stage; direction 0 is compression.
    pub(crate) fn stage_medians(&self, direction: usize) -> Vec<(&'static str, f64)> {
        let rounds = &self.stages[direction];
        let of_stage = |(name, _): &(&'static str, Duration)| {
            let found = rounds.iter().flatten().filter(|(stage, _)| stage == name);
            let ns: Vec<f64> = found.map(|(_, time)| time.as_secs_f64() * 1e9 / self.pages as f64).collect();
            (*name, median(&ns))
        };
        rounds.first().map_or_else(Vec::new, |stages| stages.iter().map(of_stage).collect())
    }
}

/// Checks that every engine restores the pages, and times all of them.
pub(crate) fn measure<'a>(
    engines: Engines<'a>,
    pages: &[Page],
    rounds: usize,
    observer: &dyn Observer,
) -> Result<Vec<Timed<'a>>> {
    let mut timed = Vec::new();
    for mut engine in engines {
        verify(engine.as_mut(), pages)?;
        let (compress_s, decompress_s, stages) = (Vec::new(), Vec::new(), [Vec::new(), Vec::new()]);
        timed.push(Timed { engine, pages: pages.len(), compress_s, decompress_s, stages });
        observer.step()?;
    }
    let mut restored = vec![[0; PAGE_SIZE]; pages.len()];
    for _ in 0..rounds {
        for timed in &mut timed {
            timed.round(pages, &mut restored)?;
            observer.step()?;
        }
    }
    Ok(timed)
}
