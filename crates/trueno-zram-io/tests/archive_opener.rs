//! Archives and chains of deltas opened by path: bases are found or named, and nothing recurses over a chain.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use trueno_test_pages::generate::Generator;
use trueno_zram_archive::{
    BaseRecord, Delta, DeltaPart, DeltaWriter, Error, PageArchive, PageHash, PageHashes, Pages, ReadAt, WriteOptions,
    compress,
};
use trueno_zram_core::{Algorithm, PAGE_SIZE, Page, PageCodec};
use trueno_zram_io::{ArchiveOpener, os_text};

/// Changes some bytes, adds and moves whole pages, and changes the length.
fn edited(content: &[u8], seed: u64) -> Vec<u8> {
    let (mut random, mut edited) = (Generator::new(seed), content.to_vec());
    for _ in 0..1 + random.below(10) {
        let pages = edited.len() / PAGE_SIZE;
        let (page, other) = (random.below(pages) * PAGE_SIZE, random.below(pages) * PAGE_SIZE);
        match random.below(6) {
            0 | 1 => edited[page + random.below(PAGE_SIZE)] ^= 1 << random.below(8),
            2 => edited[page..page + PAGE_SIZE].fill(0),
            3 => edited[page..page + PAGE_SIZE].copy_from_slice(&random.page()),
            4 => edited.copy_within(page..page + PAGE_SIZE, other),
            _ => edited.extend((0..random.below(2 * PAGE_SIZE)).map(|_| random.byte())),
        }
    }
    edited
}

/// The pages of some content, the last one filled up with zeros.
fn padded(content: &[u8]) -> Vec<Page> {
    let mut padded = content.to_vec();
    padded.resize(content.len().next_multiple_of(PAGE_SIZE), 0);
    padded.as_chunks().0.to_vec()
}

fn archive_of(content: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    compress(content, &mut file, &WriteOptions::default()).unwrap();
    file
}

/// A delta of `content` that names its base by `path`, and does not care how long the chain becomes.
fn delta_of(content: &[u8], base: &PageArchive, path: &str) -> Vec<u8> {
    let hashes = PageHashes::stored(base).unwrap().unwrap_or_else(|| PageHashes::compute(base).unwrap());
    let record =
        BaseRecord { identity: base.identity(), page_count: base.page_count(), hashes: None, path: path.into() };
    let mut delta = DeltaWriter::new(Vec::new(), record, WriteOptions::default()).unwrap();
    let (mut codec, mut room) = (PageCodec::new(Algorithm::Lz4).unwrap(), [0; PAGE_SIZE]);
    let mut part = DeltaPart::new();
    part.start(delta.block_shape());
    for (number, plain) in (0..).zip(&padded(content)) {
        let hash = PageHash::of(plain);
        if *plain == [0; PAGE_SIZE] {
            part.push_zeros(1);
        } else if let Some(same) = hashes.find(number, &hash) {
            part.push_base(same, hash);
        } else {
            part.push_page(codec.compress(plain, &mut room).unwrap(), plain, hash).unwrap();
        }
    }
    delta.push(&mut part).unwrap();
    delta.finish(content.len() as u64).unwrap().0
}

/// Writes files into a folder, each a delta of the one before.
fn chain(folder: &Path, deltas: usize) -> Vec<u8> {
    let mut random = Generator::new(21);
    let mut content: Vec<u8> = (0..60).flat_map(|_| random.page()).collect();
    fs::write(folder.join("0"), archive_of(&content)).unwrap();
    for level in 1..=deltas {
        content = edited(&content, level as u64);
        let below = format!("{}", level - 1);
        let base = ArchiveOpener::new().open(&folder.join(&below)).unwrap().unwrap();
        fs::write(folder.join(format!("{level}")), delta_of(&content, &base, &below)).unwrap();
    }
    content
}

/// Checks that pages read alone and together are those of this content.
fn assert_reads(archive: &PageArchive, content: &[u8]) {
    assert_eq!(archive.len_bytes(), content.len() as u64);
    let pages = padded(content);
    for (number, page) in (0..).zip(&pages) {
        let mut found = [[0xff; PAGE_SIZE]];
        archive.read(number, &mut found).unwrap();
        assert!(found[0] == *page, "page {number}");
    }
    let mut found = vec![[0xff; PAGE_SIZE]; pages.len()];
    archive.read(0, &mut found).unwrap();
    assert!(found == pages, "all pages");
}

