//! Standard output that leads to a file that the command still reads: refused, as `cat` does.

use std::fs::{self, File};
use std::path::Path;

use crate::support::{self, Run, folder, image};

/// Runs the binary with standard output open onto a file, as `1<>FILE` does in a shell.
fn run_onto(folder: &Path, file: &str, args: &[&str]) -> Run {
    let file = File::options().read(true).write(true).open(folder.join(file)).unwrap();
    support::finish(support::command(folder, args).stdout(file), &[])
}

/// Runs the binary with standard output appending to a file, as `>>FILE` does in a shell.
fn run_appending(folder: &Path, file: &str, args: &[&str]) -> Run {
    let file = File::options().append(true).open(folder.join(file)).unwrap();
    support::finish(support::command(folder, args).stdout(file), &[])
}

/// A chain `0.lz4`, `1.tzd` and `2.tzd`, another archive, and the image `new`.
fn prepare(folder: &Path) {
    let mut content = image(200);
    for (archive, base) in [("0.lz4", None), ("1.tzd", Some("0.lz4")), ("2.tzd", Some("1.tzd"))] {
        content[..4096].fill(archive.as_bytes()[0]);
        fs::write(folder.join("new"), &content).unwrap();
        let base: Vec<&str> = base.into_iter().flat_map(|base| ["--base", base]).collect();
        support::run(folder, &[&["compress", "-q", "new", "-o", archive], &base[..]].concat()).ok();
    }
    support::run(folder, &["compress", "-q", "new", "-o", "other.lz4"]).ok();
}

/// The files, with their content.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let read = |name: String| (name.clone(), fs::read(folder.join(name)).unwrap());
    support::names(folder).into_iter().map(read).collect()
}

#[test]
fn the_input_is_refused_as_the_output() {
    let folder = folder();
    let folder = folder.path();
    prepare(folder);
    fs::hard_link(folder.join("0.lz4"), folder.join("twin.lz4")).unwrap();
    let before = files(folder);
    for (input, args) in [
        ("0.lz4", &["decompress", "-c", "0.lz4"][..]),
        ("0.lz4", &["decompress", "-c", "twin.lz4"]),
        ("0.lz4", &["decompress", "0.lz4", "-o", "/dev/stdout"]),
        ("0.lz4", &["decompress", "--salvage", "-c", "0.lz4"]),
        ("0.lz4", &["decompress", "-c", "other.lz4", "0.lz4"]),
        ("0.lz4", &["extract", "0.lz4", "--pages", "0..9"]),
        ("0.lz4", &["inspect", "other.lz4", "0.lz4"]),
        ("2.tzd", &["decompress", "-c", "2.tzd"]),
        ("2.tzd", &["extract", "2.tzd", "--bytes", "0..9"]),
        ("2.tzd", &["flatten", "2.tzd", "-o", "-"]),
        ("2.tzd", &["inspect", "2.tzd"]),
        ("new", &["compress", "-c", "new"]),
        ("new", &["compress", "-c", "0.lz4", "new"]),
        ("new", &["inspect", "new"]),
        ("new", &["bench", "new"]),
    ] {
        for refused in [run_onto(folder, input, args), run_appending(folder, input, args)] {
            refused.fails(&["standard output: "]);
            assert!(files(folder) == before, "{args:?}");
        }
    }
    // As standard input.
    for args in [&["decompress", "-c"][..], &["inspect", "-"], &["compress"]] {
        let mut command = support::command(folder, args);
        command.stdin(File::open(folder.join("0.lz4")).unwrap());
        command.stdout(File::options().append(true).open(folder.join("0.lz4")).unwrap());
        let ran = command.output().unwrap();
        let stderr = String::from_utf8(ran.stderr).unwrap();
        assert_eq!(ran.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("standard output: "), "{stderr}");
        assert!(files(folder) == before, "{args:?}");
    }
}

#[test]
fn the_bases_of_a_delta_are_refused_as_the_output() {
    let folder = folder();
    let folder = folder.path();
    prepare(folder);
    let before = files(folder);
    for base in ["1.tzd", "0.lz4"] {
        for args in [
            &["decompress", "-c", "2.tzd"][..],
            &["extract", "2.tzd", "--pages", "0..9"],
            &["flatten", "2.tzd", "-o", "-"],
            &["compress", "-c", "--base", "1.tzd", "new"],
            &["snapshot", "--base", "1.tzd", &std::process::id().to_string(), "-o", "-"],
            &["inspect", "2.tzd"],
        ] {
            for refused in [run_onto(folder, base, args), run_appending(folder, base, args)] {
                refused.fails(&["standard output: "]);
                assert!(files(folder) == before, "{args:?}");
            }
        }
    }
    // The first input does not need the file, but the second one does.
    let refused = run_appending(folder, "0.lz4", &["decompress", "-c", "other.lz4", "2.tzd"]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("standard output: ") && refused.stderr.contains("2.tzd"), "{}", refused.stderr);
    assert!(files(folder) == before);
}

#[test]
fn results_are_not_printed_into_a_file_that_is_read() {
    let folder = folder();
    let folder = folder.path();
    prepare(folder);
    let before = files(folder);
    for (file, args) in [
        ("0.lz4", &["test", "0.lz4"][..]),
        ("0.lz4", &["test", "other.lz4", "0.lz4"]),
        ("0.lz4", &["inspect", "0.lz4"]),
        ("0.lz4", &["decompress", "0.lz4", "-o", "x"]),
        ("0.lz4", &["extract", "0.lz4", "--pages", "0", "-o", "x"]),
        ("0.lz4", &["restore", "0.lz4", "--elf-core", "-o", "x"]),
        ("0.lz4", &["serve", "0.lz4", "--nbd", "unix:nbd"]),
        ("0.lz4", &["load", "control", "0.lz4"]),
        ("new", &["compress", "new", "-o", "x"]),
        ("new", &["bench", "new"]),
        // Bases.
        ("0.lz4", &["test", "2.tzd"]),
        ("0.lz4", &["inspect", "2.tzd"]),
        ("0.lz4", &["serve", "2.tzd", "--nbd", "unix:nbd"]),
        ("0.lz4", &["serve", "2.tzd", "--overlay", "--nbd", "unix:nbd"]),
        ("0.lz4", &["restore", "2.tzd", "--uffd", "socket"]),
        ("1.tzd", &["flatten", "2.tzd", "-o", "x"]),
        ("1.tzd", &["compress", "--base", "1.tzd", "new", "-o", "x"]),
    ] {
        let args = [args, &["--json"]].concat();
        // The refusal itself is not printed into it, either.
        run_appending(folder, file, &args).refuses(&["standard output: "]);
        assert!(files(folder) == before, "{args:?}");
    }
}

#[test]
fn other_files_are_appended_to_as_before() {
    let folder = folder();
    let folder = folder.path();
    prepare(folder);
    fs::write(folder.join("log"), b"before").unwrap();
    assert_eq!(run_appending(folder, "log", &["decompress", "-c", "2.tzd", "0.lz4"]).code, Some(0));
    let log = fs::read(folder.join("log")).unwrap();
    assert!(log.starts_with(b"before") && log.len() == 6 + 2 * 200 * 4096);
    // Nothing is printed, so the file may be the input.
    assert_eq!(run_appending(folder, "log", &["compress", "-q", "log"]).code, Some(0));
    assert!(fs::read(folder.join("log")).unwrap() == log);
}
