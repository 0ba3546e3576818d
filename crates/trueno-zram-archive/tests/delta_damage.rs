//! Damaged and lying deltas, and bases that were changed: an error, or the pages that were hashed; never other bytes.
#![cfg(feature = "zstd")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::sync::Arc;

use support::deltas::{ForgedDelta, assert_reads, deduplicated, delta_of, open, padded, standard};
use support::{archive_of, hashed_archive_in, mixed_content, plain_archive_in, with_checksums};
use trueno_test_pages::generate::Generator;
use trueno_zram_archive::{
    ArchiveWriter, Delta, Error, Format, HashCheck, PageArchive, PageHash, PageHashes, PageOrigin, Pages,
};
use trueno_zram_core::{CpuBatchCompressor, PAGE_SIZE, Page};

/// A base, content that differs from it in some pages, and the delta.
fn sample(format: Format) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
    let Sample { base, content, delta } = sample_of(Kind::BaseWithoutHashes, format);
    (base.unwrap(), content, delta)
}

/// The kinds of deltas. The first has version 1.
#[derive(Clone, Copy, Debug)]
enum Kind {
    BaseWithoutHashes,
    BaseWithHashes,
    NoBase,
}

const KINDS: [Kind; 3] = [Kind::BaseWithoutHashes, Kind::BaseWithHashes, Kind::NoBase];

/// A delta, the base that it needs, and its content, in which some pages are copies.
struct Sample {
    base: Option<Vec<u8>>,
    content: Vec<u8>,
    delta: Vec<u8>,
}

impl Sample {
    fn open(&self, delta: &[u8]) -> Result<Option<PageArchive>, Error> {
        let base = self.base.as_deref().map(standard).ok_or(Error::NoIndex);
        let opened = Delta::open(Arc::new(delta.to_vec()), |_| base);
        Ok(opened?.map(|delta| PageArchive::Delta(Box::new(delta))))
    }
}

fn sample_of(kind: Kind, format: Format) -> Sample {
    let before = mixed_content(31, 1300 * PAGE_SIZE + 100);
    let mut content = before.clone();
    let mut random = Generator::new(5);
    for _ in 0..60 {
        let page = random.below(1300) * PAGE_SIZE;
        content[page..page + PAGE_SIZE].copy_from_slice(&random.page());
        content.copy_within(page..page + PAGE_SIZE, random.below(1300) * PAGE_SIZE);
    }
    let base = match kind {
        Kind::BaseWithoutHashes => plain_archive_in(format, &before),
        Kind::BaseWithHashes => hashed_archive_in(format, &before),
        Kind::NoBase => return Sample { base: None, delta: deduplicated(&content, format, 64).0, content },
    };
    let (delta, _) = delta_of(&content, &standard(&base), format, 64);
    Sample { base: Some(base), content, delta }
}

/// Reads all pages in both ways. Pages that are returned have the hash that the delta states.
fn judge(archive: &PageArchive) -> Vec<Option<Page>> {
    let delta = archive.as_delta().unwrap();
    let mut pages = Vec::new();
    for number in 0..archive.page_count().min(5000) {
        let mut page = [0xff; PAGE_SIZE];
        let read = archive.read(number, std::slice::from_mut(&mut page)).ok();
        if read.is_some() {
            let len = archive.page_len(number);
            let (origin, hash) = delta.origin(number).expect("the page was found by it");
            assert_eq!(hash.is_none(), origin == PageOrigin::Zero);
            assert!(hash.is_none_or(|hash| len < PAGE_SIZE || PageHash::of(&page) == hash), "page {number}");
            assert!(hash.is_some() || page == [0; PAGE_SIZE], "page {number}");
        }
        let mut one = [[0xff; PAGE_SIZE]];
        assert_eq!(archive.read(number, &mut one).is_ok(), read.is_some(), "page {number}");
        assert!(read.is_none() || one[0] == page, "page {number}");
        pages.push(read.map(|_| page));
    }
    pages
}

