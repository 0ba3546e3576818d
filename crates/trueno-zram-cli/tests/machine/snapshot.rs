//! `snapshot`.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::Child;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use trueno_test_pages::PAGE_SIZE;
use trueno_zram_archive::{Archive, ArchiveWriter, WriteOptions};
use trueno_zram_core::CpuBatchCompressor;

use crate::support::{command, folder, names, run};
use crate::victim::{RESERVED_BYTES, Victim};

/// More pages than the snapshot can hold on the way to a pipe that no one reads.
const MANY_PAGES: usize = 16 << 10;

fn snapshot(folder: &Path, victim: &Victim, more: &[&str]) -> Value {
    let pid = victim.pid().to_string();
    let args = [&["snapshot", &pid, "-o", "snapshot.lz4", "--json"], more].concat();
    let shown = run(folder, &args).ok();
    serde_json::from_slice(&shown.stdout).unwrap()
}

fn address_map(folder: &Path) -> Value {
    let shown = run(folder, &["inspect", "snapshot.lz4", "--json"]).ok();
    let report: Value = serde_json::from_slice(&shown.stdout).unwrap();
    report["address_map"].clone()
}

fn address_of(value: &Value) -> u64 {
    u64::from_str_radix(value.as_str().unwrap().trim_start_matches("0x"), 16).unwrap()
}

/// The range of the map that an address is in.
fn range_at(map: &Value, address: u64) -> Value {
    let ranges = map["ranges"].as_array().unwrap();
    let holds = |range: &&Value| (address_of(&range["start"])..address_of(&range["end"])).contains(&address);
    ranges.iter().find(holds).unwrap_or_else(|| panic!("{address:#x} is in {map:#}")).clone()
}

/// The number of the page at an address in the archive; none if it is not stored.
fn page_at(map: &Value, address: u64) -> Option<u64> {
    let range = range_at(map, address);
    let runs = range["runs"].as_array().unwrap().clone();
    runs.iter().find_map(|run| {
        let start = address_of(&run["start"]);
        let here = (start..address_of(&run["end"])).contains(&address);
        here.then(|| run["first_page"].as_u64().unwrap() + (address - start) / PAGE_SIZE as u64)
    })
}

/// Pages of the archive.
fn pages(folder: &Path, range: std::ops::Range<u64>) -> Vec<u8> {
    let mut pages = vec![[0xff; PAGE_SIZE]; usize::try_from(range.end - range.start).unwrap()];
    Archive::open(folder.join("snapshot.lz4")).unwrap().read_pages(range.start, &mut pages).unwrap();
    pages.as_flattened().to_vec()
}

