//! Archives that try to make `inspect` and `extract` take memory or time out of proportion to their size.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use trueno_test_pages::PAGE_SIZE;
use trueno_zram_archive::{ArchiveWriter, WriteOptions};

use crate::support::{BINARY, Run, folder, run};

const SECTION: &str = "address-map";
/// No archive of n bytes may take more memory than this and 4 n.
const FREE_BYTES: u64 = 64 << 20;
/// Seconds of CPU time: several times what linear work takes on a slow, busy machine.
const CPU_SECONDS: u32 = 30;

/// An archive of zero pages and a tail, with an address map of these bytes.
pub(crate) fn archive(zero_pages: u64, tail: &[u8], map: &[u8]) -> Vec<u8> {
    let options = WriteOptions::default();
    let mut archive = ArchiveWriter::new(Vec::new(), options).unwrap();
    archive.write_zero_pages(zero_pages).unwrap();
    archive.write_tail(tail).unwrap();
    archive.add_section(SECTION, map).unwrap();
    archive.finish(None).unwrap().0
}

/// The start of an address map: version 1, process 7, time 0, live, an empty name, and the number of mappings.
fn map_head(mappings: u64) -> Vec<u8> {
    let mut map = vec![1, 7, 0, 0, 0];
    put(&mut map, mappings);
    map
}

/// An address map of one mapping with a stored page, with these names of the process and the mapping.
pub(crate) fn map_of(command: &str, mapping: &str) -> Vec<u8> {
    let mut map = vec![1, 7, 0, 0];
    put(&mut map, command.len() as u64);
    map.extend(command.bytes());
    map.extend([1, 0, 0b1011]);
    put(&mut map, mapping.len() as u64);
    map.extend(mapping.bytes());
    map.extend([1, ONE_STORED]);
    map
}

/// A mapping of plain anonymous memory, right after the one before.
fn mapping(map: &mut Vec<u8>, runs: &[u8]) {
    map.extend([0, 0b1011, 0]);
    put(map, runs.len() as u64);
    map.extend(runs);
}

/// LEB128.
fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

const ONE_UNTOUCHED: u8 = 1 << 2;
const ONE_STORED: u8 = 1 << 2 | 1;
const ONE_UNREADABLE: u8 = 1 << 2 | 2;

/// Runs the tool with as much memory as an archive of `archive_bytes` may take, and limited time; its output is counted.
pub(crate) fn run_limited(folder: &Path, args: &[&str], archive_bytes: u64) -> (Run, usize) {
    let limit_kib = (FREE_BYTES + 4 * archive_bytes) / 1024;
    let script = format!("ulimit -v {limit_kib} && ulimit -t {CPU_SECONDS} && exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, BINARY, "-T", "1", "--backend", "cpu"]).args(args).current_dir(folder);
    // The limit is on addresses. More arenas would reserve 64 MiB each and use next to nothing of it.
    command.env("MALLOC_ARENA_MAX", "1").stdin(Stdio::null());
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let len_bytes = output.stdout.len();
    (Run { code: output.status.code(), stdout: output.stdout, stderr }, len_bytes)
}

#[test]
fn the_limits_bite() {
    let folder = folder();
    fs::write(folder.path().join("image"), [7; 100]).unwrap();
    let (ran, _) = run_limited(folder.path(), &["inspect", "image", "--json"], 0);
    assert_eq!(ran.code, Some(0), "64 MiB are enough for a small file: {}", ran.stderr);
    let script = "ulimit -v 65536 && head -c 200000000 /dev/zero | tail -c 200000000 | wc -c";
    let out = Command::new("sh").args(["-c", script]).stderr(Stdio::null()).output().unwrap();
    assert_ne!(String::from_utf8(out.stdout).unwrap().trim(), "200000000", "limits on memory do not work here");
}

#[test]
fn millions_of_runs_are_listed_in_little_memory() {
    let folder = folder();
    let runs: Vec<u8> = [ONE_UNTOUCHED, ONE_UNREADABLE].into_iter().cycle().take(6_000_000).collect();
    let mut map = map_head(1);
    mapping(&mut map, &runs);
    let archive = archive(1, &[], &map);
    fs::write(folder.path().join("runs.lz4"), &archive).unwrap();
    let (ran, len_bytes) = run_limited(folder.path(), &["inspect", "runs.lz4", "--json"], archive.len() as u64);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(len_bytes > 3_000_000 * 50, "all three million unreadable runs are listed in {len_bytes} bytes");
    let (ran, _) = run_limited(folder.path(), &["inspect", "runs.lz4"], archive.len() as u64);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
}

#[test]
fn millions_of_mappings_take_little_memory_and_linear_time() {
    let folder = folder();
    let mappings = 4 << 20;
    let mut map = map_head(mappings);
    for _ in 0..mappings {
        mapping(&mut map, &[ONE_UNTOUCHED]);
    }
    let archive = archive(1, &[], &map);
    fs::write(folder.path().join("mappings.lz4"), &archive).unwrap();
    for args in [
        &["inspect", "mappings.lz4", "--json"][..],
        &["inspect", "mappings.lz4"],
        &["inspect", "mappings.lz4", "--ranges"],
    ] {
        let (ran, _) = run_limited(folder.path(), args, archive.len() as u64);
        assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.stderr);
    }
    let args = ["extract", "mappings.lz4", "--address", "0..0x400000000", "-o", "out"];
    let (ran, _) = run_limited(folder.path(), &args, archive.len() as u64);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(fs::metadata(folder.path().join("out")).unwrap().len(), mappings * PAGE_SIZE as u64);
}

