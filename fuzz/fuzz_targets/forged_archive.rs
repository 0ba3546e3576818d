//! Archives whose fields the fuzzer edits, with every checksum made right: a page read by the index is the page of the
//! stream, or an error. Salvaging them ends, and its list of damage lies within the content.
#![no_main]

use std::io::Cursor;
use std::sync::{LazyLock, Mutex};

use libfuzzer_sys::fuzz_target;
use trueno_zram_archive::{
    ArchiveReader, ArchiveWriter, ContentBatch, ContentSpan, Format, FrameReader, IndexVerdict, SalvageReader,
    SharedReader, WriteOptions,
};
use trueno_zram_core::{Algorithm, CpuBatchCompressor, PAGE_SIZE};
use trueno_zram_fuzz::page_from;

#[path = "../../crates/trueno-zram-archive/tests/support/forge.rs"]
#[allow(dead_code)]
mod forge;

use forge::Forged;

/// Made once: they have threads of their own.
static LZ4: LazyLock<Mutex<CpuBatchCompressor>> = LazyLock::new(Mutex::default);
static ZSTD: LazyLock<Mutex<CpuBatchCompressor>> =
    LazyLock::new(|| Mutex::new(CpuBatchCompressor::new(Algorithm::Zstd { level: 1 }).expect("a level of Zstandard")));

fuzz_target!(|data: &[u8]| {
    let Some((&mode, data)) = data.split_first() else { return };
    let (pages, edits) = data.split_at(data.len() / 2);
    let mut forged = Forged::parse(&archive(mode, pages));
    let mut choices = edits.iter();
    let mut next = || choices.next().map(|choice| usize::from(*choice));
    while let Some(first) = next() {
        let mut first = Some(first);
        forged.edit(&mut |n| {
            let (high, low) = (first.take().or_else(&mut next).unwrap_or(0), next().unwrap_or(0));
            if n <= 256 { high % n } else { (high << 8 | low) % n }
        });
    }
    judge(&forged.build(), forged.content_len);
});

fn judge(bytes: &[u8], content_len: u64) {
    let (content, verdict) = read_stream(bytes);
    let shared = SharedReader::open(bytes).ok().flatten().map(|archive| archive.walk_limit(u64::MAX));
    // A reader of its own for each page proves its groups anew, so large archives are sampled.
    let pages = content_len.div_ceil(PAGE_SIZE as u64).min(1200);
    for page in (0..pages).step_by(if pages > 100 { 13 } else { 1 }) {
        let start = usize::try_from(page).expect("small") * PAGE_SIZE;
        let read = read_page(bytes, page, u64::MAX);
        let mut one = [0; PAGE_SIZE];
        let len = shared.as_ref().and_then(|archive| archive.read_page_at(page, &mut one).ok());
        assert!(len.map(|len| &one[..len]) == read.as_deref(), "the readers disagree on page {page}");
        if let Some(read) = read {
            let there = &content[start.min(content.len())..content.len().min(start + PAGE_SIZE)];
            assert!(there == read || verdict.is_none() && there.len() < PAGE_SIZE, "page {page} is another one");
        }
        if verdict == Some(IndexVerdict::Agrees)
            && let Some(read) = read_page(bytes, page, 0)
        {
            assert!(content[start..].starts_with(&read), "the index agrees, and page {page} is another one");
        }
    }
    let Ok(mut reader) = SalvageReader::open(Cursor::new(bytes)) else { return };
    let (mut batch, mut len_bytes) = (ContentBatch::new(), 0);
    while reader.read_batch(&mut batch).unwrap_or(false) {
        len_bytes += batch.len_bytes();
    }
    assert!(reader.damage().iter().all(|damage| damage.content.end <= len_bytes));
}

/// The content, up to an error if there is one, and the verdict on the index, if there is none.
fn read_stream(bytes: &[u8]) -> (Vec<u8>, Option<IndexVerdict>) {
    let mut reader = FrameReader::new(bytes).batch_bytes(64 << 10);
    let (mut content, mut batch) = (Vec::new(), ContentBatch::new());
    loop {
        match reader.read_batch(&mut batch) {
            Ok(true) => append(&mut content, &batch),
            Ok(false) => return (content, Some(reader.summary().index.clone())),
            Err(_) => return (content, None),
        }
    }
}

fn read_page(bytes: &[u8], page: u64, walk_limit: u64) -> Option<Vec<u8>> {
    let mut archive = ArchiveReader::open(Cursor::new(bytes)).ok()??.walk_limit(walk_limit);
    let (mut content, mut batch) = (Vec::new(), ContentBatch::new());
    archive.read_pages(page..page + 1).ok()?.read_batch(&mut batch).ok()?;
    append(&mut content, &batch);
    Some(content)
}

fn append(content: &mut Vec<u8>, batch: &ContentBatch) {
    for span in batch.spans() {
        match span {
            ContentSpan::Data(bytes) => content.extend_from_slice(bytes),
            ContentSpan::Zeros(len) => content.resize(content.len() + usize::try_from(len).expect("small"), 0),
        }
    }
}

/// An archive of pages of every form; of two groups if the mode says so.
fn archive(mode: u8, data: &[u8]) -> Vec<u8> {
    let (format, compressor) = if mode & 4 == 0 { (Format::Lz4, &LZ4) } else { (Format::Zstd, &ZSTD) };
    let options =
        WriteOptions { format, block_checksums: mode & 1 != 0, content_checksum: false, ..WriteOptions::default() };
    let noise: [u8; PAGE_SIZE] =
        std::array::from_fn(|i| ((i * i * 31) >> 3).to_le_bytes()[0] ^ (i >> 4).to_le_bytes()[0]);
    let half = page_from(&data[data.len() / 2..]);
    let pages = [page_from(data), noise, half, [7; PAGE_SIZE], half, noise, page_from(&[data, b"x"].concat())];
    let rounds = if mode & 2 == 0 { 2 } else { 150 };
    let write = || {
        let mut archive = ArchiveWriter::new(Vec::new(), options)?;
        let compressed = compressor.lock().expect("one thread").compress(&pages).expect("there is memory");
        for round in 0..rounds {
            archive.write_batch(&compressed)?;
            if round % 16 == 0 {
                archive.write_zero_pages(20)?;
            }
        }
        archive.write_tail(&data[..data.len().min(100)])?;
        archive.finish(None)
    };
    write().expect("a vector takes it all").0
}
