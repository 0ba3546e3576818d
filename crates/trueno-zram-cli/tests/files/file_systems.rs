//! File systems that lack what most have: hard links, renames that replace nothing, permissions, files without a name.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use trueno_test_pages::frames;

use crate::shim::run_refusing;
use crate::support::{folder, image, names};

/// The calls that some network and FUSE file systems do not have, all or some of them.
const LACKING: [&str; 5] = [
    "linkat,renameat2,tmpfile:EPERM",
    "linkat,renameat2,tmpfile:EINVAL",
    "linkat,renameat2,tmpfile:ENOSYS",
    "renameat2,tmpfile:EINVAL",
    // Such files can be made there, but get no name.
    "linkat:EPERM",
];

#[test]
fn outputs_get_their_name_without_hard_links_and_noreplace() {
    for lacking in LACKING {
        let folder = folder();
        fs::write(folder.path().join("image"), image(20)).unwrap();
        run_refusing(folder.path(), &["compress", "image"], lacking).ok();
        let archive = fs::read(folder.path().join("image.lz4")).unwrap();
        assert!(frames::decompress(&archive) == Some(image(20)), "{lacking}");
        run_refusing(folder.path(), &["decompress", "--rm", "-f", "image.lz4"], lacking).ok();
        assert!(fs::read(folder.path().join("image")).unwrap() == image(20), "{lacking}");
        assert_eq!(names(folder.path()), ["image"], "{lacking}");
    }
}

#[test]
fn names_that_are_taken_are_not_replaced_there_either() {
    for lacking in LACKING {
        let folder = folder();
        fs::write(folder.path().join("image"), image(20)).unwrap();
        fs::write(folder.path().join("image.lz4"), b"precious").unwrap();
        run_refusing(folder.path(), &["compress", "--json", "image"], lacking).fails_as("exists", &["image.lz4: "]);
        assert_eq!(fs::read(folder.path().join("image.lz4")).unwrap(), b"precious", "{lacking}");
        assert_eq!(names(folder.path()), ["image", "image.lz4"], "{lacking}");
    }
}

#[test]
fn refused_permissions_and_times_are_a_warning() {
    let folder = folder();
    fs::write(folder.path().join("image"), image(20)).unwrap();
    fs::set_permissions(folder.path().join("image"), fs::Permissions::from_mode(0o644)).unwrap();
    let run = run_refusing(folder.path(), &["compress", "--rm", "image"], "fchmod,fchown,futimens:EPERM");
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let warnings = run.stderr.lines().filter(|line| line.starts_with("trueno-zram: image.lz4: warning: ")).count();
    assert_eq!(warnings, 2, "permissions and times: {}", run.stderr);
    assert_eq!(names(folder.path()), ["image.lz4"]);
    let mode = fs::metadata(folder.path().join("image.lz4")).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "nobody else may read it");
}

#[test]
fn too_many_open_files_are_named_as_such() {
    let folder = folder();
    fs::write(folder.path().join("image"), image(3)).unwrap();
    let run = run_refusing(folder.path(), &["compress", "image", "--json"], "open,tmpfile:EMFILE");
    run.fails_as("io", &["image: "]);
    let mut shell = std::process::Command::new("sh");
    // Enough to start and to open the input.
    let script =
        "ulimit -n 10; exec 4</dev/null 5</dev/null 6</dev/null 7</dev/null; exec \"$0\" compress -q -o out image";
    let output = shell.current_dir(folder.path()).args(["-c", script, crate::support::BINARY]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() || output.status.code() == Some(1) && stderr.lines().count() == 1, "{stderr}");
}
