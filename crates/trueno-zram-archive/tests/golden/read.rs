//! The ways to read a file, one function each. Every call of a reader of the crate in this test stands here.

use std::io::{Cursor, Read};
use std::path::Path;

use trueno_zram_archive::{
    ArchiveOpener, ArchiveReader, ContentBatch, ContentHash, ContentSpan, Damage, Error, Format, FrameReader,
    GroupTotals, HashCheck, IndexVerdict, PageArchive, PageGroup, PageHashes, PageOrigin, SalvageReader, SharedReader,
};
use trueno_zram_core::{Algorithm, CpuBatchCompressor, PAGE_SIZE, PageCodec, PageKind};

/// Opens an archive or a delta with its bases by its path.
pub(crate) fn open(path: &Path) -> PageArchive {
    open_any(path).unwrap().expect("an archive or a delta")
}

/// Opens a file by its path; `None` if it is neither an archive nor a delta.
pub(crate) fn open_any(path: &Path) -> Result<Option<PageArchive>, Error> {
    ArchiveOpener::new().open(path)
}

/// As a stream, in batches of about this many bytes. Returns the verdict on the index as well.
pub(crate) fn stream(bytes: &[u8], batch_bytes: usize) -> (Vec<u8>, IndexVerdict) {
    let mut reader = FrameReader::new(bytes).batch_bytes(batch_bytes);
    let content = all_batches(|batch| reader.read_batch(batch));
    (content, reader.summary().index.clone())
}

/// As a stream, with pages decoded by a codec of the caller.
pub(crate) fn stream_with_codec(bytes: &[u8], format: Format) -> Vec<u8> {
    let mut codec = CpuBatchCompressor::new(algorithm_of(format)).unwrap();
    let mut reader = FrameReader::with_codec(bytes, &mut codec);
    all_batches(|batch| reader.read_batch(batch))
}

/// Ranges of this many pages, by the index.
pub(crate) fn ranges(bytes: &[u8], range_pages: usize) -> Vec<u8> {
    let mut archive = ArchiveReader::open(Cursor::new(bytes)).unwrap().unwrap();
    let mut content = Vec::new();
    for first in (0..archive.page_count()).step_by(range_pages) {
        let end = archive.page_count().min(first + range_pages as u64);
        let mut reader = archive.read_pages(first..end).unwrap();
        content.extend(all_batches(|batch| reader.read_batch(batch)));
    }
    content
}

/// Page by page.
pub(crate) fn page_by_page(archive: &PageArchive) -> Vec<u8> {
    let (mut content, mut page) = (Vec::new(), [0xff; PAGE_SIZE]);
    for number in 0..archive.page_count() {
        let len = archive.read_page_at(number, &mut page).unwrap();
        assert!(page[len..].iter().all(|byte| *byte == 0), "page {number} is filled up with zeros");
        content.extend_from_slice(&page[..len]);
    }
    content
}

/// This many consecutive pages at a time.
pub(crate) fn many_pages(archive: &PageArchive, pages_at_once: usize) -> Vec<u8> {
    let mut content = Vec::new();
    for first in (0..archive.page_count()).step_by(pages_at_once) {
        let left = usize::try_from(archive.page_count() - first).unwrap();
        let mut pages = vec![[0xff; PAGE_SIZE]; left.min(pages_at_once)];
        archive.read_pages(first, &mut pages).unwrap();
        content.extend_from_slice(pages.as_flattened());
    }
    let len = usize::try_from(archive.content_len()).unwrap();
    assert!(content[len..].iter().all(|byte| *byte == 0), "the last page is filled up with zeros");
    content.truncate(len);
    content
}

/// By position, in pieces that are not pages.
pub(crate) fn by_position(archive: &PageArchive) -> Vec<u8> {
    let (mut content, mut piece) = (Vec::new(), vec![0xff; 10_007]);
    loop {
        let count = archive.read_at(content.len() as u64, &mut piece).unwrap();
        if count == 0 {
            return content;
        }
        content.extend_from_slice(&piece[..count]);
    }
}

/// Through a cursor, as any code that takes a `Read`.
pub(crate) fn cursor(bytes: &[u8]) -> Vec<u8> {
    let archive = SharedReader::open(bytes.to_vec()).unwrap().unwrap();
    let mut content = Vec::new();
    archive.cursor().read_to_end(&mut content).unwrap();
    content
}

/// Group by group, with everything between the groups compared at the end.
pub(crate) fn groups(bytes: &[u8]) -> Vec<u8> {
    let groups = ArchiveReader::open(Cursor::new(bytes)).unwrap().unwrap().into_groups();
    let mut codec = PageCodec::new(algorithm_of(groups.format())).unwrap();
    let (mut group, mut totals, mut content) = (PageGroup::new(), GroupTotals::default(), Vec::new());
    for number in 0..groups.count() {
        totals += groups.read(&mut Cursor::new(bytes), number, &mut group).unwrap();
        let mut pages = vec![[0xff; PAGE_SIZE]; group.data_pages()];
        for (page, into) in group.pages().zip(&mut pages) {
            codec.decompress(page, into).unwrap();
        }
        group.spans(&pages).for_each(|span| append(&mut content, span));
    }
    let mut hash = ContentHash::new();
    hash.update(&content);
    let summary = groups.finish(&mut Cursor::new(bytes), totals, Some(&hash)).unwrap();
    assert_eq!((summary.content_len, summary.index), (content.len() as u64, IndexVerdict::Agrees));
    content
}

