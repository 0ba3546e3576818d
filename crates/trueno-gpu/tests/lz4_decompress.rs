//! The decompression kernel in the interpreter: restores every valid block, and any other does no harm.

#[allow(dead_code)]
#[path = "support/lz4.rs"]
mod support;

use support::{compress, decompress, pack};
use trueno_gpu::interp::LaneOrder;
use trueno_gpu::kernels::lz4::{Lz4WarpCompressKernel, Lz4WarpDecompressKernel, Mode};
use trueno_gpu::kernels::packed::{PackedEntry, PageKind, PageStatus};
use trueno_test_pages::oracle::{c_lz4_decompress, foreign_blocks};
use trueno_test_pages::{PAGE_SIZE, Page, corpus, edge_pages, generate::Generator};

/// Decodes valid blocks and compares the pages.
fn assert_restores(blocks: &[(PageKind, Vec<u8>)], pages: &[Page], order: LaneOrder) {
    let (index, bytes) = pack(blocks);
    let kernel = Lz4WarpDecompressKernel::new(100_000);
    let (restored, _) = decompress(&kernel, &index, &bytes, order).unwrap_or_else(|fault| panic!("{fault}"));
    for (i, ((status, restored), page)) in restored.iter().zip(pages).enumerate() {
        assert_eq!(*status, PageStatus::Restored, "page {i}");
        assert!(restored == page, "page {i}");
    }
}

fn foreign(pages: &[Page]) -> (Vec<(PageKind, Vec<u8>)>, Vec<Page>) {
    let blocks = pages.iter().flat_map(|page| foreign_blocks(page).map(|(_, block)| (block, *page)));
    blocks.map(|(block, page)| ((PageKind::Lz4, block), page)).unzip()
}

#[test]
fn blocks_of_other_libraries_are_restored() {
    let mut generator = Generator::new(14);
    let generated = (0..100).map(|_| generator.page());
    let pages: Vec<Page> = corpus::all_pages().step_by(3).copied().chain(generated).collect();
    let (blocks, pages) = foreign(&pages);
    assert_restores(&blocks, &pages, LaneOrder::Ascending);
}

#[test]
fn blocks_of_edge_pages_are_restored() {
    let pages: Vec<Page> = edge_pages::all().into_iter().step_by(2).map(|edge| *edge.page).collect();
    let (blocks, pages) = foreign(&pages);
    assert_restores(&blocks, &pages, LaneOrder::Descending);
}

#[test]
fn own_batches_are_restored_in_every_lane_order() {
    let pages: Vec<Page> = corpus::all_pages().step_by(5).copied().collect();
    for mode in [Mode::Fast, Mode::Ratio] {
        let packed = compress(&Lz4WarpCompressKernel::new(1000).with_mode(mode), &pages, LaneOrder::Ascending)
            .unwrap_or_else(|fault| panic!("{fault}"));
        for order in [LaneOrder::Ascending, LaneOrder::Descending, LaneOrder::Shuffled { seed: 3 }] {
            let kernel = Lz4WarpDecompressKernel::new(1000);
            let restored = decompress(&kernel, &packed.index, &packed.bytes, order);
            let (restored, _) = restored.unwrap_or_else(|fault| panic!("{fault}"));
            assert!(restored.iter().zip(&pages).all(|((_, restored), page)| restored == page), "{mode:?} in {order:?}");
        }
    }
}

