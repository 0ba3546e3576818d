//! Archives of the Zstandard format: written, restored by libzstd and by every command, and damaged.

use std::fs;
use std::io::Cursor;

use trueno_test_pages::PAGE_SIZE;

use crate::support::{folder, image, run, run_with};

fn libzstd(archive: &[u8]) -> Vec<u8> {
    zstd::decode_all(Cursor::new(archive)).unwrap()
}

#[test]
fn files_and_pipes_of_every_length_come_back() {
    let folder = folder();
    let whole = image(2100);
    for len in [0, 1, 13, PAGE_SIZE - 1, PAGE_SIZE, PAGE_SIZE + 1, 1024 * PAGE_SIZE + 1, 2100 * PAGE_SIZE - 5] {
        let content = &whole[..len];
        fs::write(folder.path().join("image"), content).unwrap();
        run(folder.path(), &["compress", "--algorithm", "zstd", "image"]).ok();
        let archive = fs::read(folder.path().join("image.zst")).unwrap();
        assert!(libzstd(&archive) == content, "libzstd reads {len} bytes");
        run(folder.path(), &["test", "image.zst"]).ok();
        fs::remove_file(folder.path().join("image")).unwrap();
        run(folder.path(), &["decompress", "--rm", "image.zst"]).ok();
        assert!(fs::read(folder.path().join("image")).unwrap() == content, "{len} bytes come back");

        let archive = run_with(folder.path(), &["compress", "--algorithm", "zstd"], content).ok().stdout;
        assert!(libzstd(&archive) == content, "libzstd reads {len} bytes from a pipe");
        let back = run_with(folder.path(), &["-d"], &archive).ok().stdout;
        assert!(back == content, "{len} bytes come back from a pipe");
    }
}

#[test]
fn every_back_end_and_thread_count_restores_what_the_others_wrote() {
    let folder = folder();
    let content = image(80);
    fs::write(folder.path().join("image"), &content).unwrap();
    for (backend, threads) in [("cpu", "1"), ("cpu", "4"), ("auto", "2"), ("interpreter", "2")] {
        let args = ["compress", "--algorithm", "zstd", "--backend", backend, "-T", threads, "-c", "image"];
        let archive = run(folder.path(), &args).ok().stdout;
        assert!(libzstd(&archive) == content, "{backend} -T {threads}");
        for reader in ["cpu", "interpreter"] {
            let args = ["decompress", "--backend", reader, "-c"];
            assert!(run_with(folder.path(), &args, &archive).ok().stdout == content, "{reader} after {backend}");
        }
    }
}

#[test]
fn levels_are_those_of_the_algorithm() {
    let folder = folder();
    let content = image(300);
    fs::write(folder.path().join("image"), &content).unwrap();
    let size = |level: &str| {
        let archive = run(folder.path(), &["compress", "--algorithm", "zstd", level, "-c", "image"]).ok().stdout;
        assert!(libzstd(&archive) == content, "{level}");
        archive.len()
    };
    assert!(size("-19") < size("-1"));
    run(folder.path(), &["compress", "-13", "image"]).refuses(&["--zstd"]);
    run(folder.path(), &["compress", "--algorithm", "zstd", "-23", "image"]).refuses(&["--level"]);
    let refused = run(folder.path(), &["compress", "--algorithm", "zstd", "-19", "--backend", "interpreter", "image"]);
    refused.fails(&["zstd:"]);
}

#[test]
fn pages_and_bytes_are_extracted_and_inspected() {
    let folder = folder();
    let content = image(2100);
    fs::write(folder.path().join("image"), &content).unwrap();
    run(folder.path(), &["compress", "--algorithm", "zstd", "image"]).ok();
    let pages = run(folder.path(), &["extract", "image.zst", "--pages", "1030..1033"]).ok().stdout;
    assert!(pages == content[1030 * PAGE_SIZE..1033 * PAGE_SIZE]);
    let bytes = run(folder.path(), &["extract", "image.zst", "--bytes", "5000..9000"]).ok().stdout;
    assert!(bytes == content[5000..9000]);
    let found = &run(folder.path(), &["inspect", "--json", "image.zst"]).ok().json()[0];
    assert_eq!((found["format"].as_str(), found["pages"].as_u64()), (Some("archive"), Some(2100)));
    assert_eq!(found["lz4"].as_u64(), Some(0));
    assert!(found["zstd"].as_u64() > Some(100));
}

#[test]
fn files_of_other_tools_are_restored() {
    let folder = folder();
    let content = image(700);
    let whole = zstd::encode_all(&content[..], 3).unwrap();
    let (first, second) = content.split_at(123_456);
    let two = [zstd::encode_all(first, 1).unwrap(), zstd::encode_all(second, 19).unwrap()].concat();
    for (archive, name) in [(whole, "one.zst"), (two, "two.zst")] {
        fs::write(folder.path().join(name), &archive).unwrap();
        run(folder.path(), &["test", name]).ok();
        assert!(run(folder.path(), &["decompress", "-c", name]).ok().stdout == content, "{name}");
        let found = &run(folder.path(), &["inspect", "--json", name]).ok().json()[0];
        assert_eq!(found["format"].as_str(), Some("zstd-frame"));
        let pages = run(folder.path(), &["extract", name, "--pages", "5..7"]).ok().stdout;
        assert!(pages == content[5 * PAGE_SIZE..7 * PAGE_SIZE]);
    }
}

#[test]
fn damage_is_found_and_salvaged_around() {
    let folder = folder();
    let content = image(400);
    fs::write(folder.path().join("image"), &content).unwrap();
    run(folder.path(), &["compress", "--algorithm", "zstd", "image"]).ok();
    let mut archive = fs::read(folder.path().join("image.zst")).unwrap();
    let middle = archive.len() / 3;
    archive[middle] ^= 0x10;
    fs::write(folder.path().join("damaged.zst"), &archive).unwrap();
    run(folder.path(), &["test", "damaged.zst", "--json"]).fails_as("damaged", &["damaged.zst"]);
    run(folder.path(), &["decompress", "damaged.zst", "--json"]).fails_as("damaged", &["damaged.zst"]);
    assert!(!folder.path().join("damaged").exists());
    let salvage = run(folder.path(), &["decompress", "--salvage", "damaged.zst"]);
    assert_eq!(salvage.code, Some(1), "{}", salvage.stderr);
    let salvaged = fs::read(folder.path().join("damaged")).unwrap();
    let differing = salvaged.chunks(PAGE_SIZE).zip(content.chunks(PAGE_SIZE)).filter(|(a, b)| a != b).count();
    assert_eq!((salvaged.len(), differing), (content.len(), 1));
}
