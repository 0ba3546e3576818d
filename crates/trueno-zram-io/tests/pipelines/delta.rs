//! Deltas against a slow twin that compares all pages with each other, on any number of lanes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rayon::ThreadPool;
use trueno_test_pages::generate::Generator;
use trueno_zram_archive::{Delta, PageArchive, PageHash, PageHashes, PageOrigin, Pages, WriteOptions};
use trueno_zram_core::{PAGE_SIZE, Page};
use trueno_zram_io::{
    Compressors, DeltaBase, DeltaOptions, Error, FileSource, Input, LengthChanged, PageSource, Workers, compress,
    compress_delta,
};

use crate::{BROKEN, Numbers, codecs, failed_call, length_change, pool};

fn source(folder: &tempfile::TempDir, pages: &[Page]) -> FileSource {
    let path = folder.path().join("image");
    std::fs::write(&path, pages.as_flattened()).unwrap();
    pages_of(&path)
}

fn pages_of(path: &Path) -> FileSource {
    Input::open(path).unwrap().into_pages()
}

/// Pages of all kinds: zeros, alone and in runs, equal ones, and any others.
fn image(random: &mut Generator) -> Vec<Page> {
    let mut pages: Vec<Page> = (0..700).map(|_| random.page()).collect();
    for _ in 0..40 {
        let at = random.below(pages.len());
        let zeros = (1 + random.below(20)).min(pages.len() - at);
        pages[at..at + zeros].fill([0; PAGE_SIZE]);
        pages[random.below(700)] = pages[random.below(700)];
    }
    pages
}

/// Changes single bits, copies pages to where others were, and adds a page that is new more than once.
fn change(pages: &mut [Page], random: &mut Generator) {
    for _ in 0..60 {
        pages[random.below(700)][random.below(PAGE_SIZE)] ^= 1 << random.below(8);
    }
    for _ in 0..20 {
        pages[random.below(700)] = pages[random.below(700)];
    }
    let new = std::array::from_fn(|_| random.byte());
    for _ in 0..5 {
        pages[random.below(700)] = new;
    }
}

/// The expected origins of a delta's pages, found without any hash.
fn expected(pages: &[Page], base: &[Page]) -> Vec<PageOrigin> {
    let mut stored: Vec<Page> = Vec::new();
    let place = |pages: &[Page], page: &Page| pages.iter().position(|other| other == page).map(|place| place as u64);
    let origin = |(number, page): (usize, &Page)| {
        if *page == [0; PAGE_SIZE] {
            PageOrigin::Zero
        } else if base[number] == *page {
            PageOrigin::Base(number as u64)
        } else if let Some(same) = place(base, page) {
            PageOrigin::Base(same)
        } else if let Some(copy) = place(&stored, page) {
            PageOrigin::Stored(copy)
        } else {
            stored.push(*page);
            PageOrigin::Stored(stored.len() as u64 - 1)
        }
    };
    pages.iter().enumerate().map(origin).collect()
}

#[test]
fn every_changed_bit_is_noticed_and_equal_pages_are_stored_once() {
    let (folder, mut random) = (tempfile::tempdir().unwrap(), Generator::new(11));
    for (lanes, has_hashes) in [(1, true), (2, false), (3, true)] {
        let (pool, mut codecs) = (pool(lanes), codecs(lanes));
        let old = image(&mut random);
        let options = WriteOptions::default().with_page_hashes(has_hashes);
        let out = Vec::new();
        let base =
            compress(source(&folder, &old), out, options, Compressors::Cpu(&mut codecs), Workers::new(&pool)).unwrap();
        let base = PageArchive::standard(Arc::new(base.out)).unwrap().unwrap();
        let hashes = PageHashes::stored(&base).unwrap();
        assert_eq!(hashes.is_some(), has_hashes);
        let hashes = hashes.map_or_else(|| PageHashes::compute(&base), Ok).unwrap();

        let mut new = old.clone();
        change(&mut new, &mut random);
        let made_from = DeltaBase { record: base.record(b"base.lz4").unwrap(), hashes: &hashes };
        let options = DeltaOptions::of_base(made_from);
        let done =
            compress_delta(source(&folder, &new), Vec::new(), options, &mut codecs, Workers::new(&pool)).unwrap();
        let delta = Delta::open(Arc::new(done.out), |_| Ok(base)).unwrap().unwrap();
        for (number, (page, origin)) in (0..).zip(new.iter().zip(expected(&new, &old))) {
            let hash = (origin != PageOrigin::Zero).then(|| PageHash::of(page));
            assert_eq!(delta.origin(number).unwrap(), (origin, hash), "page {number}, {lanes} lanes");
        }
        let mut restored = vec![[1; PAGE_SIZE]; new.len()];
        delta.read(0, &mut restored).unwrap();
        assert!(restored == new, "{lanes} lanes");
    }
}

