//! Page-locked pages of the caller.

use super::{CallKind, NO_HURRY, SOON, SampleShape, Trial, config, options, sample_in};
use crate::arena::CompressedBatch;
use crate::batch::GpuBatchCompressor;
use crate::error::Error;
use crate::gpu::FallbackStats;
use crate::gpu::codec::PageFormat;
use crate::gpu::ring::device::RingDevice;
use crate::gpu::ring::fake::{Call, FakeDevice, InjectedFault, Schedule};
use crate::page::{PAGE_SIZE, PageData, PageKind};

const SHAPE: SampleShape = SampleShape { pages: 23, batch_size: 4, slots: 3, format: PageFormat::Lz4 };

#[test]
fn part_of_the_pages_can_be_used() {
    let mut trial = Trial::new(CallKind::CompressPinned, SHAPE, Schedule::Random(1), NO_HURRY);
    for len in [23, 1, 9, 0, 23] {
        trial.pinned.as_mut().unwrap().set_len(len);
        let mut batch = CompressedBatch::new();
        trial.compressor.compress_pinned_into(trial.pinned.as_mut().unwrap(), &mut batch, &()).unwrap();
        let restored: Vec<_> = (0..batch.len()).map(|page| super::restored(batch.get(page).unwrap())).collect();
        assert!(restored == trial.pages[..len], "{len} pages");
    }
    trial.end();
}

#[test]
fn pages_beyond_the_length_in_use_are_left_alone() {
    let mut trial = Trial::new(CallKind::DecompressPinned, SHAPE, Schedule::OneByOne, NO_HURRY);
    let mut larger = trial.compressor.pinned_pages(30).unwrap();
    larger.pages_mut().unwrap().fill([0xbb; PAGE_SIZE]);
    larger.set_len(23);
    trial.compressor.decompress_pinned_into(&trial.sample.held, &mut larger, &()).unwrap();
    assert!(larger.pages().unwrap() == trial.pages);
    larger.set_len(30);
    assert!(larger.pages().unwrap()[23..].iter().all(|page| *page == [0xbb; PAGE_SIZE]));
    drop(larger);
    trial.end();
}

#[test]
fn pages_stay_readable_when_the_device_is_lost_while_it_reads_them() {
    for fault in [
        InjectedFault::IllegalAddress,
        InjectedFault::IllegalAddressLater,
        InjectedFault::LaunchFailed,
        InjectedFault::DeviceLost,
    ] {
        let mut trial = Trial::new(CallKind::CompressPinned, SHAPE, Schedule::OneByOne, NO_HURRY);
        trial.run().unwrap();
        trial.fake.arm([(5, fault)]);
        assert!(trial.run().unwrap().by_cpu > 0);
        let pinned = trial.pinned.as_mut().unwrap();
        assert!(pinned.pages().unwrap() == trial.pages, "{fault:?}");
        if fault == InjectedFault::DeviceLost {
            // Nothing is known of the copies of a device that is gone.
            assert!(pinned.pages_mut().is_err());
            trial.end();
            continue;
        }
        // A kernel has broken the device, and with that its copies have stopped: they can be changed, too.
        pinned.pages_mut().unwrap()[0] = [1; PAGE_SIZE];
        trial.pages[0] = [1; PAGE_SIZE];
        assert_eq!(trial.run().unwrap().by_cpu, 23, "{fault:?}");
        trial.end();
    }
}

#[test]
fn pages_outlive_the_compressor() {
    let mut trial = Trial::new(CallKind::DecompressPinned, SHAPE, Schedule::Eager, NO_HURRY);
    trial.run().unwrap();
    let Trial { compressor, pinned, pages, fake, .. } = trial;
    drop(compressor);
    assert_eq!(fake.seen().slots, 0);
    let pinned = pinned.unwrap();
    assert!(pinned.pages().unwrap() == pages);
    drop(pinned);
    assert_eq!(fake.seen().pinned, 0);
}

#[test]
fn memory_that_is_refused_is_an_error_with_the_calls_name() {
    let fake = FakeDevice::new(Schedule::Eager);
    let compressor = GpuBatchCompressor::on(fake.clone(), config(SHAPE), &options(NO_HURRY)).unwrap();
    fake.arm([(0, InjectedFault::OutOfMemory)]);
    let Err(Error::Gpu(why)) = compressor.pinned_pages(5) else { panic!("another answer") };
    assert_eq!(why.to_string(), "cuMemHostAlloc: CUDA_ERROR_OUT_OF_MEMORY (2)");
    assert!(compressor.pinned_pages(usize::MAX).is_err(), "more than there are bytes");
    assert_eq!(compressor.pinned_pages(5).unwrap().len(), 5, "the device is still there");
}

