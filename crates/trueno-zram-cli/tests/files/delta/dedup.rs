//! Files with equal pages stored once: made with `--dedup`, read by every command, and flattened to what `compress` makes.

use std::fs;
use std::path::Path;
use std::process::Command;

use trueno_test_pages::PAGE_SIZE;
use trueno_zram_archive::ContentHash;

use crate::support::{folder, image, names, run, run_with};

/// An image in which every fourth page is a copy of an earlier one, near or far.
fn copied_image(pages: usize) -> Vec<u8> {
    let mut copied = image(pages);
    for page in (4..pages).step_by(4) {
        let from = if page % 8 == 0 { page - 3 } else { page / 2 };
        copied.copy_within(from * PAGE_SIZE..(from + 1) * PAGE_SIZE, page * PAGE_SIZE);
    }
    copied.extend(b"a shorter last page");
    copied
}

fn write_image(folder: &Path, pages: usize) -> Vec<u8> {
    let content = copied_image(pages);
    fs::write(folder.join("image"), &content).unwrap();
    content
}

#[test]
fn every_command_reads_files_of_either_format() {
    for format in [&[][..], &["--algorithm", "zstd"], &["-T1"], &["--algorithm", "zstd", "-T1", "--no-block-checksums"]]
    {
        let folder = folder();
        let folder = folder.path();
        let content = write_image(folder, 1500);
        run(folder, &[&["compress", "--dedup", "image"], format].concat()).ok();
        run(folder, &[&["compress", "image", "-o", "plain"], format].concat()).ok();
        let len = |name: &str| fs::metadata(folder.join(name)).unwrap().len();
        assert!(len("image.tzd") < len("plain") * 9 / 10, "{} and {}", len("image.tzd"), len("plain"));

        run(folder, &["test", "image.tzd"]).ok();
        run(folder, &["decompress", "image.tzd", "-o", "back"]).ok();
        assert!(fs::read(folder.join("back")).unwrap() == content);
        assert!(run(folder, &["decompress", "-c", "image.tzd"]).ok().stdout == content, "in order, to a pipe");
        run(folder, &["decompress", "--no-sparse", "-T1", "-f", "image.tzd", "-o", "back"]).ok();
        assert!(fs::read(folder.join("back")).unwrap() == content);
        let pages = run(folder, &["extract", "image.tzd", "--pages", "1190..1300,20"]).ok().stdout;
        let page = |number: usize| &content[number * PAGE_SIZE..][..PAGE_SIZE];
        assert!(pages == [&content[1190 * PAGE_SIZE..1300 * PAGE_SIZE], page(20)].concat());
        let bytes = run(folder, &["extract", "image.tzd", "--bytes", "5000..700000"]).ok().stdout;
        assert!(bytes == content[5000..700_000]);
        run(folder, &["extract", "image.tzd", "--pages", "1501"]).fails(&["image.tzd", "1501"]);
        run(folder, &["inspect", "image.tzd", "--decode"]).ok();

        let checksums = format.contains(&"--no-block-checksums");
        let algorithm: Vec<&str> = format.iter().copied().filter(|option| *option != "--no-block-checksums").collect();
        run(folder, &[&["flatten", "image.tzd", "-o", "flat"], &algorithm[..]].concat()).ok();
        if checksums {
            run(folder, &["test", "flat"]).ok();
        } else {
            assert!(fs::read(folder.join("flat")).unwrap() == fs::read(folder.join("plain")).unwrap(), "{format:?}");
        }
    }
}

#[test]
fn other_tools_refuse_them_and_read_flat_ones() {
    let folder = folder();
    let folder = folder.path();
    let content = write_image(folder, 200);
    for (algorithm, tool) in [("lz4", "lz4"), ("zstd", "zstd")] {
        run(folder, &["compress", "-q", "--dedup", "-f", "--algorithm", algorithm, "image"]).ok();
        let name = folder.join("image.tzd");
        assert!(!Command::new(tool).arg("-dc").arg(&name).output().unwrap().status.success());
        run(folder, &["flatten", "-q", "-f", "image.tzd", "-o", "flat", "--algorithm", algorithm]).ok();
        let read = Command::new(tool).arg("-dc").arg(folder.join("flat")).output().unwrap();
        assert!(read.stdout == content);
    }
}

#[test]
fn the_bytes_do_not_depend_on_threads_or_on_the_kind_of_input() {
    let folder = folder();
    let folder = folder.path();
    let content = write_image(folder, 3000);
    let mut files = Vec::new();
    for threads in ["-T1", "-T2", "-T5"] {
        for _ in 0..3 {
            run(folder, &["compress", "-q", "--dedup", "-f", threads, "image"]).ok();
            files.push(fs::read(folder.join("image.tzd")).unwrap());
        }
    }
    files.push(run_with(folder, &["compress", "--dedup", "-c"], &content).ok().stdout);
    assert!(files.iter().all(|file| *file == files[0]));
}

