//! Compresses a file of memory pages on all cores, prints how its pages are held, and restores one of them.
//!
//! `cargo run --release -p trueno-zram-codec --example pages FILE [PAGE]`

use std::error::Error;

use trueno_zram_core::{Algorithm, CpuBatchCompressor, PAGE_SIZE, Page, PageCodec};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let file = args.next().ok_or("usage: pages FILE [PAGE]")?;
    let number: usize = args.next().map_or(Ok(0), |text| text.parse())?;
    let pages = whole_pages(&std::fs::read(&file)?);

    let batch = CpuBatchCompressor::new(Algorithm::Lz4)?.compress(&pages)?;
    let stats = batch.stats();
    println!("{} pages in {} bytes, ratio {:.3}", stats.pages(), stats.bytes_out, stats.ratio());
    println!("{} zero, {} same-filled, {} lz4, {} raw", stats.zero, stats.same_filled, stats.lz4, stats.raw);

    let compressed = batch.get(number).ok_or_else(|| format!("{file} has no page {number}"))?;
    let mut page = [0; PAGE_SIZE];
    PageCodec::new(Algorithm::Lz4)?.decompress(compressed, &mut page)?;
    println!(
        "page {number}: {}, {} bytes, starts with {:02x?}",
        compressed.kind(),
        compressed.bytes().len(),
        &page[..16]
    );
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
