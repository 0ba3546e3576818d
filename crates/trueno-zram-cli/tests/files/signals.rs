//! Killed at any moment, the old file or the new one is there, never half.

use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use trueno_test_pages::frames;

use crate::support::{command, folder, image, names, run};

/// Set to kill the tool at more moments, spread over its run.
const KILLS: &str = "TRUENO_KILLS";

/// Starts a run that has written some of its output and waits for more input.
fn start_and_stall(folder: &Path, args: &[&str], some: &[u8]) -> Child {
    let mut child = command(folder, args).stderr(Stdio::null()).spawn().unwrap();
    child.stdin.as_mut().unwrap().write_all(some).unwrap();
    wait_for_output(&child, folder);
    child
}

/// Waits until the new file has some bytes.
fn wait_for_output(child: &Child, folder: &Path) {
    // It ends a run that hangs; no machine is that slow.
    let deadline = Instant::now() + Duration::from_secs(1200);
    while new_file_bytes(child, folder) == 0 {
        assert!(Instant::now() < deadline, "no output was begun");
        std::thread::yield_now();
    }
}

/// Bytes of the file in `folder` that the child has open and that has no name yet, or a temporary one.
fn new_file_bytes(child: &Child, folder: &Path) -> u64 {
    let folder = fs::canonicalize(folder).unwrap();
    let Ok(descriptors) = fs::read_dir(format!("/proc/{}/fd", child.id())) else { return 0 };
    let is_new = |path: &Path| {
        let file = fs::read_link(path).ok().filter(|file| file.starts_with(&folder))?;
        let name = file.file_name()?.to_str()?.to_owned();
        (name.starts_with('#') || name.ends_with(".part")).then(|| fs::metadata(path).ok())?
    };
    // It may be gone by now.
    descriptors.filter_map(|entry| is_new(&entry.ok()?.path())).map(|metadata| metadata.len()).sum()
}

fn signalled(child: &mut Child, signal: Signal) -> Option<i32> {
    // Waiting closes the input, and at its end the run might be done before the signal has its way.
    let input = child.stdin.take();
    kill_process(Pid::from_child(child), signal).unwrap();
    let status = child.wait().unwrap();
    drop(input);
    assert!(!status.success());
    status.signal()
}

/// Returns `true` if the tests were started with a signal ignored. The tool then ignores it, too.
fn is_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() >> (signal.as_raw() - 1) & 1 == 1
}

#[test]
fn signals_remove_the_part_and_leave_the_old_file() {
    for signal in [
        Signal::INT,
        Signal::TERM,
        Signal::HUP,
        Signal::QUIT,
        Signal::ALARM,
        Signal::USR1,
        Signal::USR2,
        Signal::VTALARM,
        Signal::XCPU,
    ]
    .into_iter()
    .filter(|&signal| !is_ignored(signal))
    {
        let folder = folder();
        fs::write(folder.path().join("out.lz4"), b"old").unwrap();
        let mut child = start_and_stall(folder.path(), &["compress", "-f", "-o", "out.lz4"], &image(4000));
        assert_eq!(signalled(&mut child, signal), Some(signal.as_raw()), "it dies by the signal itself");
        assert_eq!(names(folder.path()), ["out.lz4"], "{signal:?}");
        assert_eq!(fs::read(folder.path().join("out.lz4")).unwrap(), b"old");
    }
}

#[test]
fn a_kill_leaves_the_old_file_or_none() {
    let folder = folder();
    fs::write(folder.path().join("old"), b"old").unwrap();
    let mut child = start_and_stall(folder.path(), &["compress", "-f", "-o", "old"], &image(4000));
    signalled(&mut child, Signal::KILL);
    assert_eq!(fs::read(folder.path().join("old")).unwrap(), b"old");
    assert_eq!(names(folder.path()), ["old"], "a file without a name leaves nothing behind");

    let archive = {
        fs::write(folder.path().join("image"), image(6000)).unwrap();
        run(folder.path(), &["compress", "-c", "image"]).ok().stdout
    };
    let fresh = crate::support::folder();
    let mut child = start_and_stall(fresh.path(), &["decompress", "-o", "new"], &archive[..archive.len() - 100]);
    signalled(&mut child, Signal::KILL);
    assert!(!names(fresh.path()).contains(&"new".to_owned()));
}