#[test]
fn the_pages_are_found_at_their_addresses() {
    let (folder, victim) = (folder(), Victim::start(100));
    let report = snapshot(folder.path(), &victim, &[]);
    assert_eq!((&report["pid"], &report["consistency"]), (&victim.pid().into(), &"live".into()));
    assert_eq!((&report["unreadable_pages"], &report["stopped_seconds"]), (&0.into(), &Value::Null));
    let map = address_map(folder.path());
    let first = page_at(&map, victim.address).unwrap();
    assert!(pages(folder.path(), first..first + 100) == victim.content(), "the known pages, in order");
    let names: Vec<_> = map["ranges"].as_array().unwrap().iter().map(|range| range["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"[stack]"), "{names:?}");
    assert!(!names.iter().any(|name| name.starts_with("[v") || name.starts_with('/')), "{names:?}");
    let mode = fs::metadata(folder.path().join("snapshot.lz4")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "no one else may read it");
}

#[test]
fn bytes_are_extracted_by_their_addresses() {
    let (folder, victim) = (folder(), Victim::start(100));
    snapshot(folder.path(), &victim, &[]);
    let extract = |range: String| run(folder.path(), &["extract", "snapshot.lz4", "--address", &range]);
    let (start, end) = (victim.address + 5000, victim.address + 300_000);
    assert!(extract(format!("{start:#x}..{end}")).ok().stdout == victim.content()[5000..300_000]);
    // One touched byte with untouched memory on both sides: zeros.
    let touched = victim.reserved + RESERVED_BYTES as u64 / 2;
    let around = extract(format!("{}..{}", touched - (8 << 20), touched + (8 << 20))).ok().stdout;
    assert_eq!((around.len(), around[8 << 20]), (16 << 20, 7));
    assert_eq!(around.iter().filter(|byte| **byte != 0).count(), 1);
    extract("0x10..0x20".into()).fails(&["0x10"]);
    extract(format!("{start}..")).refuses(&["--address"]);
    fs::write(folder.path().join("plain"), [1; 5000]).unwrap();
    run(folder.path(), &["compress", "-q", "plain", "-o", "plain.lz4"]).ok();
    run(folder.path(), &["extract", "plain.lz4", "--address", "0..1"]).fails(&["plain.lz4: "]);
}

#[test]
fn untouched_memory_is_known_and_not_stored() {
    let (folder, victim) = (folder(), Victim::start(1));
    let report = snapshot(folder.path(), &victim, &[]);
    let reserved_pages = (RESERVED_BYTES / PAGE_SIZE) as u64;
    assert!(report["pages"].as_u64().unwrap() < reserved_pages / 2, "{report}");
    assert!(report["untouched_pages"].as_u64().unwrap() > reserved_pages / 2, "{report}");
    let map = address_map(folder.path());
    let touched = victim.reserved + RESERVED_BYTES as u64 / 2;
    let page = page_at(&map, touched).expect("the one page that was written to");
    let offset = usize::try_from(touched % PAGE_SIZE as u64).unwrap();
    assert_eq!(pages(folder.path(), page..page + 1)[offset], 7);
    // 64 MiB further, beyond a huge page around it.
    assert_eq!(page_at(&map, touched + (64 << 20)), None, "in the map, and not stored");
}

#[test]
fn the_pages_that_a_program_wrote_in_its_files_mappings_come_when_asked_for() {
    let (folder, victim) = (folder(), Victim::start(1));
    let without = snapshot(folder.path(), &victim, &[]);
    let with = snapshot(folder.path(), &victim, &["--all-private", "-f"]);
    assert!(without["file_bytes_left_out"].as_u64().unwrap() > 0 && with["file_bytes_left_out"] == 0);
    let map = address_map(folder.path());
    let is_file = |range: &&Value| range["name"].as_str().unwrap().starts_with('/');
    let files: Vec<Value> = map["ranges"].as_array().unwrap().iter().filter(is_file).cloned().collect();
    assert!(!files.is_empty() && files.iter().all(|range| range["pages"].as_u64().unwrap() > 0), "{files:#?}");
    assert!(files.iter().all(|range| range["anonymous"] == false));
}

#[test]
fn a_stopped_process_goes_on_afterwards() {
    let (folder, victim) = (folder(), Victim::start(100));
    let report = snapshot(folder.path(), &victim, &["--stop"]);
    assert_eq!(report["consistency"], "stopped");
    assert!(report["stopped_seconds"].as_f64().unwrap() > 0.0);
    victim.wait_for_state(&['S', 'R']);
    let map = address_map(folder.path());
    let first = page_at(&map, victim.address).unwrap();
    assert!(pages(folder.path(), first..first + 100) == victim.content());
}

#[test]
fn leaves_a_stopped_process_stopped() {
    let (folder, victim) = (folder(), Victim::start(1));
    victim.signal(Signal::STOP);
    victim.wait_for_state(&['T']);
    snapshot(folder.path(), &victim, &["--stop"]);
    assert_eq!(victim.state(), 'T');
    snapshot(folder.path(), &victim, &["-f"]);
    assert_eq!(victim.state(), 'T');
}

/// A snapshot of many pages that cannot get on, since no one reads what it writes.
fn stuck_snapshot(folder: &Path, victim: &Victim, more: &[&str]) -> Child {
    let pid = victim.pid().to_string();
    // Batches for a GPU may be larger than all its pages.
    let args = [&["snapshot", &pid, "--backend", "cpu", "-o", "-"], more].concat();
    let mut child = command(folder, &args).spawn().unwrap();
    // The archive's first bytes are there: the process is being read.
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 4096]).unwrap();
    child
}