#[test]
fn no_memory_is_to_be_had_of_a_device_that_was_given_up() {
    let mut trial = Trial::new(CallKind::CompressInto, SHAPE, Schedule::Eager, NO_HURRY);
    trial.fake.arm([(3, InjectedFault::LaunchFailed)]);
    trial.run().unwrap();
    trial.fake.arm([]);
    let Err(Error::Gpu(why)) = trial.compressor.pinned_pages(5) else { panic!("another answer") };
    assert!(why.to_string().contains("CUDA_ERROR_LAUNCH_FAILED (719)"), "{why}");
    assert_eq!(trial.fake.calls(), []);
    trial.end();
}

#[test]
fn a_batch_without_room_is_refused_before_anything_is_done() {
    let mut trial = Trial::new(CallKind::CompressAllPinned, SHAPE, Schedule::Eager, NO_HURRY);
    trial.run().unwrap();
    let mut smaller = trial.compressor.pinned_batch(22).unwrap();
    trial.fake.arm([]);
    let refused = trial.compressor.compress_all_pinned(trial.pinned.as_mut().unwrap(), &mut smaller, &());
    assert_eq!(refused, Err(Error::PageCount { batch_pages: 23, destination_pages: 22 }));
    let refused = trial.compressor.decompress_all_pinned(&mut smaller, trial.pinned.as_mut().unwrap(), &());
    assert_eq!(refused, Err(Error::PageCount { batch_pages: 0, destination_pages: 23 }));
    assert_eq!(trial.fake.calls(), []);
    drop(smaller);
    trial.end();
}

#[test]
fn a_pinned_batch_takes_pages_of_every_kind_until_it_is_full() {
    let mut trial = Trial::new(CallKind::DecompressAllPinned, SHAPE, Schedule::Eager, NO_HURRY);
    let packed = trial.packed.as_mut().unwrap();
    let held = |page: usize| trial.sample.held.get(page).unwrap();
    assert_eq!(packed.push(held(0)), Err(Error::PageCount { batch_pages: 24, destination_pages: 23 }));
    packed.clear();
    // In another order, as other pages, and every third as a Zstandard frame, if it shrinks.
    let frames = sample_in(PageFormat::Zstd, 23);
    let expected = |page: usize| if page.is_multiple_of(3) { frames.held.get(page).unwrap() } else { held(page) };
    for page in (0..23).rev() {
        packed.push(expected(page)).unwrap();
    }
    assert_eq!((packed.len(), packed.capacity()), (23, 23));
    assert!((0..23).all(|page| packed.get(page).unwrap() == Some(expected(22 - page))));
    let zstd = packed.index().iter().filter(|entry| entry.kind == PageKind::Zstd).count();
    assert!(zstd > 3);
    trial.pages.reverse();
    assert_eq!(trial.run().unwrap().by_cpu, 0);
    assert_eq!(trial.fallback().unsupported_pages, zstd as u64, "frames are the CPU's");
    trial.end();
}

#[test]
fn a_corrupt_page_of_a_pinned_batch_is_an_error_with_its_number_and_harms_no_other() {
    let mut trial = Trial::new(CallKind::DecompressAllPinned, SHAPE, Schedule::OneByOne, NO_HURRY);
    let corrupt = PageData::new(PageKind::Lz4, &[0xff; 40]).unwrap();
    let packed = trial.packed.as_mut().unwrap();
    packed.clear();
    for page in 0..23 {
        packed.push(if page == 9 { corrupt } else { trial.sample.held.get(page).unwrap() }).unwrap();
    }
    let Err(Error::InPage { index: 9, .. }) = trial.run() else { panic!("page 9 is corrupt") };
    let pages = trial.pinned.as_ref().unwrap().pages().unwrap();
    assert!((0..23).all(|page| page == 9 || pages[page] == trial.pages[page]));
    assert!(pages[9] != [0xaa; PAGE_SIZE], "nothing of what was there before");
    assert_eq!(trial.compressor.stats().fallback.batches, 0, "the device did what it should");
    trial.end();
}

const PINNED: [CallKind; 4] =
    [CallKind::CompressPinned, CallKind::CompressAllPinned, CallKind::DecompressPinned, CallKind::DecompressAllPinned];

/// Each gets the page-locked memory of the other.
fn swap_memory(one: &mut Trial, other: &mut Trial) {
    std::mem::swap(&mut one.pinned, &mut other.pinned);
    std::mem::swap(&mut one.packed, &mut other.packed);
}

#[test]
fn pages_made_on_one_device_serve_another() {
    for form in PINNED {
        let [mut one, mut other] = [1, 2].map(|seed| Trial::new(form, SHAPE, Schedule::Random(seed), NO_HURRY));
        for round in 0..4 {
            // Each has the pages that the other has used just before.
            swap_memory(&mut one, &mut other);
            for trial in [&mut one, &mut other] {
                assert_eq!(trial.run().unwrap().by_device, SHAPE.pages, "{form:?}, round {round}");
            }
        }
        for trial in [one, other] {
            assert_eq!(*trial.fallback(), FallbackStats::default(), "{form:?}");
            trial.end();
        }
    }
}

