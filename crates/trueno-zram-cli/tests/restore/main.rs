//! `restore --uffd`, run as users run it, with a stand-in VMM.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod verify;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use trueno_test_pages::corpus;
use trueno_test_restore::stand_in::StandIn;
use trueno_test_restore::vmm::{self, GuestPages, is_allowed};

const BINARY: &str = env!("CARGO_BIN_EXE_trueno-zram");
const PAGES: usize = 1200;

/// The second process.
#[test]
#[ignore = "run by other tests as a second process"]
fn stand_in_vmm() {
    let _ = vmm::obey();
}

/// A folder with an image and its archive.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut image: Vec<u8> = corpus::all_pages().take(PAGES - 200).flatten().copied().collect();
    image.resize(PAGES * 4096, 0);
    fs::write(folder.path().join("image"), image).unwrap();
    let made = command(folder.path(), &["compress", "-q", "image", "-o", "image.lz4"]).status().unwrap();
    assert!(made.success());
    folder
}

fn command(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.current_dir(folder).args(args).stdin(Stdio::null());
    command
}

/// The handler, once it listens.
struct Handler {
    child: Child,
    stderr: BufReader<ChildStderr>,
}

impl Handler {
    fn start(folder: &Path, options: &[&str]) -> Self {
        Self::of(folder, "image.lz4", options)
    }

    fn of(folder: &Path, archive: &str, options: &[&str]) -> Self {
        Self::from(command(folder, &["restore", "--uffd", "socket", archive]).args(options), archive)
    }

    fn from(command: &mut Command, archive: &str) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.ends_with(&format!("{archive}: listening on socket\n")) {
            assert_ne!(stderr.read_line(&mut line).unwrap(), 0, "{line}");
        }
        Self { child, stderr }
    }

    fn vmm(&self, folder: &Path) -> StandIn {
        vmm::start(&folder.join("socket"), &folder.join("image"), GuestPages::Small, &[])
    }

    /// Waits for its end. Returns its exit code, standard output and standard error.
    fn end(mut self) -> (Option<i32>, String, String) {
        let (mut stdout, mut stderr) = (String::new(), String::new());
        self.stderr.read_to_string(&mut stderr).unwrap();
        self.child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
        (self.child.wait().unwrap().code(), stdout, stderr)
    }
}

