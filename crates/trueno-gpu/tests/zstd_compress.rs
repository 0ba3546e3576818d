//! The Zstandard compression kernel in the interpreter: the twin's bytes, libzstd's pages, deterministic, packed.

#[path = "support/packed.rs"]
#[allow(dead_code)]
mod packed;
#[path = "support/libzstd.rs"]
#[allow(dead_code)]
mod support;

use std::collections::HashSet;

use packed::Packed;
use support::{assert_decodes, is_same_filled};
use trueno_gpu::interp::LaneOrder;
use trueno_gpu::kernels::packed::PageKind;
use trueno_gpu::kernels::zstd::{Mode, TableStores, ZstdWarpCompressKernel, ZstdWarpDecompressKernel};
use trueno_test_kernels::zstd_compress;
use trueno_test_pages::{PAGE_SIZE, Page, corpus, edge_pages, generate::Generator};

const MODES: [Mode; 2] = [Mode::Fast, Mode::Ratio];

fn compress(kernel: &ZstdWarpCompressKernel, pages: &[Page], order: LaneOrder) -> Packed {
    let run = kernel.interpret(pages, |launch| launch.threads(2).lane_order(order));
    Packed::check(run.unwrap_or_else(|fault| panic!("{fault}")))
}

/// Compresses in both modes.
fn compress_and_check(kernel: &ZstdWarpCompressKernel, pages: &[Page], order: LaneOrder) {
    for mode in MODES {
        compress_and_check_mode(&kernel.clone().with_mode(mode), mode, pages, order);
    }
}

