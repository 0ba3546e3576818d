//! How speed grows with the batch and with threads, over the pages of all corpora mixed; and where the GPU overtakes.

use std::num::NonZeroUsize;

use trueno_bench_engines::timing::{bytes_of, gbps};
use trueno_bench_engines::{BatchEngine, CLz4, Corpus, Memcpy, Pooled, TruenoCpu};
use trueno_zram_core::{PAGE_SIZE, Page};

use super::document::{Along, Crossing, Direction, Point, Run, Stage};
use super::gpu;
use super::interrupt::Watch;
use super::lineup::Lineup;
use super::measure::Timed;
use super::{measured, stages};
use crate::failure::Failure;

/// The smallest batch: what one thread takes at a time.
const LEAST_BATCH_PAGES: usize = 16;
/// Rounds at most: there are many points.
const MOST_ROUNDS: usize = 5;

/// Pages of all corpora in turn, `count` in all, so that every part of them is a mixture.
pub(crate) fn mix(corpora: &[Corpus], count: usize) -> Vec<Page> {
    let longest = corpora.iter().map(|corpus| corpus.pages.len()).max().unwrap_or(0);
    let in_turn = (0..longest).flat_map(|i| corpora.iter().map(move |corpus| corpus.pages[i % corpus.pages.len()]));
    in_turn.collect::<Vec<_>>().into_iter().cycle().take(count).collect()
}

/// About how many steps [`measure`] and the stages have.
pub(crate) fn steps(threads: NonZeroUsize, rounds: usize) -> usize {
    let rounds = rounds.min(MOST_ROUNDS);
    let batches = 6;
    rounds * (2 * batches + 3 * thread_counts(threads).len()) + rounds
}

/// Both series, and the stages of the GPU's largest batch.
pub(crate) fn measure(
    lineup: &Lineup,
    pages: &[Page],
    run: Run,
    watch: &Watch,
) -> Result<(Vec<Point>, Vec<Stage>), Failure> {
    let rounds = run.rounds.min(MOST_ROUNDS);
    let mut restored = vec![[0; PAGE_SIZE]; pages.len()];
    let (mut points, mut gpu_stages) = (Vec::new(), Vec::new());

    let mut runs = Vec::new();
    for size in batch_sizes(pages.len()) {
        let pool = Pooled::pool(run.threads).map_err(measured)?;
        let mut engines: Vec<Box<dyn BatchEngine + '_>> = vec![
            Box::new(TruenoCpu::new(run.threads).map_err(measured)?),
            Box::new(Pooled::new(&pool, || Ok(CLz4::new())).map_err(measured)?),
        ];
        engines.extend(lineup.on_gpu(size).map_err(measured)?);
        runs.push((size, verified(engines, &pages[..size])?));
    }
    watch.say("batch sizes".into());
    for _ in 0..rounds {
        for (size, timed) in &mut runs {
            for timed in timed {
                timed.round(&pages[..*size], &mut restored[..*size])?;
                watch.step()?;
            }
        }
    }
    for (size, timed) in &runs {
        points.extend(timed.iter().map(|timed| point(timed, Along::Batch, *size)));
    }
    if let Some((size, timed)) = runs.last() {
        gpu_stages.extend(timed.iter().flat_map(|timed| stages::of_engine(timed, *size)));
    }
    drop(runs);

    let mut runs = Vec::new();
    for threads in thread_counts(run.threads) {
        let pool = Pooled::pool(threads).map_err(measured)?;
        let engines: Vec<Box<dyn BatchEngine>> = vec![
            Box::new(TruenoCpu::new(threads).map_err(measured)?),
            Box::new(Pooled::new(&pool, || Ok(CLz4::new())).map_err(measured)?),
            Box::new(Memcpy::new(&pool)),
        ];
        runs.push(verified(engines, pages)?);
    }
    watch.say("threads".into());
    for _ in 0..rounds {
        for timed in runs.iter_mut().flatten() {
            timed.round(pages, &mut restored)?;
            watch.step()?;
        }
    }
    points.extend(runs.iter().flatten().map(|timed| point(timed, Along::Threads, pages.len())));
    Ok((points, gpu_stages))
}

