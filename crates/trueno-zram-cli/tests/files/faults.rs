//! A system call fails, whichever: the output is right or there is none, and no input is lost.

use std::fs::{self, File};
use std::path::Path;

use trueno_test_pages::{PAGE_SIZE, frames};

use crate::shim::{Faulty, at_every_call, refuse, run_refusing};
use crate::support::{command, finish, image, names, run, run_with};

/// A small image with a hole, and a last page that is cut short.
fn content() -> Vec<u8> {
    let mut content = image(30);
    content.extend(vec![0; 3 << 20]);
    content.extend(&image(2)[..PAGE_SIZE + 100]);
    content
}

fn archive(content: &[u8]) -> Vec<u8> {
    run_with(crate::support::folder().path(), &["compress"], content).ok().stdout
}

/// Only these files are there. A temporary one may stay if the call that failed was the one to remove it.
fn nothing_is_left(folder: &Path, allowed: &[&str], faulty: &Faulty) {
    let others = names(folder).into_iter().filter(|name| !allowed.contains(&name.as_str())).count();
    assert!(others == 0 || faulty.function == "unlink", "{:?}: {}", names(folder), faulty.what);
}

#[test]
fn compressing_is_right_or_leaves_nothing() {
    let content = content();
    let runs = at_every_call(
        3,
        &["compress", "-T", "2", "image"],
        &[],
        |folder| fs::write(folder.join("image"), &content).unwrap(),
        |folder, faulty| {
            nothing_is_left(folder, &["image", "image.lz4"], faulty);
            assert!(fs::read(folder.join("image")).unwrap() == content);
            match fs::read(folder.join("image.lz4")) {
                Ok(there) => assert!(frames::decompress(&there).as_ref() == Some(&content), "{}", faulty.what),
                Err(_) => assert_eq!(faulty.run.code, Some(1), "{}", faulty.what),
            }
        },
    );
    println!("{runs} runs");
}

#[test]
fn replacing_and_removing_never_loses_the_original() {
    let content = content();
    let runs = at_every_call(
        3,
        &["compress", "-f", "--rm", "image"],
        &[],
        |folder| {
            fs::write(folder.join("image"), &content).unwrap();
            fs::write(folder.join("image.lz4"), b"old").unwrap();
        },
        |folder, faulty| {
            nothing_is_left(folder, &["image", "image.lz4"], faulty);
            let there = fs::read(folder.join("image.lz4")).unwrap();
            let is_new = frames::decompress(&there).as_ref() == Some(&content);
            assert!(is_new || there == b"old", "{}", faulty.what);
            let has_original = fs::read(folder.join("image")).is_ok_and(|image| image == content);
            assert!(is_new || has_original, "{}", faulty.what);
            assert!(faulty.run.code == Some(1) || (is_new && !folder.join("image").exists()), "{}", faulty.what);
        },
    );
    println!("{runs} runs");
}

#[test]
fn restoring_is_right_or_leaves_nothing() {
    let content = content();
    let archive = archive(&content);
    let runs = at_every_call(
        3,
        &["decompress", "--rm", "-T", "2", "image.lz4"],
        &[],
        |folder| fs::write(folder.join("image.lz4"), &archive).unwrap(),
        |folder, faulty| {
            nothing_is_left(folder, &["image", "image.lz4"], faulty);
            let restored = fs::read(folder.join("image"));
            assert!(restored.as_ref().map_or(true, |restored| *restored == content), "{}", faulty.what);
            assert!(restored.is_ok() || fs::read(folder.join("image.lz4")).unwrap() == archive, "{}", faulty.what);
            assert!(restored.is_ok() || faulty.run.code == Some(1), "{}", faulty.what);
        },
    );
    println!("{runs} runs");
}

