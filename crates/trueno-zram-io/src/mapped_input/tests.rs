//! Borrowed pages against those that are read, and files that others want to change.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::*;

fn content(pages: usize) -> Vec<Page> {
    (1..=u8::MAX).cycle().map(|byte| [byte; PAGE_SIZE]).take(pages).collect()
}

/// A new file of these pages, unless its file system has no leases.
fn file_of(folder: &tempfile::TempDir, pages: &[Page]) -> Option<(PathBuf, MappedInput)> {
    let path = folder.path().join("image");
    fs::write(&path, pages.as_flattened()).unwrap();
    let input = MappedInput::new(&File::open(&path).unwrap(), pages.as_flattened().len() as u64)?;
    // A process that another test has just started may still hold the file open for writing.
    let deadline = Instant::now() + Duration::from_secs(5);
    while input.file.hold().is_none() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    let can_borrow = input.file.hold().is_some() && cached_pages(input.file.file(), &(0..1)).is_some();
    can_borrow.then_some((path, input))
}

fn writer(path: &Path) -> File {
    File::options().write(true).open(path).unwrap()
}

#[test]
fn borrowed_pages_are_those_of_the_file() {
    let (folder, pages) = (tempfile::tempdir().unwrap(), content(300));
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
    let folder = tempfile::tempdir().unwrap();
    let Some((path, input)) = file_of(&folder, &content(3)) else { return };
    let held = writer(&path);
    assert_eq!(input.borrow(0..3, |_| ()), None);
    drop(held);
}

#[test]
fn a_writer_waits_for_those_who_borrow_and_their_work_is_void() {
    let folder = tempfile::tempdir().unwrap();
    let Some((path, input)) = file_of(&folder, &content(3)) else { return };
    std::thread::scope(|scope| {
        let work = |pages: &[Page]| {
            scope.spawn(|| writer(&path).write_all_at(&[0xee; PAGE_SIZE], PAGE_SIZE as u64).unwrap());
            let deadline = Instant::now() + Duration::from_secs(30);
            while input.file.hold().is_some_and(|lease| lease.is_undisputed()) {
                assert!(Instant::now() < deadline, "the writer asks for the file");
            }
            assert_eq!(input.borrow(0..1, |_| ()), None, "nobody else borrows it");
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
    let folder = tempfile::tempdir().unwrap();
    let Some((path, input)) = file_of(&folder, &content(20)) else { return };
    writer(&path).set_len(10 * PAGE_SIZE as u64).unwrap();
    assert_eq!(
        input.borrow(5..15, |pages| pages.as_flattened().iter().map(|byte| u64::from(*byte)).sum::<u64>()),
        None
    );
}

#[test]
fn holes_stay_holes() {
    // A tmpfs, where a page of a hole that is read through a mapping takes memory.
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return };
    let Some((path, _)) = file_of(&folder, &content(4)) else { return };
    writer(&path).set_len(0).unwrap();
    writer(&path).set_len(64 * PAGE_SIZE as u64).unwrap();
    let input = MappedInput::new(&File::open(&path).unwrap(), 64 * PAGE_SIZE as u64).unwrap();
    assert_eq!(input.borrow(0..64, |pages| pages.iter().all(|page| *page == [0; PAGE_SIZE])), None);
    assert_eq!(fs::metadata(&path).unwrap().blocks(), 0);
}
