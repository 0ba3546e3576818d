//! Where the time of a page goes: measured apart on one thread of the CPU, told by events on the GPU.

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use trueno_bench_engines::timing::{median, repeat};
use trueno_bench_engines::{BatchEngine, Block, CLz4, PageEngine, Pooled, TruenoCpu, TruenoPage};
use trueno_zram_core::cpu::InstructionSet;
use trueno_zram_core::{PAGE_SIZE, Page, same_filled};

use super::document::{Direction, Run, Stage};
use super::interrupt::Watch;
use super::measure::Timed;
use super::measured;
use crate::failure::Failure;

/// Pages that the stages are measured on, at most.
const MOST_PAGES: usize = 2048;
const LEAST_TIME: Duration = Duration::from_millis(5);

/// One codec, alone in the cache and in whole batches.
struct Subject {
    name: String,
    codec: Box<dyn PageEngine>,
    batch: Timed<'static>,
    blocks: Vec<Vec<u8>>,
    encode_ns: Vec<f64>,
    decode_ns: Vec<f64>,
}

/// Stages of the CPU's codecs, on one thread. What is left of a batch's time after the codec's own is moving blocks to
/// their place, and memory that is not in the cache.
pub(crate) fn measure(pages: &[Page], run: Run, watch: &Watch) -> Result<Vec<Stage>, Failure> {
    let pages = &pages[..pages.len().min(MOST_PAGES)];
    let codec = TruenoPage::new(InstructionSet::detect()).map_err(measured)?;
    let ours = TruenoCpu::new(NonZeroUsize::MIN).map_err(measured)?;
    let pool = Pooled::pool(NonZeroUsize::MIN).map_err(measured)?;
    let theirs = Pooled::new(&pool, || Ok(CLz4::new())).map_err(measured)?;
    let mut subjects = [
        Subject::new(Box::new(codec), Box::new(ours), pages)?,
        Subject::new(Box::new(CLz4::new()), Box::new(theirs), pages)?,
    ];
    watch.say("stages".into());
    let mut check_ns = Vec::new();
    let mut restored = vec![[0; PAGE_SIZE]; pages.len()];
    for _ in 0..run.rounds.min(5) {
        check_ns.push(ns_per_page(pages.len(), || pages.iter().filter(|page| same_filled(page).is_some()).count())?);
        for subject in &mut subjects {
            subject.round(pages, &mut restored)?;
        }
        watch.step()?;
    }
    let [ours, theirs] = &subjects;
    let check = [("same-filled test", median(&check_ns))];
    Ok([ours.stages(&check, pages.len()), theirs.stages(&[], pages.len())].concat())
}

impl Subject {
    fn new(mut codec: Box<dyn PageEngine>, batch: Box<dyn BatchEngine>, pages: &[Page]) -> Result<Self, Failure> {
        let mut out: Block = [0; _];
        let mut block = |page: &Page| match codec.compress(page, &mut out) {
            len if len < PAGE_SIZE => out[..len].to_vec(),
            _ => page.to_vec(),
        };
        let blocks = pages.iter().map(&mut block).collect();
        let (name, batch) = (codec.name(), Timed::verified(batch, pages)?);
        Ok(Self { name, codec, batch, blocks, encode_ns: Vec::new(), decode_ns: Vec::new() })
    }

    fn round(&mut self, pages: &[Page], restored: &mut [Page]) -> Result<(), Failure> {
        let (codec, blocks) = (&mut self.codec, &self.blocks);
        let (mut out, mut page): (Block, Page) = ([0; _], [0; _]);
        let encode = || pages.iter().map(|page| codec.compress(page, &mut out)).sum();
        self.encode_ns.push(ns_per_page(pages.len(), encode)?);
        let mut restore = |block: &Vec<u8>| match block.len() {
            PAGE_SIZE => {
                page.copy_from_slice(block);
                true
            }
            _ => codec.decompress(block, &mut page),
        };
        let decode = || blocks.iter().filter(|block| restore(block)).count();
        self.decode_ns.push(ns_per_page(pages.len(), decode)?);
        self.batch.round(pages, restored)
    }

    fn stages(&self, before: &[(&'static str, f64)], pages: usize) -> Vec<Stage> {
        let stage = |direction| {
            move |(stage, ns_per_page): (&'static str, f64)| Stage {
                engine: self.name.clone(),
                direction,
                threads: 1,
                pages,
                stage,
                ns_per_page,
            }
        };
        let per_page = |seconds: &[f64]| median(seconds) * 1e9 / pages as f64;
        let before_ns: f64 = before.iter().map(|(_, ns)| ns).sum();
        let (encode, decode) = (median(&self.encode_ns), median(&self.decode_ns));
        // The whole is measured apart from its parts: noise may make it the smaller one.
        let pack = (per_page(&self.batch.compress_s) - before_ns - encode).max(0.0);
        let place = (per_page(&self.batch.decompress_s) - decode).max(0.0);
        let compress = before.iter().copied().chain([("encode", encode), ("pack, memory", pack)]);
        let decompress = [("decode", decode), ("place, memory", place)];
        let compress = compress.map(stage(Direction::Compress));
        compress.chain(decompress.into_iter().map(stage(Direction::Decompress))).collect()
    }
}

/// What an engine says of its own stages.
pub(crate) fn of_engine(timed: &Timed<'_>, pages: usize) -> Vec<Stage> {
    let of_direction = |(i, direction)| {
        timed.stage_medians(i, pages).into_iter().map(move |(stage, ns_per_page)| Stage {
            engine: timed.engine.name().to_owned(),
            direction,
            threads: timed.engine.threads(),
            pages,
            stage,
            ns_per_page,
        })
    };
    Direction::BOTH.into_iter().enumerate().flat_map(of_direction).collect()
}

fn ns_per_page(pages: usize, mut pass: impl FnMut() -> usize) -> Result<f64, Failure> {
    let seconds = repeat(LEAST_TIME, || {
        let start = Instant::now();
        black_box(pass());
        Ok::<_, Failure>(start.elapsed())
    })?;
    Ok(seconds * 1e9 / pages as f64)
}