#[test]
fn a_vm_runs_from_an_archive() {
    if !is_allowed() {
        return;
    }
    let folder = folder();
    let folder = folder.path();
    for options in [&["--vms", "1", "--json"][..], &["--vms", "1", "--json", "--in-memory", "--no-fill", "-v"]] {
        let handler = Handler::start(folder, options);
        let mode = fs::metadata(folder.join("socket")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let mut vmm = handler.vmm(folder);
        vmm.must("random 300 1");
        vmm.must("remove 10 20");
        vmm.must("all");
        vmm.end();
        let (code, stdout, stderr) = handler.end();
        assert_eq!(code, Some(0), "{stderr}");
        let report: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!((&report["command"], &report["status"]), (&"restore".into(), &"ok".into()));
        assert_eq!(report["memory_bytes"], PAGES * 4096);
        assert!(report["zero_bytes"].as_u64().unwrap() >= 200 * 4096);
        assert!(!folder.join("socket").exists());
    }
}

#[test]
fn a_vm_runs_from_the_longest_chain_of_deltas() {
    if !is_allowed() {
        return;
    }
    let folder = folder();
    let folder = folder.path();
    let mut image = fs::read(folder.join("image")).unwrap();
    fs::rename(folder.join("image.lz4"), folder.join("0")).unwrap();
    for number in 1..=32 {
        image[number * 30 * 4096 + 5] ^= 0x5a;
        fs::write(folder.join("image"), &image).unwrap();
        let (base, delta) = ((number - 1).to_string(), number.to_string());
        let made = command(folder, &["compress", "-q", "--base", &base, "image", "-o", &delta]).status().unwrap();
        assert!(made.success());
    }
    for options in [&["--vms", "1"][..], &["--vms", "1", "--in-memory", "--no-fill"]] {
        let handler = Handler::of(folder, "32", options);
        let mut vmm = handler.vmm(folder);
        vmm.must("random 300 1");
        vmm.must("all");
        vmm.end();
        let (code, _, stderr) = handler.end();
        assert_eq!(code, Some(0), "{stderr}");
    }
}

#[test]
fn a_vm_runs_from_a_file_with_equal_pages_stored_once() {
    if !is_allowed() {
        return;
    }
    let folder = folder();
    let folder = folder.path();
    let mut image = fs::read(folder.join("image")).unwrap();
    image.copy_within(100 * 4096..200 * 4096, 301 * 4096);
    fs::write(folder.join("image"), &image).unwrap();
    let made = command(folder, &["compress", "-q", "--dedup", "image", "-o", "image.tzd"]).status().unwrap();
    assert!(made.success());
    for options in [&["--vms", "1"][..], &["--vms", "1", "--in-memory", "--no-fill"]] {
        let handler = Handler::of(folder, "image.tzd", options);
        let mut vmm = handler.vmm(folder);
        vmm.must("random 300 1");
        vmm.must("all");
        vmm.end();
        let (code, _, stderr) = handler.end();
        assert_eq!(code, Some(0), "{stderr}");
    }
}

#[test]
fn a_signal_to_the_handler_ends_the_vms_that_need_it() {
    if !is_allowed() {
        return;
    }
    let folder = folder();
    // Others, such as SIGINT, are ignored by those whom a script started in the background.
    let signals = [Signal::TERM, Signal::USR2, Signal::ABORT, Signal::TRAP, Signal::SYS, Signal::PROF];
    for signal in signals {
        let mut handler = Handler::start(folder.path(), &["--no-fill"]);
        let mut vmms = [handler.vmm(folder.path()), handler.vmm(folder.path())];
        vmms.iter_mut().for_each(|vmm| vmm.must("verify 0 100"));
        kill_process(Pid::from_child(&handler.child), signal).unwrap();
        assert_eq!(handler.child.wait().unwrap().signal(), Some(signal.as_raw()));
        for vmm in vmms {
            assert_eq!(vmm.signal(), Some(9));
        }
        assert!(!folder.path().join("socket").exists());
    }
}

#[test]
fn signals_that_have_no_use_end_the_vms_as_well() {
    if !is_allowed() {
        return;
    }
    let folder = folder();
    // SIGSTKFLT, SIGIO, SIGPWR, and two of the real-time signals.
    for signal in [16, 29, 30, 34, 64] {
        let mut handler = Handler::start(folder.path(), &["--no-fill"]);
        let mut vmm = handler.vmm(folder.path());
        vmm.must("verify 0 10");
        let kill = format!("kill -{signal} {}", handler.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        assert_eq!(handler.child.wait().unwrap().code(), Some(128 + signal));
        assert_eq!(vmm.signal(), Some(9));
    }
}

#[test]
fn a_signal_ends_the_vms_that_have_just_connected() {
    if !is_allowed() {
        return;
    }
    let folder = folder();
    for _ in 0..8 {
        let mut handler = Handler::start(folder.path(), &["--no-fill"]);
        let mut vmm = handler.vmm(folder.path());
        // It has handed its userfaultfd over, and would see zeros if nobody had it any more.
        vmm.must("close");
        kill_process(Pid::from_child(&handler.child), Signal::TERM).unwrap();
        assert_eq!(vmm.signal(), Some(9));
        assert_eq!(handler.child.wait().unwrap().signal(), Some(15));
    }
}

#[test]
fn as_many_vms_are_served_at_a_time_as_there_are_descriptors_for() {
    let folder = folder();
    let folder = folder.path();
    let limited = |limit: u32| {
        let mut command = Command::new("sh");
        let script = format!("ulimit -n {limit} && exec \"$@\"");
        command.args(["-c", &script, "sh", BINARY, "restore", "--uffd", "socket", "image.lz4", "--no-fill"]);
        command.current_dir(folder).stdin(Stdio::null());
        command
    };
    let refused = limited(16).output().unwrap();
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(!folder.join("socket").exists());
    if !is_allowed() {
        return;
    }
    let handler = Handler::from(limited(32).args(["--vms", "6"]), "image.lz4");
    let mut vmm = handler.vmm(folder);
    for _ in 1..6 {
        // The next one connects while this one is served.
        vmm.must("all");
        let next = handler.vmm(folder);
        vmm.end();
        vmm = next;
    }
    vmm.must("all");
    vmm.end();
    let (code, _, stderr) = handler.end();
    assert_eq!(code, Some(0), "{stderr}");
}

#[test]
fn touches_are_recorded_and_kept_with_those_that_were_prefetched() {
    if !is_allowed() {
        return;
    }
    let folder = folder();
    let folder = folder.path();
    for (touched, recorded) in [("verify 100 101", "96\n"), ("verify 5 6", "96\n0\n")] {
        let options = ["--vms", "1", "--record", "touches", "--prefetch", "touches"];
        let handler = Handler::start(folder, &options);
        let mut vmm = handler.vmm(folder);
        vmm.must(touched);
        vmm.end();
        assert_eq!(handler.end().0, Some(0));
        let file = fs::read_to_string(folder.join("touches")).unwrap();
        assert_eq!(file, format!("trueno-zram touches 1\n{recorded}"));
    }
}

#[test]
fn a_damaged_page_ends_the_vm_and_the_exit_code_says_so() {
    if !is_allowed() {
        return;
    }
    let folder = folder();
    let folder = folder.path();
    let mut archive = fs::read(folder.join("image.lz4")).unwrap();
    archive[300_000] ^= 1;
    fs::write(folder.join("image.lz4"), archive).unwrap();
    for (damage, signal, code) in [("kill", 9, 1), ("poison", 7, 0)] {
        let handler = Handler::start(folder, &["--vms", "1", "--json", "--on-damage", damage]);
        let mut vmm = handler.vmm(folder);
        assert_eq!(vmm.ask("all"), None);
        assert_eq!(vmm.signal(), Some(signal));
        let (ended, stdout, stderr) = handler.end();
        assert_eq!(ended, Some(code), "{stderr}");
        let report: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!(report["status"], if code == 0 { "ok" } else { "failed" });
        assert_eq!(report["poisoned"].as_u64(), (code == 0).then_some(1), "{report}");
    }
}

#[test]
fn an_archive_that_is_cut_is_not_served_any_more() {
    if !is_allowed() {
        return;
    }
    for (options, is_mapped) in [
        (&["--vms", "2", "--json", "--no-fill", "--verify", "group"][..], true),
        (&["--vms", "2", "--json", "--in-memory"], false),
    ] {
        let folder = folder();
        let folder = folder.path();
        let handler = Handler::start(folder, options);
        let maps = fs::read_to_string(format!("/proc/{}/maps", handler.child.id())).unwrap();
        assert_eq!(maps.contains("image.lz4"), is_mapped, "{maps}");
        let mut vmm = handler.vmm(folder);
        vmm.must("verify 0 10");
        fs::File::options().write(true).open(folder.join("image.lz4")).unwrap().set_len(50_000).unwrap();
        for mut vmm in [vmm, handler.vmm(folder)] {
            if is_mapped {
                assert_eq!(vmm.ask("all"), None);
                assert_eq!(vmm.signal(), trueno_test_restore::stand_in::SIGBUS);
            } else {
                vmm.must("all");
                vmm.end();
            }
        }
        let (code, stdout, stderr) = handler.end();
        assert_eq!(code, Some(0), "{stderr}");
        for line in stdout.lines() {
            let report: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!(report["poisoned"].as_u64().unwrap() > 0, is_mapped, "{report}");
        }
    }
}

#[test]
fn what_cannot_be_served_is_refused_before_it_listens() {
    let folder = folder();
    let folder = folder.path();
    let refused = |args: &[&str], kind: &str, name: &str| {
        let ran = command(folder, &[&["restore", "--json", "--uffd"], args].concat()).output().unwrap();
        let stderr = String::from_utf8(ran.stderr).unwrap();
        assert_eq!(ran.status.code(), Some(1), "{stderr}");
        let report: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
        assert_eq!(report["error_kind"], kind, "{report}");
        assert!(stderr.contains(&format!("{name}: ")), "{name:?} is in {stderr:?}");
    };
    refused(&["socket", "absent"], "not_found", "absent");
    refused(&["socket", "image"], "other", "image");
    refused(&["image", "image.lz4"], "in_use", "image");
    refused(&["no/socket", "image.lz4"], "not_found", "no/socket");
    refused(&["socket", "--prefetch", "image", "image.lz4"], "other", "image");
    refused(&["socket", "--prefetch", "absent", "image.lz4"], "not_found", "absent");
    assert!(
        command(folder, &["compress", "-q", "--no-block-checksums", "image", "-o", "bare.lz4"])
            .status()
            .unwrap()
            .success()
    );
    refused(&["socket", "bare.lz4"], "other", "bare.lz4");
    let _listens = UnixListener::bind(folder.join("taken")).unwrap();
    refused(&["taken", "image.lz4"], "in_use", "taken");
}

#[test]
fn a_socket_that_nobody_listens_on_is_replaced() {
    let folder = folder();
    drop(UnixListener::bind(folder.path().join("socket")).unwrap());
    let mut handler = Handler::start(folder.path(), &[]);
    kill_process(Pid::from_child(&handler.child), Signal::TERM).unwrap();
    assert_eq!(handler.child.wait().unwrap().signal(), Some(15));
}
