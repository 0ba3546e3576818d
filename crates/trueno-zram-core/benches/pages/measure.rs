//! Times all engines on one corpus, in turn, round after round, so that a noisy moment hits them alike.

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use trueno_bench_engines::timing::{gbps, paired_quotient, repeat};
use trueno_bench_engines::{BatchEngine, Block, Corpus, Error, PageEngine, Pooled, Result, Zram, verify};
use trueno_zram_core::{PAGE_SIZE, Page};

use crate::engines;
use crate::report::Row;

/// A timing is repeated until it has taken this long.
const MIN_TIME: Duration = Duration::from_millis(20);
/// Rounds of the kernel's zram, which runs after the others.
const ZRAM_ROUNDS: usize = 7;

/// Blocks of a corpus, one a page; raw where the page did not shrink.
type Blocks = Vec<Vec<u8>>;

/// One row an engine, and one for our decoder on C lz4's blocks.
pub(crate) fn side_by_side(corpus: &Corpus, rounds: usize) -> Result<Vec<Row>> {
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
            compress_vs_c_lz4: paired_quotient(&compress_s[0], &compress_s[i]),
            decompress_vs_c_lz4: paired_quotient(&decompress_s[0], &decompress_s[i]),
            c_lz4_blocks_vs_c_lz4: (!bar_blocks_s[i].is_empty())
                .then(|| paired_quotient(&decompress_s[0], &bar_blocks_s[i])),
        });
    }
    Ok(rows)
}

fn compress_all(engine: &mut dyn PageEngine, pages: &[Page]) -> Blocks {
    let mut out: Block = [0; _];
    let mut block_of = |page: &Page| match engine.compress(page, &mut out) {
        len if len < PAGE_SIZE => out[..len].to_vec(),
        _ => page.to_vec(),
    };
    pages.iter().map(&mut block_of).collect()
}

fn check(engine: &mut dyn PageEngine, blocks: &Blocks, pages: &[Page]) -> Result<()> {
    let mut page = [0; PAGE_SIZE];
    for (i, (block, original)) in blocks.iter().zip(pages).enumerate() {
        if !(restore(engine, block, &mut page) && page == *original) {
            return Err(Error::NotRestored { engine: engine.name(), page: i });
        }
    }
    Ok(())
}

fn restore(engine: &mut dyn PageEngine, block: &[u8], page: &mut Page) -> bool {
    if block.len() == PAGE_SIZE {
        page.copy_from_slice(block);
        return true;
    }
    engine.decompress(block, page)
}

/// Seconds for one pass over the pages.
fn time_compress(engine: &mut dyn PageEngine, pages: &[Page]) -> f64 {
    let mut out: Block = [0; _];
    time_passes(|| pages.iter().map(|page| engine.compress(page, &mut out)).sum::<usize>())
}

fn time_decompress(engine: &mut dyn PageEngine, blocks: &Blocks) -> f64 {
    let mut page = [0; PAGE_SIZE];
    time_passes(|| blocks.iter().filter(|block| restore(engine, block, &mut page)).count())
}

fn time_passes(mut pass: impl FnMut() -> usize) -> f64 {
    let timed = repeat(MIN_TIME, || {
        let start = Instant::now();
        black_box(pass());
        Ok::<_, std::convert::Infallible>(start.elapsed())
    });
    match timed {
        Ok(seconds) => seconds,
    }
}

/// A row for each algorithm that the kernel's zram offers; none, with a line that says why, where it cannot be used.
pub(crate) fn zram(corpus: &Corpus, bar: &Row) -> Vec<Row> {
    let mut rows = Vec::new();
    for algorithm in ["lz4", "lzo-rle"] {
        match zram_row(corpus, algorithm, bar) {
            Ok(row) => rows.push(row),
            Err(e) => eprintln!("zram-{algorithm} is left out: {e}"),
        }
    }
    rows
}

fn zram_row(corpus: &Corpus, algorithm: &str, bar: &Row) -> Result<Row> {
    let mut zram = Zram::new(algorithm, corpus.pages.len(), &Pooled::pool(NonZeroUsize::MIN)?)?;
    verify(&mut zram, &corpus.pages)?;
    let mut restored = corpus.pages.clone();
    let (mut write_s, mut read_s) = (Vec::new(), Vec::new());
    for _ in 0..ZRAM_ROUNDS {
        write_s.push(zram.compress(&corpus.pages)?.as_secs_f64());
        read_s.push(zram.decompress(&mut restored)?.as_secs_f64());
    }
    let compress_gbps = gbps(corpus.len_bytes(), &write_s);
    let decompress_gbps = gbps(corpus.len_bytes(), &read_s);
    Ok(Row {
        engine: zram.name().to_owned(),
        ratio: corpus.len_bytes() as f64 / zram.held_bytes()? as f64,
        compress_gbps,
        decompress_gbps,
        compress_vs_c_lz4: compress_gbps / bar.compress_gbps,
        decompress_vs_c_lz4: decompress_gbps / bar.decompress_gbps,
        ..bar.clone()
    })
}
