//! Runs the LZ4 kernels in the interpreter.

#[path = "packed.rs"]
mod packed;

#[allow(unused_imports)]
pub(crate) use packed::{Packed, whole_index};
use trueno_gpu::interp::{Fault, LaneOrder, Report};
use trueno_gpu::kernels::lz4::{Lz4WarpCompressKernel, Lz4WarpDecompressKernel};
use trueno_gpu::kernels::packed::{PackedEntry, PageKind, PageStatus};
use trueno_test_pages::{PAGE_SIZE, Page};

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
    let run = kernel.interpret(pages, |launch| launch.threads(threads).lane_order(order))?;
    Ok(Packed::check(run))
}

/// The pages that a decompressor makes, and what became of each. Anything else that it touched would be a fault.
pub(crate) fn decompress(
    kernel: &Lz4WarpDecompressKernel,
    index: &[PackedEntry],
    bytes: &[u8],
    order: LaneOrder,
) -> Result<(Vec<(PageStatus, Page)>, Report), Fault> {
    let words: Vec<_> = index.iter().map(|entry| entry.bits().to_le_bytes()).collect();
    let mut pages = vec![[0xee; PAGE_SIZE]; index.len()];
    let run = kernel.interpret(bytes, words.as_flattened(), &mut pages, |launch| launch.lane_order(order))?;
    let status =
        run.status.as_chunks().0.iter().map(|code| PageStatus::from_code(u32::from_le_bytes(*code)).expect("known"));
    Ok((status.zip(pages).collect(), run.report))
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
