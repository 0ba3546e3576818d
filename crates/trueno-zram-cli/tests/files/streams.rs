//! Streams that are cut short or cannot be written to.

use std::fs::{self, File};
use std::io::Read;
use std::process::Stdio;

use trueno_test_pages::frames;

use crate::support::{BINARY, command, folder, image, names, run};

/// Runs a script in bash, with the binary as `$0`.
fn bash(folder: &std::path::Path, script: &str) -> (Option<i32>, String) {
    let mut bash = std::process::Command::new("bash");
    let output = bash.current_dir(folder).args(["-c", script, BINARY]).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn messages_that_cannot_be_written_stop_nothing() {
    let folder = folder();
    for name in ["a", "b", "c"] {
        fs::write(folder.path().join(name), image(3)).unwrap();
    }
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    let status = command(folder.path(), &["compress", "-v", "a", "none", "b", "c"]).stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(1), "one of the files is not there");
    assert_eq!(names(folder.path()), ["a", "a.lz4", "b", "b.lz4", "c", "c.lz4"]);
    // A pipe whose reader is gone, as in `2>&1 | head -1`.
    let (code, _) = bash(folder.path(), "\"$0\" test -v a.lz4 b.lz4 c.lz4 2> >(exec true); exit $?");
    assert_eq!(code, Some(0));
    let status = command(folder.path(), &["info"]).stderr(full()).stdout(Stdio::null()).status().unwrap();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn a_named_pipe_that_is_cut_short_is_an_error() {
    let folder = folder();
    fs::write(folder.path().join("image"), image(5000)).unwrap();
    let fifo = folder.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let reader = std::thread::spawn({
        let fifo = fifo.clone();
        move || File::open(fifo).unwrap().read_exact(&mut [0; 10]).unwrap()
    });
    run(folder.path(), &["compress", "image", "-o", "fifo", "--json"]).fails_as("io", &["fifo: "]);
    reader.join().unwrap();
    let (code, stderr) = bash(folder.path(), "\"$0\" compress -q image -o >(head -c 10 >/dev/null)");
    assert_eq!(code, Some(1), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

#[test]
fn standard_output_that_is_cut_short_ends_the_process_by_sigpipe() {
    let folder = folder();
    fs::write(folder.path().join("image"), image(5000)).unwrap();
    run(folder.path(), &["compress", "-q", "image"]).ok();
    for args in ["compress -c image", "decompress -c image.lz4", "man"] {
        let script = format!("\"$0\" {args} | head -c 1 >/dev/null; exit ${{PIPESTATUS[0]}}");
        let (code, stderr) = bash(folder.path(), &script);
        // The manual may fit into the pipe before its reader goes away.
        assert!(code == Some(141) || (args == "man" && code == Some(0)), "{args}: {code:?}, {stderr}");
        assert!(stderr.is_empty(), "{args}: {stderr}");
    }
}

#[test]
fn files_of_sys_are_compressed() {
    let Ok(content) = fs::read("/sys/kernel/mm/transparent_hugepage/enabled") else { return };
    let archive = run(folder().path(), &["compress", "-c", "/sys/kernel/mm/transparent_hugepage/enabled"]).ok().stdout;
    assert_eq!(frames::decompress(&archive), Some(content));
}
