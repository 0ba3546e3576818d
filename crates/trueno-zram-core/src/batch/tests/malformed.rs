//! Decompression of malformed and unsupported pages.

use super::{CallKind, NO_HURRY, SampleShape, TWO_BLOCKS, Trial, sample_in};
use crate::arena::{CompressedBatch, IndexEntry};
use crate::cpu::CpuBatchCompressor;
use crate::error::Error;
use crate::gpu::codec::PageFormat;
use crate::gpu::ring::device::RingDevice;
use crate::gpu::ring::fake::{InjectedFault, Schedule};
use crate::page::{PAGE_SIZE, Page, PageData, PageKind};

const SHAPE: SampleShape = SampleShape { pages: 23, batch_size: 4, slots: 2, format: PageFormat::Lz4 };
const PINNED: [CallKind; 2] = [CallKind::DecompressPinned, CallKind::DecompressAllPinned];
const FORMS: [CallKind; 3] = [CallKind::DecompressInto, CallKind::DecompressPinned, CallKind::DecompressAllPinned];

/// A batch of pages held in any way.
fn batch_of<'a>(pages: impl IntoIterator<Item = (PageKind, &'a [u8])>) -> CompressedBatch {
    let (mut arena, mut index) = (Vec::new(), Vec::new());
    for (kind, bytes) in pages {
        let len_bytes = u16::try_from(bytes.len()).unwrap();
        index.push(IndexEntry { offset: arena.len() as u64, len_bytes, kind });
        arena.extend_from_slice(bytes);
    }
    CompressedBatch::from_parts(arena, index).unwrap()
}

fn held_of(batch: &CompressedBatch, page: usize) -> (PageKind, &[u8]) {
    let data: PageData<'_> = batch.get(page).unwrap();
    (data.kind(), data.bytes())
}

/// Restores a batch to places full of 0xaa; the answer, and the places.
fn restore(trial: &mut Trial, batch: &CompressedBatch) -> (Result<(), Error>, Vec<Page>) {
    if let Some(pinned) = &mut trial.pinned {
        pinned.pages_mut().unwrap().fill([0xaa; PAGE_SIZE]);
        let result = match &mut trial.packed {
            Some(packed) => {
                packed.clear();
                batch.iter().for_each(|page| packed.push(page).unwrap());
                let result = trial.compressor.decompress_all_pinned(packed, pinned, &());
                packed.clear();
                trial.sample.held.iter().for_each(|page| packed.push(page).unwrap()); // for the next batch
                result
            }
            None => trial.compressor.decompress_pinned_into(batch, pinned, &()),
        };
        (result.map(drop), pinned.pages().unwrap().to_vec())
    } else {
        let mut places = vec![[0xaa; PAGE_SIZE]; batch.len()];
        let result = trial.compressor.decompress_into(batch, &mut places, &());
        (result.map(drop), places)
    }
}

/// The trial's batch with some pages replaced by a block or frame that stops short.
fn with_bad_pages(trial: &Trial, bad: &[usize]) -> CompressedBatch {
    let block: (PageKind, &[u8]) = match trial.fake.format() {
        PageFormat::Lz4 => (PageKind::Lz4, &[0x4f, 1, 2]),
        PageFormat::Zstd => (PageKind::Zstd, &[0x28, 0xb5, 0x2f, 0xfd, 0x60, 0x00, 0x0f, 0x03, 0x80, 0x00]),
    };
    batch_of(
        (0..trial.pages.len()).map(|page| if bad.contains(&page) { block } else { held_of(&trial.sample.held, page) }),
    )
}

fn is_bad_page(result: &Result<(), Error>, page: usize) -> bool {
    let is_corrupt = |error: &Error| matches!(error, Error::CorruptLz4(_) | Error::CorruptZstd { .. });
    matches!(result, Err(Error::InPage { index, error }) if *index == page && is_corrupt(error))
}

