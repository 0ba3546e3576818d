//! Deltas read back, whatever changed between the images, in all combinations of formats and over chains of bases.
#![cfg(feature = "zstd")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use support::deltas::{ForgedDelta, assert_reads, delta_of, open, padded, standard};
use support::{
    FORMATS, archive_of, hashed_archive_in, mixed_content, plain_archive_in, plain_archive_of, with_checksums,
};
use trueno_test_pages::generate::Generator;
use trueno_zram_archive::{
    ArchiveIdentity, Delta, Error, Format, PageArchive, PageHash, PageHashes, PageOrigin, Pages, WriteOptions,
};
use trueno_zram_core::PAGE_SIZE;

/// Changes content as programs change memory: some bytes, whole pages, pages that move, and another length.
fn edited(content: &[u8], seed: u64) -> Vec<u8> {
    let mut random = Generator::new(seed);
    let mut edited = content.to_vec();
    for _ in 0..1 + random.below(20) {
        let pages = edited.len() / PAGE_SIZE;
        if pages < 2 {
            edited.extend_from_slice(&random.page());
            continue;
        }
        let (page, other) = (random.below(pages) * PAGE_SIZE, random.below(pages) * PAGE_SIZE);
        match random.below(8) {
            0 | 1 => edited[page + random.below(PAGE_SIZE)] ^= 1 << random.below(8),
            2 => edited[page..page + PAGE_SIZE].fill(0),
            3 => edited[page..page + PAGE_SIZE].copy_from_slice(&random.page()),
            4 => edited.copy_within(page..page + PAGE_SIZE, other),
            5 => drop(edited.drain(page..page + PAGE_SIZE)),
            6 => edited.truncate(edited.len() - random.below(3 * PAGE_SIZE).min(edited.len())),
            _ => edited.extend((0..random.below(2 * PAGE_SIZE)).map(|_| random.byte())),
        }
    }
    edited
}

fn base_of(content: &[u8], format: Format, page_hashes: bool) -> Vec<u8> {
    if page_hashes { hashed_archive_in(format, content) } else { plain_archive_in(format, content) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 40 }))]

    #[test]
    fn chains_of_deltas_read_back(
        seed in any::<u64>(),
        len in 0..400 * PAGE_SIZE,
        formats in prop::array::uniform4(0..2_usize),
        page_hashes in any::<bool>(),
        part_pages in 1..200_usize,
    ) {
        let mut content = mixed_content(seed, len);
        let mut archive = standard(&base_of(&content, FORMATS[formats[0]], page_hashes));
        for (level, format) in formats[1..].iter().enumerate() {
            content = edited(&content, seed.wrapping_add(level as u64));
            let (delta, summary) = delta_of(&content, &archive, FORMATS[*format], part_pages);
            prop_assert_eq!(summary.archive_len, delta.len() as u64);
            archive = open(&delta, archive).unwrap();
            prop_assert_eq!(archive.depth(), level + 1);
            assert_reads(&archive, &content);
        }
    }
}

#[test]
fn only_pages_that_differ_are_stored_and_equal_ones_once() {
    let content = mixed_content(1, 3000 * PAGE_SIZE);
    let base = standard(&plain_archive_in(Format::Lz4, &content));
    let mut random = Generator::new(2);
    let mut changed = content.clone();
    let new_page = random.page();
    for page in [5, 6, 1000, 2999] {
        changed[page * PAGE_SIZE..][..PAGE_SIZE].copy_from_slice(&new_page);
    }
    changed[700 * PAGE_SIZE] ^= 1;
    let zeros = padded(&changed).iter().filter(|page| **page == [0; PAGE_SIZE]).count() as u64;
    let (delta, summary) = delta_of(&changed, &base, Format::Lz4, 64);
    assert_eq!((summary.stored_pages, summary.duplicate_pages, summary.zero_pages), (2, 3, zeros));
    assert_eq!(summary.base_pages, 3000 - zeros - 5);
    assert!(delta.len() < 3000 * 17 + 10_000, "16 bytes per page, and little else: {}", delta.len());
    assert_reads(&open(&delta, base).unwrap(), &changed);
}

