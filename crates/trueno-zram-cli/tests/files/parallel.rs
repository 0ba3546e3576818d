//! Many threads that read and write one file: a file system that fills up, calls that fail, inputs that change.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use trueno_test_pages::frames;

use crate::shim::at_every_call;
use crate::support::{BINARY, Run, finish, folder, image, names, run};

/// Runs the tool with a tmpfs of `size` at `small` in the folder; `None` if this user may not mount.
fn run_on_small_tmpfs(folder: &Path, size: &str, args: &[&str]) -> Option<(Run, String)> {
    let small = folder.join("small");
    fs::create_dir_all(&small).unwrap();
    let script = "mount -t tmpfs -o size=$0 tmpfs small || exit 99; \"$@\"; code=$?; ls -A small; exit $code";
    let mut command = Command::new("unshare");
    command.current_dir(folder).args(["-m", "sh", "-c", script, size, BINARY]).args(args);
    let run = finish(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()), &[]);
    let left = String::from_utf8(run.stdout.clone()).unwrap();
    (run.code != Some(99) && !run.stderr.starts_with("unshare")).then_some((run, left))
}

#[test]
fn a_file_system_that_fills_up_is_an_error_and_nothing_is_left() {
    let folder = folder();
    let pages = image(6000);
    fs::write(folder.path().join("image"), &pages).unwrap();
    run(folder.path(), &["compress", "image"]).ok();
    // Few threads write with pwrite, many into mappings, where a full file system would raise SIGBUS.
    for threads in ["2", "6"] {
        for (command, input) in [("compress", "image"), ("decompress", "image.lz4")] {
            let args = [command, "-q", "-T", threads, input, "-o", "small/out"];
            let Some((run, left)) = run_on_small_tmpfs(folder.path(), "4m", &args) else { return };
            run.fails(&["small/out"]);
            assert_eq!(left, "", "{args:?}");
            let (run, left) = run_on_small_tmpfs(folder.path(), "64m", &args).unwrap();
            run.ok();
            assert_eq!(left, "out\n", "{args:?}");
        }
    }
}

#[test]
fn an_archive_of_several_groups_is_restored_right_or_not_at_all() {
    let content = image(2500);
    let archive = crate::support::run_with(folder().path(), &["compress"], &content).ok().stdout;
    for threads in ["2", "6"] {
        let runs = at_every_call(
            23,
            &["decompress", "-T", threads, "image.lz4"],
            &[],
            |folder| fs::write(folder.join("image.lz4"), &archive).unwrap(),
            |folder, faulty| match fs::read(folder.join("image")) {
                Ok(there) => assert!(there == content, "{}", faulty.what),
                Err(_) => {
                    assert_eq!(faulty.run.code, Some(1), "{}", faulty.what);
                    assert!(names(folder).len() == 1 || faulty.function == "unlink", "{}", faulty.what);
                }
            },
        );
        println!("{runs} runs");
    }
}

#[test]
fn an_image_is_compressed_right_or_not_at_all_by_many_threads() {
    let content = image(1500);
    let runs = at_every_call(
        19,
        &["compress", "-T", "6", "image"],
        &[],
        |folder| fs::write(folder.join("image"), &content).unwrap(),
        |folder, faulty| match fs::read(folder.join("image.lz4")) {
            Ok(there) => assert!(frames::decompress(&there).as_ref() == Some(&content), "{}", faulty.what),
            Err(_) => {
                assert_eq!(faulty.run.code, Some(1), "{}", faulty.what);
                assert!(names(folder).len() == 1 || faulty.function == "unlink", "{}", faulty.what);
            }
        },
    );
    println!("{runs} runs");
}

#[test]
fn restored_files_have_their_holes_with_any_number_of_threads() {
    let folder = folder();
    let mut content = image(1100);
    content.resize(content.len() + (5 << 20), 0);
    content.extend(image(1300));
    content.extend(b"and a tail");
    fs::write(folder.path().join("image"), &content).unwrap();
    run(folder.path(), &["compress", "image"]).ok();
    for threads in ["1", "2", "5"] {
        run(folder.path(), &["decompress", "-f", "-T", threads, "image.lz4", "-o", "back"]).ok();
        assert!(fs::read(folder.path().join("back")).unwrap() == content, "{threads} threads");
        let taken = std::os::unix::fs::MetadataExt::blocks(&fs::metadata(folder.path().join("back")).unwrap()) * 512;
        assert!(taken < content.len() as u64 - (4 << 20), "{taken} bytes on {threads} threads");
    }
}
