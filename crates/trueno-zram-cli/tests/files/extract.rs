//! Some pages, and nothing else, are read.

use std::fs;
use std::os::unix::fs::FileExt;

use trueno_test_pages::{PAGE_SIZE, corpus, frames};
use trueno_test_restore::forged::lying_archive;

use crate::support::{folder, image, run, run_with};

/// Values of `--verify`.
const POLICIES: [&str; 3] = ["touched", "group", "all"];

#[test]
fn ranges_of_pages_and_bytes_are_restored() {
    let folder = folder();
    let mut content = image(1500);
    content.truncate(1499 * PAGE_SIZE + 77);
    fs::write(folder.path().join("image"), &content).unwrap();
    run(folder.path(), &["compress", "image"]).ok();
    let page = PAGE_SIZE;
    let len = content.len();
    for (option, range, bytes) in [
        ("--pages", "0", 0..page),
        ("--pages", "7..11", 7 * page..11 * page),
        ("--pages", "1023..=1024", 1023 * page..1025 * page),
        ("--pages", "1499", 1499 * page..len),
        ("--pages", "1490..", 1490 * page..len),
        ("--pages", "..2", 0..2 * page),
        ("--pages", "..", 0..len),
        ("--pages", "5..5", 0..0),
        ("--bytes", "0", 0..1),
        ("--bytes", "4095..4097", 4095..4097),
        ("--bytes", "0x1000..8K", 4096..8192),
        ("--bytes", "1M..1_100_000", 1 << 20..1_100_000),
        ("--bytes", "6139000..", 6_139_000..len),
    ] {
        let out = run(folder.path(), &["extract", "image.lz4", option, range]).ok();
        assert!(out.stdout == content[bytes], "{option} {range}: {} bytes", out.stdout.len());
        assert!(out.stderr.is_empty(), "{}", out.stderr);
    }
    run(folder.path(), &["extract", "image.lz4", "--pages", "3", "-o", "page"]).ok();
    assert!(fs::read(folder.path().join("page")).unwrap() == content[3 * page..4 * page]);
    run(folder.path(), &["extract", "image.lz4", "--pages", "4", "-o", "page", "--json"])
        .fails_as("exists", &["page: "]);
}

/// Files are written by many threads at their place, pipes in order, and the interpreter decodes batches.
#[test]
fn all_ways_to_restore_ranges_give_the_same_bytes() {
    let folder = folder();
    let content = image(700);
    fs::write(folder.path().join("image"), &content).unwrap();
    for format in ["lz4", "zstd"] {
        run(folder.path(), &["compress", "-q", "-f", "--algorithm", format, "image", "-o", "archive"]).ok();
        let ranges = "2700000..2701000,100..700000,699999..2700001,0..0,5..6,262144..524288";
        let expected: Vec<u8> = [2_700_000..2_701_000, 100..700_000, 699_999..2_700_001, 5..6, 262_144..524_288]
            .into_iter()
            .flat_map(|range| content[range].iter().copied())
            .collect();
        for options in [&["-T", "1"][..], &["-T", "5"], &["--backend", "interpreter"]] {
            let args = [&["extract", "archive", "--bytes", ranges][..], options].concat();
            assert!(run(folder.path(), &args).ok().stdout == expected, "{format} {options:?} to a pipe");
            run(folder.path(), &[&args[..], &["-f", "-o", "out"]].concat()).ok();
            assert!(fs::read(folder.path().join("out")).unwrap() == expected, "{format} {options:?} to a file");
        }
    }
}

#[test]
fn ranges_beyond_the_end_are_refused() {
    let folder = folder();
    fs::write(folder.path().join("image"), &image(3)[..9000]).unwrap();
    run(folder.path(), &["compress", "image"]).ok();
    let pipe = fs::read(folder.path().join("image.lz4")).unwrap();
    for args in [["--pages", "3"], ["--pages", "2..4"], ["--pages", "9.."], ["--bytes", "9000"], ["--bytes", "0..9001"]]
    {
        let refused = |input, pipe: &[u8]| {
            run_with(folder.path(), &["extract", input, args[0], args[1], "-o", "out", "-q"], pipe).fails(&[]);
        };
        refused("image.lz4", &[]);
        refused("-", &pipe);
    }
    assert!(!folder.path().join("out").exists());
}

