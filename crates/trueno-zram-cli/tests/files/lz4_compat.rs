//! Command lines as users of lz4 and zstd write them.

use std::fs;
use std::process::Command;

use trueno_test_pages::frames;

use crate::support::{BINARY, folder, image, names, run, run_with};

#[test]
fn files_are_compressed_and_restored_without_a_command() {
    let folder = folder();
    let content = image(20);
    fs::write(folder.path().join("image"), &content).unwrap();
    run(folder.path(), &["image"]).ok();
    assert!(frames::decompress(&fs::read(folder.path().join("image.lz4")).unwrap()).as_ref() == Some(&content));
    run(folder.path(), &["-t", "image.lz4", "image.lz4"]).ok();
    assert!(run(folder.path(), &["-dc", "image.lz4"]).ok().stdout == content);
    run(folder.path(), &["-d", "image.lz4", "--json"]).fails_as("exists", &["image: "]);
    run(folder.path(), &["-d", "-k", "-f", "image.lz4"]).ok();
    assert_eq!(names(folder.path()), ["image", "image.lz4"]);
    run(folder.path(), &["-d", "--rm", "-f", "image.lz4"]).ok();
    assert_eq!(names(folder.path()), ["image"]);
    run(folder.path(), &["-T2", "--rm", "image"]).ok();
    run(folder.path(), &["image.lz4"]).ok();
    assert!(fs::read(folder.path().join("image")).unwrap() == content, "the suffix says what to do, as with lz4");
}

#[test]
fn pipes_need_no_argument() {
    let (folder, content) = (folder(), image(20));
    let archive = run_with::<&str>(folder.path(), &[], &content).ok().stdout;
    assert!(run_with(folder.path(), &["-d"], &archive).ok().stdout == content);
    run_with(folder.path(), &["-t"], &archive).ok();
    assert!(run_with(folder.path(), &["-dc", "-"], &archive).ok().stdout == content);
}

#[test]
fn tar_takes_it_as_its_compressor() {
    let folder = folder();
    fs::create_dir(folder.path().join("kept")).unwrap();
    fs::write(folder.path().join("kept/image"), image(30)).unwrap();
    let tar = |args: &[&str]| {
        let output = Command::new("tar").current_dir(folder.path()).args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    tar(&["-I", BINARY, "-cf", "all.tar.lz4", "kept"]);
    fs::remove_dir_all(folder.path().join("kept")).unwrap();
    tar(&["-I", BINARY, "-xf", "all.tar.lz4"]);
    assert!(fs::read(folder.path().join("kept/image")).unwrap() == image(30));
}

#[test]
fn levels_are_taken_as_by_lz4() {
    let folder = folder();
    let content = image(12);
    fs::write(folder.path().join("image"), &content).unwrap();
    let compressed = |line: &[&str]| {
        let archive = run(folder.path(), &[&["--backend", "interpreter", "-c"], line].concat()).ok().stdout;
        assert!(frames::decompress(&archive).as_ref() == Some(&content), "{line:?}");
        archive.len()
    };
    let (fast, small) = (compressed(&["-1", "image"]), compressed(&["-9", "image"]));
    assert!(small < fast, "{small} bytes at level 9, {fast} at level 1");
    for line in [&["image"][..], &["-2", "image"], &["-z2", "image"], &["--level", "1", "image"]] {
        assert_eq!(compressed(line), fast, "{line:?}");
    }
    assert_eq!(compressed(&["-3", "image"]), small);
    let named = run(folder.path(), &["compress", "-9", "--backend", "interpreter", "-c", "image"]).ok();
    assert_eq!(named.stdout.len(), small);
    run(folder.path(), &["-c", "-19", "image"]).refuses(&[]);
    run(folder.path(), &["-c", "-0", "image"]).refuses(&["--level"]);
}

#[test]
fn a_list_is_an_inspection() {
    let folder = folder();
    fs::write(folder.path().join("image"), image(12)).unwrap();
    run(folder.path(), &["image"]).ok();
    let listed = run(folder.path(), &["--list", "image.lz4"]).ok();
    assert_eq!(listed.stdout, run(folder.path(), &["inspect", "image.lz4"]).ok().stdout);
    assert!(!listed.stdout.is_empty());
}

#[test]
fn a_word_that_is_neither_a_command_nor_a_file_is_refused() {
    run(folder().path(), &["frobnicate"]).refuses(&["frobnicate"]);
    run(folder().path(), &["-d", "frobnicate.lz4", "--json"]).fails_as("not_found", &["frobnicate.lz4: "]);
}

#[test]
fn outputs_go_to_the_directory_that_is_named() {
    let folder = folder();
    fs::create_dir(folder.path().join("in")).unwrap();
    fs::create_dir(folder.path().join("out")).unwrap();
    for name in ["a", "b"] {
        fs::write(folder.path().join("in").join(name), image(5)).unwrap();
    }
    run(folder.path(), &["compress", "--output-dir", "out", "in/a", "in/b"]).ok();
    assert_eq!(names(&folder.path().join("out")), ["a.lz4", "b.lz4"]);
    assert_eq!(names(&folder.path().join("in")), ["a", "b"]);
    run(folder.path(), &["-d", "--output-dir", ".", "out/a.lz4"]).ok();
    assert!(fs::read(folder.path().join("a")).unwrap() == image(5));
    run(folder.path(), &["compress", "--output-dir", "none", "in/a", "--json"])
        .fails_as("not_found", &["none/a.lz4: "]);
    run(folder.path(), &["compress", "--output-dir", "out", "-c", "in/a"]).refuses(&["--output-dir", "--stdout"]);
    run(folder.path(), &["compress", "--output-dir", "out", "-"]).refuses(&["--output-dir"]);
}

#[test]
fn a_file_that_is_not_lz4_is_named_as_such_whatever_its_name() {
    let folder = folder();
    fs::write(folder.path().join("a.img"), image(2)).unwrap();
    run(folder.path(), &["decompress", "a.img", "--json"]).fails_as("not_compressed", &["a.img: "]);
    assert_eq!(names(folder.path()), ["a.img"]);
}

#[test]
fn arguments_that_contradict_each_other_or_are_no_numbers_are_refused() {
    let folder = folder();
    fs::write(folder.path().join("image"), image(1)).unwrap();
    run(folder.path(), &["compress", "--rm", "--keep", "image"]).refuses(&["--rm", "--keep"]);
    run(folder.path(), &["compress", "-k", "--rm", "image"]).refuses(&["--rm", "--keep"]);
    assert_eq!(names(folder.path()), ["image"]);
    run(folder.path(), &["compress", "-T", "x", "image"]).refuses(&["--threads"]);
    run(folder.path(), &["compress", "-T", "257", "image"]).refuses(&["--threads"]);
    run(folder.path(), &["compress", "-T", "65536", "image"]).refuses(&["--threads"]);
    run(folder.path(), &["snapshot", "abc", "-o", "out"]).refuses(&["PID"]);
}
