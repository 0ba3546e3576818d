//! Deltas of version 2: equal pages are stored once, with or without a base, and each hash is in one file of the chain.
#![cfg(feature = "zstd")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use support::deltas::{ForgedDelta, assert_reads, deduplicated, delta_of, open, open_alone, padded, standard, write};
use support::{FORMATS, hashed_archive_in, mixed_content, plain_archive_in};
use trueno_test_pages::generate::Generator;
use trueno_zram_archive::{
    BaseRecord, Delta, DeltaFile, DeltaPart, DeltaWriter, Error, Format, HashCheck, PageArchive, PageHash, PageHashes,
    PageOrigin, Pages, WriteOptions,
};
use trueno_zram_core::{PAGE_SIZE, Page};

/// Content in which pages occur again, near and far, alone and in runs.
fn with_copies(seed: u64, len: usize) -> Vec<u8> {
    let (mut content, mut random) = (mixed_content(seed, len), Generator::new(seed ^ 0x5555));
    let pages = len / PAGE_SIZE;
    for _ in 0..pages / 4 {
        let run = 1 + random.below(4.min(pages));
        let (from, to) = (random.below(pages - run + 1), random.below(pages - run + 1));
        content.copy_within(from * PAGE_SIZE..(from + run) * PAGE_SIZE, to * PAGE_SIZE);
    }
    content
}

/// The expected origins of pages without a base, found without any hash.
fn expected(pages: &[Page]) -> Vec<PageOrigin> {
    let mut stored = HashMap::new();
    let origin = |page: &Page| {
        let next = stored.len() as u64;
        let is_zero = *page == [0; PAGE_SIZE];
        if is_zero { PageOrigin::Zero } else { PageOrigin::Stored(*stored.entry(*page).or_insert(next)) }
    };
    pages.iter().map(origin).collect()
}

/// Pages that are all different, none of them zero.
fn distinct(count: u32, byte: u8) -> Vec<u8> {
    (0..count).flat_map(|n| [&(n + 1).to_le_bytes()[..], &[byte; PAGE_SIZE - 4]].concat()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 40 }))]

    #[test]
    fn images_without_a_base_read_back_and_so_do_deltas_of_them(
        seed in any::<u64>(),
        len in 0..1500 * PAGE_SIZE,
        formats in prop::array::uniform2(0..2_usize),
        part_pages in 1..300_usize,
    ) {
        let content = with_copies(seed, len);
        let (delta, summary) = deduplicated(&content, FORMATS[formats[0]], part_pages);
        let archive = open_alone(&delta).unwrap();
        prop_assert_eq!(archive.depth(), 1);
        assert_reads(&archive, &content);
        let pages = padded(&content);
        let opened = archive.as_delta().unwrap();
        for (number, (page, origin)) in pages.iter().zip(expected(&pages)).enumerate() {
            let hash = (origin != PageOrigin::Zero).then(|| PageHash::of(page));
            prop_assert_eq!(opened.origin(number as u64).unwrap(), (origin, hash));
        }
        let [zero, base, stored] = [summary.zero_pages, summary.base_pages, summary.stored_pages];
        prop_assert_eq!((zero + stored + summary.duplicate_pages, base), (pages.len() as u64, 0));
        prop_assert_eq!(stored, opened.stored().info().page_count);
        let hashes = PageHashes::stored(&archive).unwrap().expect("deltas have them");
        prop_assert_eq!(hashes.check(&archive, HashCheck::All).unwrap(), pages.len() as u64);

        let changed = with_copies(seed ^ 7, len);
        let changed = [&content[..len / PAGE_SIZE / 2 * PAGE_SIZE], &changed].concat();
        let (next, _) = delta_of(&changed, &archive, FORMATS[formats[1]], part_pages);
        assert_reads(&open(&next, archive).unwrap(), &changed);
    }
}

