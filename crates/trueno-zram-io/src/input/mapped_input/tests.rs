//! Borrowed pages against those that are read, and files that others want to change.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::*;

fn content(pages: usize) -> Vec<Page> {
    (1..=u8::MAX).cycle().map(|byte| [byte; PAGE_SIZE]).take(pages).collect()
}

/// A folder on a tmpfs, which has leases, or else where temporary files are.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// A new file of these pages; `None` if it cannot be borrowed and the test has to be skipped, which this prints.
fn file_of(folder: &tempfile::TempDir, pages: &[Page]) -> Option<(PathBuf, MappedInput)> {
    let path = folder.path().join("image");
    fs::write(&path, pages.as_flattened()).unwrap();
    let input = MappedInput::new(&File::open(&path).unwrap(), pages.as_flattened().len() as u64);
    let input = input.filter(|input| is_leased(input) && cached_pages(input.file.file(), &(0..1)).is_some());
    if input.is_none() {
        println!("skipped: no leases or no cachestat in {}", folder.path().display());
    }
    Some((path, input?))
}

/// Returns `true` if a file that nobody writes can be leased. A process that another test has just started may still hold
/// it open for writing.
fn is_leased(input: &MappedInput) -> bool {
    let deadline = Instant::now() + Duration::from_secs(5);
    while input.file.hold().is_none() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

fn sum(pages: &[Page]) -> u64 {
    pages.as_flattened().iter().map(|byte| u64::from(*byte)).sum()
}

fn writer(path: &Path) -> File {
    File::options().write(true).open(path).unwrap()
}

#[test]
fn borrowed_pages_are_those_of_the_file() {
    let (folder, pages) = (folder(), content(300));
    let Some((_, input)) = file_of(&folder, &pages) else { return };
    for range in [0..1, 0..300, 7..100, 299..300] {
        let within = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
        let is_equal = |borrowed: &[Page]| borrowed == &pages[within];
        assert_eq!(input.borrow(range.clone(), is_equal), Some(true), "{range:?}");
    }
    for range in [0..0, 5..5, 299..301, 300..301, u64::MAX - 1..u64::MAX] {
        assert_eq!(input.borrow(range.clone(), |_| ()), None, "{range:?}");
    }
}

#[test]
fn files_without_a_whole_page_are_not_mapped() {
    let file = tempfile::tempfile().unwrap();
    assert!(MappedInput::new(&file, 0).is_none());
    file.set_len(100).unwrap();
    assert!(MappedInput::new(&file, 100).is_none());
}

#[test]
fn a_file_that_is_open_for_writing_is_not_borrowed() {
    let folder = folder();
    let Some((path, input)) = file_of(&folder, &content(3)) else { return };
    let held = writer(&path);
    assert_eq!(input.borrow(0..3, |_| ()), None);
    drop(held);
}

#[test]
fn a_writer_waits_for_those_who_borrow_and_their_work_is_void() {
    let folder = folder();
    let Some((path, input)) = file_of(&folder, &content(3)) else { return };
    let other = MappedInput::new(&File::open(&path).unwrap(), 3 * PAGE_SIZE as u64).unwrap();
    assert_eq!(other.borrow(0..1, |_| ()), Some(()));
    std::thread::scope(|scope| {
        let work = |pages: &[Page]| {
            scope.spawn(|| writer(&path).write_all_at(&[0xee; PAGE_SIZE], PAGE_SIZE as u64).unwrap());
            let deadline = Instant::now() + Duration::from_secs(30);
            while input.file.hold().is_some_and(|lease| lease.is_unbroken()) {
                assert!(Instant::now() < deadline, "the writer asks for the file");
            }
            assert_eq!(input.borrow(0..1, |_| ()), None, "nobody else borrows it");
            assert_eq!(other.borrow(0..1, |_| ()), None, "the lease is not granted again");
            assert!(pages == content(3), "it does not change meanwhile");
        };
        assert_eq!(input.borrow(0..3, work), None);
    });
    let mut changed = [0; PAGE_SIZE];
    File::open(&path).unwrap().read_exact_at(&mut changed, PAGE_SIZE as u64).unwrap();
    assert_eq!(changed, [0xee; PAGE_SIZE], "the writer went on");
}

#[test]
fn pages_that_are_gone_are_not_borrowed() {
    let folder = folder();
    let Some((path, input)) = file_of(&folder, &content(20)) else { return };
    writer(&path).set_len(10 * PAGE_SIZE as u64).unwrap();
    assert!(is_leased(&input));
    assert_eq!(input.borrow(5..15, sum), None);
    assert_eq!(input.borrow(5..10, sum), Some(sum(&content(20)[5..10])), "pages that are still there");
}

#[test]
fn work_on_a_page_that_cannot_be_read_is_void() {
    let folder = folder();
    let Some((_, input)) = file_of(&folder, &content(3)) else { return };
    assert_eq!(input.borrow(0..3, sum), Some(sum(&content(3))));
    // SIGBUS in the middle of a range whose end is there.
    input.mapping.break_page(PAGE_SIZE);
    let mut is_done = false;
    let work = |pages: &[Page]| {
        is_done = true;
        sum(pages)
    };
    assert_eq!(input.borrow(0..3, work), None);
    assert!(is_done, "found after the work");
    assert_eq!(input.borrow(0..1, |_| ()), None, "nothing is borrowed any more");
}

#[test]
fn holes_stay_holes() {
    // A tmpfs, where a page of a hole that is read through a mapping takes memory.
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        println!("skipped: no tmpfs in /dev/shm");
        return;
    };
    let Some((path, _)) = file_of(&folder, &content(4)) else { return };
    writer(&path).set_len(0).unwrap();
    writer(&path).set_len(64 * PAGE_SIZE as u64).unwrap();
    let input = MappedInput::new(&File::open(&path).unwrap(), 64 * PAGE_SIZE as u64).unwrap();
    assert_eq!(input.borrow(0..64, |pages| pages.iter().all(|page| *page == [0; PAGE_SIZE])), None);
    assert_eq!(fs::metadata(&path).unwrap().blocks(), 0);
}