#[test]
fn a_process_that_goes_away_is_an_error() {
    let (folder, mut victim) = (folder(), Victim::start(MANY_PAGES));
    let snapshot = stuck_snapshot(folder.path(), &victim, &[]);
    victim.end();
    let output = snapshot.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

#[test]
fn a_signal_lets_the_process_go_on() {
    let (folder, victim) = (folder(), Victim::start(MANY_PAGES));
    let pid = victim.pid().to_string();
    // Tried until the snapshot is caught while the process is stopped. The limit ends a test that can never succeed.
    for _ in 0..10_000 {
        let args = ["snapshot", &pid, "--stop", "-f", "-o", "snapshot.lz4"];
        let mut snapshot = command(folder.path(), &args).spawn().unwrap();
        while victim.state() != 'T' && snapshot.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        let number = Pid::from_child(&snapshot);
        kill_process(number, Signal::STOP).unwrap();
        // It may have been stopped after it let the process continue.
        let caught = snapshot.try_wait().unwrap().is_none() && victim.state() == 'T';
        // Others, such as SIGINT, are ignored by those whom a script started in the background.
        kill_process(number, Signal::TERM).unwrap();
        kill_process(number, Signal::CONT).unwrap();
        let output = snapshot.wait_with_output().unwrap();
        victim.wait_for_state(&['S', 'R']);
        if caught && output.status.signal() == Some(Signal::TERM.as_raw()) {
            assert_eq!(names(folder.path()), Vec::<String>::new());
            return;
        }
        let _ = fs::remove_file(folder.path().join("snapshot.lz4"));
    }
    panic!("the snapshot was never caught while the process was stopped");
}

#[test]
fn a_reader_that_goes_away_ends_the_snapshot_and_the_process_goes_on() {
    for more in [&["--stop"][..], &[]] {
        let (folder, victim) = (folder(), Victim::start(MANY_PAGES));
        let mut snapshot = stuck_snapshot(folder.path(), &victim, more);
        drop(snapshot.stdout.take());
        let output = snapshot.wait_with_output().unwrap();
        assert_eq!(output.status.signal(), Some(Signal::PIPE.as_raw()), "{}", String::from_utf8_lossy(&output.stderr));
        victim.wait_for_state(&['S', 'R']);
    }
}

#[test]
fn a_process_that_reads_the_snapshot_itself_is_not_waited_for_while_it_is_stopped() {
    let (folder, victim) = (folder(), Victim::start(MANY_PAGES));
    // Nobody reads the output until the process runs again, as if the process itself were the reader.
    let pid = victim.pid().to_string();
    let mut snapshot = command(folder.path(), &["snapshot", &pid, "--stop", "-o", "-"]).spawn().unwrap();
    let mut first = [0; 4];
    snapshot.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    victim.wait_for_state(&['S', 'R']);
    let mut archive = first.to_vec();
    snapshot.stdout.as_mut().unwrap().read_to_end(&mut archive).unwrap();
    assert!(snapshot.wait().unwrap().success());
    fs::write(folder.path().join("snapshot.lz4"), &archive).unwrap();
    let map = address_map(folder.path());
    let page = page_at(&map, victim.address).unwrap();
    assert!(pages(folder.path(), page..page + 100) == victim.content()[..100 * PAGE_SIZE]);
}

#[test]
fn only_new_regular_files_are_private_enough() {
    let (folder, victim) = (folder(), Victim::start(1));
    let pid = victim.pid().to_string();
    let at = |name: &str| folder.path().join(name);
    rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), rustix::fs::FileType::Fifo, 0o666.into(), 0).unwrap();
    fs::write(at("theirs"), "theirs").unwrap();
    std::os::unix::fs::symlink("theirs", at("link")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    for name in ["fifo", "socket", "link"] {
        for force in ["-q", "-f"] {
            run(folder.path(), &["snapshot", &pid, force, "-o", name, "--json"]).fails_as("refused", &[name]);
        }
    }
    assert_eq!(fs::read(at("theirs")).unwrap(), b"theirs");
    // A file that others may read is replaced, not written into.
    let reader = File::open(at("theirs")).unwrap();
    run(folder.path(), &["snapshot", &pid, "-f", "-o", "theirs"]).ok();
    assert_eq!(std::io::read_to_string(reader).unwrap(), "theirs", "who had it open sees nothing new");
    assert_eq!(fs::metadata(at("theirs")).unwrap().permissions().mode() & 0o777, 0o600);
    // A pipe that the shell made is the user's own.
    let script = format!("\"$0\" snapshot {pid} -q -o >(cat > copy); status=$?; wait; exit $status");
    let mut bash = std::process::Command::new("bash");
    let status = bash.current_dir(folder.path()).args(["-c", &script, crate::support::BINARY]).status().unwrap();
    assert!(status.success());
}

