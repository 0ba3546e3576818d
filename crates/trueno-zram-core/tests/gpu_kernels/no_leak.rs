//! Matches that reach before the start of their page, on a device: refused, with the page not written, although the page
//! before it holds secrets that the same warp has just restored.

use std::num::NonZeroU32;

use trueno_gpu::kernels::packed::{PageKind, PageStatus};
use trueno_zram_core::gpu::raw::{PageDecompressor, PageFormat};

use crate::harness::{device, is_untouched};
use crate::interpreter::pack;
use crate::reaching::{lz4_blocks, secrets, zstd_frames};

/// Small batches by one warp per page; large ones of Zstandard in groups.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn few_offsets_before_the_page_are_refused() {
    let device = device();
    let (secrets, formats) = (secrets(), [(PageFormat::Lz4, PageKind::Lz4), (PageFormat::Zstd, PageKind::Zstd)]);
    for (format, kind) in formats {
        let bad = if kind == PageKind::Lz4 { lz4_blocks() } else { zstd_frames() };
        let mut decompressor = PageDecompressor::new(&device.context, format).unwrap();
        // With a share of the device, few pages keep each warp busy for long, and groups start early.
        decompressor.limit_multiprocessors(NonZeroU32::new(1));
        let large = decompressor.least_group_pages().map_or(1000, |least| least + 51);
        for count in [2 * bad.len(), large as usize] {
            let pairs =
                bad.iter().cycle().flat_map(|(_, bytes)| [(PageKind::Raw, secrets.to_vec()), (kind, bytes.clone())]);
            let held: Vec<_> = pairs.take(count).collect();
            let (index, bytes) = pack(&held);
            for (i, (status, page)) in device.decompress(&mut decompressor, &index, &bytes).iter().enumerate() {
                if i % 2 == 0 {
                    assert!(*status == PageStatus::Restored && *page == secrets, "{kind:?}, page {i} of {count}");
                } else {
                    let (name, _) = &bad[i / 2 % bad.len()];
                    assert_eq!(*status, PageStatus::BadBlock, "{kind:?}, page {i} of {count}: {name}");
                    assert!(is_untouched(page), "{kind:?}, page {i} of {count}: {name}");
                }
            }
        }
    }
}
