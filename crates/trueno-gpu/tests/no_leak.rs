//! Matches that reach before the start of their page, in the decompression kernels: refused, with the page not written,
//! although shared memory and the output before it hold a page of secrets.

#[allow(dead_code)]
#[path = "support/lz4.rs"]
mod support;

#[allow(dead_code)]
#[path = "support/reaching.rs"]
mod reaching;

use reaching::{lz4_blocks, secrets, zstd_frames};
use support::pack;
use trueno_gpu::interp::Fault;
use trueno_gpu::kernels::lz4::Lz4WarpDecompressKernel;
use trueno_gpu::kernels::packed::{DecompressRun, PageKind, PageStatus};
use trueno_gpu::kernels::zstd::{ZstdGroupDecompressKernel, ZstdWarpDecompressKernel};
use trueno_test_pages::{PAGE_SIZE, Page};

/// The content of each page before the run.
const OLD: Page = [0xee; PAGE_SIZE];

/// Puts the page of secrets before and after each bad one: the kernel restores it in the same memory.
fn assert_refused(
    kind: PageKind,
    bad: &[(String, Vec<u8>)],
    whole: &[u8],
    run: impl Fn(&[u8], &[u8], &mut [Page]) -> Result<DecompressRun, Fault>,
) {
    let secrets = secrets();
    let mut held = vec![(PageKind::Raw, secrets.to_vec())];
    for (_, bytes) in bad {
        held.extend([(kind, bytes.clone()), (kind, whole.to_vec())]);
    }
    let (index, bytes) = pack(&held);
    let words: Vec<_> = index.iter().map(|entry| entry.bits().to_le_bytes()).collect();
    let mut pages = vec![OLD; held.len()];
    let run = run(&bytes, words.as_flattened(), &mut pages).unwrap_or_else(|fault| panic!("{fault}"));
    let codes: Vec<_> =
        run.status.as_chunks().0.iter().map(|code| PageStatus::from_code(u32::from_le_bytes(*code))).collect();
    assert!(codes[0] == Some(PageStatus::Restored) && pages[0] == secrets);
    for (i, (name, _)) in bad.iter().enumerate() {
        let (refused, restored) = (1 + 2 * i, 2 + 2 * i);
        assert_eq!(codes[refused], Some(PageStatus::BadBlock), "{name}");
        assert!(pages[refused] == OLD, "{name}: a refused page is not written");
        assert_eq!(codes[restored], Some(PageStatus::Restored), "after {name}");
        assert!(pages[restored] == secrets, "after {name}");
    }
}

/// An LZ4 block of the page of secrets: all literals.
fn lz4_secrets() -> Vec<u8> {
    let mut block = vec![0xf0];
    block.extend([255; (PAGE_SIZE - 15) / 255]);
    block.push(u8::try_from((PAGE_SIZE - 15) % 255).expect("below 255"));
    block.extend(secrets());
    block
}

#[test]
fn lz4_kernel_refuses_offsets_before_the_page() {
    // One warp restores all pages, one after the other.
    let kernel = Lz4WarpDecompressKernel::new(100_000).with_warps_per_block(1);
    assert_refused(PageKind::Lz4, &lz4_blocks(), &lz4_secrets(), |packed, index, pages| {
        kernel.interpret(packed, index, pages, |launch| launch.grid(1).threads(1))
    });
}

#[test]
fn zstd_warp_kernel_refuses_offsets_before_the_page() {
    let kernel = ZstdWarpDecompressKernel::new(100_000).with_warps_per_block(1);
    assert_refused(PageKind::Zstd, &zstd_frames(), &zstd_secrets(), |packed, index, pages| {
        kernel.interpret(packed, index, pages, |launch| launch.grid(1).threads(1))
    });
}

#[test]
fn zstd_group_kernel_refuses_offsets_before_the_page() {
    let kernel = ZstdGroupDecompressKernel::new(100_000).with_warps_per_block(1);
    assert_refused(PageKind::Zstd, &zstd_frames(), &zstd_secrets(), |packed, index, pages| {
        kernel.interpret(packed, index, pages, |launch| launch.grid(1).threads(1))
    });
}

/// A frame of the page of secrets without its dictionary.
fn zstd_secrets() -> Vec<u8> {
    zstd::bulk::compress(&secrets(), 3).expect("there is memory")
}
