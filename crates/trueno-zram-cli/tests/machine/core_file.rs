//! `restore --elf-core`: snapshots as core files.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use crate::support::{folder, run};
use crate::victim::Victim;

/// A segment of a core file.
#[derive(Clone, Copy, Debug)]
struct Segment {
    kind: u64,
    at: usize,
    address: u64,
    file_len: u64,
}

fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes[at..at + len].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn segments(core: &[u8]) -> Vec<Segment> {
    assert_eq!((&core[..7], number(core, 16, 2)), (&b"\x7fELF\x02\x01\x01"[..], 4), "a core file of 64 bits");
    let head = |segment: u64| 64 + usize::try_from(segment).unwrap() * 56;
    (0..number(core, 56, 2))
        .map(|segment| Segment {
            kind: number(core, head(segment), 4),
            at: number(core, head(segment) + 8, 8).try_into().unwrap(),
            address: number(core, head(segment) + 16, 8),
            file_len: number(core, head(segment) + 32, 8),
        })
        .collect()
}

/// The notes as type and content.
fn notes(core: &[u8]) -> Vec<(u64, &[u8])> {
    let note = segments(core).into_iter().find(|segment| segment.kind == 4).expect("notes");
    let mut rest = &core[note.at..note.at + usize::try_from(note.file_len).unwrap()];
    let mut notes = Vec::new();
    while !rest.is_empty() {
        let (len, kind) = (usize::try_from(number(rest, 4, 4)).unwrap(), number(rest, 8, 4));
        assert_eq!((number(rest, 0, 4), &rest[12..17]), (5, &b"CORE\0"[..]));
        notes.push((kind, &rest[20..20 + len]));
        rest = &rest[20 + len.next_multiple_of(4)..];
    }
    notes
}

/// Bytes of the process's memory, as the core file has them.
fn memory(core: &[u8], address: u64, len: usize) -> &[u8] {
    let holds = |segment: &Segment| {
        segment.kind == 1 && (segment.address..segment.address + segment.file_len).contains(&address)
    };
    let segment = segments(core).into_iter().find(holds).expect("the address is in the core file");
    let start = segment.at + usize::try_from(address - segment.address).unwrap();
    &core[start..start + len]
}

fn core_of(folder: &Path, victim: &Victim, options: &[&str]) -> Vec<u8> {
    let pid = victim.pid().to_string();
    run(folder, &[&["snapshot", "-q", &pid, "-f", "-o", "snapshot.lz4"], options].concat()).ok();
    run(folder, &["restore", "--elf-core", "-f", "snapshot.lz4", "-o", "core"]).ok();
    fs::read(folder.join("core")).unwrap()
}

#[test]
fn a_delta_of_a_snapshot_makes_the_same_core_file() {
    let folder = folder();
    let victim = Victim::start(300);
    let pid = victim.pid().to_string();
    run(folder.path(), &["snapshot", "-q", &pid, "--stop", "-o", "snapshot.lz4"]).ok();
    run(folder.path(), &["snapshot", "-q", &pid, "--stop", "--base", "snapshot.lz4", "-o", "later.tzd"]).ok();
    run(folder.path(), &["flatten", "-q", "later.tzd", "-o", "flat.lz4"]).ok();
    for (archive, core) in [("later.tzd", "core"), ("flat.lz4", "core-of-flat")] {
        run(folder.path(), &["restore", "--elf-core", archive, "-o", core]).ok();
    }
    let core = fs::read(folder.path().join("core")).unwrap();
    assert!(core == fs::read(folder.path().join("core-of-flat")).unwrap());
    assert!(memory(&core, victim.address, 4096) == &victim.content()[..4096]);
    fs::rename(folder.path().join("snapshot.lz4"), folder.path().join("moved.lz4")).unwrap();
    for output in ["later.tzd", "moved.lz4"] {
        let restore = ["restore", "--elf-core", "-f", "later.tzd", "--base", "moved.lz4", "-o", output, "--json"];
        run(folder.path(), &restore).fails_as("refused", &[output]);
    }
    run(folder.path(), &["restore", "--elf-core", "later.tzd", "-o", "x", "--json"])
        .fails_as("base", &["later.tzd", "snapshot.lz4"]);
    run(folder.path(), &["restore", "--elf-core", "later.tzd", "-o", "x", "--base", "moved.lz4"]).ok();
    assert!(core == fs::read(folder.path().join("x")).unwrap());
}