fn verified<'a>(engines: Vec<Box<dyn BatchEngine + 'a>>, pages: &[Page]) -> Result<Vec<Timed<'a>>, Failure> {
    engines.into_iter().map(|engine| Timed::verified(engine, pages)).collect()
}

fn point(timed: &Timed<'_>, along: Along, pages: usize) -> Point {
    Point {
        along,
        engine: timed.engine.name().to_owned(),
        threads: timed.engine.threads(),
        pages,
        compress_gbps: gbps(bytes_of(pages), &timed.compress_s),
        decompress_gbps: gbps(bytes_of(pages), &timed.decompress_s),
    }
}

/// Fourfold steps up to `most`, which is the last.
fn batch_sizes(most: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = std::iter::successors(Some(LEAST_BATCH_PAGES), |size| size.checked_mul(4))
        .take_while(|size| *size < most)
        .collect();
    sizes.push(most);
    sizes
}

/// Twofold steps up to `most`, which is the last.
fn thread_counts(most: NonZeroUsize) -> Vec<NonZeroUsize> {
    let two = NonZeroUsize::MIN.saturating_add(1);
    let doubled = |threads: &NonZeroUsize| threads.checked_mul(two);
    let mut counts: Vec<NonZeroUsize> =
        std::iter::successors(Some(NonZeroUsize::MIN), doubled).take_while(|threads| *threads < most).collect();
    counts.push(most);
    counts
}

/// Where the GPU overtakes the CPU and stays ahead; none without a GPU.
pub(crate) fn crossing(points: &[Point], lineup: &Lineup) -> Option<Crossing> {
    lineup.gpu.why_absent().is_none().then(|| Crossing {
        compress_pages: overtakes(points, Direction::Compress),
        decompress_pages: overtakes(points, Direction::Decompress),
    })
}

fn overtakes(points: &[Point], direction: Direction) -> Option<usize> {
    let of_engine =
        |engine: &'static str| points.iter().filter(move |point| point.along == Along::Batch && point.engine == engine);
    let pairs = of_engine(gpu::NAME).zip(of_engine("trueno-cpu")).collect::<Vec<_>>();
    let ahead = pairs.iter().rev().take_while(|(gpu, cpu)| gpu.gbps(direction) > cpu.gbps(direction));
    ahead.last().map(|(gpu, _)| gpu.pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_end_at_their_most() {
        assert_eq!(batch_sizes(8192), [16, 64, 256, 1024, 4096, 8192]);
        assert_eq!(batch_sizes(4096), [16, 64, 256, 1024, 4096]);
        assert_eq!(batch_sizes(5), [5]);
        let counts =
            |most| thread_counts(NonZeroUsize::new(most).unwrap()).into_iter().map(NonZeroUsize::get).collect();
        assert_eq!([counts(1), counts(2), counts(6)] as [Vec<usize>; 3], [vec![1], vec![1, 2], vec![1, 2, 4, 6]]);
    }

    #[test]
    fn the_crossing_is_where_the_gpu_stays_ahead() {
        let point = |engine: &str, pages, compress_gbps| Point {
            along: Along::Batch,
            engine: engine.into(),
            threads: 1,
            pages,
            compress_gbps,
            decompress_gbps: 1.0,
        };
        let series = |engine: &str, speeds: [f64; 4]| {
            let sizes = [16, 64, 256, 1024].into_iter().zip(speeds);
            sizes.map(|(pages, gbps)| point(engine, pages, gbps)).collect::<Vec<_>>()
        };
        let points = [series("trueno-cpu", [2.0, 3.0, 3.0, 3.0]), series(gpu::NAME, [2.5, 1.0, 5.0, 9.0])].concat();
        assert_eq!(overtakes(&points, Direction::Compress), Some(256));
        assert_eq!(overtakes(&points, Direction::Decompress), None);
    }
}
