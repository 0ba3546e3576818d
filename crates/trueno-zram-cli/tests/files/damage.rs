//! Damaged archives: found out, or restored right; never anything else.

use std::fs;

use trueno_test_pages::PAGE_SIZE;

use crate::support::{folder, image, names, run, run_with};

/// A small archive with pages of all kinds and a short last one.
fn small() -> (Vec<u8>, Vec<u8>) {
    let mut content = [[0; PAGE_SIZE], [7; PAGE_SIZE]].concat();
    content.extend(std::iter::repeat_n(b"LZ4 page ", 455).flatten().take(PAGE_SIZE));
    content.extend([0; 100]);
    let archive = run_with(folder().path(), &["compress"], &content).ok().stdout;
    assert!(archive.len() < 500, "{} bytes: each of them is a run", archive.len());
    (content, archive)
}

#[test]
fn every_damaged_byte_is_found_out_or_does_no_harm() {
    let (content, archive) = small();
    let folder = folder();
    let (path, mut found_out) = (folder.path().join("x.lz4"), 0);
    for at in 0..archive.len() {
        let mut damaged = archive.clone();
        damaged[at] ^= 1 << (at % 8);
        fs::write(&path, &damaged).unwrap();
        let out = run(folder.path(), &["decompress", "-q", "x.lz4"]);
        match out.code {
            Some(0) => assert!(fs::read(folder.path().join("x")).unwrap() == content, "byte {at}"),
            _ => {
                out.fails(&["x.lz4"]);
                found_out += 1;
            }
        }
        let _ = fs::remove_file(folder.path().join("x"));
        assert_eq!(names(folder.path()), ["x.lz4"], "nothing is left of what is not whole");
        let tested = run(folder.path(), &["test", "-q", "x.lz4"]);
        assert!(tested.code == Some(0) || tested.code == Some(1), "byte {at}: {}", tested.stderr);
        let page = run(folder.path(), &["extract", "-q", "x.lz4", "--pages", "2"]);
        assert!(page.code == Some(1) || page.stdout == content[2 * PAGE_SIZE..3 * PAGE_SIZE], "byte {at}");
    }
    // All bytes of the frame are under some checksum; the index is not needed to restore the content.
    assert!(found_out >= 60, "{found_out} of {}", archive.len());
}

#[test]
fn every_truncation_is_found_out_or_does_no_harm() {
    let (content, archive) = small();
    let folder = folder();
    for len in 1..archive.len() {
        fs::write(folder.path().join("x.lz4"), &archive[..len]).unwrap();
        let out = run(folder.path(), &["decompress", "-q", "--json", "x.lz4"]);
        if out.code == Some(0) {
            let there = fs::read(folder.path().join("x")).unwrap();
            assert!(there == content, "{len} bytes");
            fs::remove_file(folder.path().join("x")).unwrap();
        } else {
            out.fails_as("damaged", &["x.lz4"]);
        }
        assert_eq!(names(folder.path()), ["x.lz4"]);
    }
}

#[test]
fn damage_deep_in_a_large_archive_is_found_and_placed() {
    let folder = folder();
    fs::write(folder.path().join("image"), image(4000)).unwrap();
    run(folder.path(), &["compress", "image"]).ok();
    let mut archive = fs::read(folder.path().join("image.lz4")).unwrap();
    let at = archive.len() / 2;
    archive[at] ^= 0x10;
    fs::write(folder.path().join("image.lz4"), &archive).unwrap();
    let out = run(folder.path(), &["decompress", "-f", "image.lz4", "--json"]).fails_as("damaged", &["image.lz4"]);
    // The position is that of the block, which is at most a page long.
    let digits = |word: &str| word.trim_matches(|c: char| !c.is_ascii_digit()).parse::<usize>().ok();
    let places: Vec<_> = out.stderr.split_whitespace().filter_map(digits).collect();
    assert!(places.iter().any(|place| place.abs_diff(at) < PAGE_SIZE + 16), "{at} in {}", out.stderr);
    assert!(fs::read(folder.path().join("image")).unwrap() == image(4000), "the old file is untouched");
    run_with(folder.path(), &["test", "--json"], &archive).fails_as("damaged", &["standard input"]);
}

#[test]
fn salvage_restores_all_other_pages_and_lists_the_damaged_ones() {
    let folder = folder();
    let content = image(3000);
    fs::write(folder.path().join("image"), &content).unwrap();
    run(folder.path(), &["compress", "-q", "image"]).ok();
    run(folder.path(), &["decompress", "--salvage", "image.lz4", "-o", "whole"]).ok();
    assert!(fs::read(folder.path().join("whole")).unwrap() == content, "without damage it is like any other");
    let mut archive = fs::read(folder.path().join("image.lz4")).unwrap();
    for at in [archive.len() / 3, archive.len() / 2] {
        archive[at] ^= 0x10;
    }
    fs::write(folder.path().join("image.lz4"), &archive).unwrap();
    run(folder.path(), &["decompress", "image.lz4", "-o", "none", "--json"]).fails_as("damaged", &["image.lz4"]);
    let from_file = run(folder.path(), &["decompress", "--salvage", "image.lz4", "-o", "saved"]);
    assert_eq!(from_file.code, Some(1), "{}", from_file.stderr);
    let listed: Vec<usize> = from_file
        .stderr
        .lines()
        .filter_map(|line| line.strip_prefix("trueno-zram: image.lz4: page ")?.split_once(' ')?.0.parse().ok())
        .collect();
    assert_eq!(listed.len(), 2, "{}", from_file.stderr);
    let saved = fs::read(folder.path().join("saved")).unwrap();
    assert_eq!(saved.len(), content.len());
    for (page, (saved, original)) in saved.chunks(PAGE_SIZE).zip(content.chunks(PAGE_SIZE)).enumerate() {
        let expected = if listed.contains(&page) { &[0; PAGE_SIZE][..] } else { original };
        assert!(saved == expected, "page {page}");
    }
    let last = from_file.stderr.lines().last().unwrap();
    assert!(last.contains("saved") && last.contains(&content.len().to_string()), "{last}");
    run(folder.path(), &["decompress", "--salvage", "--rm", "image.lz4"]).refuses(&["--salvage", "--rm"]);
    let from_pipe = run_with(folder.path(), &["decompress", "--salvage"], &archive);
    assert!(from_pipe.code == Some(1) && from_pipe.stdout == saved, "{}", from_pipe.stderr);
}

/// The content is complete, but the archive is not in order.
#[test]
fn salvage_reports_an_index_that_does_not_describe_the_blocks() {
    let (content, mut archive) = small();
    let entries = archive.windows(8).position(|bytes| bytes == b"TZ-INDEX").unwrap() + 8;
    archive[entries] ^= 1;
    let folder = folder();
    fs::write(folder.path().join("x.lz4"), &archive).unwrap();
    let from_file = run(folder.path(), &["decompress", "--salvage", "--json", "x.lz4", "-o", "saved"]);
    assert_eq!((from_file.code, &from_file.json()[0]["status"]), (Some(1), &"failed".into()), "{}", from_file.stderr);
    assert_eq!(from_file.json()[0]["error_kind"], "damaged");
    assert!(fs::read(folder.path().join("saved")).unwrap() == content);
    let from_pipe = run_with(folder.path(), &["decompress", "--salvage"], &archive);
    assert!(from_pipe.code == Some(1) && from_pipe.stdout == content, "{}", from_pipe.stderr);
}
