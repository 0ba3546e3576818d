//! Compresses a file of memory pages, or the built-in corpus, on all cores, restores and compares it, and prints the
//! figures.
//!
//! `cargo run --release -p trueno-zram-codec --example pages [FILE]`

use std::error::Error;
use std::time::Instant;

use trueno_test_pages::corpus;
use trueno_zram_core::{Algorithm, CompressedBatch, CpuBatchCompressor, PAGE_SIZE, Page};

/// The built-in corpus is repeated to this many pages, so that the times are measurable.
const BUILT_IN_PAGES: usize = 65_536;

fn main() -> Result<(), Box<dyn Error>> {
    let pages = match std::env::args_os().nth(1) {
        Some(file) => whole_pages(&std::fs::read(file)?),
        None => corpus::all_pages().copied().cycle().take(BUILT_IN_PAGES).collect(),
    };
    let mut compressor = CpuBatchCompressor::new(Algorithm::Lz4)?;
    let (mut batch, mut restored) = (CompressedBatch::new(), vec![[0xff; PAGE_SIZE]; pages.len()]);

    let start = Instant::now();
    compressor.compress_into(&pages, &mut batch, &())?;
    let compress_s = start.elapsed().as_secs_f64();
    let start = Instant::now();
    compressor.decompress_into(&batch, &mut restored, &())?;
    let decompress_s = start.elapsed().as_secs_f64();
    if restored != pages {
        return Err("the restored pages differ".into());
    }

    let stats = batch.stats();
    let gbps = |seconds: f64| stats.bytes_in() as f64 / seconds / 1e9;
    println!(
        "{} pages, {:.1} MiB, on {} threads ({})",
        pages.len(),
        mib(stats.bytes_in()),
        compressor.threads(),
        compressor.instruction_set()
    );
    println!("held       {:.1} MiB, ratio {:.3}", mib(stats.bytes_out), stats.ratio());
    println!("as         {} zero, {} same-filled, {} lz4, {} raw", stats.zero, stats.same_filled, stats.lz4, stats.raw);
    println!("compress   {:.2} GB/s", gbps(compress_s));
    println!("decompress {:.2} GB/s, all bytes identical", gbps(decompress_s));
    Ok(())
}

/// Splits the file's bytes into pages, padding the last one with zeros.
fn whole_pages(bytes: &[u8]) -> Vec<Page> {
    let (pages, rest) = bytes.as_chunks();
    let mut pages = pages.to_vec();
    if !rest.is_empty() {
        let mut last = [0; PAGE_SIZE];
        last[..rest.len()].copy_from_slice(rest);
        pages.push(last);
    }
    pages
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
