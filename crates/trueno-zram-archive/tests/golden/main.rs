//! Proves the compatibility that `docs/FORMAT.md` promises: all files of `testdata/` read as they always did, byte for byte.
//!
//! `testdata/MANIFEST` lists the files, with a recipe for the content of each. `recipe.rs` makes the contents and knows nothing of
//! the crate. The tools `lz4` and `zstd` made the foreign files.
//!
//! To add a file, add a line with `-` for length and hash, and run this test with `UPDATE_GOLDEN=1`. That makes the files that do
//! not exist and changes no other. If the writer is meant to give other bytes from now on, the old files stay as well: name a new
//! folder in [`WRITER`], and add lines for it.
#![cfg(feature = "zstd")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod by_hand;
mod manifest;
mod read;
mod recipe;
mod write;

use std::collections::BTreeSet;
use std::fs;

use manifest::{FILES, Golden, Kind};
use read::Structure;
use trueno_zram_archive::process_state::{FileMapping, ProcessState, ThreadState};
use trueno_zram_archive::{Error, Format, GROUP_PAGES, IndexVerdict, PageOrigin};
use trueno_zram_core::PAGE_SIZE;
use xxhash_rust::xxh32::xxh32;

/// The folder of the files that today's writer writes, named after the version that wrote them first.
const WRITER: &str = "0.2";

/// The version of libzstd that compressed the Zstandard files of this folder. Other versions may compress pages differently: only
/// the structure of these files is compared then.
const WRITER_LIBZSTD: u32 = 10507;

/// The most bytes of all files: they are part of the crate's package. A new folder may double it.
const MAX_FOLDER_BYTES: u64 = 900 << 10;

#[test]
fn the_manifest_lists_every_file_and_no_other() {
    let mut listed: Vec<&str> = FILES.iter().map(|file| &file.name[..]).collect();
    listed.sort_unstable();
    assert_eq!(listed, manifest::names_in_folder());
    let bytes: u64 = FILES.iter().map(|file| fs::metadata(file.path()).unwrap().len()).sum();
    assert!(bytes <= MAX_FOLDER_BYTES, "the files have {bytes} bytes; keep them below {MAX_FOLDER_BYTES}");
}

#[test]
fn recipes_give_the_contents_that_they_gave() {
    for file in FILES.iter() {
        let content = file.content();
        let found = (content.len().to_string(), blake3::hash(&content).to_string());
        assert_eq!(found, (file.len_bytes.clone(), file.blake3.clone()), "{}", file.name);
    }
}

#[test]
fn every_file_reads_as_a_stream() {
    for file in FILES.iter().filter(|file| file.kind != Kind::Delta) {
        let (bytes, content) = (file.bytes(), file.content());
        for batch_bytes in [1, 100_000, 8 << 20] {
            let (found, verdict) = read::stream(&bytes, batch_bytes);
            assert_same(file, "as a stream", &found, &content);
            let is_indexed = file.kind == Kind::Archive || file.made.starts_with("join");
            let expected = if is_indexed { IndexVerdict::Agrees } else { IndexVerdict::Absent };
            assert_eq!(verdict, expected, "{}", file.name);
        }
        let format = if file.name.ends_with(".lz4") { Format::Lz4 } else { Format::Zstd };
        assert_same(file, "with a codec of the caller", &read::stream_with_codec(&bytes, format), &content);
    }
}

#[test]
fn every_archive_reads_by_its_index() {
    for file in FILES.iter().filter(|file| file.kind == Kind::Archive) {
        let (bytes, content) = (file.bytes(), file.content());
        for range_pages in [1, 97, usize::MAX] {
            if range_pages == 1 && content.len() > 1000 * PAGE_SIZE {
                continue;
            }
            assert_same(file, "by ranges", &read::ranges(&bytes, range_pages), &content);
        }
        assert_same(file, "by a cursor", &read::cursor(&bytes), &content);
        assert_same(file, "by groups", &read::groups(&bytes), &content);
    }
}

