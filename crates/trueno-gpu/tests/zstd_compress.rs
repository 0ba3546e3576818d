//! The Zstandard compression kernel in the interpreter: the twin's bytes, libzstd's pages, deterministic, packed.

#[path = "support/packed.rs"]
#[allow(dead_code)]
mod packed;
#[path = "support/zstd.rs"]
#[allow(dead_code)]
mod support;

use packed::Packed;
use support::{assert_decodes, is_same_filled};
use trueno_gpu::interp::LaneOrder;
use trueno_gpu::kernels::packed::PageKind;
use trueno_gpu::kernels::zstd::{TableStores, ZstdWarpCompressKernel, reference};
use trueno_test_pages::{PAGE_SIZE, Page, corpus, edge, generate::Generator};

fn compress(kernel: &ZstdWarpCompressKernel, pages: &[Page], order: LaneOrder) -> Packed {
    let run = kernel.interpret(pages, |launch| launch.threads(2).lane_order(order));
    Packed::check(run.unwrap_or_else(|fault| panic!("{fault}")))
}

/// Compresses; compares every page with the twin's, and has libzstd restore it.
fn compress_and_check(kernel: &ZstdWarpCompressKernel, pages: &[Page], order: LaneOrder) -> Packed {
    let packed = compress(kernel, pages, order);
    for (i, page) in pages.iter().enumerate() {
        let expected = reference::compress(page);
        match packed.page(i) {
            (PageKind::SameFilled, word) => assert!(is_same_filled(page) && *word == page[..8], "page {i}"),
            (PageKind::Raw, bytes) => {
                assert!(bytes == page && !is_same_filled(page), "page {i}");
                assert!(expected.is_none(), "page {i}: the twin compresses it");
            }
            (PageKind::Zstd, frame) => {
                assert!(frame.len() < PAGE_SIZE && !is_same_filled(page), "page {i}");
                let expected = expected.unwrap_or_else(|| panic!("page {i}: the twin does not compress it"));
                let first = frame.iter().zip(&expected).position(|(a, b)| a != b);
                assert!(
                    frame == expected,
                    "page {i}: {} bytes, {} expected, first at {first:?}",
                    frame.len(),
                    expected.len()
                );
                assert_decodes(frame, page, &format!("page {i}"));
            }
            (PageKind::Lz4, _) => panic!("page {i}: a Zstandard kernel wrote an LZ4 page"),
        }
    }
    packed
}

#[test]
fn real_pages_are_the_twins() {
    let kernel = ZstdWarpCompressKernel::new(1000);
    for corpus in corpus::ALL {
        compress_and_check(&kernel, corpus.pages, LaneOrder::Ascending);
    }
}

#[test]
fn edge_pages_are_the_twins() {
    let pages: Vec<Page> = edge::all().into_iter().map(|edge| *edge.page).collect();
    compress_and_check(&ZstdWarpCompressKernel::new(10_000), &pages, LaneOrder::Descending);
}

#[test]
fn generated_pages_are_the_twins() {
    let mut generator = Generator::new(82);
    let pages: Vec<Page> = (0..500).map(|_| generator.page()).collect();
    compress_and_check(&ZstdWarpCompressKernel::new(1000), &pages, LaneOrder::Shuffled { seed: 7 });
}

#[test]
fn the_bytes_do_not_depend_on_the_lane_order() {
    let mut generator = Generator::new(83);
    let generated = (0..40).map(|_| generator.page());
    let pages: Vec<Page> = corpus::all_pages().step_by(13).copied().chain(generated).collect();
    let kernel = ZstdWarpCompressKernel::new(1000);
    for order in
        [LaneOrder::Ascending, LaneOrder::Descending, LaneOrder::Shuffled { seed: 1 }, LaneOrder::Shuffled { seed: 2 }]
    {
        compress_and_check(&kernel, &pages, order);
    }
}

#[test]
fn trusting_the_lowest_lane_gives_the_same_bytes_where_it_wins() {
    let pages: Vec<Page> = corpus::all_pages().step_by(11).copied().collect();
    let kernel = ZstdWarpCompressKernel::new(1000).with_table_stores(TableStores::LowestLaneWins);
    // Lanes in descending order: the lowest stores last, and wins.
    compress_and_check(&kernel, &pages, LaneOrder::Descending);
}

#[test]
fn batches_of_any_size_are_packed() {
    let kernel = ZstdWarpCompressKernel::new(100);
    for count in [0, 1, 2, 3, 33, 65] {
        let pages: Vec<Page> = corpus::all_pages().step_by(7).take(count).copied().collect();
        compress_and_check(&kernel, &pages, LaneOrder::Ascending);
    }
}
