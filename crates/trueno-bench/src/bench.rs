//! `trueno-zram bench`: CPU engines and the GPU side by side, on one thread and on all.

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use trueno_zram_core::cpu::InstructionSet;
use trueno_zram_core::{Page, same_filled, workers_beside_driver};

use crate::corpora::{Corpus, mix};
use crate::document::{Direction, Document, RunSettings, Stage};
use crate::engines::codec::{self, C_LZ4};
use crate::engines::cpu::{self, Memcpy, Trueno};
use crate::engines::in_cache::InCache;
use crate::engines::pooled::Pooled;
use crate::engines::{BAR, Engines, Gpu, Lineup, Rivals};
use crate::error::Result;
use crate::measure::{Batches, Observer, Timed, measure};
use crate::series::{self, MOST_ROUNDS};
use crate::timing::{median, repeat};

/// The most pages that CPU stages are measured on.
const MOST_STAGE_PAGES: usize = 4096;

/// A run that is ready to start.
///
/// ```no_run
/// use trueno_bench::bench::Bench;
/// use trueno_bench::{Gpu, Rivals, RunSettings, html, load};
///
/// let corpora = load(&[], 1000)?;
/// let run = RunSettings { rounds: 7, pages: 8192, threads: std::thread::available_parallelism().unwrap() };
/// let document = Bench::new(Gpu::find(), &Rivals::default(), &corpora, run)?.run(&())?;
/// std::fs::write("report.html", html::page(&document)).unwrap();
/// # Ok::<(), trueno_bench::Error>(())
/// ```
pub struct Bench<'a> {
    lineup: Lineup,
    corpora: &'a [Corpus],
    run: RunSettings,
}

impl<'a> Bench<'a> {
    /// Sets up a run.
    ///
    /// # Errors
    /// A rival that cannot be used.
    pub fn new(gpu: Gpu, rivals: &Rivals, corpora: &'a [Corpus], run: RunSettings) -> Result<Self> {
        Ok(Self { lineup: Lineup::new(gpu, rivals)?, corpora, run })
    }

    /// The number of parts of the run.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.corpora.len() * thread_counts(self.run).len() + 3
    }

    /// Measures all that `trueno-zram bench` shows.
    ///
    /// # Errors
    /// That of the first engine that fails or restores other pages, or the observer's.
    pub fn run(&self, observer: &dyn Observer) -> Result<Document> {
        let Self { lineup, corpora, run } = self;
        let mut document = Document::new("bench", *run, &[BAR], corpora);
        for corpus in *corpora {
            let pages = corpus.with_variants(run.pages)?;
            for threads in thread_counts(*run) {
                observer.begin(&format!("{}, {}", corpus.name, crate::quantity::threads(threads.get())));
                let mut engines = lineup.on_cpu(threads, pages.len())?;
                if threads == run.threads {
                    engines.extend(lineup.on_gpu(pages.len(), &cpu::pool(workers_beside_driver(threads))?)?);
                }
                document.add_rows(
                    &corpus.name,
                    corpus.same_filled,
                    &measure(engines, Batches::Whole(&pages), run.rounds, observer)?,
                )?;
            }
        }
        document.finish_rows();
        let mixed = mix(corpora, run.pages)?;
        observer.begin("batch sizes");
        let pool = cpu::pool(workers_beside_driver(run.threads))?;
        let (points, gpu_stages) =
            series::by_batch(&series::batch_sizes(mixed.len()), &mixed, run.rounds, observer, |size| {
                let mut engines = ours_and_c_lz4(run.threads)?;
                engines.extend(lineup.on_gpu(size, &pool)?);
                Ok(engines)
            })?;
        document.crossing = series::gpu_overtakes_at(&points);
        document.scaling = points;
        observer.begin("threads");
        document.scaling.extend(thread_series(&mixed, *run, observer)?);
        observer.begin("stages");
        document.stages = stages(&mixed[..mixed.len().min(MOST_STAGE_PAGES)], run.rounds, observer)?;
        document.stages.extend(gpu_stages);
        document.left_out = lineup.left_out();
        Ok(document)
    }
}

