//! Processes that are killed while they write: a new process attaches, and every acknowledged write is there.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use trueno_test_pages::generate::Generator;
use trueno_zram_core::{Algorithm, CpuBatchCompressor, PAGE_SIZE, Page};
use trueno_zram_store::{Error, RecompressOptions, Store, StoreHandle, StoreOptions};

const PAGES: u64 = 512;
const WRITERS: u64 = 3;
const FDS: &str = "TRUENO_STORE_FDS";
const ROUND: &str = "TRUENO_STORE_ROUND";

/// Lets one test run at a time. A child that another test has just forked has copies of all descriptors until it executes its
/// program, and so holds the locks of stores that were left meanwhile.
fn alone() -> MutexGuard<'static, ()> {
    static RUNNING: Mutex<()> = Mutex::new(());
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The version of a page that was written as the given one. Its first 16 bytes say which it is.
fn version(page: u64, sequence: u64) -> Page {
    let mut content = Generator::new(page << 32 ^ sequence).page();
    content[..8].copy_from_slice(&page.to_le_bytes());
    content[8..16].copy_from_slice(&sequence.to_le_bytes());
    content
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// The descriptors of a store, opened anew.
fn open(paths: &[String; 2]) -> [OwnedFd; 2] {
    paths.clone().map(|path| File::options().read(true).write(true).open(path).unwrap().into())
}

/// The process that is killed. It is this test, run by the other one.
#[test]
#[ignore = "run by acknowledged_writes_survive_kill_9"]
fn writer() {
    let Ok(paths) = std::env::var(FDS) else { return };
    let paths: Vec<String> = paths.split(',').map(str::to_owned).collect();
    let store = Arc::new(Store::attach(open(&paths.try_into().unwrap())).unwrap());
    let round: u64 = std::env::var(ROUND).unwrap().parse().unwrap();
    let running = AtomicBool::new(true);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let mut handle = StoreHandle::new(&store).unwrap();
            scope.spawn(move || {
                let mut random = Generator::new(round * WRITERS + writer);
                for sequence in round << 32.. {
                    let page = random.next_u64() % (PAGES / WRITERS) * WRITERS + writer;
                    handle.write_page(page, &version(page, sequence)).unwrap();
                    let acknowledged = [page.to_le_bytes(), sequence.to_le_bytes()].concat();
                    // One write of 16 bytes to a pipe is not divided.
                    if std::io::stderr().write_all(&acknowledged).is_err() {
                        return;
                    }
                }
            });
        }
        let mut codec = CpuBatchCompressor::new(Algorithm::Zstd { level: 1 }).unwrap();
        let options = RecompressOptions::default().with_min_age(1).with_batch_pages(16);
        while running.load(Ordering::Relaxed) {
            store.compact().unwrap();
            store.tick();
            store.recompress(&mut codec, &options).unwrap();
        }
    });
}

fn spawn_writer(paths: &[String; 2], round: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["writer", "--exact", "--ignored", "--nocapture"])
        .env(FDS, paths.join(","))
        .env(ROUND, round.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn acknowledged_writes_survive_kill_9() {
    let _alone = alone();
    let rounds: u64 = std::env::var("TRUENO_KILLS").map_or(5, |kills| kills.parse().unwrap());
    let store = Store::create(&StoreOptions::new(PAGES * PAGE_SIZE as u64)).unwrap();
    let fds = store.fds().map(|fd| fd.try_clone_to_owned().unwrap());
    let paths = fds.each_ref().map(|fd| format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd()));
    drop(store);

    let mut last = vec![None::<u64>; usize::try_from(PAGES).unwrap()];
    let mut random = Generator::new(1);
    let mut total = 0;
    for round in 1..=rounds {
        let mut child = spawn_writer(&paths, round);
        let mut pipe = child.stderr.take().unwrap();
        let mut acknowledgement = [0; 16];
        let enough = 1000 + random.below(2000);
        for count in 0.. {
            if count == enough {
                child.kill().unwrap();
            }
            // Acknowledgements from before the process died are still in the pipe.
            if pipe.read_exact(&mut acknowledgement).is_err() {
                break;
            }
            let (page, sequence) = (word(&acknowledgement, 0), word(&acknowledgement, 8));
            last[usize::try_from(page).expect("only acknowledgements are in the pipe")] = Some(sequence);
            total += 1;
        }
        assert!(!child.wait().unwrap().success());
        check(&paths, &last, round);
    }
    assert!(total >= rounds * 1000);
}