#[test]
fn every_archive_and_delta_reads_page_by_page() {
    for file in FILES.iter().filter(|file| file.kind != Kind::Stream) {
        let (archive, content) = (read::open(&file.path()), file.content());
        assert_same(file, "page by page", &read::page_by_page(&archive), &content);
        assert_same(file, "many pages at once", &read::many_pages(&archive, 70), &content);
        assert_same(file, "by position", &read::by_position(&archive), &content);
        let pages = write::padded_pages(&content);
        for (number, (said, page)) in read::zero_pages(&archive).into_iter().zip(&pages).enumerate() {
            assert!(!said || *page == [0; PAGE_SIZE], "{}: page {number} is not zero", file.name);
        }
    }
}

#[test]
fn salvage_loses_nothing() {
    for file in FILES.iter().filter(|file| file.kind != Kind::Delta) {
        let (found, damage) = read::salvage(&file.bytes());
        assert_eq!(damage, [], "{}", file.name);
        assert_same(file, "by salvage", &found, &file.content());
    }
}

/// A delta holds a standard archive of the pages that it stores, and other tools refuse the delta itself.
#[test]
fn the_stored_pages_of_a_delta_are_an_archive() {
    for file in FILES.iter().filter(|file| file.kind == Kind::Delta) {
        let bytes = file.bytes();
        assert!(zstd::decode_all(&bytes[..]).is_err(), "{}", file.name);
        assert_eq!(trueno_test_pages::frames::decompress(&bytes), None, "{}", file.name);
        let stored = standard_part(file, &bytes);
        let (content, verdict) = read::stream(stored, 1 << 20);
        assert_eq!(verdict, IndexVerdict::Agrees, "{}", file.name);
        assert_same(file, "the stored pages by the C library", &by_c_library(stored), &content);
        let pages: BTreeSet<_> = write::padded_pages(&file.content()).into_iter().collect();
        assert!(
            content.as_chunks().0.iter().all(|page| pages.contains(page)),
            "{}: a page of another image",
            file.name
        );
    }
}

#[test]
fn the_c_libraries_read_every_archive() {
    for file in FILES.iter().filter(|file| file.kind == Kind::Archive) {
        assert_same(file, "by the C library", &by_c_library(&file.bytes()), &file.content());
    }
}

#[test]
fn sections_keep_their_names_and_data() {
    for file in FILES.iter().filter(|file| file.kind != Kind::Stream) {
        let (archive, bytes, expected) = (read::open(&file.path()), file.bytes(), write::sections(file));
        for (name, data) in &expected {
            assert_eq!(read::section(&archive, name).as_ref(), Some(data), "{}, section {name}", file.name);
        }
        let mut names: Vec<String> = expected.into_iter().map(|(name, _)| name).collect();
        if file.made.contains(" page-hashes") {
            names.push("page-hashes".to_owned());
        }
        assert_eq!(read::section_names(standard_part(file, &bytes)), names, "{}", file.name);
        assert_eq!(read::section(&archive, "no such section"), None, "{}", file.name);
    }
}

#[test]
fn snapshots_keep_their_address_map_and_process_state() {
    let of_section = |name| FILES.iter().filter(move |file| file.made.contains(name));
    for file in of_section("section=address-map") {
        let (pid, command, mappings) = read::address_map(&read::open(&file.path()));
        assert_eq!((pid, &command[..]), (4711, "server"), "{}", file.name);
        let expected = [
            ("[heap] rw- anonymous", 0x10000, vec![(3, Some(0)), (2, None), (1, Some(3))]),
            ("/lib/x.so r-x", 0x20000, vec![(1, Some(4)), (1, None)]),
        ];
        assert_eq!(mappings, expected.map(|(name, start, runs)| (name.to_owned(), start, runs)), "{}", file.name);
    }
    for file in of_section("section=process-state") {
        let expected = ProcessState {
            machine: 62,
            auxiliary_vector: vec![0; 16],
            threads: vec![ThreadState { number: 4711, registers: vec![7; 27 * 8] }],
            files: vec![FileMapping { start: 0x1a000, end: 0x1c000, offset: 0, name: "/lib/x.so".into() }],
        };
        assert_eq!(read::process_state(&read::open(&file.path())), expected, "{}", file.name);
    }
}

