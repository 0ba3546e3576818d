//! A store on top of an archive, against a plain array.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod contents;

use std::fs::File;
use std::io::Write;
use std::sync::{Arc, Barrier};

use trueno_test_pages::corpus;
use trueno_test_pages::generate::Generator;
use trueno_zram_archive::{ArchiveWriter, Format, PageArchive, Pages, WriteOptions};
use trueno_zram_core::{Algorithm, CpuBatchCompressor, PAGE_SIZE, Page};
use trueno_zram_store::{Error, PageState, Store, StoreHandle, StoreOptions, ZeroPages};

use contents::{content, decoded};

/// Pages of the archive. The last one is shorter, and the store is longer by some pages.
const PAGES: usize = 1500;
const TAIL: usize = 777;
const STORE_PAGES: usize = PAGES + 10;

/// An archive of real pages with zeros between them, and its content.
fn archive(format: Format) -> (File, Vec<u8>) {
    let mut pages: Vec<Page> = corpus::all_pages().cycle().take(PAGES - 1).copied().collect();
    pages.iter_mut().skip(7).step_by(9).for_each(|page| page.fill(0));
    pages[100..300].fill([0; PAGE_SIZE]);
    let tail = &corpus::all_pages().next().unwrap()[..TAIL];
    let algorithm = if format == Format::Zstd { Algorithm::Zstd { level: 1 } } else { Algorithm::Lz4 };
    let batch = CpuBatchCompressor::new(algorithm).unwrap().compress(&pages).unwrap();
    let options = WriteOptions::default().with_format(format);
    let mut writer = ArchiveWriter::new(tempfile::tempfile().unwrap(), options).unwrap();
    writer.write_batch(&batch).unwrap();
    writer.write_tail(tail).unwrap();
    let (file, _) = writer.finish(None).unwrap();
    let mut content = pages.as_flattened().to_vec();
    content.extend_from_slice(tail);
    content.resize(STORE_PAGES * PAGE_SIZE, 0);
    (file, content)
}

fn reader(file: &File) -> PageArchive {
    PageArchive::standard(Arc::new(file.try_clone().unwrap())).unwrap().unwrap()
}

fn overlay(file: &File) -> Arc<Store> {
    let options = StoreOptions::new((STORE_PAGES * PAGE_SIZE) as u64);
    Arc::new(Store::create(&options).unwrap().with_base(reader(file)).unwrap())
}

/// One random request on the store and on the model, of up to three pages at any offset.
fn step(random: &mut Generator, handle: &mut StoreHandle, model: &mut [u8]) {
    let start = random.below(model.len());
    let len = random.below(3 * PAGE_SIZE).min(model.len() - start);
    let (at, range) = (start as u64, start..start + len);
    match random.below(8) {
        0..3 => {
            let mut part = vec![0xaa; len];
            handle.read_at(at, &mut part).unwrap();
            assert!(part == model[range], "{len} bytes at {at}");
        }
        3..5 => {
            let byte = random.byte();
            model[range.clone()].iter_mut().step_by(3).for_each(|place| *place = byte);
            handle.write_at(at, &model[range]).unwrap();
        }
        5 => {
            let (first, end) = (start.div_ceil(PAGE_SIZE) * PAGE_SIZE, (start + len) / PAGE_SIZE * PAGE_SIZE);
            model[first..end.max(first)].fill(0);
            handle.discard(at, len as u64).unwrap();
        }
        6 => {
            model[range].fill(0);
            let pages = if random.below(2) == 0 { ZeroPages::Keep } else { ZeroPages::Discard };
            handle.write_zeroes(at, len as u64, pages).unwrap();
        }
        _ => {
            let page = start / PAGE_SIZE;
            let is_zero = model[page * PAGE_SIZE..][..PAGE_SIZE].iter().all(|byte| *byte == 0);
            let state = handle.store().page_state(page as u64).unwrap();
            assert!(is_zero || state == PageState::Data, "page {page} is {state:?}");
        }
    }
}

#[test]
fn random_requests_agree_with_a_plain_array_and_the_archive_does_not_change() {
    for format in [Format::Lz4, Format::Zstd] {
        let (file, before) = archive(format);
        let store = overlay(&file);
        assert!(content(&store) == before);
        assert_eq!(store.stats().mm.orig_data_size, 0, "reading keeps nothing");
        let mut model = before.clone();
        let mut handle = StoreHandle::new(&store).unwrap();
        let mut random = Generator::new(7);
        (0..4000).for_each(|_| step(&mut random, &mut handle, &mut model));
        assert!(content(&store) == model);

        let lz4 = store.save(Vec::new(), &mut CpuBatchCompressor::default()).unwrap().0;
        assert!(decoded(&lz4) == model);
        let mut zstd = CpuBatchCompressor::new(Algorithm::Zstd { level: 1 }).unwrap();
        let zst = store.save(Vec::new(), &mut zstd).unwrap().0;
        assert!(zst.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) && decoded(&zst) == model);
        assert!(content(&overlay(&file)) == before, "the archive is as it was");
    }
}

