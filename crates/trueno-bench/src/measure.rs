//! The one loop that times engines: all of them in turn, round after round, so that a noisy moment hits them alike.

use std::time::Duration;

use trueno_zram_core::{PAGE_SIZE, Page};

use crate::engine::{Engine, verify};
use crate::engines::Engines;
use crate::error::Result;
use crate::timing::{median, repeat};

/// A timing that is repeated at all is repeated until it has taken this long.
const LEAST_TIME: Duration = Duration::from_millis(5);

/// The most batches of a series that a round takes.
const MOST_BATCHES: usize = 32;

/// The pages of a run, and what a round does with them.
#[derive(Clone, Copy)]
pub(crate) enum Batches<'p> {
    /// All pages, once per round.
    Whole(&'p [Page]),
    /// All pages once per round, in batches of this length. Engines take turns batch by batch, so a noisy moment hits them alike.
    Pieces(&'p [Page], usize),
    /// Some batches of this length; those of the next round follow them.
    Some(&'p [Page], usize),
    /// All pages again and again until a timing is long enough. Only for GPUs, which have no branch predictors that learn them.
    #[cfg_attr(not(feature = "device"), allow(dead_code, reason = "only kernels alone are so short"))]
    Repeated(&'p [Page]),
}

impl<'p> Batches<'p> {
    fn all(self) -> std::slice::ChunksExact<'p, Page> {
        match self {
            Self::Whole(pages) | Self::Repeated(pages) => pages.chunks_exact(pages.len()),
            Self::Pieces(pages, size) | Self::Some(pages, size) => pages.chunks_exact(size.min(pages.len())),
        }
    }

    /// The batches of a round. No page is in two of them.
    fn of_round(self, round: usize) -> impl Iterator<Item = &'p [Page]> {
        let count = self.all().len();
        let most = if matches!(self, Self::Some(..)) { MOST_BATCHES.min(count) } else { count };
        self.all().cycle().skip(round * most % count).take(most)
    }
}

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
    /// Pages of a batch.
    pub(crate) pages: usize,
    /// Compressed bytes of all pages that were verified, and their number.
    pub(crate) held_bytes: u64,
    pub(crate) verified_pages: usize,
    pub(crate) compress_s: Vec<f64>,
    pub(crate) decompress_s: Vec<f64>,
    /// By direction, compress first: the stages of each round.
    stages: [Vec<Vec<(&'static str, Duration)>>; 2],
}

impl Timed<'_> {
    fn begin_round(&mut self) {
        self.compress_s.push(0.0);
        self.decompress_s.push(0.0);
    }

    /// Adds the times of a batch to the round's.
    fn take_batch(&mut self, pages: &[Page], restored: &mut [Page], least: Duration) -> Result<()> {
        let engine = &mut self.engine;
        let [compress_s, decompress_s] = [&mut self.compress_s, &mut self.decompress_s].map(|times| times.last_mut());
        let (compress_s, decompress_s) = compress_s.zip(decompress_s).expect("the round has begun");
        *compress_s += repeat(least, || engine.compress(pages))?;
        let stages = engine.stages();
        *decompress_s += repeat(least, || engine.decompress(restored))?;
        // Of a series of batches, the last one's.
        let rounds = self.compress_s.len();
        for (direction, stages) in [stages, engine.stages()].into_iter().enumerate() {
            self.stages[direction].resize(rounds, Vec::new());
            self.stages[direction][rounds - 1] = stages;
        }
        Ok(())
    }

    fn end_round(&mut self, batches: usize) {
        for times in [&mut self.compress_s, &mut self.decompress_s] {
            *times.last_mut().expect("the round has begun") /= batches as f64;
        }
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
    batches: Batches<'_>,
    rounds: usize,
    observer: &dyn Observer,
) -> Result<Vec<Timed<'a>>> {
    let mut timed = Vec::new();
    let (several, pages) = (batches.all().len() > 1, batches.all().next().map_or(0, <[Page]>::len));
    for mut engine in engines {
        let mut held_bytes = 0;
        for batch in batches.all() {
            verify(engine.as_mut(), batch)?;
            held_bytes += engine.held_bytes()?;
        }
        let (compress_s, decompress_s, stages) = (Vec::new(), Vec::new(), [Vec::new(), Vec::new()]);
        timed.push(Timed {
            engine,
            pages,
            held_bytes,
            verified_pages: pages * batches.all().len(),
            compress_s,
            decompress_s,
            stages,
        });
        observer.step()?;
    }
    let least = if matches!(batches, Batches::Repeated(_)) { LEAST_TIME } else { Duration::ZERO };
    let mut restored = vec![[0; PAGE_SIZE]; pages];
    for round in 0..rounds {
        timed.iter_mut().for_each(Timed::begin_round);
        let of_round: Vec<&[Page]> = batches.of_round(round).collect();
        let (count, engines) = (of_round.len(), timed.len());
        for step in 0..count {
            for (number, timed) in timed.iter_mut().enumerate() {
                // Engines may share a decoder: each is at other pages, so that none learns them from the one before it.
                let batch = of_round[(step + number * count / engines) % count];
                if several {
                    timed.engine.load(batch)?;
                }
                timed.take_batch(batch, &mut restored, least)?;
            }
        }
        for timed in &mut timed {
            timed.end_round(count);
            observer.step()?;
        }
    }
    Ok(timed)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::corpora::{load, mix};

    /// Keeps the pages, and notes which it was given.
    struct Recorder<'a> {
        held: Vec<Page>,
        given: &'a RefCell<Vec<Page>>,
    }

    impl Engine for Recorder<'_> {
        fn name(&self) -> &str {
            "recorder"
        }

        fn threads(&self) -> usize {
            1
        }

        fn compress(&mut self, pages: &[Page]) -> Result<Duration> {
            self.held = pages.to_vec();
            self.given.borrow_mut().extend(pages);
            Ok(Duration::from_nanos(1))
        }

        fn held_bytes(&self) -> Result<u64> {
            Ok(self.held.as_flattened().len() as u64)
        }

        fn decompress(&mut self, pages: &mut [Page]) -> Result<Duration> {
            pages.copy_from_slice(&self.held);
            Ok(Duration::from_nanos(1))
        }
    }

    /// Ends every round with an empty list of given pages, after it has checked them.
    struct Distinct<'a> {
        given: &'a RefCell<Vec<Page>>,
        rounds: RefCell<Vec<usize>>,
    }

    impl Observer for Distinct<'_> {
        fn step(&self) -> Result<()> {
            let mut pages = std::mem::take(&mut *self.given.borrow_mut());
            let count = pages.len();
            pages.sort_unstable();
            pages.dedup();
            assert_eq!(pages.len(), count, "a page comes twice in a round");
            self.rounds.borrow_mut().push(count);
            Ok(())
        }
    }

    /// Returns how many pages each round takes, the verification first.
    fn pages_of_rounds(batches: Batches<'_>) -> Vec<usize> {
        let given = RefCell::new(Vec::new());
        let observer = Distinct { given: &given, rounds: RefCell::new(Vec::new()) };
        let engines: Engines<'_> = vec![Box::new(Recorder { held: Vec::new(), given: &given })];
        let timed = measure(engines, batches, 3, &observer).unwrap();
        assert_eq!([timed[0].compress_s.len(), timed[0].stages[1].len()], [3, 3]);
        observer.rounds.into_inner()
    }

    #[test]
    fn no_page_comes_twice_in_a_round() {
        let corpora = load(&[], 400).unwrap();
        let pages = mix(&corpora, 3000).unwrap();
        assert_eq!(pages_of_rounds(Batches::Whole(&pages)), [3000; 4]);
        assert_eq!(pages_of_rounds(Batches::Pieces(&pages, 64)), [2944; 4]);
        assert_eq!(pages_of_rounds(Batches::Some(&pages, 16)), [2992, 512, 512, 512]);
        assert_eq!(pages_of_rounds(Batches::Some(&pages, 1000)), [3000; 4]);
    }

    #[test]
    fn rounds_of_a_series_go_on_where_the_last_one_ended() {
        let pages = mix(&load(&[], 400).unwrap(), 2000).unwrap();
        let firsts = |round| Batches::Some(&pages, 16).of_round(round).next().unwrap()[0];
        assert_eq!([firsts(0), firsts(1), firsts(2)], [pages[0], pages[512], pages[1024]]);
    }
}
