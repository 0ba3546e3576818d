//! Arbitrary bytes and damaged blocks in the decompression kernel, run by the interpreter: it stops at any access out of
//! bounds, race or endless loop, and judges every block as the CPU's slow decoder does.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use trueno_gpu::kernels::lz4::Lz4WarpDecompressKernel;
use trueno_gpu::kernels::packed::{PackedEntry, PageKind, PageStatus};
use trueno_zram_core::PAGE_SIZE;
use trueno_zram_core::cpu::InstructionSet;
use trueno_zram_core::lz4::{Codec, decode_simple};
use trueno_zram_fuzz::{damage, page_from};

/// The longest block of a page.
const MAX_BLOCK_BYTES: usize = PAGE_SIZE + 18;

/// One warp per block: every address past the warp's own memory is out of bounds.
static KERNEL: LazyLock<Lz4WarpDecompressKernel> =
    LazyLock::new(|| Lz4WarpDecompressKernel::new(10).with_warps_per_block(1));

fuzz_target!(|data: &[u8]| {
    let Some((choice, data)) = data.split_first() else { return };
    let mut blocks = if choice & 1 == 0 { vec![data.to_vec()] } else { vec![damaged_block(data)] };
    // One block is faster. With two, the warp's memory holds what the first left there.
    if choice & 6 == 0 {
        blocks.insert(0, damaged_block(data));
    }
    blocks.retain(|block| (1..=MAX_BLOCK_BYTES).contains(&block.len()));
    judge(&blocks);
});

/// A block of the page that the first half of the data describes, with changes by the second half; empty if the page does
/// not shrink.
fn damaged_block(data: &[u8]) -> Vec<u8> {
    let (first, second) = data.split_at(data.len() / 2);
    let mut out = [0; PAGE_SIZE];
    let mut encoder = Codec::new(InstructionSet::detect()).expect("detected");
    let len_bytes = encoder.encode(&page_from(first), &mut out);
    len_bytes.map_or(Vec::new(), |len_bytes| damage(&out[..len_bytes], second))
}

fn judge(blocks: &[Vec<u8>]) {
    let (mut index, mut bytes) = (Vec::new(), Vec::new());
    for block in blocks {
        let len_bytes = u16::try_from(block.len()).expect("at most 4114");
        index.extend(PackedEntry::new(bytes.len() as u64, len_bytes, PageKind::Lz4).bits().to_le_bytes());
        bytes.extend_from_slice(block);
        bytes.resize(bytes.len().next_multiple_of(16), 0);
    }
    let mut pages = vec![[0xee; PAGE_SIZE]; blocks.len()];
    let run = KERNEL
        .interpret(&bytes, &index, &mut pages, |launch| launch.grid(1).threads(1).step_limit(4_000_000))
        .unwrap_or_else(|fault| panic!("{fault}"));
    let codes = run.status.as_chunks().0.iter().map(|code| u32::from_le_bytes(*code));
    for ((block, page), code) in blocks.iter().zip(&pages).zip(codes) {
        let mut expected = [0; PAGE_SIZE];
        match decode_simple(block, &mut expected) {
            Ok(()) => assert!(code == PageStatus::Restored as u32 && *page == expected),
            Err(e) => assert!(code == PageStatus::BadBlock as u32 && page.iter().all(|byte| *byte == 0xee), "{e}"),
        }
    }
}