#[test]
fn parts_of_any_size_make_the_same_file() {
    let content = with_copies(7, 2500 * PAGE_SIZE + 77);
    for format in FORMATS {
        let files: Vec<_> = [1, 7, 64, 3000].iter().map(|pages| deduplicated(&content, format, *pages).0).collect();
        assert!(files.iter().all(|file| *file == files[0]));
    }
}

#[test]
fn a_table_that_is_too_small_stores_copies_again_and_loses_nothing() {
    let content = [distinct(3000, 1), distinct(3000, 1)].concat();
    for (max_bytes, stored) in [(u64::MAX, 3000), (1 << 20, 3000), (16 << 10, 6000 - 768), (100, 6000)] {
        let delta = DeltaWriter::new(Vec::new(), None, WriteOptions::default()).unwrap().with_table(6000, max_bytes);
        let (delta, summary) = write(delta, &content, None, Format::Lz4, 64);
        assert_eq!((summary.stored_pages, summary.is_table_full), (stored, stored > 3000), "{max_bytes} bytes");
        assert_reads(&open_alone(&delta).unwrap(), &content);
    }
}

/// 16 bytes per page of the base are not in the delta, and neither are hashes of copies.
#[test]
fn pages_of_a_base_and_copies_have_their_hash_elsewhere() {
    let content = distinct(5000, 3);
    let mut changed = content.clone();
    changed[..1000 * PAGE_SIZE].copy_from_slice(&distinct(10, 9).repeat(100));
    let bases = [
        standard(&hashed_archive_in(Format::Lz4, &content)),
        standard(&hashed_archive_in(Format::Zstd, &content)),
        open_alone(&deduplicated(&content, Format::Lz4, 64).0).unwrap(),
        // A delta of version 1 states hashes, too.
        open(
            &delta_of(&content, &standard(&plain_archive_in(Format::Lz4, &content)), Format::Lz4, 64).0,
            standard(&plain_archive_in(Format::Lz4, &content)),
        )
        .unwrap(),
    ];
    for base in bases {
        let (delta, summary) = delta_of(&changed, &base, Format::Lz4, 64);
        assert_eq!((summary.base_pages, summary.stored_pages, summary.duplicate_pages), (4000, 10, 990));
        assert_eq!(ForgedDelta::parse(&delta).versions, [2; 2]);
        assert!(delta.len() < 10 * 16 + 4000, "{} bytes", delta.len());
        assert_reads(&open(&delta, base).unwrap(), &changed);
    }
}

#[test]
fn a_base_without_hashes_makes_a_delta_of_version_1() {
    let content = distinct(2000, 3);
    let base = standard(&plain_archive_in(Format::Lz4, &content));
    assert_eq!(base.record(b"base").unwrap().hashes, None);
    let (delta, _) = delta_of(&content, &base, Format::Lz4, 64);
    let forged = ForgedDelta::parse(&delta);
    assert_eq!((forged.versions, forged.groups[0].len()), ([1; 2], 3 + 1024 * 16));
}

/// A base is known by the digest of its hashes, not only by the checksums in its footer.
#[test]
fn a_base_with_other_hashes_is_refused() {
    let content = with_copies(3, 100 * PAGE_SIZE);
    let with_hashes = hashed_archive_in(Format::Lz4, &content);
    let of_version_2 = deduplicated(&content, Format::Lz4, 64).0;
    for base in [&with_hashes, &of_version_2] {
        let base = || if Delta::is_delta(base) { open_alone(base).unwrap() } else { standard(base) };
        let mut forged = ForgedDelta::parse(&delta_of(&content, &base(), Format::Lz4, 64).0);
        // Behind the identity and the number of pages.
        forged.base[16 + 8] ^= 1;
        let error = open(&forged.build(), base()).unwrap_err();
        assert!(matches!(&error, Error::Base { reason, .. } if reason.contains("page hashes")), "{error}");
    }
    // It states a digest, but the base has no hashes at all.
    let plain = standard(&plain_archive_in(Format::Lz4, &content));
    let record = BaseRecord { hashes: Some([1; 16]), ..plain.record(b"base").unwrap() };
    let hashes = PageHashes::compute(&plain).unwrap();
    let delta = DeltaWriter::new(Vec::new(), record, WriteOptions::default()).unwrap();
    let (delta, _) = write(delta, &content, Some(&hashes), Format::Lz4, 64);
    assert!(matches!(open(&delta, plain).unwrap_err(), Error::Base { .. }));
}

