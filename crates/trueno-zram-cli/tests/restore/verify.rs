//! `--verify`: VMs from an archive whose index lies, and from one that is in order.

use std::fs;
use std::io::BufRead;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use trueno_test_pages::corpus;
use trueno_test_restore::forged::lying_archive;
use trueno_test_restore::stand_in::{SIGBUS, SIGKILL};
use trueno_test_restore::vmm::is_allowed;

use crate::{Handler, folder};

/// The page that the index lies about.
const LIE: usize = 1101;

/// Replaces the archive in a folder by one that lies.
fn lie_in(folder: &Path) {
    let mut pages = corpus::numbered_pages(1200);
    fs::write(folder.join("image.lz4"), lying_archive(&mut pages, LIE - 1).0).unwrap();
    fs::write(folder.join("image"), pages.as_flattened()).unwrap();
}

/// Waits for the end of a handler of one VM. Returns its exit code, its report and its messages.
fn report_of(handler: Handler) -> (Option<i32>, Value, String) {
    let (code, stdout, stderr) = handler.end();
    (code, serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout:?} {stderr}")), stderr)
}

#[test]
fn a_vm_that_was_shown_another_page_is_ended_or_goes_on_if_asked_for() {
    if !is_allowed() {
        return;
    }
    let folder = folder();
    let folder = folder.path();
    lie_in(folder);
    let options = ["--vms", "1", "--json", "--no-fill", "--around", "0"];

    let handler = Handler::start(folder, &options);
    let mut vmm = handler.vmm(folder);
    // It may be ended before it answers.
    let _ = vmm.ask(&format!("touch {LIE}"));
    assert_eq!(vmm.signal(), SIGKILL);
    let (code, report, stderr) = report_of(handler);
    assert_eq!((code, &report["status"], &report["error_kind"]), (Some(1), &"failed".into(), &"damaged".into()));
    assert!(stderr.contains("pages 1024 to 2048 failed their proof"), "{stderr}");

    let handler = Handler::start(folder, &[&options[..], &["--on-damage", "poison"]].concat());
    let mut vmm = handler.vmm(folder);
    vmm.must(&format!("touch {LIE}"));
    vmm.must("verify 0 1024");
    vmm.end();
    let (code, report, stderr) = report_of(handler);
    assert_eq!((code, &report["status"], &report["error_kind"]), (Some(1), &"failed".into(), &"damaged".into()));
    assert_eq!((&report["disproven_pages"], &report["unproven"]), (&1.into(), &false.into()), "{report}");
    assert!(report["error"].as_str().unwrap().contains("1 page"), "{report}");
    assert!(stderr.contains("1 page"), "{stderr}");

    // With the other policies, a VM is never shown the page.
    for policy in ["group", "all"] {
        let handler = Handler::start(folder, &[&options[..], &["--verify", policy]].concat());
        let mut vmm = handler.vmm(folder);
        vmm.must("verify 0 1024");
        assert_eq!(vmm.ask(&format!("touch {LIE}")), None);
        assert_eq!(vmm.signal(), SIGBUS);
        let (code, report, _) = report_of(handler);
        assert_eq!((code, &report["disproven_pages"], &report["status"]), (Some(0), &0.into(), &"ok".into()));
    }
}

#[test]
fn every_policy_shows_a_vm_what_was_saved() {
    if !is_allowed() {
        return;
    }
    let folder = folder();
    let folder = folder.path();
    for policy in ["touched", "group", "all"] {
        let handler = Handler::start(folder, &["--vms", "1", "--json", "--verify", policy]);
        let mut vmm = handler.vmm(folder);
        vmm.must("random 300 1");
        vmm.must("all");
        vmm.end();
        let (code, report, stderr) = report_of(handler);
        assert_eq!((code, &report["status"]), (Some(0), &"ok".into()), "{stderr}");
        let faults = |key: &str| report[key]["faults"].as_u64().unwrap();
        assert_eq!(faults("first_touches") + faults("later_touches"), report["faults"].as_u64().unwrap());
        let in_buckets = |key: &str| -> u64 {
            report[key]["buckets"].as_array().unwrap().iter().map(|bucket| bucket["faults"].as_u64().unwrap()).sum()
        };
        assert_eq!(in_buckets("later_touches"), faults("later_touches"), "{report}");
    }
}

#[test]
fn a_signal_asks_for_latencies_and_ends_nothing() {
    if !is_allowed() {
        return;
    }
    let folder = folder();
    let folder = folder.path();
    let mut handler = Handler::start(folder, &["--vms", "1", "--no-fill", "--around", "0"]);
    let mut vmm = handler.vmm(folder);
    vmm.must("verify 0 100");
    for _ in 0..2 {
        kill_process(Pid::from_child(&handler.child), Signal::USR1).unwrap();
        let mut lines = String::new();
        while !lines.contains("later touches: 99 faults, p50 ") {
            assert_ne!(handler.stderr.read_line(&mut lines).unwrap(), 0, "{lines}");
        }
        assert!(lines.contains("image.lz4: first touches of a group: 1 faults, p50 "), "{lines}");
    }
    vmm.must("all");
    vmm.end();
    let (code, _, stderr) = handler.end();
    assert_eq!(code, Some(0), "{stderr}");
}
