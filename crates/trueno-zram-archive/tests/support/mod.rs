//! Archives for tests, and all ways to read them.
#![allow(dead_code, reason = "each test file uses some of it")]

pub(crate) mod deltas;
pub(crate) mod forge;

use std::sync::Arc;

use trueno_test_pages::generate::Generator;
use trueno_zram_archive::{
    Archive, ArchiveWriter, ContentBatch, ContentHash, ContentSpan, Error, Format, FrameReader, ReadSummary,
    WriteOptions, WriteSummary,
};
use trueno_zram_core::{Algorithm, CpuBatchCompressor, PAGE_SIZE};

pub(crate) const FORMATS: [Format; 2] = [Format::Lz4, Format::Zstd];

/// An archive of `content`, made in batches of `batch_pages`.
pub(crate) fn archive_of(content: &[u8], options: WriteOptions, batch_pages: usize) -> (Vec<u8>, WriteSummary) {
    let algorithm = match options.format {
        Format::Lz4 => Algorithm::Lz4,
        Format::Zstd => Algorithm::Zstd { level: 3 },
    };
    let mut compressor = CpuBatchCompressor::new(algorithm).unwrap();
    let mut archive = ArchiveWriter::new(Vec::new(), options).unwrap();
    let mut hash = ContentHash::new();
    hash.update(content);
    let (pages, tail) = content.as_chunks::<PAGE_SIZE>();
    for (number, pages) in pages.chunks(batch_pages).enumerate() {
        let batch = compressor.compress(pages).unwrap();
        // With the pages or without them, the bytes are the same.
        match number % 4 {
            0 => archive.write_batch(&batch).unwrap(),
            _ => archive.write_batch_of(&batch, pages).unwrap(),
        }
    }
    archive.write_tail(tail).unwrap();
    archive.add_section("note", b"of a test").unwrap();
    archive.finish(Some(hash)).unwrap()
}

/// Like `archive_of`, with default options and the length announced.
pub(crate) fn plain_archive_of(content: &[u8]) -> Vec<u8> {
    plain_archive_in(Format::Lz4, content)
}

/// Like `plain_archive_of`, in either format.
pub(crate) fn plain_archive_in(format: Format, content: &[u8]) -> Vec<u8> {
    let options = with_checksums().with_format(format).with_content_len(content.len() as u64);
    archive_of(content, options, 1000).0
}

/// An archive with a hash of each page.
pub(crate) fn hashed_archive_in(format: Format, content: &[u8]) -> Vec<u8> {
    let algorithm = match format {
        Format::Lz4 => Algorithm::Lz4,
        Format::Zstd => Algorithm::Zstd { level: 1 },
    };
    let options = WriteOptions::default().with_format(format).with_page_hashes(true);
    let mut archive = ArchiveWriter::new(Vec::new(), options).unwrap();
    let mut compressor = CpuBatchCompressor::new(algorithm).unwrap();
    let (pages, tail) = content.as_chunks::<PAGE_SIZE>();
    for pages in pages.chunks(300) {
        // Hashes need the pages themselves.
        archive.write_batch_of(&compressor.compress(pages).unwrap(), pages).unwrap();
    }
    archive.write_tail(tail).unwrap();
    archive.finish(None).unwrap().0
}

/// The content by the C library of the format; `None` if it refuses the file.
pub(crate) fn read_by_c_library(format: Format, archive: &[u8]) -> Option<Vec<u8>> {
    match format {
        Format::Lz4 => trueno_test_pages::frames::decompress(archive),
        Format::Zstd => zstd::decode_all(archive).ok(),
    }
}

pub(crate) fn append(content: &mut Vec<u8>, batch: &ContentBatch) {
    let before = content.len() as u64;
    for span in batch.spans() {
        match span {
            ContentSpan::Data(bytes) => content.extend_from_slice(bytes),
            ContentSpan::Zeros(len) => content.resize(content.len() + usize::try_from(len).unwrap(), 0),
        }
    }
    assert_eq!(content.len() as u64 - before, batch.len_bytes());
}

/// All content of a stream, or the error and what came before it.
pub(crate) fn read_stream(bytes: &[u8], batch_bytes: usize) -> (Vec<u8>, Result<ReadSummary, Error>) {
    let mut reader = FrameReader::new(bytes).with_batch_bytes(batch_bytes);
    let (mut content, mut batch) = (Vec::new(), ContentBatch::new());
    loop {
        match reader.read_batch(&mut batch) {
            Ok(true) => append(&mut content, &batch),
            Ok(false) => return (content, Ok(reader.summary().clone())),
            Err(error) => return (content, Err(error)),
        }
    }
}

/// All content of a stream that is in order.
pub(crate) fn read_good(bytes: &[u8]) -> (Vec<u8>, ReadSummary) {
    let (content, summary) = read_stream(bytes, 1 << 20);
    (content, summary.unwrap())
}

/// Checksums of every kind.
pub(crate) fn with_checksums() -> WriteOptions {
    WriteOptions::default().with_content_checksum(true)
}

/// An archive in memory; `None` if it has no index.
pub(crate) fn opened(bytes: &[u8]) -> Result<Option<Archive>, Error> {
    Archive::read_from(Arc::new(bytes.to_vec()))
}

/// Pages by the index; `None` if there is none.
pub(crate) fn read_pages(bytes: &[u8], pages: std::ops::Range<u64>) -> Result<Option<Vec<u8>>, Error> {
    let Some(archive) = opened(bytes)? else { return Ok(None) };
    archive.blocks(pages.clone())?;
    let mut out = vec![[0xff; PAGE_SIZE]; usize::try_from(pages.end - pages.start).unwrap()];
    archive.read_pages(pages.start, &mut out)?;
    let mut content = out.as_flattened().to_vec();
    let len = archive.info().content_len.saturating_sub(pages.start * PAGE_SIZE as u64);
    content.truncate(usize::try_from(len).unwrap());
    Ok(Some(content))
}

/// Pages of all sorts: zeros alone and in runs, words, noise, generated ones.
pub(crate) fn mixed_content(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Generator::new(seed);
    let mut content = Vec::with_capacity(len + 40 * PAGE_SIZE);
    while content.len() < len {
        match random.below(6) {
            0 => content.resize(content.len() + (1 + random.below(40)) * PAGE_SIZE, 0),
            1 => content.resize(content.len() + PAGE_SIZE, 0),
            2 => {
                let word = random.next_u64().to_le_bytes();
                content.extend(word.into_iter().cycle().take(PAGE_SIZE));
            }
            3 => content.extend((0..PAGE_SIZE).map(|_| random.byte())),
            _ => content.extend_from_slice(&random.page()),
        }
    }
    content.truncate(len);
    content
}
