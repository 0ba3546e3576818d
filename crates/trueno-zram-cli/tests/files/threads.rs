//! Threads and descriptors: as many as were asked for, and none are lost over many files.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::support::{command, folder, image, run};

/// Set to the number of files; otherwise there are fewer than a user may have.
const MANY_FILES: &str = "TRUENO_MANY_FILES";

/// The threads of a process by their names, without numbers.
fn threads(child: &Child) -> BTreeMap<String, usize> {
    let mut threads = BTreeMap::new();
    for task in fs::read_dir(format!("/proc/{}/task", child.id())).unwrap() {
        // One that has just ended has no name any more.
        let Ok(name) = fs::read_to_string(task.unwrap().path().join("comm")) else { continue };
        let name = name.trim().trim_end_matches(|c: char| c.is_ascii_digit() || c == '-');
        *threads.entry(name.to_owned()).or_default() += 1;
    }
    threads
}

/// Starts a run that has read some of its input, and waits for more.
fn stalled(args: &[&str], some: &[u8]) -> Child {
    let mut child = command(folder().path(), args).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    // Far more than a pipe holds: it is at work.
    child.stdin.as_mut().unwrap().write_all(some).unwrap();
    child
}

#[test]
fn as_many_workers_as_asked_for_and_few_threads_that_wait() {
    let archive = crate::support::run_with(folder().path(), &["compress"], &image(3000)).ok().stdout;
    let unfinished = &archive[..archive.len() - 50_000];
    for backend in ["cpu", "auto"] {
        if backend == "auto" && trueno_zram_core::gpu::gpu_available() {
            continue;
        }
        for workers in [1, 3, 5] {
            let asked = workers.to_string();
            for (command, input) in [("compress", &image(3000)[..]), ("decompress", unfinished), ("test", unfinished)] {
                let mut child = stalled(&[command, "--backend", backend, "-T", &asked], input);
                let threads = threads(&child);
                child.kill().unwrap();
                child.wait().unwrap();
                let what = format!("{command} --backend {backend} -T {workers}: {threads:?}");
                assert_eq!(threads.get("trueno"), Some(&workers), "{what}");
                // Lanes beside which a GPU may be opened have threads of their own, and the pool is idle.
                let lanes = threads.get("lane").copied().unwrap_or(0);
                assert!(lanes == 0 || lanes == workers && backend == "auto" && command == "compress", "{what}");
                // The first thread, the one that waits for signals, and the one that writes what was decoded or would open a GPU.
                let waiting: usize = threads.values().sum::<usize>() - workers - lanes;
                assert!(waiting <= if command == "compress" && lanes == 0 { 2 } else { 3 }, "{what}");
            }
        }
    }
}

#[test]
fn threads_that_cannot_be_started_are_named_in_plain_words() {
    let folder = folder();
    fs::write(folder.path().join("image"), image(1)).unwrap();
    // Stacks of 256 threads do not fit into this many addresses.
    let script = "ulimit -v 200000 && exec \"$0\" --backend cpu -T 256 compress -c image";
    let mut shell = std::process::Command::new("sh");
    let output = shell.current_dir(folder.path()).args(["-c", script, crate::support::BINARY]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert_eq!(
        stderr,
        "trueno-zram: cannot start 256 worker threads: Resource temporarily unavailable; -T sets their number\n"
    );
}

#[test]
fn many_files_lose_no_descriptors_and_no_threads() {
    let folder = folder();
    let count: usize = std::env::var(MANY_FILES).map_or(3000, |count| count.parse().unwrap());
    let names: Vec<String> = (0..count).map(|number| format!("{number:06}")).collect();
    for name in &names {
        fs::write(folder.path().join(name), name).unwrap();
    }
    let list = folder.path().join("names");
    fs::write(&list, names.join("\n")).unwrap();
    // xargs, since the names may be more than one command line takes; the limit shows a loss early.
    let script = "ulimit -n 40; exec xargs -n 50000 \"$0\" compress -q --rm -T 2 < names";
    let mut shell = std::process::Command::new("sh");
    let mut child = shell.current_dir(folder.path()).args(["-c", script, crate::support::BINARY]).spawn().unwrap();
    // It ends a run that hangs; no machine is that slow.
    let deadline = Instant::now() + Duration::from_secs(1200 + count as u64);
    let mut most = 0;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < deadline, "it takes too long");
        most = most.max(most_threads_of_children(&child));
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(status.success(), "{status:?}");
    // None, if this thread never got to look.
    assert!(most <= 5, "{most} threads: two workers, and those that wait");
    for name in names.iter().step_by(97) {
        assert!(!folder.path().join(name).exists());
        let archive = format!("{name}.lz4");
        assert_eq!(run(folder.path(), &["decompress", "-c", &archive]).ok().stdout, name.as_bytes());
    }
}

/// The most threads that a child of `parent`, or of what it became, has now.
fn most_threads_of_children(parent: &Child) -> usize {
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", parent.id())).unwrap_or_default();
    let count = |pid: &str| fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    children.split_whitespace().map(count).max().unwrap_or(0)
}
