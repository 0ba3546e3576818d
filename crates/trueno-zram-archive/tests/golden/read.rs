//! The ways to read a file, one function each. Every call of a reader of the crate in this test stands here.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use trueno_zram_archive::address_map::{MappedRun, PageState, StoredMap};
use trueno_zram_archive::process_state::ProcessState;
use trueno_zram_archive::{
    Archive, ContentBatch, ContentHash, ContentSpan, Damage, DeltaFile, Error, Format, FrameReader, GroupBuffer,
    GroupTotals, HashCheck, IndexVerdict, PageArchive, PageHashes, PageOrigin, Pages, PagesCursor, SalvageReader,
};
use trueno_zram_core::{Algorithm, CpuBatchCompressor, PAGE_SIZE, PageCodec, PageKind};

/// Opens an archive or a delta with its bases by its path.
pub(crate) fn open(path: &Path) -> PageArchive {
    open_any(path).unwrap().expect("an archive or a delta")
}

/// Opens a file by its path; `None` if it is neither an archive nor a delta.
pub(crate) fn open_any(path: &Path) -> Result<Option<PageArchive>, Error> {
    let file = Arc::new(fs::read(path).unwrap());
    let Some(delta) = DeltaFile::open(file.clone())? else { return PageArchive::standard(file) };
    // The base lies beside the delta.
    let delta = match delta.base_record() {
        Some(record) => {
            let base = open(&path.with_file_name(OsStr::from_bytes(&record.path)));
            delta.on_base(base)?
        }
        None => delta.without_base()?,
    };
    Ok(Some(PageArchive::Delta(Box::new(delta))))
}

/// As a stream, in batches of about this many bytes. Returns the verdict on the index as well.
pub(crate) fn stream(bytes: &[u8], batch_bytes: usize) -> (Vec<u8>, IndexVerdict) {
    let mut reader = FrameReader::new(bytes).with_batch_bytes(batch_bytes);
    let content = all_batches(|batch| reader.read_batch(batch));
    (content, reader.summary().index.clone())
}

/// As a stream, with pages decoded by a codec of the caller.
pub(crate) fn stream_with_codec(bytes: &[u8], format: Format) -> Vec<u8> {
    let mut codec = CpuBatchCompressor::new(algorithm_of(format)).unwrap();
    let mut reader = FrameReader::with_codec(bytes, &mut codec);
    all_batches(|batch| reader.read_batch(batch))
}

/// Ranges of this many pages, by the index, with pages decoded by a codec of the caller.
pub(crate) fn ranges(bytes: &[u8], range_pages: usize) -> Vec<u8> {
    let archive = opened(bytes).unwrap().unwrap();
    let mut content = Vec::new();
    for first in (0..archive.page_count()).step_by(range_pages) {
        let end = archive.page_count().min(first + range_pages as u64);
        let mut pages = vec![[0xff; PAGE_SIZE]; usize::try_from(end - first).unwrap()];
        let mut codec = CpuBatchCompressor::new(algorithm_of(archive.info().format)).unwrap();
        archive.with_codec(&mut codec).read(first, &mut pages).unwrap();
        content.extend_from_slice(pages.as_flattened());
    }
    content.truncate(usize::try_from(archive.len_bytes()).unwrap());
    content
}

/// Page by page.
pub(crate) fn page_by_page(archive: &PageArchive) -> Vec<u8> {
    let (mut content, mut page) = (Vec::new(), [0xff; PAGE_SIZE]);
    for number in 0..archive.page_count() {
        archive.read(number, std::slice::from_mut(&mut page)).unwrap();
        let len = archive.page_len(number);
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
        archive.read(first, &mut pages).unwrap();
        content.extend_from_slice(pages.as_flattened());
    }
    let len = usize::try_from(archive.len_bytes()).unwrap();
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
    let (archive, mut content) = (opened(bytes).unwrap().unwrap(), Vec::new());
    PagesCursor::new(archive).read_to_end(&mut content).unwrap();
    content
}

