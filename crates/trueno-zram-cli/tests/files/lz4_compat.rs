//! Command lines as users of lz4 and zstd write them.

use std::fs;
use std::process::Command;

use trueno_test_pages::frames;

use crate::support::{BINARY, command, finish, folder, image, names, run, run_with};

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
fn a_list_has_a_line_per_file() {
    let folder = folder();
    fs::write(folder.path().join("image"), image(12)).unwrap();
    run(folder.path(), &["image"]).ok();
    run(folder.path(), &["--zstd", "image"]).ok();
    // A file of another tool has no index: its content is decoded.
    fs::write(folder.path().join("other.zst"), zstd::encode_all(&image(3)[..], 1).unwrap()).unwrap();
    let listed = run(folder.path(), &["-l", "image.lz4", "image.zst", "other.zst"]).ok();
    let text = String::from_utf8(listed.stdout).unwrap();
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["Format", "Compressed", "Uncompressed", "Ratio", "Filename"]);
    let column = |row: usize| (rows[row][0], rows[row][3], rows[row][6]);
    assert_eq!(column(1), ("lz4", "48.0", "image.lz4"));
    assert_eq!(column(2), ("zstd", "48.0", "image.zst"));
    assert_eq!(column(3), ("zstd", "12.0", "other.zst"));
    assert_eq!(&rows[4][2..], ["108.0", "KiB", rows[4][4], "3", "files"]);
    assert_eq!(
        run(folder.path(), &["--list", "image.lz4"]).ok().stdout.iter().filter(|byte| **byte == b'\n').count(),
        2
    );
    // For lz4, -l is a format to write.
    run(folder.path(), &["-l", "image"]).fails(&["image: ", "inspect", "legacy"]);
    run(folder.path(), &["-l", "image", "--json"]).ok();
}

#[test]
fn levels_and_formats_are_named_as_by_lz4_and_zstd() {
    let folder = folder();
    let content = image(12);
    fs::write(folder.path().join("image"), &content).unwrap();
    let compressed = |line: &[&str], environment: &[(&str, &str)]| {
        let mut command = command(folder.path(), &[&["--backend", "cpu", "-c", "image"], line].concat());
        finish(command.envs(environment.iter().copied()), &[]).ok().stdout
    };
    let zstd = |level: &str| compressed(&["--algorithm", "zstd", "--level", level], &[]);
    assert_eq!(compressed(&["--zstd"], &[]), zstd("3"));
    assert_eq!(compressed(&["--format=zstd"], &[]), zstd("3"));
    assert_eq!(compressed(&["--zstd", "--best"], &[]), zstd("19"));
    assert_eq!(compressed(&["--zstd", "--best", "--ultra"], &[]), zstd("22"));
    assert_eq!(compressed(&["--zstd", "-19", "--fast", "-7"], &[]), zstd("7"), "the last one counts");
    assert_eq!(compressed(&["--zstd"], &[("ZSTD_CLEVEL", "7"), ("LZ4_CLEVEL", "1")]), zstd("7"));
    assert_eq!(compressed(&["--zstd", "-5"], &[("ZSTD_CLEVEL", "7")]), zstd("5"));
    let (fast, faster) = (compressed(&["--zstd", "--fast"], &[]), compressed(&["--zstd", "-9", "--fast=100"], &[]));
    assert_eq!(zstd::decode_all(&faster[..]).unwrap(), content);
    assert!(zstd("3").len() < fast.len() && fast.len() < faster.len());
    for line in [&["--best"][..], &["--fast=9"], &["-12"], &["--format=lz4"]] {
        assert!(frames::decompress(&compressed(line, &[])).as_ref() == Some(&content), "{line:?}");
    }
    let mut warned = command(folder.path(), &["-c", "image"]);
    let warned = finish(warned.env("LZ4_CLEVEL", "high"), &[]);
    assert!(warned.code == Some(0) && warned.stderr.contains("LZ4_CLEVEL"), "{}", warned.stderr);
    run(folder.path(), &["-c", "--ultra", "image"]).refuses(&["--ultra", "--zstd"]);
    run(folder.path(), &["-c", "--fast=0", "image"]).refuses(&["--fast"]);
    // As tar passes the options of its -I on.
    let archive = zstd("3");
    assert!(run_with(folder.path(), &["--zstd", "-9", "-d"], &archive).ok().stdout == content);
    run_with(folder.path(), &["--best", "-t"], &archive).ok();
}