#[test]
fn reports_count_stored_pages_and_copies() {
    let folder = folder();
    let folder = folder.path();
    write_image(folder, 1500);
    let made = run(folder, &["compress", "--dedup", "image", "--json"]).ok().json().remove(0);
    let number = |key: &str| made[key].as_u64().unwrap();
    assert_eq!((number("pages"), number("base_pages"), made.get("base")), (1501, 0, None));
    assert!(number("duplicate_pages") > 200, "{made}");
    assert_eq!(number("zero") + number("stored_pages") + number("duplicate_pages"), 1501);
    assert_eq!(number("same_filled") + number("lz4") + number("raw"), number("stored_pages"));
    let shown = run(folder, &["inspect", "image.tzd", "--json"]).ok().json().remove(0);
    for key in ["pages", "zero", "base_pages", "stored_pages", "duplicate_pages", "lz4", "raw"] {
        assert_eq!(shown[key], made[key], "{key}");
    }
    assert_eq!((&shown["format"], &shown["depth"], shown.get("base")), (&"delta".into(), &1.into(), None));
    assert_eq!(shown.get("base_identity"), None);
    let tested = run(folder, &["test", "image.tzd", "--json"]).ok().json().remove(0);
    assert_eq!(tested["pages"], 1501);
}

#[test]
fn deltas_are_made_from_them_and_of_deltas() {
    let folder = folder();
    let folder = folder.path();
    let mut content = write_image(folder, 1500);
    run(folder, &["compress", "-q", "--dedup", "image", "-o", "0.tzd"]).ok();
    for number in 1..4 {
        content[number * 70 * PAGE_SIZE + 5] ^= 0x5a;
        content.copy_within(PAGE_SIZE..2 * PAGE_SIZE, number * 90 * PAGE_SIZE);
        fs::write(folder.join("image"), &content).unwrap();
        let (base, delta) = (format!("{}.tzd", number - 1), format!("{number}.tzd"));
        // With a base, `--dedup` adds nothing.
        let more: &[&str] = if number == 2 { &["--dedup"] } else { &[] };
        run(folder, &[&["compress", "-q", "--base", &base, "image", "-o", &delta], more].concat()).ok();
        let len = fs::metadata(folder.join(&delta)).unwrap().len();
        assert!(len < 10_000, "pages of the base have no hashes in the delta: {len}");
        assert!(run(folder, &["decompress", "-c", &delta]).ok().stdout == content);
    }
    run(folder, &["flatten", "-q", "3.tzd", "-o", "flat"]).ok();
    run(folder, &["compress", "-q", "image", "-o", "plain"]).ok();
    assert!(fs::read(folder.join("flat")).unwrap() == fs::read(folder.join("plain")).unwrap());
    fs::rename(folder.join("0.tzd"), folder.join("moved.tzd")).unwrap();
    run(folder, &["test", "3.tzd", "--json"]).fails_as("base", &["3.tzd: "]);
    run(folder, &["test", "3.tzd", "--base", "moved.tzd"]).ok();
    assert!(fs::metadata(folder.join("0.tzd")).is_err());
}

#[test]
fn memory_that_is_full_stores_copies_again_and_says_so() {
    let folder = folder();
    let folder = folder.path();
    let page = |number: u32| [&(number + 1).to_le_bytes()[..], &[7; PAGE_SIZE - 4]].concat();
    let content: Vec<u8> = (0..3000).chain(0..3000).flat_map(page).collect();
    fs::write(folder.join("image"), &content).unwrap();
    run(folder, &["compress", "-q", "--dedup", "image", "-o", "all.tzd"]).ok();
    let made = run(folder, &["compress", "--dedup", "--dedup-memory", "16K", "image", "--json"]);
    assert_eq!(made.code, Some(0));
    assert!(made.stderr.contains("--dedup-memory"), "{}", made.stderr);
    assert_eq!(made.json()[0]["duplicate_pages"], 768);
    assert!(run(folder, &["decompress", "-c", "image.tzd"]).ok().stdout == content);
    assert_eq!(run(folder, &["inspect", "all.tzd", "--json"]).ok().json()[0]["duplicate_pages"], 3000);
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    let folder = folder();
    let folder = folder.path();
    write_image(folder, 10);
    let before = names(folder);
    for more in [&["--content-checksum"][..], &["--no-content-checksum"], &["--page-hashes"]] {
        run(folder, &[&["compress", "--dedup", "image"], more].concat()).refuses(&["--dedup"]);
    }
    for backend in ["gpu", "interpreter"] {
        run(folder, &["compress", "--dedup", "image", "--backend", backend]).refuses(&["--dedup", "--backend"]);
    }
    run(folder, &["compress", "image", "--dedup-memory", "1M"]).refuses(&["--dedup"]);
    run(folder, &["compress", "--dedup", "image", "--dedup-memory", "0"]).refuses(&["--dedup-memory"]);
    assert_eq!(names(folder), before);
    run(folder, &["compress", "-q", "--dedup", "image", "--backend", "cpu"]).ok();
    run(folder, &["decompress", "--salvage", "image.tzd", "-o", "x"]).fails(&["image.tzd"]);
    run(folder, &["compress", "-q", "--dedup", "--rm", "-f", "image"]).ok();
    assert_eq!(names(folder), ["image.tzd"]);
}

/// A file of a later version is refused by its version.
#[test]
fn a_later_version_is_named() {
    let folder = folder();
    let folder = folder.path();
    write_image(folder, 10);
    run(folder, &["compress", "-q", "--dedup", "image"]).ok();
    let mut bytes = fs::read(folder.join("image.tzd")).unwrap();
    bytes[8] = 3;
    // XXH32, as of content.
    let mut checksum = ContentHash::new();
    checksum.update(&bytes[..12]);
    bytes[12..16].copy_from_slice(&checksum.digest().to_le_bytes());
    fs::write(folder.join("later.tzd"), bytes).unwrap();
    run(folder, &["test", "later.tzd"]).fails(&["later.tzd: ", "unknown version 3"]);
}
