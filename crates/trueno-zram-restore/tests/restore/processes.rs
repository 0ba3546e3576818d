//! Memory of this process, or of a child, is restored while it is used and moved. The tests of trueno-zram-criu have more of them.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use trueno_test_pages::corpus::numbered_pages as pages;
use trueno_test_restore::stand_in::{SIGKILL, send};
use trueno_test_restore::system::{fork, give_back, move_memory, unmap_memory, wait};
use trueno_test_restore::userfaultfd::{self, PROCESS_EVENTS, map_missing};
use trueno_zram_core::{PAGE_SIZE, Page};
use trueno_zram_restore::{
    Error, Image, MemoryExtent, MissingMemory, Notice, OnDamage, Pages, Process, ProcessRestore, RestoreOptions,
    RestoreReport,
};

use crate::support::damaged;

const PAGE: u64 = PAGE_SIZE as u64;
const ZEROS: Page = [0; PAGE_SIZE];
/// Addresses that nothing else uses.
const ELSEWHERE: u64 = 0x6300_0000_0000;
const CHILD_ADDRESS: u64 = 0x6100_0000_0000;

/// A fork copies the memory of all tests that run then, and their handlers would have to follow it.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn be_alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates memory that is missing, with the content of `source`.
fn missing(source: impl Pages + 'static) -> MissingMemory {
    let uffd = userfaultfd::create(PROCESS_EVENTS).unwrap();
    let pages = source.page_count();
    let address = map_missing(&uffd, 0, usize::try_from(source.len_bytes()).unwrap(), 0).unwrap();
    MissingMemory {
        pid: 7,
        uffd,
        source: Arc::new(source),
        extents: vec![MemoryExtent { address, pages, first_page: 0 }],
    }
}

/// Ends this process if the test fails: otherwise it would wait for the handler, which waits for the test.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            std::process::abort();
        }
    }
}

/// Restores memory of this process with the content of `source`, while `test` has its address. Returns the numbers of poisoned pages
/// as well.
fn restore(source: impl Pages + 'static, test: impl FnOnce(&ProcessRestore, u64)) -> (RestoreReport, Receiver<u64>) {
    let _alone = be_alone();
    let (sender, poisoned) = channel();
    let restore = ProcessRestore::new(RestoreOptions::default()).unwrap().on_notice(move |notice| {
        if let Notice::Poisoned { page, .. } = notice {
            sender.send(page).unwrap();
        }
    });
    let memory = missing(source);
    let address = memory.extents[0].address;
    restore.add(Process::open(std::process::id()).unwrap(), memory).unwrap();
    let report = thread::scope(|threads| {
        let _abort = AbortOnPanic;
        let handler = threads.spawn(|| restore.run());
        test(&restore, address);
        handler.join().unwrap().unwrap()
    });
    assert_eq!(restore.failures(), 0);
    (report, poisoned)
}

/// Reads a page that is mapped.
fn page_at(address: u64) -> Page {
    // SAFETY: the callers have mapped it.
    unsafe { (address as *const Page).read_volatile() }
}

/// Returns `true` if the kernel can read a page.
fn is_readable(address: u64) -> bool {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    // SAFETY: the page is mapped, and nothing writes to it.
    let page = unsafe { &*(address as *const Page) };
    (&ours).write(page).is_ok()
}

fn assert_pages(address: u64, pages: &[Page]) {
    for (number, page) in (0..).zip(pages) {
        assert!(page_at(address + number * PAGE) == *page, "page {number}");
    }
}

#[test]
fn pages_come_when_they_are_touched() {
    if !userfaultfd::is_allowed(PROCESS_EVENTS) {
        return;
    }
    let pages = pages(3000);
    let zeros = pages.iter().filter(|page| **page == ZEROS).count() as u64;
    let (report, _) = restore(Image::new(pages.clone()), |restore, address| {
        // The background fill has not been started.
        for (number, page) in pages.iter().enumerate().rev().step_by(50) {
            assert!(page_at(address + number as u64 * PAGE) == *page, "page {number}");
        }
        assert_pages(address, &pages);
        restore.start_fill();
    });
    assert!(report.complete && (60..3000).contains(&report.faults), "{report:?}");
    assert_eq!((report.memory_bytes, report.zero_bytes), (3000 * PAGE, zeros * PAGE));
    assert_eq!((report.copied_bytes, report.removed_bytes, report.poisoned), ((3000 - zeros) * PAGE, 0, 0));
}

#[test]
fn everything_is_restored_in_the_background() {
    if !userfaultfd::is_allowed(PROCESS_EVENTS) {
        return;
    }
    let pages = pages(3000);
    let mut memory = 0;
    let (report, _) = restore(Image::new(pages.clone()), |restore, address| {
        restore.start_fill();
        memory = address;
    });
    // The handler has ended, and nothing is missing.
    assert_pages(memory, &pages);
    assert_eq!((report.complete, report.faults), (true, 0), "{report:?}");
    assert_eq!(report.copied_bytes + report.zero_bytes, 3000 * PAGE);
}