#[test]
fn a_core_file_has_the_memory_at_its_addresses_and_the_registers() {
    let folder = folder();
    let victim = Victim::start(300);
    let core = core_of(folder.path(), &victim, &["--stop", "--all-private"]);
    let content = victim.content();
    // Pages of the victim lie in one range, but possibly in several runs.
    for (at, page) in content.chunks(4096).enumerate() {
        assert!(memory(&core, victim.address + at as u64 * 4096, 4096) == page, "page {at}");
    }
    let notes = notes(&core);
    let kinds: Vec<u64> = notes.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds[..4], [1, 3, 6, 0x4649_4c45], "a thread, the process, its auxiliary vector, its files");
    assert!(kinds[4..].iter().all(|kind| *kind == 1), "the other threads");
    let threads = fs::read_dir(format!("/proc/{}/task", victim.pid())).unwrap().count();
    assert_eq!(kinds.iter().filter(|kind| **kind == 1).count(), threads);
    assert_eq!(number(notes[0].1, 32, 4), u64::from(victim.pid()), "the first thread comes first");
    if cfg!(target_arch = "x86_64") {
        // rip and rsp of `user_regs_struct`: within memory that the process has.
        let [rip, rsp] = [16, 19].map(|register| number(notes[0].1, 112 + register * 8, 8));
        let maps = fs::read_to_string(format!("/proc/{}/maps", victim.pid())).unwrap();
        let mapped = |address: u64| {
            maps.lines().any(|line| {
                let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
                let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).unwrap());
                (start..end).contains(&address)
            })
        };
        assert!(mapped(rip) && mapped(rsp), "rip {rip:#x}, rsp {rsp:#x}");
    }
    assert!(['S', 'R'].contains(&victim.state()), "the victim goes on");
}

#[test]
fn gdb_opens_the_core_file() {
    if Command::new("gdb").arg("--version").output().is_err() {
        eprintln!("no gdb here: skipped");
        return;
    }
    let folder = folder();
    let victim = Victim::start(20);
    core_of(folder.path(), &victim, &["--stop", "--all-private"]);
    let read = format!("x/2gx {:#x}", victim.address);
    let program = std::env::current_exe().unwrap();
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-ex", "info threads", "-ex", "info registers", "-ex", &read, "-ex", "backtrace"]);
    let shown = gdb.arg(program).arg("core").current_dir(folder.path()).env("HOME", folder.path()).output().unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned() + &String::from_utf8_lossy(&shown.stderr);
    let content = victim.content();
    let words = [0, 8].map(|at| format!("{:#018x}", number(&content, at, 8)));
    for word in [&words[0], &words[1], "rip", "#0", "LWP"] {
        assert!(shown.contains(word), "{word:?} is in {shown}");
    }
}

#[test]
fn without_stop_there_is_memory_and_no_registers() {
    let folder = folder();
    let victim = Victim::start(20);
    let core = core_of(folder.path(), &victim, &[]);
    assert!(memory(&core, victim.address, 4096) == &victim.content()[..4096]);
    assert_eq!(notes(&core).iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [3]);
}

#[test]
fn a_process_that_was_stopped_before_stays_stopped() {
    let folder = folder();
    let victim = Victim::start(20);
    victim.signal(Signal::STOP);
    victim.wait_for_state(&['T']);
    let core = core_of(folder.path(), &victim, &["--stop"]);
    assert!(notes(&core).iter().any(|(kind, _)| *kind == 1), "registers are read all the same");
    victim.wait_for_state(&['T']);
    victim.signal(Signal::CONT);
    victim.wait_for_state(&['S', 'R']);
}

#[test]
fn other_archives_are_refused() {
    let folder = folder();
    fs::write(folder.path().join("image"), [7; 10_000]).unwrap();
    run(folder.path(), &["compress", "-q", "image"]).ok();
    let refused = ["restore", "--elf-core", "image.lz4", "-o", "core"];
    run(folder.path(), &refused).fails(&["image.lz4"]);
    run(folder.path(), &["restore", "--elf-core", "image.lz4"]).refuses(&["--output"]);
    run(folder.path(), &["restore", "image.lz4"]).refuses(&["--uffd"]);
    assert!(!folder.path().join("core").exists());
}