#[test]
fn parts_of_any_size_make_the_same_delta() {
    let content = mixed_content(7, 500 * PAGE_SIZE + 77);
    let base = standard(&plain_archive_in(Format::Zstd, &content));
    let changed = edited(&edited(&content, 3), 4);
    let deltas: Vec<_> =
        [1, 7, 64, 1000].iter().map(|pages| delta_of(&changed, &base, Format::Lz4, *pages).0).collect();
    assert!(deltas.iter().all(|delta| *delta == deltas[0]));
}

#[test]
fn pages_that_move_come_from_the_base() {
    let content: Vec<u8> = (0..2000u32).flat_map(|n| n.to_le_bytes().repeat(PAGE_SIZE / 4)).collect();
    let base = standard(&plain_archive_in(Format::Lz4, &content));
    let mut moved = vec![9; 3 * PAGE_SIZE];
    moved.extend(&content);
    let (delta, summary) = delta_of(&moved, &base, Format::Lz4, 100);
    assert_eq!((summary.stored_pages, summary.base_pages), (1, 2000 - 1));
    let delta = open(&delta, base).unwrap();
    let origin = delta.as_delta().unwrap().origin(1503).unwrap().0;
    assert_eq!(origin, PageOrigin::Base(1500));
    assert_reads(&delta, &moved);
}

#[test]
fn empty_images_and_short_ones() {
    for (before, after) in [(0, 0), (0, 5), (5, 0), (5, 5), (5, 4096), (4097, 1), (10_000, 9_999)] {
        let content = mixed_content(3, 10_000);
        let base = standard(&plain_archive_in(Format::Lz4, &content[..before]));
        let (delta, _) = delta_of(&content[..after], &base, Format::Zstd, 3);
        assert_reads(&open(&delta, base).unwrap(), &content[..after]);
    }
}

#[test]
fn stored_hashes_are_those_of_the_pages() {
    for format in FORMATS {
        let content = mixed_content(12, 2500 * PAGE_SIZE + 5);
        let archive = standard(&base_of(&content, format, true));
        let stored = PageHashes::stored(&archive).unwrap().expect("it was written with them");
        let computed = PageHashes::compute(&archive).unwrap();
        let delta = delta_of(&content[..1000 * PAGE_SIZE], &archive, format, 50).0;
        let delta = open(&delta, archive).unwrap();
        let of_delta = PageHashes::stored(&delta).unwrap().expect("deltas have them");
        for (number, page) in padded(&content).iter().enumerate() {
            let (number, hash) = (number as u64, PageHash::of(page));
            let there = (*page != [0; PAGE_SIZE]).then_some(number);
            assert_eq!(stored.find(number, &hash), there, "page {number}");
            assert_eq!(computed.find(number, &hash), there, "page {number}");
            assert_eq!(of_delta.find(number, &hash), there.filter(|number| *number < 1000), "page {number}");
        }
    }
    let without = standard(&plain_archive_in(Format::Lz4, &[1; 5000]));
    assert!(PageHashes::stored(&without).unwrap().is_none());
}

#[test]
fn hashes_that_were_not_given_are_an_error() {
    let options = with_checksums().with_page_hashes(true).with_content_checksum(false);
    let mut archive = trueno_zram_archive::ArchiveWriter::new(Vec::new(), options).unwrap();
    let batch = trueno_zram_core::CpuBatchCompressor::default().compress(&[[7; PAGE_SIZE]; 3]).unwrap();
    assert!(matches!(archive.write_batch(&batch), Err(Error::Misuse(_))));
}

#[test]
fn lz4_and_zstd_refuse_a_delta() {
    let content = mixed_content(5, 100 * PAGE_SIZE);
    let base = standard(&plain_archive_in(Format::Lz4, &content));
    let (delta, _) = delta_of(&edited(&content, 1), &base, Format::Lz4, 64);
    for format in FORMATS {
        assert_eq!(support::read_by_c_library(format, &delta), None);
    }
    let error = support::read_stream(&delta, 1 << 20).1.unwrap_err();
    assert!(matches!(error, Error::NotCompressed { magic } if delta.starts_with(&magic)), "{error}");
}

