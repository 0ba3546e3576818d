//! Times all engines on one corpus, in turn, round after round, so that a noisy moment hits them alike.

use std::hint::black_box;
use std::time::{Duration, Instant};

use trueno_zram_core::{PAGE_SIZE, Page};

use crate::corpora::Corpus;
use crate::engines::{self, Block, Engine};
use crate::report::Row;

/// A timing is repeated until it has taken this long.
const MIN_TIME: Duration = Duration::from_millis(20);

/// Blocks of a corpus, one a page; raw where the page did not shrink.
type Blocks = Vec<Vec<u8>>;

/// One row an engine, and one for our decoder on C lz4's blocks.
pub(crate) fn side_by_side(corpus: &Corpus, rounds: usize) -> Result<Vec<Row>, String> {
    let mut engines = engines::all()?;
    let blocks: Vec<Blocks> = engines.iter_mut().map(|engine| compress_all(engine.as_mut(), &corpus.pages)).collect();
    for (engine, blocks) in engines.iter_mut().zip(&blocks) {
        check(engine.as_mut(), blocks, &corpus.pages)?;
    }
    let mut compress_s = vec![Vec::new(); engines.len()];
    let mut decompress_s = vec![Vec::new(); engines.len()];
    let mut bar_blocks_s = vec![Vec::new(); engines.len()];
    for _ in 0..rounds {
        for (i, engine) in engines.iter_mut().enumerate() {
            compress_s[i].push(time_compress(engine.as_mut(), &corpus.pages));
            decompress_s[i].push(time_decompress(engine.as_mut(), &blocks[i]));
            if engine.name().starts_with("trueno") {
                bar_blocks_s[i].push(time_decompress(engine.as_mut(), &blocks[0]));
            }
        }
    }
    let mut rows = Vec::new();
    for (i, engine) in engines.iter().enumerate() {
        let bytes_out: usize = blocks[i].iter().map(Vec::len).sum();
        rows.push(Row {
            corpus: corpus.name.clone(),
            engine: engine.name(),
            threads: 1,
            pages: corpus.pages.len(),
            same_filled: corpus.same_filled,
            ratio: corpus.len_bytes() as f64 / bytes_out as f64,
            compress_gbps: gbps(corpus.len_bytes(), &compress_s[i]),
            decompress_gbps: gbps(corpus.len_bytes(), &decompress_s[i]),
            memcpy_gbps: None,
            compress_vs_c_lz4: paired_ratio(&compress_s[0], &compress_s[i]),
            decompress_vs_c_lz4: paired_ratio(&decompress_s[0], &decompress_s[i]),
            c_lz4_blocks_vs_c_lz4: (!bar_blocks_s[i].is_empty())
                .then(|| paired_ratio(&decompress_s[0], &bar_blocks_s[i])),
        });
    }
    Ok(rows)
}

fn compress_all(engine: &mut dyn Engine, pages: &[Page]) -> Blocks {
    let mut out: Block = [0; _];
    let mut block_of = |page: &Page| match engine.compress(page, &mut out) {
        len if len < PAGE_SIZE => out[..len].to_vec(),
        _ => page.to_vec(),
    };
    pages.iter().map(&mut block_of).collect()
}

fn check(engine: &mut dyn Engine, blocks: &Blocks, pages: &[Page]) -> Result<(), String> {
    let mut page = [0; PAGE_SIZE];
    for (i, (block, original)) in blocks.iter().zip(pages).enumerate() {
        if !(restore(engine, block, &mut page) && page == *original) {
            return Err(format!("{} does not restore page {i}", engine.name()));
        }
    }
    Ok(())
}

fn restore(engine: &mut dyn Engine, block: &[u8], page: &mut Page) -> bool {
    if block.len() == PAGE_SIZE {
        page.copy_from_slice(block);
        return true;
    }
    engine.decompress(block, page)
}

/// Seconds for one pass over the pages.
fn time_compress(engine: &mut dyn Engine, pages: &[Page]) -> f64 {
    let mut out: Block = [0; _];
    time_passes(|| pages.iter().map(|page| engine.compress(page, &mut out)).sum::<usize>())
}

fn time_decompress(engine: &mut dyn Engine, blocks: &Blocks) -> f64 {
    let mut page = [0; PAGE_SIZE];
    time_passes(|| blocks.iter().filter(|block| restore(engine, block, &mut page)).count())
}

fn time_passes(mut pass: impl FnMut() -> usize) -> f64 {
    let start = Instant::now();
    let mut passes = 0;
    while start.elapsed() < MIN_TIME {
        black_box(pass());
        passes += 1;
    }
    start.elapsed().as_secs_f64() / f64::from(passes)
}

/// Gigabytes a second for `len_bytes`, by the median of the timings.
pub(crate) fn gbps(len_bytes: usize, seconds: &[f64]) -> f64 {
    len_bytes as f64 / median(seconds.to_vec()) / 1e9
}

/// How many times as fast as the bar, by the median over the rounds: each round's two timings are neighbours in time.
fn paired_ratio(bar_s: &[f64], engine_s: &[f64]) -> f64 {
    median(bar_s.iter().zip(engine_s).map(|(bar, engine)| bar / engine).collect())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
