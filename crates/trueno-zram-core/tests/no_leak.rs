//! Matches that reach before the start of their page, on the CPU: an error with every decoder, in single pages and in
//! batches, although the buffers hold a page of secrets.

#[path = "../../trueno-gpu/tests/support/reaching.rs"]
mod reaching;

use reaching::{leaks, lz4_blocks, secrets, zstd_frames};
use trueno_zram_core::cpu::InstructionSet;
use trueno_zram_core::lz4::{Codec, DecodeError, decode_simple};
use trueno_zram_core::{
    Algorithm, CompressedBatch, CpuBatchCompressor, Error, PAGE_SIZE, Page, PageCodec, PageData, PageKind,
};

/// Decodes a block to the second of three pages that lie side by side. The others hold the page of secrets.
fn decode_between<T>(decode: impl FnOnce(&mut Page) -> T) -> (T, Page) {
    let mut pages = [secrets(), [0xee; PAGE_SIZE], secrets()];
    let verdict = decode(&mut pages[1]);
    assert!(pages[0] == secrets() && pages[2] == secrets(), "nothing is written beside the page");
    (verdict, pages[1])
}

#[test]
fn lz4_offsets_before_the_page_are_errors_in_every_decoder() {
    let codecs: Vec<Codec> =
        InstructionSet::available().into_iter().map(|set| Codec::new(set).expect("available")).collect();
    for (name, block) in lz4_blocks() {
        let simple = decode_between(|page| decode_simple(&block, page));
        let fast = codecs.iter().map(|codec| decode_between(|page| codec.decode(&block, page)));
        for (verdict, page) in fast.chain([simple]) {
            assert!(matches!(verdict, Err(DecodeError::OffsetBeforePage { .. })), "{name}: {verdict:?}");
            // It may hold bytes of the block and its own old ones, but none of its neighbours.
            assert_eq!(leaks(&page, &block), [], "{name}");
        }
        // In a page that holds the secrets itself, they stay where they were: no byte of them moves.
        for codec in &codecs {
            let mut page = secrets();
            codec.decode(&block, &mut page).expect_err("refused");
            let moved = leaks(&page, &block).into_iter().find(|(at, from)| at != from);
            assert_eq!(moved, None, "{name}: {}", codec.instruction_set());
        }
    }
}

#[test]
fn zstd_offsets_before_the_page_are_errors_with_a_used_context() {
    let mut codec = PageCodec::new(Algorithm::Zstd { level: 1 }).expect("a level");
    let whole = zstd::bulk::compress(&secrets(), 3).expect("there is memory");
    for (name, frame) in zstd_frames() {
        // The context has just restored the secrets, right before the place of this page.
        let mut pages = [[0; PAGE_SIZE], [0xee; PAGE_SIZE]];
        let [first, second] = &mut pages;
        codec.decompress(PageData::new(PageKind::Zstd, &whole).expect("short"), first).expect("whole");
        assert!(*first == secrets());
        let verdict = codec.decompress(PageData::new(PageKind::Zstd, &frame).expect("short"), second);
        assert!(matches!(verdict, Err(Error::CorruptZstd { .. })), "{name}: {verdict:?}");
        assert!(*second == [0; PAGE_SIZE], "{name}");
    }
}

/// Restores batches in which every other page reaches before its start, to pages that lie side by side.
fn assert_batch(kind: PageKind, bad: &[(String, Vec<u8>)]) {
    let mut held = CompressedBatch::new();
    let whole = match kind {
        PageKind::Zstd => (kind, zstd::bulk::compress(&secrets(), 3).expect("there is memory")),
        _ => (PageKind::Raw, secrets().to_vec()),
    };
    held.push(PageData::new(whole.0, &whole.1).expect("at most a page"));
    for (_, bytes) in bad {
        held.push(PageData::new(kind, bytes).expect("shorter than a page"));
        held.push(PageData::new(whole.0, &whole.1).expect("at most a page"));
    }
    let mut compressor = CpuBatchCompressor::default();
    let mut pages = vec![[0xee; PAGE_SIZE]; held.len()];
    for round in 0..2 {
        let error = compressor.decompress_into(&held, &mut pages, &()).expect_err("every other page is bad");
        assert!(matches!(error, Error::InPage { index: 1, .. }), "{error}");
        for (i, page) in pages.iter().enumerate() {
            match i % 2 {
                0 => assert!(*page == secrets(), "page {i}, round {round}"),
                _ => assert_eq!(leaks(page, &bad[i / 2].1), [], "{}, round {round}", bad[i / 2].0),
            }
        }
    }
    assert!(compressor.decompress(&held).is_err(), "all pages or none");
}

#[test]
fn batches_leak_no_page_into_another() {
    assert_batch(PageKind::Lz4, &lz4_blocks());
    assert_batch(PageKind::Zstd, &zstd_frames());
}