#[test]
fn damaged_blocks_are_refused_or_decoded_as_c_lz4_does_and_harm_no_neighbour() {
    let mut generator = Generator::new(15);
    let sample: Vec<Page> = corpus::all_pages().step_by(37).copied().collect();
    let (whole, pages) = foreign(&sample);
    let kernel = Lz4WarpDecompressKernel::new(100_000);
    let (mut refused, mut taken) = (0, 0);
    for _ in 0..6 {
        // Every other block is damaged. Those between must be restored.
        let mut blocks = whole.clone();
        for (_, block) in blocks.iter_mut().step_by(2) {
            generator.corrupt(block);
            block.truncate(PAGE_SIZE + 18);
        }
        let (index, bytes) = pack(&blocks);
        let (restored, _) = decompress(&kernel, &index, &bytes, LaneOrder::Shuffled { seed: 4 })
            .unwrap_or_else(|fault| panic!("{fault}"));
        for (i, ((status, page), (_, block))) in restored.iter().zip(&blocks).enumerate() {
            if i % 2 == 1 {
                assert!(*status == PageStatus::Restored && *page == pages[i], "block {i} is intact");
                continue;
            }
            let mut expected = [0; PAGE_SIZE];
            let valid = c_lz4_decompress(block, &mut expected) == Some(PAGE_SIZE);
            match status {
                PageStatus::Restored => {
                    taken += 1;
                    assert!(valid && *page == expected, "block {i}: C lz4 rejects it or decodes another page");
                }
                PageStatus::BadBlock | PageStatus::BadEntry => {
                    refused += 1;
                    assert!(page.iter().all(|byte| *byte == 0xee), "block {i}: a refused page is not written");
                }
                PageStatus::Unsupported => panic!("block {i}: LZ4 has no form that the kernel does not decode"),
            }
        }
    }
    assert!(refused > 100 && taken > 20, "{refused} refused, {taken} taken: the sample contains enough of both");
}

#[test]
fn every_truncation_is_refused() {
    let (blocks, _) = foreign(&[corpus::ALL[0].pages[17], *edge_pages::one_byte_different_at(2000).page]);
    for (_, block) in &blocks {
        let cut: Vec<_> = (1..block.len()).map(|len| (PageKind::Lz4, block[..len].to_vec())).collect();
        let (index, bytes) = pack(&cut);
        let restored = decompress(&Lz4WarpDecompressKernel::new(10_000), &index, &bytes, LaneOrder::Ascending);
        let (restored, _) = restored.unwrap_or_else(|fault| panic!("{fault}"));
        assert!(restored.iter().all(|(status, _)| *status == PageStatus::BadBlock));
    }
}

#[test]
fn index_entries_are_not_trusted() {
    let (_, bytes) = pack(&[(PageKind::Raw, vec![7; PAGE_SIZE]), (PageKind::SameFilled, b"pattern!".to_vec())]);
    let end = bytes.len() as u64;
    let bad = [
        PackedEntry::new(end - 4080, 4096, PageKind::Raw),
        PackedEntry::new(end, 8, PageKind::SameFilled),
        PackedEntry::new(1 << 35, 100, PageKind::Lz4),
        PackedEntry::new(0, 0, PageKind::Lz4),
        PackedEntry::new(0, 4115, PageKind::Lz4),
        PackedEntry::new(0, 8191, PageKind::Lz4),
        PackedEntry::new(0, 4095, PageKind::Raw),
        PackedEntry::new(0, 9, PageKind::SameFilled),
        PackedEntry::from_bits(PackedEntry::new(0, 8, PageKind::SameFilled).bits() | 2 << 45),
    ];
    let good = [PackedEntry::new(0, 4096, PageKind::Raw), PackedEntry::new(4096, 8, PageKind::SameFilled)];
    let index: Vec<_> = bad.into_iter().chain(good).collect();
    let restored = decompress(&Lz4WarpDecompressKernel::new(100), &index, &bytes, LaneOrder::Ascending);
    let (restored, _) = restored.unwrap_or_else(|fault| panic!("{fault}"));
    for (i, (status, page)) in restored.iter().enumerate().take(bad.len()) {
        assert!(*status == PageStatus::BadEntry && page.iter().all(|byte| *byte == 0xee), "entry {i}: {status:?}");
    }
    assert!(restored[bad.len()] == (PageStatus::Restored, [7; PAGE_SIZE]));
    assert!(restored[bad.len() + 1].1.chunks(8).all(|word| word == b"pattern!"));
}