#[test]
fn directories_are_taken_with_their_files() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir_all(at("tree/below")).unwrap();
    fs::create_dir(at("empty")).unwrap();
    fs::write(at("tree/a"), image(5)).unwrap();
    fs::write(at("tree/below/b"), image(6)).unwrap();
    fs::write(at("other"), image(7)).unwrap();
    std::os::unix::fs::symlink("../other", at("tree/link")).unwrap();
    std::os::unix::fs::symlink("..", at("tree/below/up")).unwrap();
    run(folder.path(), &["tree", "--json"]).fails_as("refused", &["tree: ", "-r"]);
    run(folder.path(), &["-r", "--zstd", "tree"]).ok();
    assert_eq!(names(&at("tree")), ["a", "a.zst", "below", "link"], "links are not followed");
    assert_eq!(names(&at("tree/below")), ["b", "b.zst", "up"]);
    let again = run(folder.path(), &["-r", "-f", "tree"]).ok();
    assert_eq!(names(&at("tree")), ["a", "a.lz4", "a.zst", "below", "link"], "{}", again.stderr);
    run(folder.path(), &["-r", "-t", "tree"]).ok();
    let inspected = run(folder.path(), &["inspect", "-r", "--json", "tree"]).ok().json();
    let name = |object: &serde_json::Value| object["file"].as_str().unwrap().to_owned();
    assert!(inspected.iter().any(|object| name(object).ends_with(".zst")), "compressed files are inspected as well");
    assert!(inspected.iter().any(|object| !name(object).ends_with(".zst")));
    let listed = run(folder.path(), &["-lr", "tree"]).ok().stdout;
    assert!(String::from_utf8(listed).unwrap().ends_with(" 4 files\n"));
    for name in ["tree/a", "tree/a.lz4", "tree/below/b", "tree/below/b.lz4"] {
        fs::remove_file(at(name)).unwrap();
    }
    run(folder.path(), &["-d", "-r", "--rm", "tree"]).ok();
    assert!(fs::read(at("tree/a")).unwrap() == image(5) && fs::read(at("tree/below/b")).unwrap() == image(6));
    let nothing = run(folder.path(), &["-r", "empty", "-d"]).ok();
    assert!(nothing.stderr.contains("nothing to do") && nothing.stdout.is_empty());
    run_with(folder.path(), &["-r"], b"content").refuses(&["-r"]);
}

#[test]
fn a_second_file_is_an_input_and_says_so() {
    let folder = folder();
    fs::write(folder.path().join("image"), image(5)).unwrap();
    run(folder.path(), &["image", "out.lz4"]).refuses(&["out.lz4: ", "-o out.lz4"]);
    run(folder.path(), &["compress", "image", "stdout"]).refuses(&["-c"]);
    assert_eq!(names(folder.path()), ["image"], "nothing was done");
    let several = run(folder.path(), &["-m", "image", "out.lz4"]);
    assert!(several.code == Some(1) && several.stderr.contains("out.lz4: No such file"), "{}", several.stderr);
    run(folder.path(), &["-d", "image.lz4", "null"]).refuses(&["-t"]);
    run(folder.path(), &["-f", "image", "image.lz4"]).fails(&["image.lz4: ", "-o"]);
    run(folder.path(), &["-m", "image.lz4", "-d", "-o", "again"]).ok();
}

#[test]
fn messages_fit_what_was_typed() {
    let folder = folder();
    fs::write(folder.path().join("image"), image(1)).unwrap();
    let message = |line: &[&str]| {
        let refused = run(folder.path(), line);
        assert_eq!(refused.code, Some(2), "{line:?}: {}", refused.stderr);
        refused.stderr
    };
    assert!(message(&["compres", "image"]).contains("did you mean `compress`?"));
    assert!(message(&["help", "comprss"]).contains("'compress'"));
    assert!(message(&["--zst", "image"]).contains("'--zstd'"));
    assert!(message(&["--lits", "image"]).contains("'--list'"));
    let unknown = message(&["-d", "--foo", "image"]);
    assert!(
        unknown.contains("--foo") && unknown.contains("[-d|-t|-l]") && !unknown.contains(" decompress"),
        "{unknown}"
    );
    assert!(!message(&["serve", "--zstd"]).contains("--stdout"));
    let of_command = message(&["extract", "--zstd"]);
    assert!(
        of_command.contains("Usage: trueno-zram extract [OPTIONS]") && !of_command.contains("--stdout"),
        "{of_command}"
    );
    for (line, way_out) in [
        (&["-D", "dictionary", "image"][..], "--base"),
        (&["-B4", "image"], "4 KiB"),
        (&["-b3", "image"], "bench"),
        (&["compress", "--no-crc", "image"], "--no-block-checksums"),
        (&["--patch-from=old", "image"], "--base"),
        (&["--output-dir-mirror", "out", "image"], "--output-dir"),
        (&["decompress", "--zstd", "image.zst"], "leave it out"),
        (&["test", "-9", "image.zst"], "leave it out"),
    ] {
        let text = message(line);
        assert!(text.contains(way_out) && text.lines().count() == 1, "{line:?}: {text}");
    }
    run(folder.path(), &["-qq", "image"]).ok();
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