#[test]
fn longer_chains_are_refused_by_readers_and_writers_alike() {
    let content = mixed_content(21, 20 * PAGE_SIZE);
    let mut archive = standard(&plain_archive_in(Format::Lz4, &content));
    let mut delta = Vec::new();
    for depth in 1..=Delta::MAX_DEPTH {
        delta = delta_of(&content, &archive, Format::Lz4, 64).0;
        archive = open(&delta, archive).unwrap();
        assert_eq!(archive.depth(), depth);
    }
    assert_reads(&archive, &content);
    let too_long = |error: Error| assert!(matches!(error, Error::ChainTooLong { max_deltas: 32 }), "{error}");
    too_long(archive.record(b"32").unwrap_err());
    // A delta of other makers.
    let digest = [0; 16];
    let record = [&archive.identity().as_bytes()[..], &archive.page_count().to_le_bytes(), &digest, b"32"].concat();
    let longer = ForgedDelta { base: record, ..ForgedDelta::parse(&delta) }.build();
    too_long(open(&longer, archive).unwrap_err());
}

#[test]
fn a_delta_is_not_a_standard_archive() {
    let base = standard(&plain_archive_in(Format::Lz4, &[1; 5000]));
    let (delta, _) = delta_of(&[2; 5000], &base, Format::Lz4, 64);
    assert!(PageArchive::standard(Arc::new(delta)).unwrap().is_none());
}

#[test]
fn hashes_are_those_of_the_pages_whether_stored_or_computed() {
    // Groups of zeros, groups with some, and a shorter last page.
    let mut content = vec![0; 3000 * PAGE_SIZE + 100];
    let mut random = Generator::new(9);
    for page in [5, 6, 7, 900, 2100, 2999, 3000] {
        let at = page * PAGE_SIZE;
        let end = content.len().min(at + PAGE_SIZE);
        content[at..end].copy_from_slice(&random.page()[..end - at]);
    }
    for format in FORMATS {
        for page_hashes in [false, true] {
            let base = standard(&base_of(&content, format, page_hashes));
            let hashes = PageHashes::stored(&base).unwrap();
            assert_eq!(hashes.is_some(), page_hashes);
            let hashes = hashes.map_or_else(|| PageHashes::compute(&base), Ok).unwrap();
            assert_eq!(hashes.page_count(), 3001);
            for (number, page) in (0..).zip(padded(&content)) {
                let expected = (page != [0; PAGE_SIZE]).then_some(number);
                assert_eq!(hashes.find(number, &PageHash::of(&page)), expected, "page {number}, {format:?}");
            }
        }
    }
}

/// Archives and deltas have an identity of their own, which opening their bases does not change.
#[test]
fn identities_tell_files_apart() {
    let content = mixed_content(41, 30 * PAGE_SIZE);
    let (base, other) = (plain_archive_of(&content), plain_archive_of(&content[PAGE_SIZE..]));
    let archive = standard(&base);
    let (delta, _) = delta_of(&content[..20 * PAGE_SIZE], &archive, Format::Lz4, 7);
    let read = |bytes: &[u8]| ArchiveIdentity::read(Arc::new(bytes.to_vec())).unwrap();
    assert_eq!(read(&base), Some(archive.identity()));
    let opened = open(&delta, archive).unwrap();
    assert_eq!(read(&delta), Some(opened.identity()));
    assert_eq!(read(&content), None);
    let all: BTreeSet<_> = [&base, &other, &delta].map(|file| read(file).unwrap().to_string()).into();
    assert!(all.len() == 3 && all.iter().all(|text| text.len() == 32));
    assert!(Delta::is_delta(&delta) && !Delta::is_delta(&base) && !Delta::is_delta(&delta[..7]));
}

#[test]
fn damage_is_noticed_by_checksums_or_by_hashes() {
    let content = mixed_content(42, 30 * PAGE_SIZE);
    for block_checksums in [true, false] {
        let options = WriteOptions::default().with_block_checksums(block_checksums);
        let archive = standard(&archive_of(&content, options, 100).0);
        assert_eq!(archive.notices_damage(), block_checksums);
        let (delta, _) = delta_of(&content, &archive, Format::Lz4, 7);
        assert!(open(&delta, archive).unwrap().notices_damage());
    }
}