#[test]
fn page_hashes_are_those_of_the_pages() {
    for file in FILES.iter().filter(|file| file.kind == Kind::Delta || file.made.contains(" page-hashes")) {
        let archive = read::open(&file.path());
        read::check_page_hashes(&archive);
        if file.kind == Kind::Archive {
            let pages = write::padded_pages(&file.content());
            let pages = pages.iter().filter(|page| **page != [0; PAGE_SIZE]);
            let hashes: Vec<u8> = pages.flat_map(|page| blake3::hash(page).as_bytes()[..16].to_vec()).collect();
            let section = read::section(&archive, "page-hashes").unwrap();
            assert!(section.starts_with(&[1]) && section.ends_with(&hashes), "{}", file.name);
        }
    }
}

/// An unintended change of the format shows here, and an update of lz4_flex that compresses tails differently. If the change is
/// intended, see the first lines of this file.
#[test]
fn the_writer_gives_the_same_bytes() {
    for file in FILES.iter().filter(|file| file.writer() == WRITER) {
        let (golden, written) = (file.bytes(), write::write(file));
        let by_libzstd =
            ["archive", "delta", "delta-2", "dedup"].iter().any(|kind| file.made.starts_with(&format!("{kind} zst")));
        if by_libzstd && zstd_safe::version_number() != WRITER_LIBZSTD {
            let structure_of = |bytes| read::structure(standard_part(file, bytes));
            assert_eq!(structure_of(&written), structure_of(&golden), "{}", file.name);
        } else {
            assert!(written == golden, "{}: the writer gives other bytes than before", file.name);
        }
    }
}

/// Every form of a page and of a tail is there in both formats, with and without checksums.
#[test]
fn the_files_have_every_form() {
    let archives = FILES.iter().filter(|file| file.kind == Kind::Archive);
    let found: BTreeSet<String> = archives.flat_map(|file| features(&read::structure(&file.bytes()))).collect();
    for format in [Format::Lz4, Format::Zstd] {
        for block_checksums in [false, true] {
            let mut expected =
                ["SameFilled page", "Raw page", "Raw tail", "1 zero pages", "2 zero pages", "several groups"]
                    .map(str::to_owned)
                    .to_vec();
            expected.extend([format!("{format:?} page"), format!("{format:?} tail"), "content of 1 bytes".to_owned()]);
            // An empty archive of the Zstandard format counts as one with checksums.
            if format == Format::Lz4 || block_checksums {
                expected.push("content of 0 bytes".to_owned());
            }
            expected.extend(match format {
                Format::Lz4 => ["16 zero pages", "content checksum", "no content checksum"].map(str::to_owned).to_vec(),
                Format::Zstd => vec!["1024 zero pages".to_owned()],
            });
            for feature in expected {
                let feature = named_feature(format, block_checksums, &feature);
                assert!(found.contains(&feature), "no file has this: {feature}");
            }
        }
    }
}

/// Returns what an archive has, in words.
fn features(archive: &Structure) -> BTreeSet<String> {
    let mut features = BTreeSet::new();
    let mut add = |feature: &str| {
        features.insert(named_feature(archive.format, archive.block_checksums, feature));
    };
    for block in &archive.blocks {
        let is_tail = block.first_page == archive.content_len / PAGE_SIZE as u64;
        match block.is_zero {
            true => add(&format!("{} zero pages", block.pages)),
            false => add(&format!("{:?} {}", block.kind, if is_tail { "tail" } else { "page" })),
        }
    }
    add(&format!("content of {} bytes", archive.content_len));
    add(if archive.content_checksum { "content checksum" } else { "no content checksum" });
    if archive.content_len > (GROUP_PAGES * PAGE_SIZE) as u64 {
        add("several groups");
    }
    features
}

fn named_feature(format: Format, block_checksums: bool, feature: &str) -> String {
    format!("{format:?}, {} block checksums: {feature}", if block_checksums { "with" } else { "without" })
}