/// The origins of pages without a base: copies are found wherever they are, whichever lane meets them first.
#[test]
fn equal_pages_are_stored_once_and_the_bytes_do_not_depend_on_lanes() {
    let (folder, mut random) = (tempfile::tempdir().unwrap(), Generator::new(17));
    let mut pages = image(&mut random);
    // A page that occurs in all units at once, and a copy of all.
    (0..700).step_by(9).for_each(|page| pages[page] = [7; PAGE_SIZE]);
    pages.extend_from_within(..);
    let mut files = Vec::new();
    for (lanes, table_bytes) in [(1, u64::MAX), (2, u64::MAX), (5, u64::MAX), (3, 64 << 10), (4, 64 << 10)] {
        let options = DeltaOptions { table_bytes, ..DeltaOptions::without_base() };
        let (source, pool) = (source(&folder, &pages), pool(lanes));
        let done = compress_delta(source, Vec::new(), options, &mut codecs(lanes), Workers::new(&pool)).unwrap();
        let file = Arc::new(done.out);
        let delta = Delta::open(file.clone(), |_| unreachable!("it has no base")).unwrap().unwrap();
        for (number, (page, origin)) in
            (0..).zip(pages.iter().zip(expected(&pages, &vec![[0; PAGE_SIZE]; pages.len()])))
        {
            let hash = (origin != PageOrigin::Zero).then(|| PageHash::of(page));
            assert_eq!(delta.origin(number).unwrap(), (origin, hash), "page {number}, {lanes} lanes");
        }
        let mut restored = vec![[1; PAGE_SIZE]; pages.len()];
        delta.read(0, &mut restored).unwrap();
        assert!(restored == pages, "{lanes} lanes");
        files.push(file);
    }
    assert!(files.iter().all(|file| *file == files[0]));
    // Room for 48 pages of 700: none at all.
    let options = DeltaOptions { table_bytes: 1000, ..DeltaOptions::without_base() };
    let done = compress_delta(source(&folder, &pages), Vec::new(), options, &mut codecs(2), Workers::new(&pool(2)));
    let done = done.unwrap();
    assert!(done.summary.is_table_full && done.summary.duplicate_pages == 0);
    let delta = Delta::open(Arc::new(done.out), |_| unreachable!("it has no base")).unwrap().unwrap();
    let mut restored = vec![[1; PAGE_SIZE]; pages.len()];
    delta.read(0, &mut restored).unwrap();
    assert!(restored == pages);
}

#[test]
fn a_stream_without_a_base_is_deduplicated_too() {
    let done = compress_delta(
        Numbers { next: 0, fails_at: 201 },
        Vec::new(),
        DeltaOptions::without_base(),
        &mut codecs(2),
        Workers::new(&pool(2)),
    );
    let done = done.unwrap();
    assert_eq!((done.summary.zero_pages, done.summary.stored_pages), (1, 199));
    for fails_at in [0, 1, 17, 199] {
        let source = Numbers { next: 0, fails_at };
        let (mut codecs, options) = (codecs(2), DeltaOptions::without_base());
        let error = compress_delta(source, Vec::new(), options, &mut codecs, Workers::new(&pool(2))).unwrap_err();
        assert_eq!(failed_call(&error), ("numbers", Some(BROKEN)));
    }
}

/// A base for deltas of files, and where they are written.
struct Fixture {
    folder: tempfile::TempDir,
    base: Vec<u8>,
    pool: ThreadPool,
}