/// Group by group, with everything between the groups compared at the end.
pub(crate) fn groups(bytes: &[u8]) -> Vec<u8> {
    let archive = opened(bytes).unwrap().unwrap();
    let mut codec = PageCodec::new(algorithm_of(archive.info().format)).unwrap();
    let (mut group, mut totals, mut content) = (GroupBuffer::new(), GroupTotals::default(), Vec::new());
    for number in 0..archive.info().group_count {
        totals += archive.read_group(number, &mut group).unwrap();
        let mut pages = vec![[0xff; PAGE_SIZE]; group.data_pages()];
        for (page, into) in group.pages().zip(&mut pages) {
            codec.decompress(page, into).unwrap();
        }
        group.spans(&pages).for_each(|span| append(&mut content, span));
    }
    let mut hash = ContentHash::new();
    hash.update(&content);
    let summary = archive.finish(totals, Some(&hash)).unwrap();
    assert_eq!((summary.content_len, summary.index), (content.len() as u64, IndexVerdict::Agrees));
    content
}

/// By the reader for damaged files. Returns the damage as well.
pub(crate) fn salvage(bytes: &[u8]) -> (Vec<u8>, Vec<Damage>) {
    let mut reader = SalvageReader::open(Arc::new(bytes.to_vec())).unwrap();
    let content = all_batches(|batch| reader.read_batch(batch));
    (content, reader.into_damage())
}

/// Returns the pages that are zero by the index or by the map.
pub(crate) fn zero_pages(archive: &PageArchive) -> Vec<bool> {
    (0..archive.page_count()).map(|page| archive.is_zero(page).unwrap()).collect()
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
    archive.stored().section(name, 1 << 20).unwrap()
}

/// Returns the names of all sections of an archive, in their order.
pub(crate) fn section_names(bytes: &[u8]) -> Vec<String> {
    let archive = opened(bytes).unwrap().unwrap();
    archive.sections().unwrap().map(|section| section.unwrap().name).collect()
}

/// A mapping: its name and flags, its first address, and its runs as a number of pages and the first one in the archive.
type Mapping = (String, u64, Vec<(u64, Option<u64>)>);

/// Returns the process of a snapshot, its command and its mappings.
pub(crate) fn address_map(archive: &PageArchive) -> (u32, String, Vec<Mapping>) {
    let map = StoredMap::read(archive.stored()).unwrap().expect("an address map");
    let mappings = map.mappings().map(|mapping| {
        let kind = if mapping.flags.is_anonymous() { " anonymous" } else { "" };
        let place = |run: MappedRun| (run.state == PageState::Stored).then_some(run.first_page);
        let runs = mapping.runs().map(|run| (run.pages, place(run)));
        (format!("{} {}{kind}", mapping.name, mapping.flags.permissions()), mapping.start, runs.collect())
    });
    (map.pid, map.command.clone(), mappings.collect())
}

/// Returns the state of the process of a snapshot.
pub(crate) fn process_state(archive: &PageArchive) -> ProcessState {
    ProcessState::read(archive.stored()).unwrap().expect("a process state")
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
    let archive = opened(bytes).unwrap().unwrap();
    let page_count = archive.page_count();
    let blocks = archive.blocks(0..page_count).unwrap().map(|place| {
        let place = place.unwrap();
        Block { first_page: place.first_page, pages: place.pages, kind: place.kind, is_zero: place.zero }
    });
    Structure {
        blocks: blocks.collect(),
        format: archive.info().format,
        content_len: archive.info().content_len,
        block_checksums: archive.info().block_checksums,
        content_checksum: archive.info().content_checksum,
        sections: section_names(bytes),
    }
}

/// Returns the error of opening these bytes by their index.
pub(crate) fn refused_index(bytes: &[u8]) -> Error {
    opened(bytes).unwrap_err()
}

/// Returns the frame of an archive of the LZ4 format, without its index.
pub(crate) fn frame_of(bytes: &[u8]) -> &[u8] {
    let archive = opened(bytes).unwrap().unwrap();
    &bytes[..bytes.len() - usize::try_from(archive.info().index_len).unwrap()]
}

fn opened(bytes: &[u8]) -> Result<Option<Archive>, Error> {
    Archive::read_from(Arc::new(bytes.to_vec()))
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
