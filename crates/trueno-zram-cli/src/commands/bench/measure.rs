//! All engines on one corpus, in turn, round after round, so that a noisy moment hits them alike.

use std::num::NonZeroUsize;
use std::time::Duration;

use trueno_bench_engines::timing::{bytes_of, gbps, median, paired_quotient, repeat};
use trueno_bench_engines::{BatchEngine, Corpus, verify};
use trueno_zram_core::{PAGE_SIZE, Page};

use super::document::{Quotient, Row, Run};
use super::interrupt::Watch;
use super::lineup::Lineup;
use super::measured;
use crate::failure::Failure;

/// A timing is repeated until it has taken this long.
const LEAST_TIME: Duration = Duration::from_millis(5);

/// An engine and its timings, one a round.
pub(crate) struct Timed<'a> {
    pub(crate) engine: Box<dyn BatchEngine + 'a>,
    pub(crate) compress_s: Vec<f64>,
    pub(crate) decompress_s: Vec<f64>,
    /// By direction (compress first): stages of each round, where the engine knows them.
    pub(crate) stages: [Vec<Vec<(&'static str, Duration)>>; 2],
}

impl<'a> Timed<'a> {
    /// An engine that was seen to restore the pages.
    pub(crate) fn verified(mut engine: Box<dyn BatchEngine + 'a>, pages: &[Page]) -> Result<Self, Failure> {
        verify(engine.as_mut(), pages).map_err(measured)?;
        Ok(Self { engine, compress_s: Vec::new(), decompress_s: Vec::new(), stages: [Vec::new(), Vec::new()] })
    }

    /// One timing each way.
    pub(crate) fn round(&mut self, pages: &[Page], restored: &mut [Page]) -> Result<(), Failure> {
        let engine = &mut self.engine;
        self.compress_s.push(repeat(LEAST_TIME, || engine.compress(pages)).map_err(measured)?);
        self.stages[0].push(engine.stages());
        self.decompress_s.push(repeat(LEAST_TIME, || engine.decompress(restored)).map_err(measured)?);
        self.stages[1].push(engine.stages());
        Ok(())
    }

    /// Median nanoseconds a page for each stage of a direction.
    pub(crate) fn stage_medians(&self, direction: usize, pages: usize) -> Vec<(&'static str, f64)> {
        let rounds = &self.stages[direction];
        let names = rounds.first().map(|stages| stages.iter().map(|(name, _)| *name).collect()).unwrap_or_default();
        let of_stage = |name: &'static str| {
            let found = rounds.iter().flatten().filter(|(stage, _)| *stage == name);
            let ns: Vec<f64> = found.map(|(_, time)| time.as_secs_f64() * 1e9 / pages as f64).collect();
            (name, median(&ns))
        };
        Vec::into_iter(names).map(of_stage).collect()
    }
}

/// Rows and quotients of a corpus: on one thread, and on all.
pub(crate) fn side_by_side(
    lineup: &Lineup,
    corpus: &Corpus,
    run: Run,
    watch: &Watch,
) -> Result<(Vec<Row>, Vec<Quotient>), Failure> {
    let pages = corpus.copies(run.pages);
    let mut restored = vec![[0; PAGE_SIZE]; pages.len()];
    let mut thread_counts = vec![NonZeroUsize::MIN, run.threads];
    thread_counts.dedup();
    let (mut rows, mut quotients) = (Vec::new(), Vec::new());
    for threads in thread_counts {
        let mut engines = lineup.cpu(threads, pages.len()).map_err(measured)?;
        if threads == run.threads {
            engines.extend(lineup.on_gpu(pages.len()).map_err(measured)?);
        }
        watch.say(format!("{}, {threads} thread(s)", corpus.name));
        let mut timed = Vec::new();
        for engine in engines {
            timed.push(Timed::verified(engine, &pages)?);
            watch.step()?;
        }
        for _ in 0..run.rounds {
            for timed in &mut timed {
                timed.round(&pages, &mut restored)?;
                watch.step()?;
            }
        }
        for engine in &timed {
            let (row, quotient) = figures(engine, &timed[0], corpus, pages.len())?;
            rows.push(row);
            quotients.push(quotient);
        }
    }
    Ok((rows, quotients))
}

fn figures(timed: &Timed<'_>, bar: &Timed<'_>, corpus: &Corpus, pages: usize) -> Result<(Row, Quotient), Failure> {
    let (held, bar_held) = (timed.engine.held_bytes(), bar.engine.held_bytes());
    let (held, bar_held) = (held.map_err(measured)? as f64, bar_held.map_err(measured)? as f64);
    let len_bytes = bytes_of(pages);
    let row = Row {
        corpus: corpus.name.clone(),
        engine: timed.engine.name().to_owned(),
        threads: timed.engine.threads(),
        pages,
        same_filled: corpus.same_filled,
        ratio: len_bytes as f64 / held,
        compress_gbps: gbps(len_bytes, &timed.compress_s),
        decompress_gbps: gbps(len_bytes, &timed.decompress_s),
    };
    let quotient = Quotient {
        corpus: row.corpus.clone(),
        engine: row.engine.clone(),
        threads: row.threads,
        bar_threads: bar.engine.threads(),
        ratio: bar_held / held,
        compress: paired_quotient(&bar.compress_s, &timed.compress_s),
        decompress: paired_quotient(&bar.decompress_s, &timed.decompress_s),
    };
    Ok((row, quotient))
}