#[test]
fn every_flipped_bit_is_an_error_or_changes_nothing() {
    for kind in KINDS {
        let sample = sample_of(kind, Format::Lz4);
        let (delta, pages) = (&sample.delta, padded(&sample.content));
        let (forged, mut random) = (ForgedDelta::parse(delta), Generator::new(1));
        assert_eq!(forged.versions, if let Kind::BaseWithoutHashes = kind { [1; 2] } else { [2; 2] });
        let map_at = 16 + forged.stored.len();
        // All of the end and the head; samples of the rest.
        let ends = (0..16).chain(delta.len() - 200..delta.len());
        let rest: Vec<usize> = (0..300)
            .map(|n| if n % 2 == 0 { random.below(map_at) } else { map_at + random.below(delta.len() - map_at) })
            .collect();
        for at in ends.chain(rest) {
            let mut damaged = delta.clone();
            damaged[at] ^= 1 << random.below(8);
            let Ok(Some(archive)) = sample.open(&damaged) else { continue };
            for (number, (found, page)) in judge(&archive).iter().zip(&pages).enumerate() {
                assert!(found.is_none_or(|found| found == *page), "byte {at}, page {number}, {kind:?}");
            }
        }
    }
}

#[test]
fn every_cut_is_an_error() {
    for kind in KINDS {
        let sample = sample_of(kind, Format::Lz4);
        let mut random = Generator::new(2);
        for len in (0..120).chain((0..200).map(|_| random.below(sample.delta.len()))) {
            let opened = sample.open(&sample.delta[..len]);
            assert!(opened.is_err() || len < 8 && opened.is_ok_and(|opened| opened.is_none()), "{len} bytes");
        }
        let longer = [&sample.delta[..], b"more"].concat();
        assert!(matches!(sample.open(&longer), Err(Error::Delta(_))));
    }
}

#[test]
fn forged_deltas_return_pages_with_the_stated_hashes_or_errors() {
    for (kind, format) in KINDS.into_iter().flat_map(|kind| support::FORMATS.map(|format| (kind, format))) {
        let sample = sample_of(kind, format);
        let mut opened = 0;
        for seed in 0..150 {
            let (mut forged, mut random) = (ForgedDelta::parse(&sample.delta), Generator::new(seed));
            for _ in 0..1 + random.below(3) {
                forged.edit(&mut |n| random.below(n));
            }
            if let Ok(Some(archive)) = sample.open(&forged.build()) {
                opened += 1;
                judge(&archive);
                let _ = PageHashes::stored(&archive);
            }
        }
        assert!(opened > 30, "most of what is forged here gets past the checksums: {opened}");
    }
}

/// Puts other references into a group, and leaves the hashes as they are.
fn with_runs(forged: &ForgedDelta, group: usize, old_runs: usize, runs: &[u8]) -> Vec<u8> {
    let mut forged = forged.clone();
    let hashes = forged.groups[group].split_off(old_runs);
    forged.groups[group] = [runs, &hashes].concat();
    forged.build()
}

#[test]
fn references_to_other_pages_are_found_by_the_hash() {
    // 2,000 pages that are all different and none of which is zero.
    let content: Vec<u8> = (1..=2000u32).flat_map(|n| n.to_le_bytes().repeat(PAGE_SIZE / 4)).collect();
    let base = plain_archive_in(Format::Lz4, &content);
    let (delta, _) = delta_of(&content, &standard(&base), Format::Lz4, 64);
    let forged = ForgedDelta::parse(&delta);
    // The first group is one run of 1,024 pages of the base: 4,097 as two bytes, and a step of 0.
    assert_eq!(forged.groups[0][..3], [0x81, 0x20, 0]);
    assert_reads(&open(&delta, standard(&base)).unwrap(), &content);
    let shifted = open(&with_runs(&forged, 0, 3, &[0x81, 0x20, 2]), standard(&base)).unwrap();
    let error = shifted.read(7, &mut [[0; PAGE_SIZE]]).unwrap_err();
    assert!(matches!(&error, Error::PageHash { page: 7, origin } if origin == "page 8 of base base.lz4"), "{error}");
    assert!(judge(&shifted)[..1024].iter().all(Option::is_none));
    assert!(judge(&shifted)[1024..].iter().all(Option::is_some));
    // Before the base, and behind it.
    for runs in [&[0x81, 0x20, 1][..], &[0x81, 0x20, 0xff, 0xff, 0x7f], &[0x82, 0x20, 0]] {
        let archive = open(&with_runs(&forged, 0, 3, runs), standard(&base)).unwrap();
        let error = archive.read(7, &mut [[0; PAGE_SIZE]]).unwrap_err();
        assert!(matches!(error, Error::Delta(_)), "{error}");
    }
}

