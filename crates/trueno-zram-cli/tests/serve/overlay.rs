//! An archive as a device: read-only, and with writes kept in memory.

use std::fs::{self, File};
use std::time::{Duration, SystemTime};

use trueno_test_pages::generate::Generator;

use crate::client::{BLOCK_STATUS, TRIM, WRITE_ZEROES};
use crate::support::{command, finish, folder, image, run};
use crate::{Server, decompressed, stat};

const PAGES: usize = 1100;

#[test]
fn an_archive_is_changed_in_memory_and_saved_as_a_whole() {
    let folder = folder();
    let folder = folder.path();
    let mut expected = image(PAGES);
    expected.truncate(PAGES * 4096 - 1000);
    fs::write(folder.join("image"), &expected).unwrap();
    run(folder, &["compress", "-q", "image", "-o", "image.lz4"]).ok();
    let archive = fs::read(folder.join("image.lz4")).unwrap();

    let server = Server::start(folder, &["image.lz4", "--overlay", "--control", "control"]);
    expected.resize(PAGES * 4096, 0);
    let len = u32::try_from(expected.len()).unwrap();
    let mut client = server.client();
    assert_eq!(client.size, u64::from(len), "whole pages");
    assert_eq!(client.flags & 2, 0, "not read-only");
    assert!(client.read(0, len).unwrap() == expected);

    // Pages 7 to 10 of the image are zero, and what surrounds them is not.
    let extents = client.call(0, BLOCK_STATUS, 6 * 4096, 6 * 4096, b"").unwrap();
    let extent = |len: u32, state: u32| [len.to_be_bytes(), state.to_be_bytes()].concat();
    assert_eq!(extents, [extent(4096, 0), extent(4 * 4096, 3), extent(4096, 0)].concat());

    client.write(5000, b"a part of a page").unwrap();
    client.write(100_000, &[9; 50_000]).unwrap();
    client.call(0, TRIM, 40 * 4096, 8 * 4096, b"").unwrap();
    client.call(0, WRITE_ZEROES, 60 * 4096 + 100, 3 * 4096, b"").unwrap();
    client.write(u64::from(len) - 10, b"at the end").unwrap();
    expected[5000..5016].copy_from_slice(b"a part of a page");
    expected[100_000..150_000].fill(9);
    expected[40 * 4096..48 * 4096].fill(0);
    expected[60 * 4096 + 100..63 * 4096 + 100].fill(0);
    expected[len as usize - 10..].copy_from_slice(b"at the end");
    assert!(client.read(0, len).unwrap() == expected);
    let trimmed = client.call(8, BLOCK_STATUS, 45 * 4096, 4096, b"").unwrap();
    assert_eq!(trimmed[4..], 2u32.to_be_bytes(), "zero, and not what the archive has");
    assert!(stat(folder)["mm"]["orig_data_size"].as_u64().unwrap() < 50 * 4096, "only changes are kept");

    run(folder, &["save", "-q", "control", "merged.zst"]).ok();
    assert!(decompressed(folder, "merged.zst") == expected);
    assert!(fs::read(folder.join("image.lz4")).unwrap() == archive, "the archive is not changed");
    drop(server);
    let server = Server::start(folder, &["merged.zst"]);
    let mut client = server.client();
    assert_eq!(client.flags & 2, 2, "read-only");
    assert!(client.read(0, len).unwrap() == expected);
    assert_eq!(client.write(0, b"no"), Err(1));
}

#[test]
fn the_longest_chain_of_deltas_is_served() {
    let folder = folder();
    let folder = folder.path();
    let mut expected = image(PAGES);
    fs::write(folder.join("image"), &expected).unwrap();
    run(folder, &["compress", "-q", "image", "-o", "0"]).ok();
    for number in 1..=32 {
        expected[number * 20 * 4096 + 5] ^= 0x5a;
        fs::write(folder.join("image"), &expected).unwrap();
        let (base, delta) = ((number - 1).to_string(), number.to_string());
        run(folder, &["compress", "-q", "--base", &base, "image", "-o", &delta]).ok();
    }
    for options in [&["32"][..], &["32", "--overlay"]] {
        let server = Server::start(folder, options);
        assert!(server.client().read(0, u32::try_from(expected.len()).unwrap()).unwrap() == expected);
    }
}