/// Attaches, and compares every page with what was acknowledged.
fn check(paths: &[String; 2], last: &[Option<u64>], round: u64) {
    let store = Arc::new(Store::attach(open(paths)).unwrap());
    let mut handle = StoreHandle::new(&store).unwrap();
    for (number, acknowledged) in (0..).zip(last) {
        let mut page = [0; PAGE_SIZE];
        handle.read_page(number, &mut page).unwrap();
        let found = word(&page, 8);
        match acknowledged {
            Some(sequence) => assert!(found >= *sequence, "round {round}: page {number} lost {sequence}, has {found}"),
            None if page == [0; PAGE_SIZE] => continue,
            None => {}
        }
        assert!(page == version(number, found), "round {round}: page {number} is not whole");
    }
    // Nothing leaked: what is held is what the pages need.
    store.compact().unwrap();
    let mm = store.stats().mm;
    assert!(mm.mem_used_total <= mm.compr_data_size + mm.compr_data_size / 20 + 64 * 4096 * 2, "{mm:?}");
}

#[test]
fn a_store_in_use_cannot_be_attached_to() {
    let _alone = alone();
    let store = Store::create(&StoreOptions::new(1 << 20)).unwrap();
    let fds = || store.fds().map(|fd| fd.try_clone_to_owned().unwrap());
    let own = std::process::id();
    assert!(matches!(Store::attach(fds()), Err(Error::InUse { process: Some(process) }) if process == own));
    let kept = fds();
    drop(store);
    Store::attach(kept).unwrap();
}

#[test]
fn damaged_tables_are_refused_and_do_no_harm() {
    let _alone = alone();
    let store = Arc::new(Store::create(&StoreOptions::new(1 << 20)).unwrap());
    let mut handle = StoreHandle::new(&store).unwrap();
    let mut random = Generator::new(3);
    for page in 0..256 {
        handle.write_page(page, &random.page()).unwrap();
    }
    let fds = store.fds().map(|fd| fd.try_clone_to_owned().unwrap());
    let table = File::from(fds[0].try_clone().unwrap());
    drop(handle);
    drop(store);
    let original = read_all(&table);
    let (mut refused, mut attached) = (0, 0);
    for _ in 0..300 {
        let mut damaged = original.clone();
        for _ in 0..=random.below(3) {
            let at = random.below(damaged.len() / 8) * 8;
            let bytes = random.next_u64().to_le_bytes();
            damaged[at..at + 8].copy_from_slice(&bytes);
        }
        write_all(&table, &damaged);
        match Store::attach(fds.each_ref().map(|fd| fd.try_clone().unwrap())) {
            Err(_) => refused += 1,
            Ok(store) => {
                attached += 1;
                read_every_page(&Arc::new(store));
            }
        }
    }
    assert!(refused > 0 && attached > 0, "{refused} refused, {attached} attached");
    write_all(&table, &original);
    Store::attach(fds).unwrap();
}

/// Reads all pages. Any result is right, as long as it is one.
fn read_every_page(store: &Arc<Store>) {
    let mut handle = StoreHandle::new(store).unwrap();
    for page in 0..store.page_count() {
        let _ = handle.read_page(page, &mut [0; PAGE_SIZE]);
    }
}

fn read_all(file: &File) -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn write_all(file: &File, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    file.write_all_at(bytes, 0).unwrap();
}