#[test]
fn a_system_call_that_fails_leaves_no_part_of_a_snapshot_and_no_stopped_process() {
    let victim = Victim::start(20);
    let pid = victim.pid().to_string();
    let check = |folder: &Path, faulty: &crate::shim::Faulty| {
        assert!(victim.state() != 'T', "it was left stopped: {}", faulty.what);
        let others = names(folder).into_iter().filter(|name| name != "snapshot.lz4").count();
        assert!(others == 0 || faulty.function == "unlink", "{}", faulty.what);
        if !folder.join("snapshot.lz4").exists() {
            assert_eq!(faulty.run.code, Some(1), "{}", faulty.what);
            return;
        }
        let map = address_map(folder);
        // A page that could not be read is a warning, and not in the archive.
        let unreadable = faulty.run.json()[0]["unreadable_pages"] != 0;
        match page_at(&map, victim.address) {
            Some(first) if !unreadable => {
                assert!(pages(folder, first..first + 20) == victim.content(), "{}", faulty.what);
            }
            _ => assert!(unreadable, "{}", faulty.what),
        }
    };
    let args = ["snapshot", &pid, "--stop", "--json", "--backend", "cpu", "-T", "2", "-o", "snapshot.lz4"];
    let runs = crate::shim::at_every_call(11, &args, &[], |_| {}, check);
    println!("{runs} runs");
}

#[test]
fn an_archive_that_cannot_be_written_is_an_error_and_the_process_goes_on() {
    let (folder, victim) = (folder(), Victim::start(MANY_PAGES));
    let pid = victim.pid().to_string();
    run(folder.path(), &["snapshot", &pid, "--stop", "-o", "/dev/full", "--json"]).fails_as("no_space", &["/dev/full"]);
    victim.wait_for_state(&['S', 'R']);
    run(folder.path(), &["snapshot", &pid, "-o", "missing/snapshot.lz4"]).fails(&["missing/snapshot.lz4"]);
    fs::write(folder.path().join("there"), "precious").unwrap();
    run(folder.path(), &["snapshot", &pid, "-o", "there"]).fails(&["there", "-f"]);
    assert_eq!(fs::read(folder.path().join("there")).unwrap(), b"precious");
}

#[test]
fn what_is_no_process_is_named_and_nothing_is_left() {
    let folder = folder();
    // Numbers of processes end at 2^22.
    run(folder.path(), &["snapshot", "4194305", "-o", "snapshot.lz4", "--json"]).fails_as("not_found", &["4194305"]);
    let mut victim = Victim::start(1);
    victim.end_unseen();
    let pid = victim.pid().to_string();
    run(folder.path(), &["snapshot", &pid, "-o", "snapshot.lz4", "--json"]).fails_as("not_found", &[&pid]);
    assert_eq!(names(folder.path()), Vec::<String>::new());
    run(folder.path(), &["snapshot", "init", "-o", "snapshot.lz4"]).refuses(&["init"]);
    run(folder.path(), &["snapshot", "1", "-o", "-", "--json"]).refuses(&["--json"]);
}

#[test]
fn threads_of_the_kernel_have_no_memory() {
    // kthreadd, where the kernel's threads are seen; not in most containers.
    let Ok(status) = fs::read_to_string("/proc/2/status") else { return };
    if status.contains("VmSize") || !status.contains("kthreadd") {
        return;
    }
    run(folder().path(), &["snapshot", "2", "-o", "snapshot.lz4", "--json"]).fails_as("other", &["process 2"]);
}

#[test]
fn missing_rights_are_told_with_what_would_give_them() {
    const NOBODY: u32 = 65534;
    let folder = folder();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let victim = Victim::start(1);
    let (uid, pid) = if rustix::process::geteuid().is_root() { (Some(NOBODY), victim.pid()) } else { (None, 1) };
    let mut command = command(folder.path(), &["snapshot", &pid.to_string(), "-o", "snapshot.lz4", "--json"]);
    if let Some(uid) = uid {
        command.uid(uid);
    }
    // The binary may lie where that user cannot read it.
    let Ok(child) = command.spawn() else { return };
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["error_kind"], "permission_denied");
    assert_eq!(names(folder.path()), Vec::<String>::new());
}