#[test]
fn without_an_index_it_decodes_from_the_start_and_says_so() {
    let folder = folder();
    let content = image(600);
    for shape in frames::all_settings().iter().step_by(5) {
        fs::write(folder.path().join("x.lz4"), frames::compress(&content, shape)).unwrap();
        let out = run(folder.path(), &["extract", "x.lz4", "--pages", "300..302"]).ok();
        assert!(out.stdout == content[300 * PAGE_SIZE..302 * PAGE_SIZE]);
        let report = run(folder.path(), &["extract", "x.lz4", "--pages", "3", "-f", "-o", "out", "--json"]).ok().json();
        assert_eq!(report[0]["indexed"], false);
    }
    let archive = run_with(folder.path(), &["compress"], &content).ok().stdout;
    let out = run_with(folder.path(), &["extract", "-", "--bytes", "100..5000"], &archive).ok();
    assert!(out.stdout == content[100..5000]);
}

#[test]
fn only_the_wanted_pages_are_decoded() {
    let folder = folder();
    let content = image(2000);
    fs::write(folder.path().join("image"), &content).unwrap();
    run(folder.path(), &["compress", "image"]).ok();
    // All blocks of the first half are damaged.
    let file = fs::File::options().write(true).open(folder.path().join("image.lz4")).unwrap();
    let half = file.metadata().unwrap().len() / 2;
    file.write_all_at(&vec![0x5a; usize::try_from(half).unwrap() - 100], 50).unwrap();
    let out = run(folder.path(), &["extract", "image.lz4", "--pages", "1900..1910"]).ok();
    assert!(out.stdout == content[1900 * PAGE_SIZE..1910 * PAGE_SIZE]);
    run(folder.path(), &["extract", "image.lz4", "--pages", "10", "-o", "page", "--json"])
        .fails_as("damaged", &["image.lz4"]);
    assert!(!folder.path().join("page").exists());
}

#[test]
fn frames_one_after_the_other_are_never_taken_for_one() {
    let folder = folder();
    let (first, second) = (image(10), image(30));
    let archive = |content: &[u8]| run_with(folder.path(), &["compress"], content).ok().stdout;
    fs::write(folder.path().join("both.lz4"), [archive(&first), archive(&second)].concat()).unwrap();
    let both = [first, second].concat();
    // The index at the end describes only the second: its pages have other numbers in the whole.
    for page in [2, 12, 39] {
        let out = run(folder.path(), &["extract", "both.lz4", "--pages", &page.to_string()]);
        assert_eq!(out.code, Some(0), "{}", out.stderr);
        assert!(out.stdout == both[page * PAGE_SIZE..(page + 1) * PAGE_SIZE], "page {page}");
        assert!(out.stderr.contains("warning"), "{}", out.stderr);
    }
    run(folder.path(), &["extract", "both.lz4", "--address", "0..4096", "-o", "x", "--json"])
        .fails_as("damaged", &["both.lz4"]);
}

#[test]
fn archives_without_block_checksums_come_with_a_warning() {
    let folder = folder();
    fs::write(folder.path().join("image"), image(3)).unwrap();
    run(folder.path(), &["compress", "--no-block-checksums", "image"]).ok();
    let out = run(folder.path(), &["extract", "image.lz4", "--pages", "1"]);
    assert!(out.code == Some(0) && out.stdout == image(3)[PAGE_SIZE..2 * PAGE_SIZE]);
    assert!(out.stderr.contains("warning"), "{}", out.stderr);
    let out = run(folder.path(), &["extract", "-q", "image.lz4", "--pages", "1"]).ok();
    assert!(out.stderr.is_empty(), "{}", out.stderr);
}

#[test]
fn lists_of_ranges_come_in_the_order_asked_for() {
    let folder = folder();
    let content = image(100);
    fs::write(folder.path().join("image"), &content).unwrap();
    run(folder.path(), &["compress", "image"]).ok();
    let pages = |numbers: &[usize]| -> Vec<u8> {
        numbers.iter().flat_map(|n| &content[n * PAGE_SIZE..(n + 1) * PAGE_SIZE]).copied().collect()
    };
    for (list, numbers) in [
        ("1,3,5..9", &[1, 3, 5, 6, 7, 8][..]),
        ("1,3,98..", &[1, 3, 98, 99]),
        ("3..5,5..=6", &[3, 4, 5, 6]),
        ("90,3,90", &[90, 3, 90]),
    ] {
        let out = run(folder.path(), &["extract", "image.lz4", "--pages", list]).ok();
        assert!(out.stdout == pages(numbers), "{list}");
    }
    let out = run(folder.path(), &["extract", "image.lz4", "--bytes", "0..5,4K..4100"]).ok();
    assert!(out.stdout == [&content[..5], &content[4096..4100]].concat());
    // No page is written if one of them is not there.
    let out = run(folder.path(), &["extract", "image.lz4", "--pages", "1,100"]).fails(&["100..101", "100"]);
    assert!(out.stdout.is_empty());

    let archive = fs::read(folder.path().join("image.lz4")).unwrap();
    let from_pipe = |list: &str| run_with(folder.path(), &["extract", "-", "-q", "--pages", list], &archive);
    assert!(from_pipe("1,3,5..9").ok().stdout == pages(&[1, 3, 5, 6, 7, 8]));
    from_pipe("90,3").fails(&["90..91,3..4"]);
    from_pipe("1,100").fails(&["100..101", "100"]);
}

