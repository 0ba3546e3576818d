//! Runs the LZ4 kernels in the interpreter.

use trueno_gpu::interp::{Fault, LaneOrder, Launch, Memory, Report};
use trueno_gpu::kernels::Kernel;
use trueno_gpu::kernels::lz4::{Lz4WarpCompressKernel, Lz4WarpDecompressKernel, PackedEntry, PageKind, PageStatus};
use trueno_test_pages::{PAGE_SIZE, Page};

/// Blocks in the grid: two, so that pages are drawn by several at once.
const GRID: u32 = 2;

/// What a page may take: a runaway loop ends here. Much, since waiting for another thread's page counts, too.
const STEPS_PER_PAGE: u64 = 4_000_000;

/// Bytes before and after each buffer that kernels must leave alone.
pub(crate) const GUARD: [u8; 64] = [0xc3; 64];

/// A packed batch.
pub(crate) struct Packed {
    pub(crate) index: Vec<PackedEntry>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) report: Report,
}

impl Packed {
    /// The bytes of a page.
    pub(crate) fn page(&self, page: usize) -> (PageKind, &[u8]) {
        let entry = self.index[page];
        let start = usize::try_from(entry.offset_bytes()).expect("small");
        (entry.kind().expect("a kind"), &self.bytes[start..start + usize::from(entry.len_bytes())])
    }
}

pub(crate) fn compress(kernel: &Lz4WarpCompressKernel, pages: &[Page], order: LaneOrder) -> Result<Packed, Fault> {
    compress_on(2, kernel, pages, order)
}

/// On a number of threads: with one, no warp ever waits for another, and counts repeat.
pub(crate) fn compress_on(
    threads: usize,
    kernel: &Lz4WarpCompressKernel,
    pages: &[Page],
    order: LaneOrder,
) -> Result<Packed, Fault> {
    let mut memory = Memory::new();
    let input = memory.add("input", pages.as_flattened());
    let output = memory.add_uninit("output", pages.len() * PAGE_SIZE);
    let index = memory.add("index", &vec![0; pages.len() * 8]);
    let scratch_bytes = usize::try_from(kernel.scratch_bytes(GRID)).expect("small");
    let scratch = memory.add_uninit("scratch", scratch_bytes);
    let next_page = memory.add("next_page", &[0; 4]);
    let report = Launch::new(kernel.ir())
        .grid(GRID)
        .arg(input)
        .arg(output)
        .arg(index)
        .arg(scratch)
        .arg(next_page)
        .arg(u32::try_from(pages.len()).expect("small"))
        .lane_order(order)
        .threads(threads)
        .step_limit(STEPS_PER_PAGE * (pages.len() as u64 + 1))
        .run(&mut memory)?;
    let index = memory.bytes(index).expect("zeroed at the start");
    let (index, end) = whole_index(&index);
    let written = memory.initialised(output);
    assert!(
        written[..end].iter().all(|written| *written) && !written[end..].contains(&true),
        "exactly the packed bytes"
    );
    Ok(Packed { index, bytes: memory.bytes_or(output, 0)[..end].to_vec(), report })
}

/// An index as the compressor leaves it, and where the packed pages end; checks that it is whole and the pages lie in
/// order, without gaps but for the alignment.
pub(crate) fn whole_index(bytes: &[u8]) -> (Vec<PackedEntry>, usize) {
    let entries = bytes.as_chunks().0.iter().map(|bits| PackedEntry::from_bits(u64::from_le_bytes(*bits)));
    let index: Vec<_> = entries.collect();
    let mut end = 0;
    for (page, entry) in index.iter().enumerate() {
        assert!(entry.is_placed(), "page {page}");
        assert_eq!(entry.offset_bytes(), end, "page {page}");
        end += u64::from(entry.len_bytes()).next_multiple_of(16);
    }
    (index, usize::try_from(end).expect("small"))
}

/// The pages that a decompressor makes, and what became of each; and that it touched nothing else.
pub(crate) fn decompress(
    kernel: &Lz4WarpDecompressKernel,
    index: &[PackedEntry],
    bytes: &[u8],
    order: LaneOrder,
) -> Result<(Vec<(PageStatus, Page)>, Report), Fault> {
    let mut memory = Memory::new();
    let input = memory.add("input", bytes);
    let words: Vec<u8> = index.iter().flat_map(|entry| entry.bits().to_le_bytes()).collect();
    let index_buffer = memory.add("index", &words);
    let guarded = [&GUARD[..], &vec![0xee; index.len() * PAGE_SIZE], &GUARD].concat();
    let output = memory.add("output", &guarded);
    let status = memory.add_uninit("status", index.len() * 4);
    let next_page = memory.add("next_page", &[0; 4]);
    let report = Launch::new(kernel.ir())
        .grid(GRID)
        .arg(input)
        .arg(bytes.len() as u64)
        .arg(index_buffer)
        .arg(output.at(GUARD.len() as u64))
        .arg(status)
        .arg(next_page)
        .arg(u32::try_from(index.len()).expect("small"))
        .lane_order(order)
        .step_limit(STEPS_PER_PAGE * (index.len() as u64 + 1))
        .run(&mut memory)?;
    let output = memory.bytes(output).expect("filled at the start");
    let (before, rest) = output.split_at(GUARD.len());
    let (pages, after) = rest.split_at(index.len() * PAGE_SIZE);
    assert!(before == GUARD && after == GUARD, "guards are intact");
    let status = memory.bytes(status).expect("every page has a status");
    let status =
        status.as_chunks().0.iter().map(|code| PageStatus::from_code(u32::from_le_bytes(*code)).expect("known"));
    Ok((status.zip(pages.as_chunks().0.iter().copied()).collect(), report))
}

/// Packs blocks as a host would.
pub(crate) fn pack(blocks: &[(PageKind, Vec<u8>)]) -> (Vec<PackedEntry>, Vec<u8>) {
    let mut bytes = Vec::new();
    let mut index = Vec::new();
    for (kind, block) in blocks {
        let len_bytes = u16::try_from(block.len()).expect("blocks are short");
        index.push(PackedEntry::new(bytes.len() as u64, len_bytes, *kind));
        bytes.extend_from_slice(block);
        bytes.resize(bytes.len().next_multiple_of(16), 0xdb);
    }
    (index, bytes)
}
