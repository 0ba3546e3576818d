//! The compression kernel in the interpreter: correct, standard, deterministic, packed.

#[allow(dead_code)]
#[path = "support/lz4.rs"]
mod support;

use support::compress;
use trueno_gpu::interp::LaneOrder;
use trueno_gpu::kernels::lz4::{Lz4WarpCompressKernel, Mode, TableStores};
use trueno_gpu::kernels::packed::PageKind;
use trueno_test_pages::oracle::{assert_decodes, c_lz4_compress};
use trueno_test_pages::{PAGE_SIZE, Page, corpus, database, edge_pages, generate::Generator};

const MODES: [Mode; 2] = [Mode::Fast, Mode::Ratio];

fn is_same_filled(page: &Page) -> bool {
    page.chunks(8).all(|word| *word == page[..8])
}

/// Compresses pages and decodes every one with foreign decoders.
fn compress_and_check(kernel: &Lz4WarpCompressKernel, pages: &[Page], order: LaneOrder) -> support::Packed {
    let packed = compress(kernel, pages, order).unwrap_or_else(|fault| panic!("{fault}"));
    for (i, page) in pages.iter().enumerate() {
        match packed.page(i) {
            (PageKind::SameFilled, word) => assert!(is_same_filled(page) && *word == page[..8], "page {i}"),
            (PageKind::Raw, bytes) => assert!(bytes == page && !is_same_filled(page), "page {i}"),
            (PageKind::Lz4, block) => {
                assert!(block.len() < PAGE_SIZE && !is_same_filled(page), "page {i}");
                assert_decodes(block, page);
            }
            (PageKind::Zstd, _) => panic!("page {i}: an LZ4 kernel wrote a Zstandard page"),
        }
    }
    packed
}

#[test]
fn real_pages_come_back_and_shrink_as_far_as_with_c_lz4() {
    for mode in MODES {
        let kernel = Lz4WarpCompressKernel::new(1000).with_mode(mode);
        for corpus in corpus::ALL {
            let packed = compress_and_check(&kernel, corpus.pages, LaneOrder::Ascending);
            let (mut ours, mut theirs) = (0, 0);
            for (i, page) in corpus.pages.iter().enumerate().filter(|(_, page)| !is_same_filled(page)) {
                ours += packed.page(i).1.len();
                theirs += c_lz4_compress(page).len().min(PAGE_SIZE);
            }
            let least = match mode {
                Mode::Fast => 0.995,
                Mode::Ratio => 1.0,
            };
            let ratio = theirs as f64 / ours as f64;
            assert!(ratio >= least, "{} in {mode:?}: {ratio:.4} of C lz4's ratio", corpus.name);
        }
    }
}

#[test]
fn database_pages_shrink_as_far_as_with_c_lz4() {
    // Keys that resemble their neighbours most, and records of 6 bytes: the better match is often in the same window,
    // where the table does not see it.
    let least = |name: &str, mode| match (name, mode) {
        ("PostgreSQL index of addresses", Mode::Fast) => 0.99,
        ("PostgreSQL index of few values", Mode::Fast) => 0.975,
        ("PostgreSQL index of few values", Mode::Ratio) => 0.985,
        ("SQLite index of addresses", Mode::Fast) => 0.95,
        _ => 0.995,
    };
    for relation in database::all(7, 64) {
        let theirs: usize = relation.pages.iter().map(|page| c_lz4_compress(page).len().min(PAGE_SIZE)).sum();
        for mode in MODES {
            let kernel = Lz4WarpCompressKernel::new(1000).with_mode(mode);
            let packed = compress_and_check(&kernel, &relation.pages, LaneOrder::Ascending);
            let ours: usize = (0..relation.pages.len()).map(|i| packed.page(i).1.len()).sum();
            let ratio = theirs as f64 / ours as f64;
            let least = least(relation.name, mode);
            assert!(ratio >= least, "{} in {mode:?}: {ratio:.4} of C lz4's ratio, {least} at least", relation.name);
        }
    }
}

#[test]
fn edge_pages_come_back() {
    let pages: Vec<Page> = edge_pages::all().into_iter().map(|edge| *edge.page).collect();
    for mode in MODES {
        compress_and_check(&Lz4WarpCompressKernel::new(10_000).with_mode(mode), &pages, LaneOrder::Descending);
    }
}

#[test]
fn the_bytes_do_not_depend_on_the_lane_order() {
    let mut generator = Generator::new(12);
    let generated = (0..60).map(|_| generator.page());
    let pages: Vec<Page> = corpus::all_pages().step_by(11).copied().chain(generated).collect();
    for mode in MODES {
        let kernel = Lz4WarpCompressKernel::new(1000).with_mode(mode);
        let expected = compress_and_check(&kernel, &pages, LaneOrder::Ascending);
        for order in [LaneOrder::Descending, LaneOrder::Shuffled { seed: 1 }, LaneOrder::Shuffled { seed: 2 }] {
            let packed = compress(&kernel, &pages, order).unwrap_or_else(|fault| panic!("{fault}"));
            assert!(packed.index == expected.index && packed.bytes == expected.bytes, "{mode:?} in {order:?}");
        }
    }
}

#[test]
fn trusting_the_lowest_lane_gives_the_same_bytes_where_it_wins() {
    let pages: Vec<Page> = corpus::all_pages().step_by(11).copied().collect();
    for mode in MODES {
        let kernel = Lz4WarpCompressKernel::new(1000).with_mode(mode);
        let expected = compress_and_check(&kernel, &pages, LaneOrder::Ascending);
        let trusting = kernel.with_table_stores(TableStores::LowestLaneWins);
        // Lanes in descending order: the lowest stores last and wins.
        let packed = compress_and_check(&trusting, &pages, LaneOrder::Descending);
        assert!(packed.index == expected.index && packed.bytes == expected.bytes, "{mode:?}");
    }
}

#[test]
fn text_shrinks_to_less_than_half() {
    let words = ["page", "memory", "the", "of", "compressed", "a", "kernel", "warp", "and", "is", "block", "every"];
    let mut generator = Generator::new(13);
    let pages: Vec<Page> = (0..32)
        .map(|_| {
            let mut text = String::new();
            while text.len() < PAGE_SIZE {
                text += words[generator.below(words.len())];
                text.push(if generator.below(9) == 0 { '\n' } else { ' ' });
            }
            *text.as_bytes().first_chunk().expect("long enough")
        })
        .collect();
    let packed = compress_and_check(&Lz4WarpCompressKernel::new(32), &pages, LaneOrder::Ascending);
    assert!(packed.bytes.len() * 2 < pages.len() * PAGE_SIZE, "{} bytes", packed.bytes.len());
}

#[test]
fn batches_of_any_size_are_packed() {
    let kernel = Lz4WarpCompressKernel::new(100);
    for count in [0, 1, 2, 3, 33, 65] {
        let pages: Vec<Page> = corpus::all_pages().step_by(7).take(count).copied().collect();
        compress_and_check(&kernel, &pages, LaneOrder::Ascending);
    }
}