#[test]
fn test_fails_if_the_index_does_not_describe_the_content() {
    let folder = folder();
    let content = image(300);
    fs::write(folder.path().join("image"), &content).unwrap();
    run(folder.path(), &["compress", "image"]).ok();
    run(folder.path(), &["test", "image.lz4"]).ok();
    // The last byte of the index's entries: before the table of one group and the footer.
    let archive = fs::OpenOptions::new().read(true).write(true).open(folder.path().join("image.lz4")).unwrap();
    let at = archive.metadata().unwrap().len() - 80 - 12 - 1;
    let mut byte = [0];
    archive.read_exact_at(&mut byte, at).unwrap();
    archive.write_all_at(&[byte[0] ^ 1], at).unwrap();
    run(folder.path(), &["test", "image.lz4", "--json"]).fails_as("damaged", &["image.lz4"]);
    let restored = run(folder.path(), &["decompress", "-c", "image.lz4"]);
    assert!(restored.stdout == content, "the content needs no index");
    assert!(restored.stderr.contains("warning"), "{}", restored.stderr);
}

#[test]
fn a_file_that_is_not_lz4_is_refused_before_anything_is_said_about_its_index() {
    let folder = folder();
    fs::write(folder.path().join("image"), image(3)).unwrap();
    for range in [["--pages", "0"], ["--pages", "1,0"], ["--address", "0..4096"]] {
        run(folder.path(), &["extract", "image", range[0], range[1], "-o", "out", "--json"])
            .fails_as("not_compressed", &["image: "]);
    }
    run_with(folder.path(), &["extract", "-", "--pages", "0", "-o", "out", "--json"], &image(3))
        .fails_as("not_compressed", &[]);
    assert!(!folder.path().join("out").exists());
}

#[test]
fn every_policy_restores_the_same_pages() {
    let folder = folder();
    let folder = folder.path();
    let content = image(3000);
    fs::write(folder.join("image"), &content).unwrap();
    for archive in ["image.lz4", "image.zst"] {
        run(folder, &["compress", "-q", "image", "-o", archive]).ok();
        for policy in POLICIES {
            let args = ["extract", "-q", archive, "--pages", "1500..1600,3", "--verify", policy];
            let expected = [&content[1500 * 4096..1600 * 4096], &content[3 * 4096..4 * 4096]].concat();
            assert!(run(folder, &args).ok().stdout == expected, "{policy}");
            let args = ["inspect", archive, "--decode", "--json", "--verify", policy];
            assert_eq!(run(folder, &args).ok().json()[0]["pages"], 3000, "{policy}");
        }
    }
}

#[test]
fn what_an_index_lies_about_is_not_restored() {
    let folder = folder();
    let folder = folder.path();
    let mut pages = corpus::numbered_pages(2000);
    fs::write(folder.join("image.lz4"), lying_archive(&mut pages, 1500).0).unwrap();
    for policy in POLICIES {
        let args = ["extract", "image.lz4", "--pages", "1501", "-o", "out", "--json", "--verify", policy];
        run(folder, &args).fails_as("damaged", &["image.lz4: "]);
        assert!(!folder.join("out").exists(), "{policy}");
        // The group before it is in order.
        let args = ["extract", "-q", "image.lz4", "--pages", "1000", "--verify", policy];
        assert!(run(folder, &args).ok().stdout == pages[1000], "{policy}");
        let args = ["inspect", "image.lz4", "--decode", "--json", "--verify", policy];
        run(folder, &args).fails_as("damaged", &["image.lz4: "]);
    }
    run(folder, &["inspect", "image.lz4", "--json"]).ok();
    run(folder, &["inspect", "image.lz4", "--json", "--verify", "all"]).fails_as("damaged", &["image.lz4: "]);
}