#[test]
fn a_base_that_keeps_its_index_and_changes_its_pages_is_noticed() {
    let mut random = Generator::new(8);
    let content: Vec<u8> = (0..300 * PAGE_SIZE).map(|_| random.byte()).collect();
    let options = with_checksums().with_block_checksums(false).with_content_checksum(false);
    let base = archive_of(&content, options, 100).0;
    let (delta, summary) = delta_of(&content, &standard(&base), Format::Lz4, 64);
    assert_eq!(summary.base_pages, 300);
    // A byte within the raw block of page 100, which no checksum covers.
    let mut changed = base.clone();
    changed[7 + 100 * (PAGE_SIZE + 4) + 2000] ^= 1;
    assert_eq!(standard(&changed).identity(), standard(&base).identity());
    let archive = open(&delta, standard(&changed)).unwrap();
    for (number, found) in judge(&archive).iter().enumerate() {
        assert_eq!(found.is_none(), number == 100, "page {number}");
    }
    // Through a delta of that delta as well.
    let (second, _) = delta_of(&content, &open(&delta, standard(&base)).unwrap(), Format::Zstd, 64);
    let archive = open(&second, archive).unwrap();
    let error = archive.read(100, &mut [[0; PAGE_SIZE]]).unwrap_err();
    assert!(matches!(error, Error::PageHash { page: 100, .. }), "{error}");
}

#[test]
fn a_base_with_damaged_blocks_is_named() {
    let (base, _, delta) = sample(Format::Lz4);
    let mut damaged = base.clone();
    damaged[base.len() / 3] ^= 4;
    let archive = open(&delta, standard(&damaged)).unwrap();
    let errors: Vec<_> =
        (0..archive.page_count()).filter_map(|page| archive.read(page, &mut [[0; PAGE_SIZE]]).err()).collect();
    assert!(!errors.is_empty());
    let names_base = |error: &Error| matches!(error, Error::Base { base, .. } if base == "base.lz4");
    assert!(errors.iter().all(names_base), "{:?}", errors[0]);
}

#[test]
fn another_base_is_refused() {
    let (_, content, delta) = sample(Format::Lz4);
    let other = standard(&plain_archive_in(Format::Lz4, &content));
    assert!(matches!(open(&delta, other), Err(Error::Base { .. })));
}

#[test]
fn hashes_of_a_base_that_lie_are_found_when_the_delta_is_read() {
    let content: Vec<u8> = (1..=200u32).flat_map(|n| n.to_le_bytes().repeat(PAGE_SIZE / 4)).collect();
    let base = plain_archive_in(Format::Lz4, &content);
    let (delta, _) = delta_of(&content, &standard(&base), Format::Lz4, 64);
    // The first delta states the hash of page 3 for page 7 as well.
    let mut forged = ForgedDelta::parse(&delta);
    let hash = forged.groups[0][3 + 3 * 16..][..16].to_vec();
    forged.groups[0][3 + 7 * 16..][..16].copy_from_slice(&hash);
    let lying = open(&forged.build(), standard(&base)).unwrap();
    let mut image = content.clone();
    image.copy_within(3 * PAGE_SIZE..4 * PAGE_SIZE, 7 * PAGE_SIZE);
    let (second, _) = delta_of(&image, &lying, Format::Lz4, 64);
    let archive = open(&second, lying).unwrap();
    for (number, page) in padded(&image).iter().enumerate() {
        let mut found = [0; PAGE_SIZE];
        match archive.read(number as u64, std::slice::from_mut(&mut found)) {
            Ok(_) => assert_eq!(found, *page, "page {number}"),
            Err(error) => assert!(number == 7 && matches!(error, Error::PageHash { .. }), "page {number}: {error}"),
        }
    }
}

