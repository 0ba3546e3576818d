//! Arbitrary bytes and damaged frames in the Zstandard decompression kernels, run by the interpreter: it stops at any
//! access out of bounds, race or endless loop. The kernels judge every frame as their slow twin does, and restore only
//! what libzstd restores.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use trueno_gpu::kernels::packed::{PackedEntry, PageKind, PageStatus};
use trueno_gpu::kernels::zstd::decode::reference::{Refusal, restore};
use trueno_gpu::kernels::zstd::{ZstdGroupDecompressKernel, ZstdWarpDecompressKernel};
use trueno_zram_core::PAGE_SIZE;
use trueno_zram_fuzz::{damage, page_from};

/// The longest frame that the kernel decodes.
const MAX_FRAME_BYTES: usize = PAGE_SIZE + 32;

/// The header of a frame of one page, before its block header.
const HEADER: [u8; 7] = [0x28, 0xb5, 0x2f, 0xfd, 0x60, 0x00, 0x0f];

/// One warp per block: every address past the warp's own memory is out of bounds.
static KERNEL: LazyLock<ZstdWarpDecompressKernel> =
    LazyLock::new(|| ZstdWarpDecompressKernel::new(10).with_warps_per_block(1));
static GROUP_KERNEL: LazyLock<ZstdGroupDecompressKernel> =
    LazyLock::new(|| ZstdGroupDecompressKernel::new(10).with_warps_per_block(1));

fuzz_target!(|data: &[u8]| {
    let (first, second) = data.split_at(data.len() / 2);
    // Higher levels use libzstd's optimal parser, a table of which the address sanitizer takes for a variable out of scope.
    let level = i32::from(data.first().copied().unwrap_or(3) % 9);
    let whole = zstd::bulk::compress(&page_from(first), level).expect("the buffer is large enough");
    let block_header = (data.len() << 3 | 2 << 1 | 1).to_le_bytes();
    let block = [&HEADER, &block_header[..3], data].concat();
    // Once more the first: by then the warp's memory holds what the others left there.
    let mut frames = vec![data.to_vec(), block.clone(), damage(&whole, second), whole, block];
    frames.retain(|frame| (1..=MAX_FRAME_BYTES).contains(&frame.len()));
    judge(&frames);
});

fn judge(frames: &[Vec<u8>]) {
    let (mut index, mut bytes) = (Vec::new(), Vec::new());
    for frame in frames {
        let len_bytes = u16::try_from(frame.len()).expect("at most 4128");
        index.extend(PackedEntry::new(bytes.len() as u64, len_bytes, PageKind::Zstd).bits().to_le_bytes());
        bytes.extend_from_slice(frame);
        bytes.resize(bytes.len().next_multiple_of(16), 0);
    }
    let mut pages = vec![[0xee; PAGE_SIZE]; frames.len()];
    let run = KERNEL
        .interpret(&bytes, &index, &mut pages, |launch| launch.grid(1).threads(1).step_limit(4_000_000))
        .unwrap_or_else(|fault| panic!("{fault}"));
    let mut group_pages = vec![[0xee; PAGE_SIZE]; frames.len()];
    let group_run = GROUP_KERNEL
        .interpret(&bytes, &index, &mut group_pages, |launch| launch.grid(1).threads(1).step_limit(8_000_000))
        .unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(run.status, group_run.status);
    assert!(pages == group_pages, "both kernels restore the same pages");
    let codes = run.status.as_chunks().0.iter().map(|code| u32::from_le_bytes(*code));
    for ((frame, page), code) in frames.iter().zip(&pages).zip(codes) {
        let (status, expected) = match restore(frame) {
            Ok(page) => (PageStatus::Restored, page),
            Err(Refusal::Malformed) => (PageStatus::BadBlock, [0xee; PAGE_SIZE]),
            Err(Refusal::Unsupported) => (PageStatus::Unsupported, [0xee; PAGE_SIZE]),
        };
        assert_eq!(PageStatus::from_code(code), Some(status));
        assert!(*page == expected, "{status:?}");
        if status == PageStatus::Restored {
            assert!(zstd::bulk::decompress(frame, PAGE_SIZE).is_ok_and(|theirs| theirs == expected));
        }
    }
}
