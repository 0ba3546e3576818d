//! Image directories with plain and compressed pages, and the directories of lazy restores made from them.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::Path;

use trueno_test_restore::archive_of;
use trueno_zram_archive::{ArchiveWriter, Format, WriteOptions};
use trueno_zram_core::{Algorithm, CpuBatchCompressor, PAGE_SIZE, Page};
use trueno_zram_criu::{DumpedMemory, Error, ImageDir, LazyDir, Pagemap, PagemapEntry};
use trueno_zram_io::ArchiveOpener;

const PID: u64 = 4711;
const BASE: u64 = 0x7f00_0000_0000;

fn pages(count: usize) -> Vec<Page> {
    let corpus = trueno_test_pages::corpus::all_pages().copied();
    let zeros = [[0; PAGE_SIZE]; 3];
    corpus.chain(zeros).cycle().take(count).collect()
}

fn entry(address: u64, pages: u64, lazy: bool) -> PagemapEntry {
    PagemapEntry { address, pages, parent: false, lazy, present: true }
}

/// A process with pages that can wait, between others that it needs at once.
fn pagemap() -> Pagemap {
    let entries = vec![
        entry(0x40_0000, 5, false),
        entry(BASE, 1500, true),
        entry(BASE + (1500 << 12), 2, false),
        entry(BASE + (2000 << 12), 700, true),
    ];
    Pagemap { pages_id: 9, entries }
}

fn write_images(dir: &Path, pages: &[Page]) {
    fs::write(dir.join(format!("pagemap-{PID}.img")), pagemap().encode()).unwrap();
    fs::write(dir.join("pages-9.img.lz4"), archive_of(pages)).unwrap();
    fs::write(dir.join("core-4711.img"), b"registers").unwrap();
    fs::write(dir.join("stats-dump"), b"of another run").unwrap();
}

fn write_lazy_dir(images: &ImageDir, path: &Path) -> Result<LazyDir, Error> {
    let lazy = LazyDir::create(path)?;
    lazy.write(images, &ArchiveOpener::new()).map(|()| lazy)
}

#[test]
fn pages_files_are_opened_as_what_their_names_say() {
    let pages = pages(2207);
    let options = WriteOptions::default().with_format(Format::Zstd);
    let mut zst = ArchiveWriter::new(Vec::new(), options).unwrap();
    let mut codec = CpuBatchCompressor::new(Algorithm::Zstd { level: 1 }).unwrap();
    zst.write_batch(&codec.compress(&pages).unwrap()).unwrap();
    let pagemap = Pagemap { pages_id: 9, entries: vec![entry(BASE, 2207, false)] }.encode();
    for (name, content) in [
        ("pages-9.img", pages.as_flattened().to_vec()),
        ("pages-9.img.lz4", archive_of(&pages)),
        ("pages-9.img.zst", zst.finish(None).unwrap().0),
    ] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("pagemap-4711.img"), &pagemap).unwrap();
        fs::write(dir.path().join(name), content).unwrap();
        let lazy = dir.path().join("lazy");
        let _lazy = write_lazy_dir(&ImageDir::open(dir.path()).unwrap(), &lazy).unwrap();
        assert!(fs::read(lazy.join("pages-9.img")).unwrap() == pages.as_flattened(), "{name}");
    }
}

#[test]
fn a_page_that_cannot_wait_and_is_damaged_leaves_no_lazy_directory() {
    let dir = tempfile::tempdir().unwrap();
    let (images, lazy) = (dir.path().join("images"), dir.path().join("lazy"));
    fs::create_dir(&images).unwrap();
    write_images(&images, &pages(2207));
    let mut archive = archive_of(&pages(2207));
    // Within the first block: the header of the frame takes fewer bytes.
    archive[64] ^= 0x40;
    fs::write(images.join("pages-9.img.lz4"), archive).unwrap();
    let refused = write_lazy_dir(&ImageDir::open(&images).unwrap(), &lazy);
    assert!(matches!(refused, Err(Error::Damaged { pid: PID, address: 0x40_0000, page: 0, .. })), "{refused:?}");
    assert!(!lazy.exists());
}

#[test]
fn a_lazy_directory_has_what_is_needed_at_once_and_nothing_else() {
    let pages = pages(2207);
    let (dir, parent) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_images(dir.path(), &pages);
    let shared = Pagemap { pages_id: 3, entries: vec![entry(0, 2, false)] };
    fs::write(dir.path().join("pagemap-shmem-12.img"), shared.encode()).unwrap();
    fs::write(dir.path().join("pages-3.img"), pages[..2].as_flattened()).unwrap();
    let images = ImageDir::open(dir.path()).unwrap();
    let path = parent.path().join("lazy");
    let lazy = write_lazy_dir(&images, &path).unwrap();
    let read = |name: &str| fs::read(path.join(name)).unwrap();
    let map = Pagemap::parse(&read("pagemap-4711.img")).unwrap();
    let flags: Vec<_> = map.entries.iter().map(|entry| (entry.lazy, entry.present)).collect();
    assert_eq!(flags, [(false, true), (true, false), (false, true), (true, false)]);
    let eager = [&pages[..5], &pages[1505..1507]].concat();
    assert!(read("pages-9.img") == eager.as_flattened());
    assert!(read("pages-3.img") == pages[..2].as_flattened(), "shared memory is not lazy");
    assert_eq!(read("core-4711.img"), b"registers");
    assert!(!path.join("stats-dump").exists() && !path.join("pages-9.img.lz4").exists());
    assert!(write_lazy_dir(&images, &path).is_err(), "it exists");
    drop(lazy);
    assert!(!path.exists());
    assert!(dir.path().join("core-4711.img").exists());
}

#[test]
fn directories_that_are_not_whole_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let open = || ImageDir::open(dir.path()).and_then(|images| DumpedMemory::open(&images, &ArchiveOpener::new()));
    assert!(matches!(open(), Err(Error::NoPagemaps { .. })));
    fs::write(dir.path().join("pagemap-4711.img"), pagemap().encode()).unwrap();
    assert!(matches!(open(), Err(Error::NoPages { pages_id: 9, .. })));
    fs::write(dir.path().join("pages-9.img"), vec![0; 2206 * PAGE_SIZE]).unwrap();
    assert!(matches!(open(), Err(Error::PagesShort { pages: 2207, .. })));
    fs::write(dir.path().join("pages-9.img"), vec![0; 2207 * PAGE_SIZE]).unwrap();
    assert!(open().is_ok());
    fs::write(dir.path().join("pagemap-4712.img"), pagemap().encode()).unwrap();
    assert!(matches!(open(), Err(Error::SharedPages { pages_id: 9, .. })));
    fs::write(dir.path().join("pagemap-4712.img"), b"something else").unwrap();
    assert!(matches!(open(), Err(Error::Pagemap { .. })));
    // A zombie has an empty one.
    fs::write(dir.path().join("pagemap-4712.img"), b"").unwrap();
    assert!(open().is_ok());
    fs::rename(dir.path().join("pages-9.img"), dir.path().join("pages-9.img.lz4")).unwrap();
    assert!(matches!(open(), Err(Error::NoIndex { .. } | Error::Archive { .. })));
}