#[test]
fn a_bad_page_is_an_error_by_its_index_and_all_others_are_restored() {
    for (form, shape) in FORMS.into_iter().flat_map(|form| SHAPE.in_all_formats().map(|shape| (form, shape))) {
        for bad in [&[0][..], &[22], &[9], &[3, 4, 17], &[6, 5], &[20, 21, 22]] {
            let mut trial = Trial::new(form, shape, Schedule::Random(5), NO_HURRY);
            trial.run().unwrap(); // so that the device's memory holds pages of another batch
            let batch = with_bad_pages(&trial, bad);
            let (result, places) = restore(&mut trial, &batch);
            assert!(is_bad_page(&result, *bad.iter().min().unwrap()), "{form:?}, {bad:?}: {result:?}");
            let by_cpu = CpuBatchCompressor::default().decompress(&batch).map(drop);
            assert_eq!(result, by_cpu, "{form:?}, {bad:?}: the error is the CPU's");
            for (page, place) in places.iter().enumerate().filter(|(page, _)| !bad.contains(page)) {
                assert!(*place == trial.pages[page], "{form:?}, {bad:?}: page {page}");
            }
            let fallback = &trial.compressor.stats().fallback;
            assert_eq!((fallback.batches, fallback.pages), (0, 0), "bad pages are not the device's fault");
            assert_eq!(fallback.unsupported_pages, 0, "the kernel decodes such pages");
            assert_eq!(trial.run().unwrap().by_cpu, 0, "the device is used again");
            trial.end();
        }
    }
}

#[test]
fn bad_pages_are_errors_by_their_index_when_the_device_fails_too() {
    for (form, shape) in FORMS.into_iter().flat_map(|form| SHAPE.in_all_formats().map(|shape| (form, shape))) {
        let mut trial = Trial::new(form, shape, Schedule::Eager, NO_HURRY);
        trial.fake.arm([]);
        trial.run().unwrap();
        for at in 0..trial.fake.calls().len() {
            let mut trial = Trial::new(form, shape, Schedule::Eager, NO_HURRY);
            let batch = with_bad_pages(&trial, &[2, 21]);
            trial.fake.arm([(at, InjectedFault::OutOfMemory)]);
            let (result, places) = restore(&mut trial, &batch);
            assert!(is_bad_page(&result, 2), "{form:?}, call {at}: {result:?}");
            let wrong = (0..23).find(|page| ![2, 21].contains(page) && places[*page] != trial.pages[*page]);
            assert_eq!(wrong, None, "{form:?}, call {at}");
            trial.end();
        }
    }
}

/// Returns `true` if a place has bytes of another page: a run that is not of one byte.
fn shows(place: &Page, pages: &[Page]) -> bool {
    let runs = place.windows(16).filter(|run| run.iter().any(|byte| *byte != run[0]));
    runs.into_iter().any(|run| pages.iter().any(|page| page.windows(16).any(|other| other == run)))
}

#[test]
fn the_place_of_a_refused_page_shows_nothing_of_other_pages() {
    let shapes = (1..=3).flat_map(|slots| SampleShape { slots, ..SHAPE }.in_all_formats());
    for (shape, form) in shapes.flat_map(|shape| PINNED.map(|form| (shape, form))) {
        let mut trial = Trial::new(form, shape, Schedule::Eager, NO_HURRY);
        trial.run().unwrap(); // leaves its pages in the device's memory
        let bad = [1, 2, 6, 13, 22];
        let batch = with_bad_pages(&trial, &bad);
        let (result, places) = restore(&mut trial, &batch);
        assert!(is_bad_page(&result, 1), "{result:?}");
        let leak = bad.into_iter().find(|page| shows(&places[*page], &trial.pages));
        assert_eq!(leak, None, "{form:?} with {shape:?}");
        trial.end();
    }
}

#[test]
fn the_place_of_a_refused_page_shows_nothing_of_other_pages_when_the_device_fails_too() {
    // Pages that lie in the places of pages with bytes of their own, which an earlier batch left on the device.
    let (shape, bad) = (SampleShape { pages: 12, ..SHAPE }, [6, 10]);
    let prepared = || {
        let mut trial = Trial::new(CallKind::DecompressPinned, shape, Schedule::Eager, NO_HURRY);
        trial.run().unwrap();
        let batch = with_bad_pages(&trial, &bad);
        (trial, batch)
    };
    let (mut trial, batch) = prepared();
    trial.fake.arm([]);
    assert!(is_bad_page(&restore(&mut trial, &batch).0, 6));
    for at in 0..trial.fake.calls().len() {
        let (mut trial, batch) = prepared();
        trial.fake.arm([(at, InjectedFault::OutOfMemory)]);
        let (result, places) = restore(&mut trial, &batch);
        assert!(is_bad_page(&result, 6), "call {at}: {result:?}");
        let leak = bad.into_iter().find(|page| shows(&places[*page], &trial.pages));
        assert_eq!(leak, None, "call {at}: {:?}", trial.fake.fired());
        trial.end();
    }
}