/// Runs `work` on a thread with a stack of 256 KiB, an eighth of what spawned threads have.
fn on_small_stack<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, work).unwrap();
        thread.join().unwrap()
    })
}

thread_local! {
    /// The lowest address of this thread's stack at which a file was read.
    static LOWEST_READ: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// A file that notes how deep in the stack it is read.
struct StackProbe(fs::File);

impl StackProbe {
    #[inline(never)]
    fn note(&self) {
        let local = 0u8;
        LOWEST_READ.set(LOWEST_READ.get().min(std::ptr::from_ref(std::hint::black_box(&local)).addr()));
    }
}

impl ReadAt for StackProbe {
    fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> std::io::Result<()> {
        self.note();
        self.0.read_exact_at(bytes, at)
    }

    fn len_bytes(&self) -> std::io::Result<u64> {
        self.note();
        self.0.len_bytes()
    }
}

/// The bytes of the stack from here down to the deepest read of a file.
#[inline(never)]
fn stack_bytes(work: impl FnOnce()) -> usize {
    let local = 0u8;
    LOWEST_READ.set(usize::MAX);
    work();
    std::ptr::from_ref(std::hint::black_box(&local)).addr() - LOWEST_READ.get()
}

/// The bytes of the stack that it takes to open a chain, to read its pages one by one, and to read them together.
fn stack_of_chain(path: &Path) -> [usize; 3] {
    let opener = ArchiveOpener::new().with_file_reader(|file| Arc::new(StackProbe(file)));
    let open = || opener.open(path).unwrap().unwrap();
    let opening = stack_bytes(|| drop(open()));
    let (one_by_one, together) = (open(), open());
    let pages = one_by_one.page_count();
    let single = stack_bytes(|| {
        for page in 0..pages {
            one_by_one.read(page, &mut [[0; PAGE_SIZE]]).unwrap();
        }
    });
    let mut room = vec![[0; PAGE_SIZE]; usize::try_from(pages).unwrap()];
    [opening, single, stack_bytes(|| together.read(0, &mut room).unwrap())]
}

/// Independent of how large frames are: a debug build and a release build differ in that.
#[test]
#[cfg_attr(miri, ignore = "Miri has no stack with addresses")]
fn the_stack_does_not_grow_with_the_chain() {
    let folder = tempfile::tempdir().unwrap();
    chain(folder.path(), Delta::MAX_DEPTH);
    let [short, long] = ["2", "32"].map(|name| stack_of_chain(&folder.path().join(name)));
    for (short, long) in short.iter().zip(&long) {
        assert!(*long <= short + 256, "{short} bytes for 2 deltas, {long} for 32");
    }
}

#[test]
fn the_longest_chain_is_read_on_a_small_stack() {
    let folder = tempfile::tempdir().unwrap();
    let content = chain(folder.path(), Delta::MAX_DEPTH);
    on_small_stack(|| {
        for in_memory in [false, true] {
            let opener = ArchiveOpener::new().with_files_in_memory(in_memory);
            let chain = opener.open_chain(&folder.path().join("32")).unwrap().unwrap();
            assert_eq!((chain.archive.depth(), chain.files.len()), (32, 33));
            assert!((0..chain.archive.page_count()).any(|page| !chain.archive.is_located(page)));
            assert_reads(&chain.archive, &content);
            assert!((0..chain.archive.page_count()).all(|page| chain.archive.is_located(page)));
            let hashes =
                [PageHashes::stored(&chain.archive).unwrap().unwrap(), PageHashes::compute(&chain.archive).unwrap()];
            for (number, page) in (0..).zip(padded(&content)).filter(|(_, page)| *page != [0; PAGE_SIZE]) {
                assert!(hashes.iter().all(|hashes| hashes.find(number, &PageHash::of(&page)) == Some(number)));
            }
        }
    });
}

#[test]
fn longer_chains_are_refused_by_readers_and_writers_alike() {
    let folder = tempfile::tempdir().unwrap();
    let content = chain(folder.path(), Delta::MAX_DEPTH);
    let open = |name: &str| ArchiveOpener::new().open(&folder.path().join(name)).map(Option::unwrap);
    let too_long = |error: Error| assert!(matches!(error, Error::ChainTooLong { max_deltas: 32 }), "{error}");
    assert!(open("31").unwrap().record(b"31").is_ok());
    let longest = open("32").unwrap();
    too_long(longest.record(b"32").unwrap_err());
    // A delta of other makers.
    let delta = delta_of(&content, &longest, "32");
    fs::write(folder.path().join("33"), &delta).unwrap();
    too_long(open("33").unwrap_err());
    too_long(Delta::open(Arc::new(delta), |_| Ok(longest)).unwrap_err());
}

#[test]
fn files_are_read_through_what_the_caller_makes_of_them() {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let folder = tempfile::tempdir().unwrap();
    let content = chain(folder.path(), 2);
    let opener = ArchiveOpener::new().with_file_reader(|file| {
        MADE.fetch_add(1, Ordering::Relaxed);
        Arc::new(file)
    });
    for (in_memory, made) in [(false, 3), (true, 3)] {
        let archive = opener.clone().with_files_in_memory(in_memory).open(&folder.path().join("2")).unwrap().unwrap();
        assert_reads(&archive, &content);
        assert_eq!(MADE.load(Ordering::Relaxed), made);
    }
}

#[test]
fn missing_and_wrong_bases_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let content = chain(folder.path(), 2);
    let path = |name: &str| folder.path().join(name);
    let open = |opener: ArchiveOpener| opener.open(&path("2")).map(|archive| archive.expect("a delta"));
    let problem = |opener: ArchiveOpener| open(opener).unwrap_err().to_string();

    fs::rename(path("0"), path("moved")).unwrap();
    let not_found = fs::File::open(path("0")).unwrap_err();
    let error = problem(ArchiveOpener::new());
    assert!(error.contains("base 0: not found") && error.contains(&os_text(&not_found)), "{error}");
    assert_reads(&open(ArchiveOpener::new().with_bases([path("moved")])).unwrap(), &content);
    // The base of the delta below, in any order and among others.
    assert_reads(&open(ArchiveOpener::new().with_bases([path("2"), path("moved"), path("1")])).unwrap(), &content);

    fs::write(path("0"), archive_of(&content)).unwrap();
    assert!(problem(ArchiveOpener::new()).contains("another archive"));
    fs::write(path("0"), b"not an archive at all").unwrap();
    assert!(problem(ArchiveOpener::new()).contains("not a page archive"));
    fs::remove_file(path("0")).unwrap();
    fs::create_dir(path("0")).unwrap();
    assert!(problem(ArchiveOpener::new()).contains("not a regular file"));
    fs::remove_dir(path("0")).unwrap();
    // A delta that names itself, or the delta above it.
    for name in ["1", "2"] {
        fs::copy(path(name), path("0")).unwrap();
        assert!(problem(ArchiveOpener::new()).contains("another archive"), "{name}");
    }
}

#[test]
fn bases_are_found_beside_a_delta_and_beside_a_link_to_it() {
    let [folder, links] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let content = chain(folder.path(), 1);
    let link = links.path().join("link");
    std::os::unix::fs::symlink(folder.path().join("1"), &link).unwrap();
    let open = || ArchiveOpener::new().open_chain(&link).map(Option::unwrap);
    let base_path = |folder: &tempfile::TempDir| folder.path().canonicalize().unwrap().join("0");
    let beside_delta = open().unwrap();
    assert_eq!(beside_delta.bases()[0].path, base_path(&folder));
    assert_reads(&beside_delta.archive, &content);
    fs::copy(folder.path().join("0"), links.path().join("0")).unwrap();
    assert_eq!(open().unwrap().bases()[0].path, base_path(&folder), "the delta's own folder comes first");
    fs::remove_file(folder.path().join("0")).unwrap();
    assert_eq!(open().unwrap().bases()[0].path.canonicalize().unwrap(), base_path(&links));
    fs::remove_file(links.path().join("0")).unwrap();
    assert!(matches!(open(), Err(Error::Base { .. })));
}
