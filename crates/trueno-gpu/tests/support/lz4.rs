//! Runs the LZ4 kernels in the interpreter.

#[path = "packed.rs"]
mod packed;

#[allow(unused_imports)]
pub(crate) use packed::{Packed, whole_index};
use trueno_gpu::interp::{Fault, LaneOrder, LaunchReport};
use trueno_gpu::kernels::lz4::{Lz4WarpCompressKernel, Lz4WarpDecompressKernel};
use trueno_gpu::kernels::packed::{PackedEntry, PageKind, PageStatus};
use trueno_test_pages::{PAGE_SIZE, Page};

pub(crate) fn compress(kernel: &Lz4WarpCompressKernel, pages: &[Page], order: LaneOrder) -> Result<Packed, Fault> {
    compress_on(2, kernel, pages, order)
}

/// Compresses on a number of threads. With one, no warp waits for another, and counts are reproducible.
pub(crate) fn compress_on(
    threads: usize,
    kernel: &Lz4WarpCompressKernel,
    pages: &[Page],
    order: LaneOrder,
) -> Result<Packed, Fault> {
    let run = kernel.interpret(pages, |launch| launch.threads(threads).lane_order(order))?;
    Ok(Packed::check(run))
}

/// Returns the status and content of each page that a decompressor restored. Any stray access would be a fault.
pub(crate) fn decompress(
    kernel: &Lz4WarpDecompressKernel,
    index: &[PackedEntry],
    bytes: &[u8],
    order: LaneOrder,
) -> Result<(Vec<(PageStatus, Page)>, LaunchReport), Fault> {
    let words: Vec<_> = index.iter().map(|entry| entry.bits().to_le_bytes()).collect();
    let mut pages = vec![[0xee; PAGE_SIZE]; index.len()];
    let run = kernel.interpret(bytes, words.as_flattened(), &mut pages, |launch| launch.lane_order(order))?;
    let status =
        run.status.as_chunks().0.iter().map(|code| PageStatus::from_code(u32::from_le_bytes(*code)).expect("known"));
    Ok((status.zip(pages).collect(), run.report))
}

/// Packs blocks like the host does.
pub(crate) fn pack(blocks: &[(PageKind, Vec<u8>)]) -> (Vec<PackedEntry>, Vec<u8>) {
    let mut bytes = Vec::new();
    let mut index = Vec::new();
    for (kind, block) in blocks {
        let len_bytes = u16::try_from(block.len()).expect("blocks are shorter than 64 KiB");
        index.push(PackedEntry::new(bytes.len() as u64, len_bytes, *kind));
        bytes.extend_from_slice(block);
        bytes.resize(bytes.len().next_multiple_of(16), 0xdb);
    }
    (index, bytes)
}