#[test]
fn memory_that_is_given_back_unmapped_or_moved_is_followed() {
    if !userfaultfd::is_allowed(PROCESS_EVENTS) {
        return;
    }
    let pages = pages(2000);
    let (report, _) = restore(Image::new(pages.clone()), |restore, address| {
        let at = |page: u64| address + page * PAGE;
        give_back(at(100), 50 * PAGE_SIZE);
        move_memory(at(140), 200 * PAGE_SIZE, 200 * PAGE_SIZE, ELSEWHERE);
        unmap_memory(at(400), 100 * PAGE_SIZE);
        restore.start_fill();
        assert_pages(address, &pages[..100]);
        assert_pages(at(100), &[ZEROS; 40]);
        assert_pages(ELSEWHERE, &[ZEROS; 10]);
        assert_pages(ELSEWHERE + 10 * PAGE, &pages[150..340]);
        assert_pages(at(340), &pages[340..400]);
        assert_pages(at(500), &pages[500..]);
    });
    assert_eq!((report.complete, report.removed_bytes), (true, 150 * PAGE), "{report:?}");
}

#[test]
fn a_damaged_page_is_poisoned() {
    if !userfaultfd::is_allowed(PROCESS_EVENTS) {
        return;
    }
    let pages = pages(2000);
    let mut memory = 0;
    let (report, poisoned) = restore(damaged(&pages, 777), |restore, address| {
        assert_pages(address, &pages[..777]);
        restore.start_fill();
        assert_pages(address + 778 * PAGE, &pages[778..]);
        memory = address;
    });
    assert_eq!((report.complete, report.poisoned), (true, 1), "{report:?}");
    // The handler and a worker may both find it damaged.
    let poisoned: Vec<u64> = poisoned.iter().collect();
    assert!(poisoned.first() == Some(&777) && poisoned.iter().all(|page| *page == 777), "{poisoned:?}");
    assert!(!is_readable(memory + 777 * PAGE) && is_readable(memory + 776 * PAGE));
}

/// Restores memory of a child of this process, which calls `check` with its address. Returns its status as well.
fn restore_child(
    source: impl Pages + 'static,
    options: RestoreOptions,
    check: impl FnOnce(u64) -> bool,
) -> (RestoreReport, u64, i32) {
    let _alone = be_alone();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let (pages, len) = (source.page_count(), usize::try_from(source.len_bytes()).unwrap());
    let child = fork(|| {
        let uffd = userfaultfd::create(PROCESS_EVENTS).unwrap();
        map_missing(&uffd, CHILD_ADDRESS, len, 0).unwrap();
        send(&theirs, &[0], &[&uffd]);
        theirs.read_exact(&mut [0]).unwrap();
        check(CHILD_ADDRESS)
    });
    let uffd = trueno_zram_connections::receive(&ours, &mut [0]).unwrap().fds.pop().unwrap();
    let extents = vec![MemoryExtent { address: CHILD_ADDRESS, pages, first_page: 0 }];
    let restore = ProcessRestore::new(options).unwrap();
    let memory = MissingMemory { pid: 7, uffd, source: Arc::new(source), extents };
    restore.add(Process::open(child.cast_unsigned()).unwrap(), memory).unwrap();
    restore.start_fill();
    thread::scope(|threads| {
        let handler = threads.spawn(|| restore.run());
        send(&ours, &[0], &[]);
        let status = wait(child);
        (handler.join().unwrap().unwrap(), restore.failures(), status)
    })
}

/// Returns `true` if these pages are at an address.
fn has_pages(address: u64, pages: &[Page]) -> bool {
    (0..).zip(pages).all(|(number, page)| page_at(address + number * PAGE) == *page)
}

#[test]
fn a_process_and_its_child_have_all_memory() {
    if !userfaultfd::is_allowed(PROCESS_EVENTS) {
        return;
    }
    let pages = pages(2000);
    let (report, failures, status) = restore_child(Image::new(pages.clone()), RestoreOptions::default(), |address| {
        let child = fork(|| has_pages(address, &pages));
        has_pages(address, &pages) && wait(child) == 0
    });
    assert_eq!((status, failures, report.poisoned), (0, 0, 0), "{report:?}");
}

#[test]
fn a_process_with_a_damaged_page_is_ended_if_asked_for() {
    if !userfaultfd::is_allowed(PROCESS_EVENTS) {
        return;
    }
    let pages = pages(2000);
    let options = RestoreOptions::default().with_on_damage(OnDamage::Kill);
    let (report, failures, status) = restore_child(damaged(&pages, 777), options, |address| {
        loop {
            page_at(address);
        }
    });
    assert_eq!((Some(status), failures, report.complete), (SIGKILL, 1, false), "{report:?}");
}

#[test]
fn memory_without_a_process_is_poisoned() {
    if !userfaultfd::is_allowed(PROCESS_EVENTS) {
        return;
    }
    let _alone = be_alone();
    let memory = missing(Image::new(pages(10)));
    let address = memory.extents[0].address;
    memory.poison();
    assert!((0..10).all(|page| !is_readable(address + page * PAGE)));
}

#[test]
fn other_files_are_refused() {
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let restore = ProcessRestore::new(RestoreOptions::default()).unwrap();
    let process = || Process::open(std::process::id()).unwrap();
    let memory = |uffd| MissingMemory { pid: 7, uffd, source: Arc::new(Image::new(pages(1))), extents: Vec::new() };
    let refused = restore.add(process(), memory(null.try_clone().unwrap()));
    assert!(matches!(refused, Err(Error::NotUserfaultfd { .. })), "{refused:?}");
    // Neither of these ends this process.
    process().end_before_closing(null.try_clone().unwrap());
    memory(null).poison();
}