#[test]
fn a_device_may_be_longer_than_its_archive() {
    let folder = folder();
    let folder = folder.path();
    let expected = image(20);
    fs::write(folder.join("image"), &expected).unwrap();
    run(folder, &["compress", "-q", "image", "-o", "image.lz4"]).ok();
    let server = Server::start(folder, &["image.lz4", "--overlay", "--size", "1M", "--limit", "2M"]);
    let mut client = server.client();
    assert_eq!(client.size, 1 << 20);
    client.write((1 << 20) - 5000, &[3; 5000]).unwrap();
    let content = client.read(0, 1 << 20).unwrap();
    assert!(content.starts_with(&expected) && content.ends_with(&[3; 5000]));
    assert!(content[expected.len()..(1 << 20) - 5000].iter().all(|byte| *byte == 0));
    let refused = run(folder, &["serve", "image.lz4", "--overlay", "--size", "16K", "--nbd", "unix:other"]);
    refused.refuses(&["--size", "81920"]);
}

#[test]
fn a_delta_is_changed_in_memory_and_saved_as_a_whole() {
    let folder = folder();
    let folder = folder.path();
    let mut expected = image(PAGES);
    fs::write(folder.join("old"), &expected).unwrap();
    run(folder, &["compress", "-q", "old"]).ok();
    expected[77 * 4096..][..4096].fill(0x77);
    fs::write(folder.join("new"), &expected).unwrap();
    run(folder, &["compress", "-q", "--base", "old.lz4", "new"]).ok();
    let server = Server::start(folder, &["new.tzd", "--overlay", "--control", "control"]);
    let mut client = server.client();
    let len = u32::try_from(expected.len()).unwrap();
    assert!(client.read(0, len).unwrap() == expected);
    client.write(5000, b"a part of a page").unwrap();
    expected[5000..5016].copy_from_slice(b"a part of a page");
    assert!(client.read(0, len).unwrap() == expected);
    run(folder, &["save", "-q", "control", "merged.lz4"]).ok();
    assert!(decompressed(folder, "merged.lz4") == expected);
}

#[test]
fn a_file_with_equal_pages_stored_once_is_changed_in_memory_and_saved_as_a_whole() {
    let folder = folder();
    let folder = folder.path();
    let mut expected = image(PAGES);
    for page in (8..PAGES).step_by(5) {
        expected.copy_within((page - 7) * 4096..(page - 6) * 4096, page * 4096);
    }
    fs::write(folder.join("image"), &expected).unwrap();
    run(folder, &["compress", "-q", "--dedup", "image"]).ok();
    let server = Server::start(folder, &["image.tzd", "--overlay", "--control", "control"]);
    let mut client = server.client();
    let len = u32::try_from(expected.len()).unwrap();
    assert!(client.read(0, len).unwrap() == expected);
    // A page, and not its copies.
    client.write(4096, &[9; 4096]).unwrap();
    expected[4096..8192].fill(9);
    assert!(client.read(0, len).unwrap() == expected);
    run(folder, &["save", "-q", "control", "merged.lz4"]).ok();
    assert!(decompressed(folder, "merged.lz4") == expected);
}