#[test]
fn a_delta_of_a_snapshot_holds_what_changed_and_all_addresses() {
    let folder = folder();
    let victim = Victim::start(3000);
    snapshot(folder.path(), &victim, &["--stop"]);
    let pid = victim.pid().to_string();
    let args = ["snapshot", &pid, "--stop", "--base", "snapshot.lz4", "-o", "later.tzd", "--json"];
    let report: Value = serde_json::from_slice(&run(folder.path(), &args).ok().stdout).unwrap();
    let number = |key: &str| report[key].as_u64().unwrap();
    assert_eq!(report["base"], "snapshot.lz4");
    assert!(number("base_pages") >= 3000, "{report}");
    assert!(number("stored_pages") < 200, "a process that waits changes little: {report}");
    let (start, end) = (victim.address, victim.address + 3000 * PAGE_SIZE as u64);
    let range = format!("{start:#x}..{end:#x}");
    let found = run(folder.path(), &["extract", "later.tzd", "--address", &range]).ok().stdout;
    assert!(found == crate::victim::content(3000));
    run(folder.path(), &["flatten", "later.tzd", "-o", "flat.lz4"]).ok();
    let found = run(folder.path(), &["extract", "flat.lz4", "--address", &range]).ok().stdout;
    assert!(found == crate::victim::content(3000), "the address map is kept");
}

#[test]
fn a_snapshot_stores_equal_pages_once_and_keeps_all_addresses() {
    let folder = folder();
    let victim = Victim::start(3000);
    let pid = victim.pid().to_string();
    let (start, end) = (victim.address, victim.address + 3000 * PAGE_SIZE as u64);
    let range = format!("{start:#x}..{end:#x}");
    for more in [&[][..], &["--stop"], &["--stop", "--algorithm", "zstd"]] {
        let args = [&["snapshot", &pid, "--dedup", "-f", "-o", "snapshot.tzd", "--json"], more].concat();
        let report: Value = serde_json::from_slice(&run(folder.path(), &args).ok().stdout).unwrap();
        let number = |key: &str| report[key].as_u64().unwrap();
        assert_eq!((report.get("base"), number("base_pages")), (None, 0));
        assert_eq!(number("zero") + number("stored_pages") + number("duplicate_pages"), number("pages"));
        let found = run(folder.path(), &["extract", "snapshot.tzd", "--address", &range]).ok().stdout;
        assert!(found == crate::victim::content(3000));
    }
    run(folder.path(), &["restore", "--elf-core", "snapshot.tzd", "-o", "core"]).ok();
    run(folder.path(), &["flatten", "snapshot.tzd", "-o", "flat.lz4"]).ok();
    let found = run(folder.path(), &["extract", "flat.lz4", "--address", &range]).ok().stdout;
    assert!(found == crate::victim::content(3000), "the address map is kept");
    // A delta of it has no hashes of pages that it takes from there.
    run(folder.path(), &["snapshot", "-q", &pid, "--stop", "--base", "snapshot.tzd", "-o", "later.tzd"]).ok();
    let len = |name: &str| fs::metadata(folder.path().join(name)).unwrap().len();
    assert!(len("later.tzd") < 3000 * 16, "{}", len("later.tzd"));
    run(folder.path(), &["test", "-q", "later.tzd"]).ok();
}

/// Only one page of many: what a sample of the base misses, reading the delta back finds.
#[test]
fn a_delta_that_could_not_be_restored_is_not_kept() {
    let folder = folder();
    let victim = Victim::start(MANY_PAGES);
    let stated = crate::victim::content(MANY_PAGES);
    let mut content = stated.clone();
    content[MANY_PAGES / 2 * PAGE_SIZE + 9] ^= 1;
    let options = WriteOptions::default().with_page_hashes(true);
    let mut archive = ArchiveWriter::new(Vec::new(), options).unwrap();
    let batch = CpuBatchCompressor::default().compress(content.as_chunks().0).unwrap();
    archive.write_batch_of(&batch, stated.as_chunks().0).unwrap();
    fs::write(folder.path().join("base.lz4"), archive.finish(None).unwrap().0).unwrap();
    let pid = victim.pid().to_string();
    for output in ["later.tzd", "-"] {
        for more in [&[][..], &["--stop"]] {
            let args = [&["snapshot", "-q", &pid, "--base", "base.lz4", "-o", output], more].concat();
            assert_eq!(run(folder.path(), &args).fails(&["base.lz4"]).stdout, b"");
            assert_eq!(names(folder.path()), ["base.lz4"]);
        }
    }
}

#[test]
fn a_delta_is_read_back_before_it_goes_to_a_pipe() {
    let folder = folder();
    let victim = Victim::start(100);
    snapshot(folder.path(), &victim, &[]);
    let pid = victim.pid().to_string();
    let args = ["snapshot", "-q", &pid, "--base", "snapshot.lz4", "-o", "-"];
    fs::write(folder.path().join("later.tzd"), run(folder.path(), &args).ok().stdout).unwrap();
    run(folder.path(), &["test", "-q", "later.tzd"]).ok();
}
