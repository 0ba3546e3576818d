//! Any page in the Zstandard compression kernel, run by the interpreter: it stops at any access out of bounds, race or
//! endless loop. In either mode the bytes are the slow twin's, and libzstd restores the page.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use trueno_gpu::interp::LaneOrder;
use trueno_gpu::kernels::packed::{PackedEntry, PageKind};
use trueno_gpu::kernels::zstd::{Mode, ZstdWarpCompressKernel};
use trueno_test_kernels::zstd_compress;
use trueno_zram_core::{PAGE_SIZE, Page};
use trueno_zram_fuzz::page_from;

/// One warp per block: every address outside the warp's own memory is out of bounds.
static KERNELS: LazyLock<[(Mode, ZstdWarpCompressKernel); 2]> = LazyLock::new(|| {
    let kernel = ZstdWarpCompressKernel::new(10).with_warps_per_block(1);
    [Mode::Fast, Mode::Ratio].map(|mode| (mode, kernel.clone().with_mode(mode)))
});

fuzz_target!(|data: &[u8]| {
    let Some((choice, data)) = data.split_first() else { return };
    let (mode, kernel) = &KERNELS[usize::from(choice & 1)];
    let (first, second) = data.split_at(data.len() / 2);
    // One page is faster. With two, the warp's memory holds what the first left there.
    let pages = if choice & 6 == 0 { vec![page_from(first), page_from(second)] } else { vec![page_from(data)] };
    judge(*mode, kernel, &pages, data.len());
});

fn judge(mode: Mode, kernel: &ZstdWarpCompressKernel, pages: &[Page], seed: usize) {
    let run = kernel
        .interpret(pages, |launch| {
            launch.grid(1).threads(1).step_limit(4_000_000).lane_order(LaneOrder::Shuffled { seed: seed as u64 })
        })
        .unwrap_or_else(|fault| panic!("{fault}"));
    let entries = run.index.as_chunks().0.iter().map(|bits| PackedEntry::from_bits(u64::from_le_bytes(*bits)));
    for (page, entry) in pages.iter().zip(entries) {
        let start = usize::try_from(entry.offset_bytes()).expect("small");
        let bytes = &run.packed[start..start + usize::from(entry.len_bytes())];
        match entry.kind() {
            PageKind::SameFilled => assert!(page.chunks(8).all(|word| word == bytes)),
            PageKind::Raw => assert!(bytes == page && zstd_compress::compress(page, mode).is_none()),
            PageKind::Zstd => {
                assert!(Some(bytes) == zstd_compress::compress(page, mode).as_deref());
                assert!(zstd::bulk::decompress(bytes, PAGE_SIZE).expect("a frame") == page);
            }
            PageKind::Lz4 => panic!("a Zstandard kernel wrote an LZ4 page"),
        }
    }
}