/// Pages that are all different, none of them zero.
fn distinct_pages(count: u32) -> Vec<Page> {
    let page = |number: u32| {
        let mut page = [number.to_le_bytes()[0]; PAGE_SIZE];
        page[100..104].copy_from_slice(&(number + 1).to_le_bytes());
        page
    };
    (0..count).map(page).collect()
}

/// An archive that states the hashes of other pages than it has. All its checksums are right.
fn with_hashes_of(stated: &[Page], pages: &[Page]) -> PageArchive {
    let options = with_checksums().with_page_hashes(true).with_content_checksum(false);
    let mut archive = ArchiveWriter::new(Vec::new(), options).unwrap();
    archive.write_batch_of(&CpuBatchCompressor::default().compress(pages).unwrap(), stated).unwrap();
    standard(&archive.finish(None).unwrap().0)
}

/// Compares pages of an archive with the hashes that it states.
fn check(archive: &PageArchive, check: HashCheck) -> Result<u64, Error> {
    PageHashes::stored(archive).unwrap().unwrap().check(archive, check)
}

#[test]
fn false_hashes_of_one_page_in_a_hundred_are_found_by_a_sample() {
    let (pages, mut stated) = (distinct_pages(5000), distinct_pages(5000));
    let is_false = |page: u64| page % 100 == 7;
    (0..5000).filter(|page| is_false(*page as u64)).for_each(|page| stated[page][50] ^= 1);
    let archive = with_hashes_of(&stated, &pages);
    for checked in [HashCheck::Sampled, HashCheck::All] {
        let error = check(&archive, checked).unwrap_err();
        assert!(matches!(error, Error::StatedHash { page } if is_false(page)), "{error}");
    }
}

#[test]
fn a_single_false_hash_is_found_if_all_pages_are_compared() {
    for (count, is_sampled_whole) in [(1400, true), (5000, false)] {
        let (pages, mut stated) = (distinct_pages(count), distinct_pages(count));
        stated[1234][0] ^= 1;
        let archive = with_hashes_of(&stated, &pages);
        let is_the_page = |error: Error| matches!(error, Error::StatedHash { page: 1234 });
        assert!(check(&archive, HashCheck::All).is_err_and(is_the_page));
        assert!(!is_sampled_whole || check(&archive, HashCheck::Sampled).is_err_and(is_the_page));
        // A page that is stated to be zero.
        stated[1234] = [0; PAGE_SIZE];
        assert!(check(&with_hashes_of(&stated, &pages), HashCheck::All).is_err_and(is_the_page));
    }
}

#[test]
fn false_hashes_of_a_delta_are_found() {
    let content = distinct_pages(1300).into_flattened();
    let base = plain_archive_in(Format::Lz4, &content);
    let (delta, _) = delta_of(&content, &standard(&base), Format::Lz4, 64);
    let mut forged = ForgedDelta::parse(&delta);
    // A run of 1,024 pages of the base, three bytes, then the hashes.
    forged.groups[0][3 + 900 * 16] ^= 1;
    let archive = open(&forged.build(), standard(&base)).unwrap();
    let error = check(&archive, HashCheck::Sampled).unwrap_err();
    assert!(matches!(error, Error::StatedHash { page: 900 }), "{error}");
    let error = check(&archive, HashCheck::All).unwrap_err();
    assert!(matches!(error, Error::PageHash { page: 900, .. }), "{error}");
}