impl Fixture {
    fn new(old: &[Page]) -> Self {
        let (folder, pool, mut codecs) = (tempfile::tempdir().unwrap(), pool(2), codecs(2));
        let source = source(&folder, old);
        let options = WriteOptions::default().with_page_hashes(true);
        let lanes = Compressors::Cpu(&mut codecs);
        let base = compress(source, Vec::new(), options, lanes, Workers::new(&pool)).unwrap().out;
        Self { folder, base, pool }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    fn base(&self) -> PageArchive {
        PageArchive::standard(Arc::new(self.base.clone())).unwrap().unwrap()
    }

    fn delta_of(&self, source: impl PageSource<Error = Error>) -> Result<Vec<u8>, Error> {
        let base = self.base();
        let hashes = PageHashes::stored(&base).unwrap().unwrap();
        let made_from = DeltaBase { record: base.record(b"base.lz4").unwrap(), hashes: &hashes };
        let options = DeltaOptions::of_base(made_from);
        let done = compress_delta(source, Vec::new(), options, &mut codecs(2), Workers::new(&self.pool));
        done.map(|done| done.out)
    }

    fn content_of(&self, delta: Vec<u8>) -> Vec<u8> {
        let delta = Delta::open(Arc::new(delta), |_| Ok(self.base())).unwrap().unwrap();
        let mut pages = vec![[1; PAGE_SIZE]; usize::try_from(delta.page_count()).unwrap()];
        delta.read(0, &mut pages).unwrap();
        pages.as_flattened()[..usize::try_from(delta.len_bytes()).unwrap()].to_vec()
    }
}

/// Pages of a file that is open for writing are read; those of others are borrowed, where that is possible.
#[test]
fn borrowed_pages_and_pages_that_are_read_make_the_same_delta() {
    let mut random = Generator::new(23);
    let old = image(&mut random);
    let fixture = Fixture::new(&old);
    let mut new = old.clone();
    change(&mut new, &mut random);
    let whole = new.as_flattened().len();
    for len in [0, 1, PAGE_SIZE - 1, PAGE_SIZE, 256 * PAGE_SIZE, 256 * PAGE_SIZE + 1, whole - 100, whole] {
        let content = &new.as_flattened()[..len];
        std::fs::write(fixture.path(), content).unwrap();
        let borrowed = fixture.delta_of(pages_of(&fixture.path())).unwrap();
        let writer = std::fs::File::options().write(true).open(fixture.path()).unwrap();
        let read = fixture.delta_of(pages_of(&fixture.path())).unwrap();
        drop(writer);
        assert!(borrowed == read, "{len} bytes");
        assert!(fixture.content_of(borrowed) == content, "{len} bytes");
    }
}

#[test]
fn holes_of_any_length_are_zeros() {
    use std::os::unix::fs::FileExt;
    let fixture = Fixture::new(&image(&mut Generator::new(29)));
    let len = (4 << 20) + 1000;
    let mut content = vec![0; len];
    let file = std::fs::File::create(fixture.path()).unwrap();
    file.set_len(len as u64).unwrap();
    // Between them a short hole and a long one; the file ends with one.
    for at in [5 * PAGE_SIZE, 20 * PAGE_SIZE, 3 << 20] {
        content[at..at + 100].fill(7);
        file.write_all_at(&content[at..at + 100], at as u64).unwrap();
    }
    drop(file);
    let delta = fixture.delta_of(pages_of(&fixture.path())).unwrap();
    assert!(fixture.content_of(delta) == content);
}

#[test]
fn a_file_that_becomes_shorter_is_an_error() {
    let old = image(&mut Generator::new(31));
    let fixture = Fixture::new(&old);
    for len in [0, 100, 300 * PAGE_SIZE + 5] {
        let source = source(&fixture.folder, &old);
        std::fs::File::options().write(true).open(fixture.path()).unwrap().set_len(len as u64).unwrap();
        let error = fixture.delta_of(source).unwrap_err();
        assert!(matches!(length_change(&error), LengthChanged::Shorter { .. }), "{error}");
    }
}

/// Sets a flag at the end of a scope, also after a panic.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_file_that_changes_meanwhile_makes_a_delta_of_old_and_new_bytes_only() {
    use std::os::unix::fs::FileExt;
    const PAGES: usize = 5000;
    let old = vec![[1; PAGE_SIZE]; PAGES];
    let fixture = Fixture::new(&old[..100]);
    let source = source(&fixture.folder, &old);
    let has_ended = AtomicBool::new(false);
    let delta = std::thread::scope(|scope| {
        scope.spawn(|| {
            // Opened again and again: pages are borrowed and read by turns.
            for page in (0..PAGES).cycle().step_by(7).take_while(|_| !has_ended.load(Ordering::Relaxed)) {
                let file = std::fs::File::options().write(true).open(fixture.path()).unwrap();
                file.write_all_at(&[2; PAGE_SIZE], (page * PAGE_SIZE) as u64).unwrap();
            }
        });
        let _end = SetOnDrop(&has_ended);
        fixture.delta_of(source)
    });
    let content = fixture.content_of(delta.unwrap());
    assert_eq!(content.len(), PAGES * PAGE_SIZE);
    assert!(content.iter().all(|byte| [1, 2].contains(byte)));
}

#[test]
fn a_source_that_fails_stops_all_lanes() {
    let fixture = Fixture::new(&[[1; PAGE_SIZE]; 10]);
    for fails_at in [0, 1, 17, 199] {
        let error = fixture.delta_of(Numbers { next: 0, fails_at }).unwrap_err();
        assert_eq!(failed_call(&error), ("numbers", Some(BROKEN)));
    }
}