/// A run of one page of the base, which is zero there and has no hash.
#[test]
fn a_page_of_the_base_without_a_hash_is_an_error() {
    let content = [&[0; 3 * PAGE_SIZE][..], &distinct(3, 7)].concat();
    let bases = [
        standard(&hashed_archive_in(Format::Lz4, &content)),
        open_alone(&deduplicated(&content, Format::Lz4, 9).0).unwrap(),
    ];
    for base in bases {
        let mut forged = ForgedDelta::parse(&delta_of(&content[3 * PAGE_SIZE..], &base, Format::Lz4, 64).0);
        assert_eq!(forged.groups, [vec![3 << 2 | 1, 6]], "three pages of the base, from the third on");
        forged.groups[0][1] = 0;
        let archive = open(&forged.build(), base).unwrap();
        for page in 0..3 {
            let error = archive.read(page, &mut [[1; PAGE_SIZE]]).unwrap_err();
            assert!(matches!(error, Error::Delta(_)), "{error}");
        }
        assert!(archive.read(0, &mut [[1; PAGE_SIZE]; 3]).is_err() && PageHashes::stored(&archive).is_err());
    }
}

#[test]
fn tables_that_do_not_add_up_are_errors_and_take_no_memory() {
    let content = distinct(2500, 5);
    let (delta, _) = deduplicated(&content, Format::Lz4, 64);
    let forged = ForgedDelta::parse(&delta);
    assert_eq!(forged.new_pages, [1024, 1024, 452]);
    for new_pages in [[u32::MAX, u32::MAX, u32::MAX], [1025, 1024, 452], [0, 0, 0], [1023, 1024, 452]] {
        let forged = ForgedDelta { new_pages: new_pages.to_vec(), ..forged.clone() };
        assert!(matches!(open_alone(&forged.build()), Err(Error::Delta(_))), "{new_pages:?}");
    }
    // They add up, but are not those of the groups.
    let moved = ForgedDelta { new_pages: vec![1023, 1025, 452], ..forged.clone() };
    let archive = open_alone(&moved.build()).unwrap();
    assert!((0..2048).all(|page| matches!(archive.read(page, &mut [[0; PAGE_SIZE]]), Err(Error::Delta(_)))));
    assert!(archive.read(2048, &mut [[0; PAGE_SIZE]]).is_ok());
    // Content that would take a table of 96 GiB.
    let long = ForgedDelta { content_len: 1 << 44, counts: [1 << 32, 0, 0], ..forged.clone() };
    assert!(matches!(open_alone(&long.build()), Err(Error::Delta(_))));
    // The first group names a page that the second one stores.
    let mut forward = forged.clone();
    forward.groups[0][2] = 1;
    let archive = open_alone(&forward.build()).unwrap();
    assert!(matches!(archive.read(0, &mut [[0; PAGE_SIZE]]), Err(Error::Delta(_))));
}