#[test]
fn states_tell_what_shows_through() {
    let (file, _) = archive(Format::Lz4);
    let store = overlay(&file);
    let mut handle = StoreHandle::new(&store).unwrap();
    let state = |page| store.page_state(page).unwrap();
    assert_eq!([state(0), state(7), state(150), state(STORE_PAGES as u64 - 1)], {
        use PageState::{Data, Hole};
        [Data, Hole, Hole, Hole]
    });
    // A page of the archive that is discarded must not come back.
    handle.discard(0, 2 * PAGE_SIZE as u64).unwrap();
    assert_eq!((state(0), state(1)), (PageState::Zero, PageState::Zero));
    // If the archive has zeros there, a discarded page is a hole again.
    handle.write_page(150, &[1; PAGE_SIZE]).unwrap();
    assert_eq!(state(150), PageState::Data);
    handle.discard(150 * PAGE_SIZE as u64, PAGE_SIZE as u64).unwrap();
    assert_eq!(state(150), PageState::Hole);
}

#[test]
fn two_threads_change_parts_of_the_same_page() {
    let (file, mut expected) = archive(Format::Lz4);
    let store = overlay(&file);
    let barrier = Barrier::new(2);
    std::thread::scope(|scope| {
        for thread in 0..2u8 {
            let (store, barrier) = (&store, &barrier);
            scope.spawn(move || {
                let mut handle = StoreHandle::new(store).unwrap();
                for page in 0..200u64 {
                    barrier.wait();
                    handle.write_at(page * 4096 + 2048 * u64::from(thread), &[thread + 1; 100]).unwrap();
                }
            });
        }
    });
    for page in expected.chunks_exact_mut(PAGE_SIZE).take(200) {
        page[..100].fill(1);
        page[2048..2148].fill(2);
    }
    assert!(content(&store) == expected);
}

#[test]
fn what_was_written_outlives_the_process_with_its_archive() {
    let (file, mut expected) = archive(Format::Lz4);
    let store = overlay(&file);
    StoreHandle::new(&store).unwrap().write_at(5000, &[9; 5000]).unwrap();
    StoreHandle::new(&store).unwrap().discard(400 << 12, 1 << 20).unwrap();
    expected[5000..10_000].fill(9);
    expected[400 << 12..][..1 << 20].fill(0);
    let fds = store.fds().map(|fd| fd.try_clone_to_owned().unwrap());
    drop(store);
    let store = Arc::new(Store::attach(fds).unwrap().with_base(reader(&file)).unwrap());
    assert!(content(&store) == expected);
}

#[test]
fn a_damaged_page_is_an_error_until_it_is_written() {
    let (mut file, mut expected) = archive(Format::Lz4);
    let archive = reader(&file);
    archive.is_zero(0).unwrap();
    let store = Store::create(&StoreOptions::new((STORE_PAGES * PAGE_SIZE) as u64)).unwrap();
    let store = Arc::new(store.with_base(archive).unwrap());
    // The first block follows the frame's header, and its length says where its data ends.
    use std::io::{Seek, SeekFrom};
    file.seek(SeekFrom::Start(60)).unwrap();
    file.write_all(&[0x5a; 20]).unwrap();
    let mut handle = StoreHandle::new(&store).unwrap();
    let mut page = [0; PAGE_SIZE];
    assert!(matches!(handle.read_page(0, &mut page), Err(Error::Base { page: 0, .. })));
    assert!(matches!(handle.write_at(10, b"part"), Err(Error::Base { page: 0, .. })));
    assert!(store.save(Vec::new(), &mut CpuBatchCompressor::default()).is_err());
    assert_eq!(store.stats().mm.orig_data_size, 0, "nothing was written");
    handle.write_page(0, &[3; PAGE_SIZE]).unwrap();
    expected[..PAGE_SIZE].fill(3);
    assert!(content(&store) == expected);
}

#[test]
fn an_archive_that_is_longer_than_the_store_is_refused() {
    let (file, expected) = archive(Format::Lz4);
    let store = Store::create(&StoreOptions::new(((PAGES - 1) * PAGE_SIZE) as u64)).unwrap();
    assert!(matches!(store.with_base(reader(&file)), Err(Error::Options(_))));
    let store = Store::create(&StoreOptions::new((PAGES * PAGE_SIZE) as u64)).unwrap();
    assert!(content(&Arc::new(store.with_base(reader(&file)).unwrap())) == expected[..PAGES * PAGE_SIZE]);
}