#[test]
fn a_kill_at_any_moment_leaves_the_old_file_or_the_new_one() {
    let folder = folder();
    let (old, new) = (image(100), image(3000));
    fs::write(folder.path().join("image"), &new).unwrap();
    let old_archive = crate::support::run_with(folder.path(), &["compress"], &old).ok().stdout;
    let start = Instant::now();
    run(folder.path(), &["compress", "-q", "image", "-o", "timed"]).ok();
    let usual = start.elapsed();
    let steps: u32 = std::env::var(KILLS).map_or(40, |steps| steps.parse().unwrap());
    for step in 0..steps {
        fs::write(folder.path().join("out"), &old_archive).unwrap();
        let mut child = command(folder.path(), &["compress", "-q", "-f", "image", "-o", "out"]).spawn().unwrap();
        // From before its first step to after its last.
        let moment = Instant::now() + usual * step * 4 / (3 * steps);
        while Instant::now() < moment {
            std::thread::yield_now();
        }
        let _ = kill_process(Pid::from_child(&child), Signal::KILL);
        child.wait().unwrap();
        let there = frames::decompress(&fs::read(folder.path().join("out")).unwrap());
        assert!(there.as_ref() == Some(&old) || there.as_ref() == Some(&new), "whole, at step {step}");
    }
}

#[test]
fn a_kill_while_many_threads_write_leaves_the_whole_file_or_none() {
    // On a tmpfs many threads write into mappings, elsewhere one at a time.
    let folder = tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| folder());
    let content = image(3000);
    fs::write(folder.path().join("image"), &content).unwrap();
    run(folder.path(), &["compress", "-q", "image"]).ok();
    for (args, out) in [(["decompress", "-q", "-T", "6"], "back"), (["compress", "-q", "-T", "6"], "again")] {
        let input = if out == "back" { "image.lz4" } else { "image" };
        let args = [&args[..], &[input, "-o", out]].concat();
        let start = Instant::now();
        run(folder.path(), &args).ok();
        let usual = start.elapsed();
        let steps: u32 = std::env::var(KILLS).map_or(10, |steps| steps.parse().unwrap());
        for step in 0..steps {
            fs::remove_file(folder.path().join(out)).ok();
            let mut child = command(folder.path(), &args).spawn().unwrap();
            let moment = Instant::now() + usual * step * 4 / (3 * steps);
            while Instant::now() < moment {
                std::thread::yield_now();
            }
            let _ = kill_process(Pid::from_child(&child), Signal::KILL);
            child.wait().unwrap();
            if let Ok(there) = fs::read(folder.path().join(out)) {
                let there = if out == "back" { Some(there) } else { frames::decompress(&there) };
                assert!(there.as_ref() == Some(&content), "whole, at step {step} of {args:?}");
            }
        }
    }
}

#[test]
fn an_ignored_hangup_stays_ignored() {
    let folder = folder();
    let mut shell = std::process::Command::new("sh");
    shell.current_dir(folder.path()).args([
        "-c",
        "trap '' HUP; exec \"$0\" compress -o out.lz4",
        crate::support::BINARY,
    ]);
    let mut child = shell.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let content = image(4000);
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&content).unwrap();
    wait_for_output(&child, folder.path());
    kill_process(Pid::from_child(&child), Signal::HUP).unwrap();
    drop(stdin);
    assert!(child.wait().unwrap().success());
    let archive = fs::read(folder.path().join("out.lz4")).unwrap();
    assert!(frames::decompress(&archive) == Some(content));
}
