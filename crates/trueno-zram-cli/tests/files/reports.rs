//! Summaries, JSON, and `--quiet`.

use std::fs;
use std::path::Path;

use trueno_test_pages::PAGE_SIZE;

use crate::support::{folder, image, run, run_with};

fn folder_with_image() -> (tempfile::TempDir, Vec<u8>) {
    let (folder, content) = (folder(), image(64));
    fs::write(folder.path().join("image"), &content).unwrap();
    (folder, content)
}

fn len(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

#[test]
fn json_tells_what_was_done() {
    let (folder, content) = folder_with_image();
    let compressed = &run(folder.path(), &["compress", "--json", "-q", "-T", "2", "image"]).ok().json()[0];
    let archive_len = len(&folder.path().join("image.lz4"));
    assert_eq!(compressed["command"], "compress");
    assert_eq!(compressed["file"], "image");
    assert_eq!(compressed["output"], "image.lz4");
    assert_eq!(compressed["bytes_in"], content.len());
    assert_eq!(compressed["bytes_out"], archive_len);
    assert_eq!(compressed["threads"], 2);
    assert_eq!(compressed["backend"], "cpu");
    let ratio = content.len() as f64 / archive_len as f64;
    assert!((compressed["ratio"].as_f64().unwrap() - ratio).abs() < 1e-9);
    assert!(compressed["seconds"].as_f64().unwrap() > 0.0);
    let pages = |kind: &str| compressed[kind].as_u64().unwrap();
    let zero = content.chunks(PAGE_SIZE).filter(|page| page.iter().all(|byte| *byte == 0)).count();
    let same = content.chunks(PAGE_SIZE).filter(|page| page.chunks(8).all(|word| word == &page[..8])).count();
    assert_eq!(pages("zero"), zero as u64);
    assert_eq!(pages("zero") + pages("same_filled"), same as u64);
    assert_eq!(pages("zero") + pages("same_filled") + pages("lz4") + pages("raw"), 64);

    let restored = &run(folder.path(), &["decompress", "--json", "-q", "-f", "image.lz4"]).ok().json()[0];
    assert_eq!(restored["output"], "image");
    assert_eq!((&restored["bytes_in"], &restored["bytes_out"]), (&archive_len.into(), &content.len().into()));
    let tested = &run(folder.path(), &["test", "--json", "-q", "image.lz4"]).ok().json()[0];
    assert_eq!((&tested["bytes_in"], &tested["bytes_out"]), (&archive_len.into(), &content.len().into()));
    for key in ["pages", "zero", "same_filled", "lz4", "raw"] {
        assert_eq!(tested[key], compressed[key], "{key}");
    }
    let extracted =
        &run(folder.path(), &["extract", "--json", "--pages", "3", "-o", "page", "image.lz4"]).ok().json()[0];
    assert_eq!((&extracted["bytes_out"], &extracted["indexed"]), (&4096.into(), &true.into()));
}

#[test]
fn json_has_one_object_a_file() {
    let (folder, _) = folder_with_image();
    fs::write(folder.path().join("other"), b"short").unwrap();
    let reports = run(folder.path(), &["compress", "--json", "image", "other"]).ok().json();
    let files: Vec<_> = reports.iter().map(|report| report["file"].as_str().unwrap()).collect();
    assert_eq!(files, ["image", "other"]);
}

#[test]
fn a_line_a_file_unless_quiet() {
    let (folder, content) = folder_with_image();
    let out = run(folder.path(), &["compress", "image"]).ok();
    assert_eq!(out.stderr.lines().count(), 1, "{}", out.stderr);
    assert!(out.stderr.contains("image.lz4") && out.stderr.contains(&content.len().to_string()), "{}", out.stderr);
    let out = run(folder.path(), &["test", "image.lz4"]).ok();
    assert!(out.stderr.starts_with("image.lz4: "), "{}", out.stderr);
    assert_eq!(out.stderr.lines().count(), 1);
    for args in [&["compress", "-qf", "image"][..], &["decompress", "-qf", "image.lz4"], &["test", "-q", "image.lz4"]] {
        let out = run(folder.path(), args).ok();
        assert!(out.stderr.is_empty() && out.stdout.is_empty(), "{args:?}: {}", out.stderr);
    }
}

#[test]
fn an_empty_file_has_no_ratio() {
    let folder = folder();
    fs::write(folder.path().join("none"), b"").unwrap();
    let commands = [&["compress", "none"][..], &["test", "none.lz4"], &["decompress", "-f", "none.lz4"]];
    for args in commands {
        let out = run(folder.path(), &[args, &["--json"]].concat()).ok();
        assert!(out.json()[0]["ratio"].is_number(), "{}", out.stderr);
        assert!(!out.stderr.contains("inf") && !out.stderr.contains("NaN"), "{}", out.stderr);
    }
    assert_eq!(len(&folder.path().join("none")), 0);
}

#[test]
fn names_do_not_steer_the_terminal() {
    let folder = folder();
    let name = "a\x1b[2J";
    fs::write(folder.path().join(name), b"some").unwrap();
    let out = run(folder.path(), &["compress", "--json", name]).ok();
    assert!(!out.stderr.contains('\x1b') && out.stderr.contains("[2J"), "{}", out.stderr);
    assert_eq!(out.json()[0]["file"], name);
    let out = run(folder.path(), &["compress", name, "--json"]).fails_as("exists", &[]);
    assert!(!out.stderr.contains('\x1b'), "{}", out.stderr);
}

#[test]
fn zero_threads_are_all_cores() {
    let (folder, _) = folder_with_image();
    let cores = std::thread::available_parallelism().unwrap().get();
    let report = &run(folder.path(), &["compress", "--json", "-T", "0", "image"]).ok().json()[0];
    assert_eq!(report["threads"], cores);
}

#[test]
fn pipes_are_silent_and_verbose_ones_say_the_back_end() {
    let (folder, content) = folder_with_image();
    let out = run_with(folder.path(), &["compress"], &content).ok();
    assert!(out.stderr.is_empty(), "{}", out.stderr);
    let out = run_with(folder.path(), &["compress", "-v", "-T", "3", "--backend", "cpu"], &content).ok();
    assert!(!out.stderr.is_empty());
    let out = run_with(folder.path(), &["test", "-v"], &out.stdout).ok();
    assert!(out.stderr.lines().count() > 1, "{}", out.stderr);
}

#[test]
fn what_follows_the_last_frame_is_an_error_with_its_place() {
    let (folder, content) = folder_with_image();
    let mut archive = run_with(folder.path(), &["compress"], &content).ok().stdout;
    let len = archive.len();
    archive.extend(b"what is this");
    run_with(folder.path(), &["decompress"], &archive).fails(&[&format!("byte {len}")]);
    run_with(folder.path(), &["test"], &archive).fails(&[&format!("byte {len}")]);
}