/// Compresses; compares every page with the twin's, and has libzstd restore it.
fn compress_and_check_mode(kernel: &ZstdWarpCompressKernel, mode: Mode, pages: &[Page], order: LaneOrder) {
    let packed = compress(kernel, pages, order);
    for (i, page) in pages.iter().enumerate() {
        let expected = zstd_compress::compress(page, mode);
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
    let pages: Vec<Page> = edge_pages::all().into_iter().map(|edge| *edge.page).collect();
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

/// A page of 3-byte matches, one directly after the other, after some random bytes: each copies from another of three
/// distances than the one before, so that no four bytes occur twice where that can be helped.
fn shortest_matches(generator: &mut Generator) -> Page {
    const RANDOM: usize = 300;
    let distances = [generator.below(60) + 30, generator.below(60) + 110, generator.below(60) + 200];
    let mut page = [0; PAGE_SIZE];
    page[..RANDOM].fill_with(|| generator.byte());
    let mut seen: HashSet<[u8; 4]> = page[..RANDOM].windows(4).map(|word| *word.first_chunk().expect("four")).collect();
    let (mut at, mut last) = (RANDOM, 0);
    // The distances become known by longer matches.
    for distance in distances {
        page.copy_within(at - distance..at - distance + 6, at);
        at += 6;
    }
    while at + 3 <= PAGE_SIZE {
        let copied = |n: usize| {
            let mut copy = page;
            copy.copy_within(at - distances[n]..at - distances[n] + 3, at);
            copy
        };
        let words = |page: &Page| -> Vec<[u8; 4]> {
            page[at - 3..at + 3].windows(4).map(|word| *word.first_chunk().expect("four")).collect()
        };
        let choices = [1, 2].map(|step| (last + step) % 3);
        let [first, second] = choices.map(|n| words(&copied(n)).iter().filter(|word| seen.contains(*word)).count());
        last = if first < second || first == second && generator.below(2) == 0 { choices[0] } else { choices[1] };
        page = copied(last);
        seen.extend(words(&page));
        at += 3;
    }
    page
}

/// A page of bytes drawn with halving probabilities: trees deeper than codes may be.
fn skewed(generator: &mut Generator, symbols: usize) -> Page {
    std::array::from_fn(|_| {
        let depth = usize::try_from(generator.next_u64().trailing_zeros()).expect("small");
        u8::try_from(depth.min(symbols) * 19 % 256).expect("a byte")
    })
}

/// A page of bytes from an alphabet, all as likely.
fn flat(generator: &mut Generator, symbols: usize) -> Page {
    std::array::from_fn(|_| u8::try_from(generator.below(symbols)).expect("a byte"))
}

#[test]
fn the_most_sequences_are_the_twins() {
    let mut generator = Generator::new(84);
    let pages: Vec<Page> = (0..8).map(|_| shortest_matches(&mut generator)).collect();
    let most = pages.iter().map(|page| zstd_compress::parsed(page, Mode::Fast).0).max();
    assert!(most > Some(950), "{most:?} sequences");
    compress_and_check(&ZstdWarpCompressKernel::new(100), &pages, LaneOrder::Descending);
}

#[test]
fn pages_of_literals_alone_are_the_twins() {
    let mut generator = Generator::new(85);
    let pages: Vec<Page> = [100, 128, 129, 180, 230, 250, 256].iter().map(|n| flat(&mut generator, *n)).collect();
    let without_matches = pages.iter().filter(|page| zstd_compress::parsed(page, Mode::Fast) == (0, PAGE_SIZE)).count();
    assert!(without_matches >= 3, "{without_matches} pages");
    let compressed = pages.iter().filter(|page| zstd_compress::compress(page, Mode::Fast).is_some()).count();
    assert!(compressed > 0 && compressed < pages.len(), "{compressed} pages shrink");
    compress_and_check(&ZstdWarpCompressKernel::new(100), &pages, LaneOrder::Ascending);
}

#[test]
fn unusual_alphabets_are_the_twins() {
    let mut generator = Generator::new(86);
    let mut pages: Vec<Page> = (2..20).map(|symbols| skewed(&mut generator, symbols)).collect();
    pages.extend([2, 3, 5, 17, 33, 64, 65].map(|symbols| flat(&mut generator, symbols)));
    // Few literals, one literal repeated, literals of two kinds.
    for (run, kinds) in [(15, 1), (16, 1), (40, 1), (16, 2), (200, 2), (1023, 200), (1024, 200)] {
        let mut page = [b'x'; PAGE_SIZE];
        page[PAGE_SIZE - run..].fill_with(|| u8::try_from(generator.below(kinds)).expect("a byte"));
        pages.push(page);
    }
    compress_and_check(&ZstdWarpCompressKernel::new(100), &pages, LaneOrder::Shuffled { seed: 3 });
}

#[test]
fn every_shape_gives_the_same_bytes() {
    let pages: Vec<Page> = corpus::all_pages().step_by(9).copied().collect();
    let wide = ZstdWarpCompressKernel::new(1000).with_target(trueno_gpu::Target::SM_90).with_warps_per_block(28);
    compress_and_check(&wide, &pages, LaneOrder::Ascending);
    compress_and_check(&ZstdWarpCompressKernel::new(1000).with_warps_per_block(1), &pages, LaneOrder::Descending);
}

#[test]
fn the_decompression_kernel_restores_the_pages() {
    let mut generator = Generator::new(87);
    let generated = (0..40).map(|_| generator.page());
    let pages: Vec<Page> = corpus::all_pages().step_by(17).copied().chain(generated).collect();
    for mode in MODES {
        let kernel = ZstdWarpCompressKernel::new(1000).with_mode(mode);
        let run = kernel.interpret(&pages, |launch| launch).unwrap_or_else(|fault| panic!("{fault}"));
        let mut restored = vec![[0xee; PAGE_SIZE]; pages.len()];
        let decompressor = ZstdWarpDecompressKernel::new(1000);
        let statuses = decompressor.interpret(&run.packed, &run.index, &mut restored, |launch| launch);
        let statuses = statuses.unwrap_or_else(|fault| panic!("{fault}")).status;
        assert!(statuses.iter().all(|byte| *byte == 0), "{mode:?}: every page is restored");
        assert!(restored == pages, "{mode:?}");
    }
}