/// Pages of deltas come from all places: the delta itself, once and again, and the same, a later and an earlier page of the base.
#[test]
fn the_deltas_have_every_origin() {
    let (mut found, mut depths) = (BTreeSet::new(), BTreeSet::new());
    for file in FILES.iter().filter(|file| file.kind == Kind::Delta) {
        let (depth, origins) = read::origins(&read::open(&file.path()));
        depths.insert(depth);
        let mut stored = BTreeSet::new();
        for (page, origin) in (0..).zip(origins) {
            found.insert(match origin {
                PageOrigin::Zero => "zero".to_owned(),
                PageOrigin::Base(number) => format!("base, {:?}", number.cmp(&page)),
                PageOrigin::Stored(number) if stored.insert(number) => "stored".to_owned(),
                PageOrigin::Stored(_) => "stored again".to_owned(),
            });
        }
    }
    let expected = ["base, Equal", "base, Greater", "base, Less", "stored", "stored again", "zero"];
    assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), expected);
    assert_eq!(depths.into_iter().collect::<Vec<_>>(), [1, 2, 3]);
}

/// Readers refuse a version that they do not know. Standard frames stay readable as a stream.
#[test]
fn unknown_versions_are_refused() {
    let named = |name: &str| FILES.iter().find(|file| file.name == name).unwrap();
    // The version is the last field before the checksum of `start..`, in the index footer and in both ends of a delta.
    let with_version = |bytes: &[u8], start: usize, checksum_at: usize, version: u32| {
        let mut other = bytes.to_vec();
        other[checksum_at - 4..checksum_at].copy_from_slice(&version.to_le_bytes());
        let checksum = xxh32(&other[start..checksum_at], 0).to_le_bytes();
        other[checksum_at..checksum_at + 4].copy_from_slice(&checksum);
        other
    };
    for (name, versions) in [("0.1/lz4-b-c.lz4", [0, 3, 0x1_0001]), ("0.1/zst-b.zst", [0, 3, 0x2_0002])] {
        let file = named(name);
        let (bytes, content) = (file.bytes(), file.content());
        let footer_end = bytes.windows(8).rposition(|window| window == b"TZ-PAGES").unwrap() + 8;
        for version in versions {
            let other = with_version(&bytes, footer_end - 80, footer_end - 12, version);
            let error = read::refused_index(&other);
            assert!(matches!(error, Error::Index { .. }) && error.to_string().contains("version"), "{name}: {error}");
            let (found, verdict) = read::stream(&other, 1 << 20);
            assert_same(file, "as a stream", &found, &content);
            assert!(matches!(verdict, IndexVerdict::Disagrees(_)), "{name}: {verdict:?}");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    for (name, version) in [("0.1/delta-lz4-on-lz4.tzd", 2), ("0.2/dedup-lz4.tzd", 1)] {
        let bytes = named(name).bytes();
        for newer in [version, 0, 3] {
            let newer_head = with_version(&bytes, 0, 12, newer);
            let newer_footer = with_version(&bytes, bytes.len() - 84, bytes.len() - 12, newer);
            for other in [newer_head, newer_footer] {
                let path = folder.path().join("newer.tzd");
                fs::write(&path, other).unwrap();
                let error = read::open_any(&path).unwrap_err();
                let expected = if newer == version {
                    "bad delta: its head and its footer have different versions".to_owned()
                } else {
                    format!("bad delta: unknown version {newer}; this reader knows versions 1 and 2")
                };
                assert!(matches!(error, Error::Delta { .. }) && error.to_string() == expected, "{error}");
            }
        }
    }
}

fn assert_same(file: &Golden, way: &str, found: &[u8], content: &[u8]) {
    let differs = found.iter().zip(content).position(|(found, expected)| found != expected);
    assert!(
        found == content,
        "{} {way}: {} bytes instead of {}; the first that differs is {differs:?}",
        file.name,
        found.len(),
        content.len()
    );
}

/// Returns the archive of stored pages in a delta, and other files as they are.
fn standard_part<'a>(file: &Golden, bytes: &'a [u8]) -> &'a [u8] {
    if file.kind != Kind::Delta {
        return bytes;
    }
    let footer = &bytes[bytes.len() - 84..];
    let len = u64::from_le_bytes(*footer[8..].first_chunk().unwrap());
    &bytes[16..16 + usize::try_from(len).unwrap()]
}

fn by_c_library(archive: &[u8]) -> Vec<u8> {
    match archive.starts_with(&[0x04, 0x22, 0x4d, 0x18]) {
        true => trueno_test_pages::frames::decompress(archive).unwrap(),
        false => zstd::decode_all(archive).unwrap(),
    }
}
