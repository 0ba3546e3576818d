//! Arbitrary bytes and damaged frames in the Zstandard decompression kernels, run by the interpreter: it stops at any
//! access out of bounds, race or endless loop. The kernels judge every frame as their slow twin does, and restore only
//! what libzstd restores.
#![no_main]

use std::cell::RefCell;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use trueno_gpu::kernels::packed::{DecompressRun, PackedEntry, PageKind, PageStatus};
use trueno_gpu::kernels::zstd::{ZstdGroupDecompressKernel, ZstdWarpDecompressKernel};
use trueno_test_kernels::zstd_restore::{RestoreError, restore};
use trueno_zram_core::{PAGE_SIZE, Page};
use trueno_zram_fuzz::{damage, page_from};
use zstd::bulk::Compressor;

/// The longest frame that the kernel decodes.
const MAX_FRAME_BYTES: usize = PAGE_SIZE + 32;

/// The header of a frame of one page, before its block header.
const HEADER: [u8; 7] = [0x28, 0xb5, 0x2f, 0xfd, 0x60, 0x00, 0x0f];

/// The content of pages before the run.
const OLD: Page = [0xee; PAGE_SIZE];

/// One warp per block: every address past the warp's own memory is out of bounds.
static KERNEL: LazyLock<ZstdWarpDecompressKernel> =
    LazyLock::new(|| ZstdWarpDecompressKernel::new(10).with_warps_per_block(1));
static GROUP_KERNEL: LazyLock<ZstdGroupDecompressKernel> =
    LazyLock::new(|| ZstdGroupDecompressKernel::new(10).with_warps_per_block(1));

thread_local! {
    static COMPRESSOR: RefCell<Compressor<'static>> = RefCell::new(Compressor::new(1).expect("a level of libzstd"));
}

/// The kernels that restore the frames of an input.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kernels {
    Warp,
    Group,
    Both,
}

fuzz_target!(|data: &[u8]| {
    let Some((choice, data)) = data.split_first() else { return };
    let kernels = [Kernels::Warp, Kernels::Warp, Kernels::Group, Kernels::Both][usize::from(choice & 3)];
    let mut frames = vec![frame_of(choice >> 2 & 3, data)];
    // One frame is faster. With two, the memory of the kernels holds what the first left there.
    if choice >> 4 & 3 == 0 {
        frames.insert(0, frame_of(choice >> 6, data));
    }
    frames.retain(|frame| (1..=MAX_FRAME_BYTES).contains(&frame.len()));
    if !frames.is_empty() {
        judge(&frames, kernels);
    }
});

/// Arbitrary bytes, a block of them, a frame of libzstd, or a damaged one.
fn frame_of(form: u8, data: &[u8]) -> Vec<u8> {
    let (first, second) = data.split_at(data.len() / 2);
    match form {
        0 => data.to_vec(),
        1 => {
            let block_header = (data.len() << 3 | 2 << 1 | 1).to_le_bytes();
            [&HEADER, &block_header[..3], data].concat()
        }
        2 => compress(first),
        _ => damage(&compress(first), second),
    }
}

fn compress(data: &[u8]) -> Vec<u8> {
    // Higher levels use libzstd's optimal parser, a table of which the address sanitizer takes for a variable out of scope.
    let level = i32::from(data.first().copied().unwrap_or(3) % 9);
    COMPRESSOR.with_borrow_mut(|compressor| {
        compressor.set_compression_level(level).expect("a level of libzstd");
        compressor.compress(&page_from(data)).expect("the buffer is large enough")
    })
}

fn judge(frames: &[Vec<u8>], kernels: Kernels) {
    let (mut index, mut bytes) = (Vec::new(), Vec::new());
    for frame in frames {
        let len_bytes = u16::try_from(frame.len()).expect("at most 4128");
        index.extend(PackedEntry::new(bytes.len() as u64, len_bytes, PageKind::Zstd).bits().to_le_bytes());
        bytes.extend_from_slice(frame);
        bytes.resize(bytes.len().next_multiple_of(16), 0);
    }
    let expected: Vec<_> = frames.iter().map(|frame| expected_of(frame)).collect();
    if kernels != Kernels::Group {
        let mut pages = vec![OLD; frames.len()];
        let run =
            KERNEL.interpret(&bytes, &index, &mut pages, |launch| launch.grid(1).threads(1).step_limit(4_000_000));
        assert_run(&run.unwrap_or_else(|fault| panic!("{fault}")), &pages, &expected);
    }
    if kernels != Kernels::Warp {
        let mut pages = vec![OLD; frames.len()];
        let run = GROUP_KERNEL
            .interpret(&bytes, &index, &mut pages, |launch| launch.grid(1).threads(1).step_limit(8_000_000));
        assert_run(&run.unwrap_or_else(|fault| panic!("{fault}")), &pages, &expected);
    }
}

/// The slow twin's verdict, and the page: a refused one is not written. What it restores, libzstd restores.
fn expected_of(frame: &[u8]) -> (PageStatus, Page) {
    match restore(frame) {
        Ok(page) => {
            assert!(zstd::bulk::decompress(frame, PAGE_SIZE).is_ok_and(|theirs| theirs == page));
            (PageStatus::Restored, page)
        }
        Err(RestoreError::Malformed) => (PageStatus::BadBlock, OLD),
        Err(RestoreError::Unsupported) => (PageStatus::Unsupported, OLD),
    }
}

fn assert_run(run: &DecompressRun, pages: &[Page], expected: &[(PageStatus, Page)]) {
    let codes = run.status.as_chunks().0.iter().map(|code| u32::from_le_bytes(*code));
    for ((page, code), (status, expected)) in pages.iter().zip(codes).zip(expected) {
        assert_eq!(PageStatus::from_code(code), Some(*status));
        assert!(page == expected, "{status:?}");
    }
}