#[test]
fn a_save_never_replaces_a_file_that_is_served() {
    let folder = folder();
    let folder = folder.path();
    let mut content = image(50);
    for (archive, base) in [("0.lz4", None), ("1.tzd", Some("0.lz4")), ("2.tzd", Some("1.tzd"))] {
        content[..4096].fill(archive.as_bytes()[0]);
        fs::write(folder.join("image"), &content).unwrap();
        let base: Vec<&str> = base.into_iter().flat_map(|base| ["--base", base]).collect();
        run(folder, &[&["compress", "-q", "image", "-o", archive], &base[..]].concat()).ok();
    }
    std::os::unix::fs::symlink("0.lz4", folder.join("link")).unwrap();
    fs::hard_link(folder.join("0.lz4"), folder.join("twin")).unwrap();
    let server = Server::start(folder, &["2.tzd", "--overlay", "--control", "control"]);
    server.client().write(5000, b"changed").unwrap();
    let archives = ["0.lz4", "1.tzd", "2.tzd"];
    let before = archives.map(|name| fs::read(folder.join(name)).unwrap());
    run(folder, &["save", "-f", "control", "2.tzd", "--json"]).fails_as("refused", &["2.tzd: "]);
    for name in ["1.tzd", "0.lz4", "link", "twin"] {
        run(folder, &["save", "-f", "control", name, "--json"]).fails_as("refused", &[name, "2.tzd"]);
        let onto = File::options().read(true).write(true).open(folder.join(name)).unwrap();
        let refused = finish(command(folder, &["save", "control", "-"]).stdout(onto), &[]);
        refused.fails(&["standard output: "]);
    }
    assert!(archives.map(|name| fs::read(folder.join(name)).unwrap()) == before);

    // Elsewhere it is saved, and replaces what is there.
    fs::write(folder.join("saved.lz4"), b"old").unwrap();
    run(folder, &["save", "-q", "-f", "control", "saved.lz4"]).ok();
    content[5000..5007].copy_from_slice(b"changed");
    assert!(decompressed(folder, "saved.lz4") == content);
    let files = stat(folder)["files"].clone();
    let paths: Vec<_> = files.as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap()).collect();
    let expected: Vec<_> = ["2.tzd", "1.tzd", "0.lz4"].map(|name| fs::canonicalize(folder.join(name)).unwrap()).into();
    assert_eq!(paths, expected.iter().map(|path| path.to_str().unwrap()).collect::<Vec<_>>());
}

/// An archive of pages that do not compress: all of these have the same layout.
fn raw_archive(folder: &std::path::Path, name: &str, seed: u64) -> Vec<u8> {
    let mut random = Generator::new(seed);
    let content: Vec<u8> = (0..PAGES * 4096).map(|_| u8::try_from(random.below(256)).unwrap()).collect();
    fs::write(folder.join("image"), &content).unwrap();
    // However coarse the file system's clock is, the archive is not of this moment.
    let then = SystemTime::now() - Duration::from_secs(3600);
    File::options().write(true).open(folder.join("image")).unwrap().set_modified(then).unwrap();
    run(folder, &["compress", "-q", "image", "-o", name]).ok();
    content
}

#[test]
fn an_archive_that_is_overwritten_by_another_is_not_served_any_more() {
    for options in [&["served.lz4"][..], &["served.lz4", "--overlay"]] {
        let folder = folder();
        let folder = folder.path();
        let content = raw_archive(folder, "served.lz4", 1);
        raw_archive(folder, "other.lz4", 2);
        let len_of = |name: &str| fs::metadata(folder.join(name)).unwrap().len();
        assert_eq!(len_of("served.lz4"), len_of("other.lz4"));
        let server = Server::start(folder, options);
        let mut client = server.client();
        // Another file of its name changes nothing.
        fs::rename(folder.join("served.lz4"), folder.join("moved.lz4")).unwrap();
        fs::copy(folder.join("other.lz4"), folder.join("served.lz4")).unwrap();
        assert!(client.read(0, 4096).unwrap() == content[..4096]);
        fs::copy(folder.join("other.lz4"), folder.join("moved.lz4")).unwrap();
        for page in [0, 1, 500, PAGES as u64 - 1] {
            assert_eq!(client.read(page * 4096, 4096), Err(5), "page {page}");
        }
    }
}
