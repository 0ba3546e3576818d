//! Speed by batch size and by threads, over the pages of all corpora mixed.

use std::num::NonZeroUsize;

use trueno_zram_core::Page;

use crate::document::{Along, Crossing, Direction, Point, Stage};
use crate::engines::cpu::TRUENO_CPU;
use crate::engines::{Engines, TRUENO_GPU};
use crate::error::Result;
use crate::measure::{Batches, Observer, Timed, measure};

/// The smallest batch: what one thread takes at a time.
const LEAST_BATCH_PAGES: usize = 16;
/// The most rounds: there are many points.
pub(crate) const MOST_ROUNDS: usize = 5;

/// A series over batches, and the stages that engines name on the largest.
pub(crate) fn by_batch<'a>(
    sizes: &[usize],
    pages: &[Page],
    rounds: usize,
    observer: &dyn Observer,
    engines: impl Fn(usize) -> Result<Engines<'a>>,
) -> Result<(Vec<Point>, Vec<Stage>)> {
    let (mut points, mut stages) = (Vec::new(), Vec::new());
    for size in sizes.iter().copied().filter(|size| *size <= pages.len()) {
        let timed = measure(engines(size)?, Batches::Some(pages, size), rounds.min(MOST_ROUNDS), observer)?;
        points.extend(timed.iter().map(|timed| Point::of(timed, Along::Batch)));
        stages = timed.iter().flat_map(stages_of).collect();
    }
    Ok((points, stages))
}

/// A series over numbers of threads.
pub(crate) fn by_threads<'a>(
    most: NonZeroUsize,
    pages: &[Page],
    rounds: usize,
    observer: &dyn Observer,
    engines: impl Fn(NonZeroUsize) -> Result<Engines<'a>>,
) -> Result<Vec<Point>> {
    let mut points = Vec::new();
    for threads in thread_counts(most) {
        let timed = measure(engines(threads)?, Batches::Whole(pages), rounds.min(MOST_ROUNDS), observer)?;
        points.extend(timed.iter().map(|timed| Point::of(timed, Along::Threads)));
    }
    Ok(points)
}

fn stages_of(timed: &Timed<'_>) -> Vec<Stage> {
    let of_direction = |(i, direction)| {
        timed.stage_medians(i).into_iter().map(move |(stage, ns_per_page)| Stage {
            engine: timed.engine.name().to_owned(),
            direction,
            threads: timed.engine.threads(),
            pages: timed.pages,
            stage,
            ns_per_page,
        })
    };
    Direction::BOTH.into_iter().enumerate().flat_map(of_direction).collect()
}

/// Fourfold steps up to `most`, which is the last.
pub(crate) fn batch_sizes(most: usize) -> Vec<usize> {
    let steps = std::iter::successors(Some(LEAST_BATCH_PAGES), |size| size.checked_mul(4));
    steps.take_while(|size| *size < most).chain([most]).collect()
}

/// Twofold steps up to `most`, which is the last.
fn thread_counts(most: NonZeroUsize) -> Vec<NonZeroUsize> {
    let two = NonZeroUsize::MIN.saturating_add(1);
    let steps = std::iter::successors(Some(NonZeroUsize::MIN), |threads| threads.checked_mul(two));
    steps.take_while(|threads| *threads < most).chain([most]).collect()
}

/// The batch size from which the GPU stays ahead of the CPU; `None` if no GPU was measured.
pub(crate) fn gpu_overtakes_at(points: &[Point]) -> Option<Crossing> {
    points.iter().any(|point| point.engine == TRUENO_GPU).then(|| Crossing {
        compress_pages: overtakes(points, Direction::Compress),
        decompress_pages: overtakes(points, Direction::Decompress),
    })
}

fn overtakes(points: &[Point], direction: Direction) -> Option<usize> {
    let of_engine =
        |engine: &'static str| points.iter().filter(move |point| point.along == Along::Batch && point.engine == engine);
    let pairs = of_engine(TRUENO_GPU).zip(of_engine(TRUENO_CPU)).collect::<Vec<_>>();
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
        let cpu = series(TRUENO_CPU, [2.0, 3.0, 3.0, 3.0]);
        assert_eq!(gpu_overtakes_at(&cpu), None);
        let points = [cpu, series(TRUENO_GPU, [2.5, 1.0, 5.0, 9.0])].concat();
        assert_eq!(gpu_overtakes_at(&points), Some(Crossing { compress_pages: Some(256), decompress_pages: None }));
    }
}