fn thread_counts(run: RunSettings) -> Vec<NonZeroUsize> {
    let mut counts = vec![NonZeroUsize::MIN, run.threads];
    counts.dedup();
    counts
}

/// Our own batches, and C lz4's if it is linked.
fn ours_and_c_lz4(threads: NonZeroUsize) -> Result<Engines<'static>> {
    let pool = cpu::pool(threads)?;
    let mut engines: Engines<'static> = vec![Box::new(Trueno::cpu(&pool)?)];
    if let Some(c_lz4) = C_LZ4 {
        engines.push(Box::new(Pooled::new(&pool, &c_lz4)?));
    }
    Ok(engines)
}

/// Our own batches, C lz4's and copies, from one thread to all.
pub(crate) fn thread_series(
    pages: &[Page],
    run: RunSettings,
    observer: &dyn Observer,
) -> Result<Vec<crate::document::Point>> {
    series::by_threads(run.threads, pages, run.rounds, observer, |threads| {
        let mut engines = ours_and_c_lz4(threads)?;
        engines.push(Box::new(Memcpy::new(&cpu::pool(threads)?)));
        Ok(engines)
    })
}

/// Stages of CPU codecs on one thread. A batch takes longer than the codec alone: blocks are moved to their place, and
/// memory is not in the cache.
fn stages(pages: &[Page], rounds: usize, observer: &dyn Observer) -> Result<Vec<Stage>> {
    let rounds = rounds.min(MOST_ROUNDS);
    let mut engines: Engines<'_> = Vec::new();
    for batch in ours_and_c_lz4(NonZeroUsize::MIN)? {
        let codec = match C_LZ4 {
            Some(c_lz4) if batch.name() == BAR => c_lz4()?,
            _ => Box::new(codec::Trueno::new(InstructionSet::detect())?),
        };
        engines.extend([Box::new(InCache::new(codec)), batch]);
    }
    let timed = measure(engines, Batches::Whole(pages), rounds, observer)?;
    let test = || {
        let start = Instant::now();
        black_box(pages.iter().filter(|page| same_filled(page).is_some()).count());
        Ok::<_, crate::Error>(start.elapsed())
    };
    let test_s = (0..rounds).map(|_| repeat(Duration::ZERO, test)).collect::<Result<Vec<_>>>()?;
    let stages = timed.chunks(2).flat_map(|pair| {
        // Rivals have no test for same-filled pages.
        let test_s = if pair[0].engine.name() == BAR { &[0.0] } else { &test_s[..] };
        split(&pair[0], &pair[1], median(test_s))
    });
    Ok(stages.filter(|stage| stage.ns_per_page > 0.0 || stage.stage != SAME_FILLED_TEST).collect())
}

const SAME_FILLED_TEST: &str = "same-filled test";

/// Splits the time of whole batches into the codec's and the rest.
fn split(codec: &Timed<'_>, batch: &Timed<'_>, test_s: f64) -> [Stage; 5] {
    let stage = |direction, stage, seconds: f64| Stage {
        engine: codec.engine.name().to_owned(),
        direction,
        threads: 1,
        pages: codec.pages,
        stage,
        // The whole is measured apart from its parts: noise may make it the smaller one.
        ns_per_page: seconds.max(0.0) * 1e9 / codec.pages as f64,
    };
    let (encode_s, decode_s) = (median(&codec.compress_s), median(&codec.decompress_s));
    [
        stage(Direction::Compress, SAME_FILLED_TEST, test_s),
        stage(Direction::Compress, "encode", encode_s),
        stage(Direction::Compress, "pack, memory", median(&batch.compress_s) - encode_s - test_s),
        stage(Direction::Decompress, "decode", decode_s),
        stage(Direction::Decompress, "place, memory", median(&batch.decompress_s) - decode_s),
    ]
}
