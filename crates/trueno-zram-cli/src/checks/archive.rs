//! Page archives: written, read as a stream and by the index, and damaged.

use std::sync::Arc;

use trueno_bench::generate::Generator;
use trueno_zram_archive::{Archive, ArchiveWriter, ContentBatch, ContentHash, ContentSpan, FrameReader, WriteOptions};
use trueno_zram_core::{CpuBatchCompressor, PAGE_SIZE, Page};

use super::samples::SampleSet;
use super::{Check, Proof};
use crate::print::quantity;

/// Zero pages in the middle, which a hole of an image becomes.
const ZERO_PAGES: usize = 40;
/// Bytes after the last whole page.
const TAIL: &[u8] = b"the last bytes of an image that is no whole number of pages";

pub(super) fn checks() -> [Check; 3] {
    [
        Check::new("archive: round trip", || as_stream(&SampleSet::large().pages)),
        Check::new("archive: by its index", || by_index(&SampleSet::large().pages)),
        Check::new("archive: damage", || damaged(&SampleSet::small().pages)),
    ]
}

fn words(error: impl ToString) -> String {
    error.to_string()
}

/// The content of the archive that `archive_of` makes.
fn content_of(pages: &[Page]) -> Vec<u8> {
    let (before, after) = pages.split_at(pages.len() / 2);
    [before.as_flattened(), &vec![0; ZERO_PAGES * PAGE_SIZE], after.as_flattened(), TAIL].concat()
}

fn archive_of(pages: &[Page]) -> Result<Vec<u8>, String> {
    let content = content_of(pages);
    let options = WriteOptions::default().with_content_len(content.len() as u64).with_content_checksum(true);
    let mut writer = ArchiveWriter::new(Vec::new(), options).map_err(words)?;
    let mut compressor = CpuBatchCompressor::new(trueno_zram_core::Algorithm::Lz4).map_err(words)?;
    let (before, after) = pages.split_at(pages.len() / 2);
    writer.write_batch(&compressor.compress(before).map_err(words)?).map_err(words)?;
    writer.write_zero_pages(ZERO_PAGES as u64).map_err(words)?;
    writer.write_batch(&compressor.compress(after).map_err(words)?).map_err(words)?;
    writer.write_tail(TAIL).map_err(words)?;
    let mut hash = ContentHash::new();
    hash.update(&content);
    writer.finish(Some(hash)).map(|(archive, _)| archive).map_err(words)
}

fn read_stream(archive: &[u8]) -> Result<Vec<u8>, String> {
    let mut reader = FrameReader::new(archive);
    let (mut batch, mut content) = (ContentBatch::new(), Vec::new());
    while reader.read_batch(&mut batch).map_err(words)? {
        append(&mut content, &batch);
    }
    Ok(content)
}

fn append(content: &mut Vec<u8>, batch: &ContentBatch) {
    for span in batch.spans() {
        match span {
            ContentSpan::Data(bytes) => content.extend_from_slice(bytes),
            ContentSpan::Zeros(len_bytes) => {
                let len_bytes = usize::try_from(len_bytes).unwrap_or(usize::MAX);
                content.resize(content.len().saturating_add(len_bytes), 0);
            }
        }
    }
}

fn as_stream(pages: &[Page]) -> Proof {
    let archive = archive_of(pages)?;
    let content = content_of(pages);
    if read_stream(&archive)? != content {
        return Err("other bytes are restored".into());
    }
    Ok(format!("{} in {}", quantity::bytes(content.len() as u64), quantity::bytes(archive.len() as u64)))
}

fn by_index(pages: &[Page]) -> Proof {
    let archive = archive_of(pages)?;
    let content = content_of(pages);
    let archive = Archive::read_from(Arc::new(archive)).map_err(words)?.ok_or("the index is not found")?;
    let count = archive.info().page_count;
    // Single pages, and ranges of odd lengths, from front to back.
    let (mut at, mut len_pages, mut ranges) = (0, 1, 0u64);
    while at < count {
        let range = at..count.min(at + len_pages);
        let [start, end] = [range.start, range.end].map(|page| usize::try_from(page).unwrap_or(usize::MAX) * PAGE_SIZE);
        let mut found = vec![[0; PAGE_SIZE]; (end - start) / PAGE_SIZE];
        archive.read_pages(range.start, &mut found).map_err(words)?;
        let expected = &content[start..end.min(content.len())];
        if !found.as_flattened().starts_with(expected) {
            return Err(format!("pages {} to {} are restored to other bytes", range.start, range.end));
        }
        (at, len_pages, ranges) = (range.end, len_pages % 31 + 2, ranges + 1);
    }
    Ok(format!("{} in {} ranges", quantity::pages(count), quantity::count(ranges)))
}

/// Damage is found, or does not change the content.
fn damaged(pages: &[Page]) -> Proof {
    const TRIES: u64 = 500;
    let archive = archive_of(&pages[..pages.len().min(12)])?;
    let content = read_stream(&archive)?;
    let mut random = Generator::new(5);
    let mut found = 0;
    for _ in 0..TRIES {
        let mut damaged = archive.clone();
        let at = random.below(damaged.len());
        damaged[at] ^= 1 << random.below(8);
        match read_stream(&damaged) {
            Err(_) => found += 1,
            Ok(read) if read == content => {}
            Ok(_) => return Err(format!("changing byte {at} gives other content without an error")),
        }
    }
    Ok(format!("{TRIES} archives, {found} refused, the others read correctly"))
}
