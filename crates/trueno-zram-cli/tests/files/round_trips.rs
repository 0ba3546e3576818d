//! Round trips: every length, files and pipes, one or several.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;

use trueno_test_pages::{PAGE_SIZE, frames};

use crate::support::{command, folder, image, names, run, run_with};

/// Lengths around the boundaries of pages, of batches and of the system's pipes.
fn lengths() -> Vec<usize> {
    let page = PAGE_SIZE;
    vec![
        0,
        1,
        5,
        12,
        13,
        page - 1,
        page,
        page + 1,
        2 * page - 1,
        3 * page + 7,
        1024 * page,
        1024 * page + 1,
        2100 * page - 5,
    ]
}

#[test]
fn files_of_every_length_come_back() {
    let folder = folder();
    let whole = image(2100);
    for len in lengths() {
        let content = &whole[..len];
        fs::write(folder.path().join("image"), content).unwrap();
        run(folder.path(), &["compress", "image"]).ok();
        let archive = fs::read(folder.path().join("image.lz4")).unwrap();
        assert!(frames::decompress(&archive).as_deref() == Some(content), "C lz4 reads {len} bytes");
        run(folder.path(), &["test", "image.lz4"]).ok();
        fs::remove_file(folder.path().join("image")).unwrap();
        run(folder.path(), &["decompress", "image.lz4"]).ok();
        assert!(fs::read(folder.path().join("image")).unwrap() == content, "{len} bytes come back");
        fs::remove_file(folder.path().join("image.lz4")).unwrap();
    }
}

#[test]
fn pipes_of_every_length_come_back() {
    let folder = folder();
    let whole = image(2100);
    for len in lengths() {
        let content = &whole[..len];
        let archive = run_with(folder.path(), &["compress"], content).ok().stdout;
        assert!(frames::decompress(&archive).as_deref() == Some(content), "C lz4 reads {len} bytes");
        let back = run_with(folder.path(), &["decompress", "-"], &archive).ok().stdout;
        assert!(back == content, "{len} bytes come back");
        run_with(folder.path(), &["test"], &archive).ok();
    }
}

#[test]
fn an_archive_is_the_same_on_any_number_of_threads() {
    let folder = folder();
    fs::write(folder.path().join("image"), image(3000)).unwrap();
    let archive = |threads: &str| run(folder.path(), &["compress", "-c", "-T", threads, "image"]).ok().stdout;
    let one = archive("1");
    assert!(!one.is_empty() && one == archive("2") && one == archive("7"));
}

#[test]
fn checksums_can_be_left_out() {
    let folder = folder();
    let content = image(40);
    let lens = [
        &["compress"][..],
        &["compress", "--no-block-checksums"],
        &["compress", "--no-content-checksum"],
        &["compress", "--no-content-checksum", "--no-block-checksums"],
    ]
    .map(|args| {
        let archive = run_with(folder.path(), args, &content).ok().stdout;
        assert!(frames::decompress(&archive).as_ref() == Some(&content), "{args:?}");
        assert!(run_with(folder.path(), &["decompress"], &archive).ok().stdout == content, "{args:?}");
        archive.len()
    });
    assert!(lens[0] > lens[1] && lens[0] == lens[2] + 4 && lens[3] < lens[1], "{lens:?}");
}

#[test]
fn several_files_become_one_each() {
    let folder = folder();
    let (first, second) = (image(10), image(20));
    fs::write(folder.path().join("a"), &first).unwrap();
    fs::write(folder.path().join("b"), &second).unwrap();
    run(folder.path(), &["compress", "--rm", "a", "b"]).ok();
    assert_eq!(names(folder.path()), ["a.lz4", "b.lz4"]);
    run(folder.path(), &["decompress", "--rm", "a.lz4", "b.lz4"]).ok();
    assert_eq!(names(folder.path()), ["a", "b"]);
    assert!(fs::read(folder.path().join("a")).unwrap() == first);
    assert!(fs::read(folder.path().join("b")).unwrap() == second);
}

#[test]
fn several_files_on_standard_output_are_one_after_the_other() {
    let folder = folder();
    let (first, second) = (image(10), image(20));
    fs::write(folder.path().join("a"), &first).unwrap();
    fs::write(folder.path().join("b"), &second).unwrap();
    let archive = run(folder.path(), &["compress", "-c", "a", "b"]).ok().stdout;
    let both = [first, second].concat();
    assert!(frames::decompress(&archive).as_ref() == Some(&both));
    assert!(run_with(folder.path(), &["decompress"], &archive).ok().stdout == both);
}

#[test]
fn one_that_fails_does_not_stop_the_others() {
    let folder = folder();
    fs::write(folder.path().join("a"), image(3)).unwrap();
    fs::write(folder.path().join("b"), image(3)).unwrap();
    run(folder.path(), &["compress", "-q", "a", "missing", "b", "--json"]).fails_as("not_found", &["missing"]);
    assert_eq!(names(folder.path()), ["a", "a.lz4", "b", "b.lz4"]);
    fs::write(folder.path().join("a.lz4"), b"not LZ4 at all").unwrap();
    run(folder.path(), &["test", "-q", "a.lz4", "b.lz4", "a"]).code.filter(|code| *code == 1).expect("two are bad");
}

#[test]
fn files_of_no_known_length_are_read_to_their_end() {
    // Files of /proc say that they have no bytes.
    let folder = folder();
    let archive = run(folder.path(), &["compress", "-c", "/proc/version"]).ok().stdout;
    assert_eq!(frames::decompress(&archive), Some(fs::read("/proc/version").unwrap()));
}

#[test]
fn a_redirected_file_is_read_from_where_it_stands() {
    use std::io::{Seek, SeekFrom};
    let folder = folder();
    let content = image(50);
    fs::write(folder.path().join("image"), &content).unwrap();
    let mut file = fs::File::open(folder.path().join("image")).unwrap();
    file.seek(SeekFrom::Start(5000)).unwrap();
    let output = command(folder.path(), &["compress"]).stdin(Stdio::from(file)).output().unwrap();
    assert!(frames::decompress(&output.stdout).as_deref() == Some(&content[5000..]));
}

#[test]
fn rights_and_times_are_kept() {
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, SystemTime};
    let folder = folder();
    let (image_path, archive) = (folder.path().join("image"), folder.path().join("image.lz4"));
    fs::write(&image_path, image(5)).unwrap();
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    fs::File::options().write(true).open(&image_path).unwrap().set_modified(then).unwrap();
    fs::set_permissions(&image_path, fs::Permissions::from_mode(0o640)).unwrap();
    let is_kept = |path| {
        let metadata = fs::metadata(path).unwrap();
        assert_eq!(metadata.mode() & 0o7777, 0o640);
        assert_eq!(metadata.modified().unwrap(), then);
    };
    run(folder.path(), &["compress", "--rm", "image"]).ok();
    is_kept(&archive);
    run(folder.path(), &["decompress", "image.lz4"]).ok();
    is_kept(&image_path);
}