#[test]
fn pipes_are_right_or_fail() {
    let content = content();
    let archive = archive(&content);
    let mut runs = at_every_call(
        3,
        &["compress"],
        &content,
        |_| {},
        |folder, faulty| {
            nothing_is_left(folder, &[], faulty);
            let is_right = frames::decompress(&faulty.run.stdout).as_ref() == Some(&content);
            assert!(is_right || faulty.run.code == Some(1), "{}", faulty.what);
        },
    );
    runs += at_every_call(
        3,
        &["-d"],
        &archive,
        |_| {},
        |folder, faulty| {
            nothing_is_left(folder, &[], faulty);
            assert!(faulty.run.stdout == content || faulty.run.code == Some(1), "{}", faulty.what);
        },
    );
    println!("{runs} runs");
}

/// The errors of a full server, or one that fails, when a file is closed.
const AT_CLOSE: [&str; 5] = ["close:EIO", "close:ENOSPC", "close:EDQUOT", "fsync:EINTR", "fsync:EIO"];

#[test]
fn what_is_lost_when_a_file_is_closed_is_no_output() {
    let (content, folder) = (content(), crate::support::folder());
    let folder = folder.path();
    fs::write(folder.join("image"), &content).unwrap();
    run(folder, &["compress", "-q", "--page-hashes", "image", "-o", "base.lz4"]).ok();
    run(folder, &["compress", "-q", "image", "--base", "base.lz4", "-o", "delta.tzd"]).ok();
    fs::write(folder.join("old"), b"old").unwrap();
    let before = names(folder);
    for refused in AT_CLOSE {
        for args in [
            &["compress", "--rm", "image"][..],
            &["compress", "--rm", "image", "--base", "base.lz4"],
            &["compress", "image", "-f", "-o", "old"],
            &["decompress", "--rm", "delta.tzd", "-o", "new"],
            &["decompress", "base.lz4", "-f", "-o", "old"],
        ] {
            run_refusing(folder, args, refused).fails(&[]);
            assert_eq!(names(folder), before, "{args:?}, {refused}");
            assert!(fs::read(folder.join("image")).unwrap() == content);
            assert_eq!(fs::read(folder.join("old")).unwrap(), b"old");
        }
    }
    // Nothing is synced here.
    for refused in &AT_CLOSE[..3] {
        for args in [
            &["compress", "-T", "2", "image"][..],
            &["compress", "image", "--base", "base.lz4"],
            &["decompress", "-T", "2", "base.lz4", "-o", "new"],
            &["decompress", "--salvage", "base.lz4", "-o", "new"],
            &["extract", "base.lz4", "--pages", "0..9", "-o", "new"],
            &["flatten", "delta.tzd", "-o", "new"],
        ] {
            run_refusing(folder, args, refused).fails(&[]);
            assert_eq!(names(folder), before, "{args:?}, {refused}");
        }
    }
}

#[test]
fn what_is_lost_when_standard_output_is_closed_is_an_error() {
    let (content, folder) = (content(), crate::support::folder());
    let folder = folder.path();
    fs::write(folder.join("image"), &content).unwrap();
    run(folder, &["compress", "-q", "image"]).ok();
    for args in [
        &["compress", "-c", "image"][..],
        &["decompress", "-c", "image.lz4"],
        &["extract", "image.lz4", "--pages", "0..9"],
        &["inspect", "image.lz4"],
        &["test", "--json", "image.lz4"],
    ] {
        let onto = |refused| {
            let mut command = command(folder, args);
            command.stdout(File::create(folder.join("out")).unwrap());
            finish(refuse(&mut command, refused), &[])
        };
        assert_eq!(onto("close:ENOSPC").code, Some(1), "{args:?}");
        assert_eq!(onto("").code, Some(0), "{args:?}");
    }
}

#[test]
fn a_file_that_is_filled_in_place_is_left_empty_if_closing_it_fails() {
    let (content, folder) = (content(), crate::support::folder());
    let folder = folder.path();
    fs::write(folder.join("image.lz4"), archive(&content)).unwrap();
    for refused in AT_CLOSE {
        fs::write(folder.join("out"), b"old").unwrap();
        let args = ["decompress", "--in-place", "--rm", "image.lz4", "-o", "out"];
        run_refusing(folder, &args, refused).fails(&[]);
        assert!(fs::read(folder.join("out")).unwrap().iter().all(|byte| *byte == 0), "{refused}");
        assert!(folder.join("image.lz4").exists());
    }
}