#[test]
fn wrong_hashes_and_references_are_found_when_pages_are_read() {
    let content = [distinct(1500, 5), distinct(700, 5)].concat();
    let (delta, _) = deduplicated(&content, Format::Zstd, 64);
    let pages = padded(&content);
    let mut forged = ForgedDelta::parse(&delta);
    // The hash of stored page 3, which page 1,503 is a copy of: two bytes for a run of 1,024 pages, and one for the first.
    forged.groups[0][3 + 3 * 16] ^= 1;
    // Page 1,500 and those after it are copies of 0 and those after it; now of 1 and those after it.
    let runs = forged.groups[1].len() - 476 * 16;
    assert_eq!(forged.groups[1][runs - 1], 0);
    forged.groups[1][runs - 1] = 1;
    let archive = open_alone(&forged.build()).unwrap();
    for (number, page) in pages.iter().enumerate() {
        let mut found = [0xff; PAGE_SIZE];
        match archive.read(number as u64, std::slice::from_mut(&mut found)) {
            // The hash of a copy is that of the page that it names, so another name is another page.
            Ok(_) if (1500..2048).contains(&number) => assert_eq!(found, pages[number - 1499], "page {number}"),
            Ok(_) => assert_eq!(found, *page, "page {number}"),
            Err(error) => {
                assert!(matches!(error, Error::PageHash { .. }), "{error}");
                assert!([3, 1502].contains(&number), "page {number}");
            }
        }
    }
    // Nobody can do that and keep the digest of the file.
    let original = open_alone(&delta).unwrap();
    assert_ne!(archive.identity(), original.identity());
}

#[test]
fn a_delta_with_a_base_needs_it_and_one_without_takes_none() {
    let content = with_copies(9, 50 * PAGE_SIZE);
    let alone = deduplicated(&content, Format::Lz4, 64).0;
    let file = |bytes: &[u8]| DeltaFile::open(Arc::new(bytes.to_vec())).unwrap().unwrap();
    assert!(matches!(file(&alone).on_base(standard(&plain_archive_in(Format::Lz4, &content))), Err(Error::Delta(_))));
    let on_it = delta_of(&content, &open_alone(&alone).unwrap(), Format::Lz4, 64).0;
    assert!(matches!(file(&on_it).without_base(), Err(Error::Base { .. })));
    // Version 1 has a base, and both ends state the same version.
    for (delta, versions) in [(&alone, [1, 1]), (&alone, [1, 2]), (&on_it, [1, 2]), (&on_it, [2, 1])] {
        let other = ForgedDelta { versions, ..ForgedDelta::parse(delta) };
        assert!(DeltaFile::open(Arc::new(other.build())).is_err(), "{versions:?}");
    }
    // Without a base, no page can come from it.
    let mut forged = ForgedDelta::parse(&on_it);
    forged.base.clear();
    let archive = open_alone(&forged.build()).unwrap();
    let is_zero = |page: u64| archive.is_zero(page).unwrap_or(false);
    let error_of = |page: u64| archive.read(page, &mut [[0; PAGE_SIZE]]).err();
    assert!((0..50).all(|page| is_zero(page) || matches!(error_of(page), Some(Error::Delta(_)))));
}

#[test]
fn copies_and_pages_that_do_not_exist_are_refused_by_the_writer() {
    let mut delta = DeltaWriter::new(Vec::new(), None, WriteOptions::default()).unwrap();
    let (mut part, hash) = (DeltaPart::new(), PageHash::of(&[1; PAGE_SIZE]));
    for (stored, page) in [(true, 0), (true, u64::MAX), (false, 0)] {
        part.start(delta.block_shape());
        if stored {
            part.push_stored(page, hash);
        } else {
            part.push_base(page, hash);
        }
        assert!(matches!(delta.push(&mut part), Err(Error::Misuse(_))));
    }
}

#[test]
fn chains_end_with_a_delta_without_a_base_as_with_an_archive() {
    let mut content = with_copies(13, 60 * PAGE_SIZE + 5);
    let mut archive = open_alone(&deduplicated(&content, Format::Lz4, 64).0).unwrap();
    for depth in 2..=Delta::MAX_DEPTH {
        content[depth * PAGE_SIZE + 1] ^= 1;
        let delta = delta_of(&content, &archive, FORMATS[depth % 2], 7).0;
        archive = open(&delta, archive).unwrap();
        assert_eq!(archive.depth(), depth);
    }
    assert_reads(&archive, &content);
    assert!(matches!(archive.record(b"next"), Err(Error::ChainTooLong { .. })));
    let hashes = PageHashes::stored(&archive).unwrap().unwrap();
    assert_eq!(hashes.check(&archive, HashCheck::All).unwrap(), 61);
    drop::<PageArchive>(archive);
}