#[test]
fn true_hashes_pass_and_damaged_pages_do_not() {
    for format in support::FORMATS {
        let (base, changed, delta) = sample(format);
        // Through two deltas, with zero pages and a shorter last one.
        let delta = open(&delta, standard(&base)).unwrap();
        let (second, _) = delta_of(&changed[..1200 * PAGE_SIZE + 9], &delta, format, 64);
        let pages = padded(&changed).iter().filter(|page| **page != [0; PAGE_SIZE]).count() as u64;
        for _ in 0..2 {
            assert_eq!(check(&delta, HashCheck::Sampled).unwrap(), pages, "fewer than a sample");
            assert_eq!(check(&delta, HashCheck::All).unwrap(), 1301);
        }
        assert_eq!(check(&open(&second, delta).unwrap(), HashCheck::All).unwrap(), 1201);
    }
    let pages = distinct_pages(1000);
    let archive = with_hashes_of(&pages, &pages);
    let computed = PageHashes::compute(&archive).unwrap();
    assert_eq!(computed.check(&archive, HashCheck::Sampled).unwrap(), 1000);
    let mut base = archive_of(&pages.concat(), with_checksums(), 100).0;
    let at = base.len() / 3;
    base[at] ^= 4;
    for checked in [HashCheck::Sampled, HashCheck::All] {
        assert!(computed.check(&standard(&base), checked).is_err());
    }
}

/// The position of some bytes in others.
fn find(bytes: &[u8], wanted: &[u8]) -> usize {
    bytes.windows(wanted.len()).position(|window| window == wanted).unwrap()
}

/// The error of a page, which is the same whether it is read alone or with its neighbours.
fn error_of(archive: &PageArchive, page: u64) -> Error {
    let alone = archive.read(page, &mut [[0; PAGE_SIZE]]).unwrap_err();
    let pages = archive.read(page - 3, &mut [[0; PAGE_SIZE]; 6]).unwrap_err();
    assert_eq!(alone.to_string(), pages.to_string());
    alone
}

#[test]
fn errors_name_the_page_of_the_image_and_the_byte_of_the_file() {
    let mut random = Generator::new(12);
    let mut pages = |count: usize| -> Vec<u8> { (0..count * PAGE_SIZE).map(|_| random.byte()).collect() };
    let (old, new) = (pages(40), pages(20));
    let base = plain_archive_in(Format::Lz4, &old);
    // Ten zero pages, 20 that are stored, and those of the base from its page 5 on.
    let content = [&[0; 10 * PAGE_SIZE], &new[..], &old[5 * PAGE_SIZE..]].concat();
    let (delta, _) = delta_of(&content, &standard(&base), Format::Lz4, 64);
    // The last 55 of these.
    let (second, _) = delta_of(&content[10 * PAGE_SIZE..], &open(&delta, standard(&base)).unwrap(), Format::Lz4, 64);

    let at = find(&delta, &new[3 * PAGE_SIZE..][..64]);
    let mut damaged = delta.clone();
    damaged[at + 100] ^= 1;
    let archive = open(&damaged, standard(&base)).unwrap();
    let error = error_of(&archive, 13);
    assert!(
        matches!(error, Error::BlockChecksum { page: Some(13), at: block, .. } if block == at as u64 - 4),
        "{error}"
    );
    let error = error_of(&open(&second, archive).unwrap(), 3);
    assert!(matches!(error, Error::Base { page: Some(3), .. }), "{error}");
    assert!(error.to_string().contains(&format!("page 13 (byte {}): ", at - 4)), "{error}");

    let at = find(&base, &old[7 * PAGE_SIZE..][..64]);
    let mut damaged = base.clone();
    damaged[at + 100] ^= 1;
    let archive = open(&delta, standard(&damaged)).unwrap();
    let error = error_of(&archive, 32);
    let Error::Base { base, reason, page: Some(32) } = error else { panic!("{error}") };
    assert_eq!(base, "base.lz4");
    assert!(reason.starts_with(&format!("page 7 (byte {}): ", at - 4)), "{reason}");
    let error = error_of(&open(&second, archive).unwrap(), 22);
    assert!(matches!(error, Error::Base { page: Some(22), .. }), "{error}");
}