/// By the reader for damaged files. Returns the damage as well.
pub(crate) fn salvage(bytes: &[u8]) -> (Vec<u8>, Vec<Damage>) {
    let mut reader = SalvageReader::open(Cursor::new(bytes)).unwrap();
    let content = all_batches(|batch| reader.read_batch(batch));
    (content, reader.into_damage())
}

/// Returns the pages that are zero by the index or by the map.
pub(crate) fn zero_pages(archive: &PageArchive) -> Vec<bool> {
    (0..archive.page_count()).map(|page| archive.is_zero_page(page).unwrap()).collect()
}

/// Returns the number of deltas in the chain of a delta, and where each of its pages comes from.
pub(crate) fn origins(archive: &PageArchive) -> (usize, Vec<PageOrigin>) {
    let delta = archive.as_delta().expect("a delta");
    (delta.depth(), (0..delta.page_count()).map(|page| delta.origin(page).unwrap().0).collect())
}

/// Compares the page hashes that an archive or a delta has with all its pages.
pub(crate) fn check_page_hashes(archive: &PageArchive) {
    let hashes = PageHashes::stored(archive).unwrap().expect("page hashes");
    assert_eq!(hashes.check(archive, HashCheck::All).unwrap(), archive.page_count());
}

/// Returns the data of a section.
pub(crate) fn section(archive: &PageArchive, name: &str) -> Option<Vec<u8>> {
    archive.section(name, 1 << 20).unwrap()
}

/// Returns the names of all sections of an archive, in their order.
pub(crate) fn section_names(bytes: &[u8]) -> Vec<String> {
    let mut archive = ArchiveReader::open(Cursor::new(bytes)).unwrap().unwrap();
    archive.sections().unwrap().map(|section| section.unwrap().name).collect()
}

/// A block of an archive, without what depends on the version of a compressor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) first_page: u64,
    pub(crate) pages: u64,
    pub(crate) kind: PageKind,
    pub(crate) is_zero: bool,
}

/// The parts of an archive that do not depend on the version of a compressor.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Structure {
    pub(crate) format: Format,
    pub(crate) content_len: u64,
    pub(crate) block_checksums: bool,
    pub(crate) content_checksum: bool,
    pub(crate) blocks: Vec<Block>,
    pub(crate) sections: Vec<String>,
}

/// Returns the structure of a standard archive.
pub(crate) fn structure(bytes: &[u8]) -> Structure {
    let mut archive = ArchiveReader::open(Cursor::new(bytes)).unwrap().unwrap();
    let page_count = archive.page_count();
    let blocks = archive.blocks(0..page_count).unwrap().map(|place| {
        let place = place.unwrap();
        Block { first_page: place.first_page, pages: place.pages, kind: place.kind, is_zero: place.zero }
    });
    Structure {
        blocks: blocks.collect(),
        format: archive.format(),
        content_len: archive.content_len(),
        block_checksums: archive.has_block_checksums(),
        content_checksum: archive.has_content_checksum(),
        sections: section_names(bytes),
    }
}

/// Returns the error of opening these bytes by their index.
pub(crate) fn refused_index(bytes: &[u8]) -> Error {
    ArchiveReader::open(Cursor::new(bytes)).unwrap_err()
}

/// Returns the frame of an archive of the LZ4 format, without its index.
pub(crate) fn frame_of(bytes: &[u8]) -> &[u8] {
    let archive = ArchiveReader::open(Cursor::new(bytes)).unwrap().unwrap();
    &bytes[..bytes.len() - usize::try_from(archive.index_len()).unwrap()]
}

fn algorithm_of(format: Format) -> Algorithm {
    match format {
        Format::Lz4 => Algorithm::Lz4,
        Format::Zstd => Algorithm::Zstd { level: 1 },
    }
}

fn all_batches(mut read_batch: impl FnMut(&mut ContentBatch) -> Result<bool, Error>) -> Vec<u8> {
    let (mut content, mut batch) = (Vec::new(), ContentBatch::new());
    while read_batch(&mut batch).unwrap() {
        batch.spans().for_each(|span| append(&mut content, span));
    }
    content
}

fn append(content: &mut Vec<u8>, span: ContentSpan<'_>) {
    match span {
        ContentSpan::Data(bytes) => content.extend_from_slice(bytes),
        ContentSpan::Zeros(len_bytes) => content.resize(content.len() + usize::try_from(len_bytes).unwrap(), 0),
    }
}