#[test]
fn pages_that_cannot_be_adopted_are_left_to_the_cpu() {
    for form in PINNED {
        let [mut one, mut other] = [1, 2].map(|seed| Trial::new(form, SHAPE, Schedule::Random(seed), NO_HURRY));
        swap_memory(&mut one, &mut other);
        one.fake.arm_always(Call::Adopt, InjectedFault::OutOfMemory);
        for batches in 1..=4 {
            assert_eq!(one.run().unwrap().by_cpu, SHAPE.pages, "{form:?}");
            assert_eq!((one.fallback().batches, one.compressor.uses_device()), (batches, true), "{form:?}");
        }
        let why = one.fallback().last_reason.clone().unwrap();
        assert_eq!(why, "page-locked memory of another device: cuEventCreate: CUDA_ERROR_OUT_OF_MEMORY (2)");
        swap_memory(&mut one, &mut other);
        assert_eq!(one.run().unwrap().by_device, SHAPE.pages, "{form:?}: its own pages are as before");
        drop(other);
        one.end();
    }
}

/// A device that hangs may go on at any time. That is no fault of the device that is to use the pages next.
#[test]
fn pages_that_another_device_may_still_use_do_not_count_against_this_one() {
    for (form, call) in [
        (CallKind::CompressPinned, Call::Upload),
        (CallKind::CompressAllPinned, Call::Upload),
        (CallKind::DecompressPinned, Call::Download),
        (CallKind::DecompressAllPinned, Call::Download),
    ] {
        let mut hung = Trial::new(form, SHAPE, Schedule::Eager, SOON);
        hung.fake.arm_always(call, InjectedFault::Hang);
        let _ = hung.run();
        assert!(!hung.compressor.uses_device(), "{form:?}");
        let mut other = Trial::new(form, SHAPE, Schedule::Eager, NO_HURRY);
        swap_memory(&mut hung, &mut other);
        for batches in 1..=4 {
            match other.run() {
                // Bytes that the GPU only reads are accessible.
                Ok(done) => assert_eq!((form.compresses(), done.by_cpu), (true, SHAPE.pages), "{form:?}"),
                Err(Error::Gpu(why)) => {
                    assert!(!form.compresses(), "{form:?}");
                    assert!(why.to_string().contains("did not finish within 5 ms"), "{why}");
                }
                Err(error) => panic!("{form:?}: {error}"),
            }
            assert_eq!((other.fallback().batches, other.compressor.uses_device()), (batches, true), "{form:?}");
            let by_cpu = if form.compresses() { batches * 23 } else { 0 };
            assert_eq!(other.fallback().pages, by_cpu, "{form:?}");
        }
        swap_memory(&mut hung, &mut other);
        assert_eq!(other.run().unwrap().by_device, SHAPE.pages, "{form:?}: its own pages are as before");
        hung.end();
        other.end();
    }
}

#[test]
fn a_device_that_is_lost_is_let_go_whichever_pages_it_is_given() {
    let [mut one, mut other] = [1, 2].map(|_| Trial::new(CallKind::CompressPinned, SHAPE, Schedule::Eager, NO_HURRY));
    swap_memory(&mut one, &mut other);
    one.fake.give_up("by someone else");
    assert_eq!(one.run().unwrap().by_cpu, SHAPE.pages);
    assert!(!one.compressor.uses_device());
    assert_eq!((one.fallback().batches, one.fallback().pages), (1, 23));
    drop(other);
    one.end();
}

#[test]
fn bytes_between_pages_show_nothing_of_earlier_ones() {
    let trial = Trial::new(CallKind::CompressAllPinned, SHAPE, Schedule::Eager, NO_HURRY);
    let mut batch = trial.compressor.pinned_batch(2).unwrap();
    batch.push(PageData::new(PageKind::Raw, &[0x5e; PAGE_SIZE]).unwrap()).unwrap();
    batch.clear();
    batch.push(PageData::new(PageKind::SameFilled, &[1; 8]).unwrap()).unwrap();
    batch.push(PageData::new(PageKind::Lz4, &[2; 3]).unwrap()).unwrap();
    assert_eq!(batch.arena().unwrap(), [&[1; 8][..], &[0; 8], &[2; 3], &[0; 13]].concat());
    drop(batch);
    trial.end();
}

#[test]
fn a_batch_that_cannot_be_written_any_more_keeps_its_pages() {
    let mut trial = Trial::new(CallKind::DecompressAllPinned, SHAPE, Schedule::Eager, SOON);
    trial.fake.arm_always(Call::Upload, InjectedFault::Hang);
    assert!(trial.run().unwrap().by_cpu > 0, "the CPU reads what the device may still read, too");
    let why = trial.compressor.stats().fallback.device_given_up.clone();
    let packed = trial.packed.as_mut().unwrap();
    for _ in 0..4 {
        let refused = trial.compressor.compress_all_pinned(trial.pinned.as_mut().unwrap(), packed, &());
        assert!(matches!(refused, Err(Error::Gpu(_))), "{refused:?}");
        assert_eq!(packed.get(22).unwrap(), trial.sample.held.get(22));
    }
    assert_eq!(trial.compressor.stats().fallback.device_given_up, why, "there is one reason");
    trial.end();
}