/// Pages held in another format than the device's kernels read are the CPU's.
#[test]
fn pages_of_the_other_format_among_the_others_are_restored_and_counted() {
    for (form, shape) in FORMS.into_iter().flat_map(|form| SHAPE.in_all_formats().map(|shape| (form, shape))) {
        let mut trial = Trial::new(form, shape, Schedule::OneByOne, NO_HURRY);
        let other = PageFormat::ALL.into_iter().find(|format| *format != shape.format).unwrap();
        let foreign = sample_in(other, 23);
        let pages = (0..23).map(|page| held_of(if page % 3 == 0 { &foreign.held } else { &trial.sample.held }, page));
        let batch = batch_of(pages);
        let foreign_pages = (0..23).filter(|page| held_of(&batch, *page).0 == other.kind()).count();
        assert!(foreign_pages > 3 && (0..23).any(|page| held_of(&batch, page).0 == shape.format.kind()));
        let (result, places) = restore(&mut trial, &batch);
        assert_eq!(result, Ok(()));
        assert!(places == trial.pages, "{form:?}, {shape:?}");
        let fallback = trial.fallback();
        assert_eq!((fallback.batches, fallback.pages), (0, 0), "{form:?}, {shape:?}: the device did not fail");
        assert_eq!(fallback.unsupported_pages, foreign_pages as u64, "{form:?}, {shape:?}");
        trial.end();
    }
}

/// Frames that the kernel does not decode, and that are no frames at all.
#[test]
fn frames_in_forms_that_the_kernel_does_not_decode_are_the_cpus() {
    let page = std::array::from_fn(|i| if i < 2048 { b'x' } else { b'y' });
    let no_frame = (PageKind::Zstd, &b"not a frame"[..]);
    for form in FORMS {
        let mut trial = Trial::new(form, SampleShape { format: PageFormat::Zstd, ..SHAPE }, Schedule::Eager, NO_HURRY);
        for (damaged, unsupported) in [(None, 4), (Some(9), 5)] {
            let before = trial.fallback().clone();
            let pages = (0..23).map(|number| match number {
                2 | 3 | 13 | 22 => (PageKind::Zstd, &TWO_BLOCKS[..]),
                _ if damaged == Some(number) => no_frame,
                _ => held_of(&trial.sample.held, number),
            });
            let batch = batch_of(pages);
            let (result, places) = restore(&mut trial, &batch);
            assert_eq!(result, CpuBatchCompressor::default().decompress(&batch).map(drop), "{form:?}");
            assert_eq!(result.is_err(), damaged.is_some());
            for number in (0..23).filter(|number| damaged != Some(*number)) {
                let expected = if [2, 3, 13, 22].contains(&number) { page } else { trial.pages[number] };
                assert!(places[number] == expected, "{form:?}: page {number}");
            }
            let fallback = trial.fallback();
            assert_eq!(fallback.unsupported_pages - before.unsupported_pages, unsupported, "{form:?}");
            assert_eq!((fallback.batches, fallback.pages), (0, 0), "{form:?}");
        }
        trial.end();
    }
}

#[test]
fn a_destination_of_another_length_is_refused_and_left_alone() {
    for form in FORMS {
        let mut trial = Trial::new(form, SHAPE, Schedule::Eager, NO_HURRY);
        trial.fake.arm([]);
        let short = batch_of((0..22).map(|page| held_of(&trial.sample.held, page)));
        let result = match &mut trial.pinned {
            Some(pinned) => trial.compressor.decompress_pinned_into(&short, pinned, &()),
            None => trial.compressor.decompress_into(&short, &mut [[0; PAGE_SIZE]; 23], &()),
        };
        assert_eq!(result.map(drop), Err(Error::PageCount { batch_pages: 22, destination_pages: 23 }));
        assert_eq!(trial.fake.calls(), [], "{form:?}");
        trial.end();
    }
}