#[test]
fn a_map_that_is_too_large_is_refused_before_it_is_read() {
    let folder = folder();
    let archive = archive(1, &[], &vec![0; 100 << 20]);
    let file = fs::File::create(folder.path().join("large.lz4")).unwrap();
    // All but a few bytes of it are a hole.
    let (start, end) = archive.split_at(4096);
    let (hole, end) = end.split_at(end.len() - 4096);
    assert!(hole.iter().all(|byte| *byte == 0));
    std::os::unix::fs::FileExt::write_all_at(&file, start, 0).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, end, (start.len() + hole.len()) as u64).unwrap();
    for args in [
        &["inspect", "large.lz4", "--json"][..],
        &["extract", "large.lz4", "--address", "0..4096", "-o", "x", "--json"],
    ] {
        let (ran, _) = run_limited(folder.path(), args, 8192);
        ran.fails_as("damaged", &["large.lz4"]);
    }
}

#[test]
fn counts_that_the_bytes_cannot_hold_are_refused() {
    let folder = folder();
    let mut runs = map_head(1);
    runs.extend([0, 0b1011, 0]);
    put(&mut runs, u64::MAX);
    for (name, map) in [("mappings.lz4", map_head(u64::MAX)), ("runs.lz4", runs)] {
        fs::write(folder.path().join(name), archive(1, &[], &map)).unwrap();
        run(folder.path(), &["inspect", name, "--json"]).fails_as("damaged", &[name]);
    }
}

#[test]
fn a_map_of_more_pages_than_there_are_is_refused() {
    let folder = folder();
    let mut map = map_head(1);
    mapping(&mut map, &[3 << 2 | 1]);
    fs::write(folder.path().join("three.lz4"), archive(2, &[], &map)).unwrap();
    run(folder.path(), &["inspect", "three.lz4", "--json"]).fails_as("damaged", &["three.lz4"]);
}

#[test]
fn addresses_past_a_short_tail_are_an_error() {
    let folder = folder();
    let mut map = map_head(1);
    mapping(&mut map, &[ONE_STORED]);
    fs::write(folder.path().join("short.lz4"), archive(0, &[5; 100], &map)).unwrap();
    let extract = |range: &str| run(folder.path(), &["extract", "short.lz4", "--address", range]);
    assert_eq!(extract("0..100").ok().stdout, [5; 100]);
    assert!(extract("0..4096").fails(&["short.lz4", "0x64"]).stdout.is_empty());
    extract("200..300").fails(&["short.lz4", "0xc8"]);
}

#[test]
fn alternating_pages_are_restored_in_one_pass() {
    let folder = folder();
    // Every second page is stored; the last one is not zeros.
    let pages = 20_000;
    let runs: Vec<u8> = [ONE_UNTOUCHED, ONE_STORED].into_iter().cycle().take(pages).collect();
    let mut map = map_head(1);
    mapping(&mut map, &runs);
    let archive = archive((pages / 2 - 1) as u64, &[9; PAGE_SIZE - 1], &map);
    fs::write(folder.path().join("pages.lz4"), &archive).unwrap();
    let end = pages * PAGE_SIZE - 1;
    let range = format!("1..{end}");
    let args = ["extract", "pages.lz4", "--address", &range, "-o", "out"];
    let (ran, _) = run_limited(folder.path(), &args, archive.len() as u64);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let out = fs::read(folder.path().join("out")).unwrap();
    assert_eq!(out.len(), end - 1);
    let (zeros, last) = out.split_at(out.len() - (PAGE_SIZE - 1));
    assert!(zeros.iter().all(|byte| *byte == 0) && last == [9; PAGE_SIZE - 1]);
}
