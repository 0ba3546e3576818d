//! Streams on a healthy device, and what their callers may do with slots.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;

use super::{NO_HURRY, Sample, TWO_BLOCKS, assert_freed, config, options, restored, sample, sample_in};
use crate::batch::tests::SampleShape;
use crate::batch::{GpuBatchCompressor, PackedSlot, PageSlot, PageStream};
use crate::error::Error;
use crate::gpu::codec::PageFormat;
use crate::gpu::ring::device::{DeviceQueue, RingDevice};
use crate::gpu::ring::fake::{FakeDevice, Schedule};
use crate::page::{PAGE_SIZE, Page, PageData, PageKind};

/// The direction of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamKind {
    Compress,
    Decompress,
}

impl StreamKind {
    pub(super) const BOTH: [Self; 2] = [Self::Compress, Self::Decompress];
}

pub(super) const SHAPE: SampleShape = SampleShape { pages: 23, batch_size: 4, slots: 1, format: PageFormat::Lz4 };
/// Slots of a stream for each slot of the ring.
const STREAM_SLOTS: usize = 3;

pub(super) type Compressor = GpuBatchCompressor<FakeDevice>;

pub(super) fn compressor(fake: &FakeDevice, shape: SampleShape) -> Compressor {
    let shape = SampleShape { format: fake.format(), ..shape };
    GpuBatchCompressor::on(fake.clone(), config(shape), &options(NO_HURRY)).unwrap()
}

pub(super) fn fill(slot: &mut PageSlot<FakeDevice>, pages: &[Page]) {
    slot.set_len(pages.len());
    slot.pages_mut().copy_from_slice(pages);
}

/// Sends all pages of a sample through a stream, one thread doing everything, and checks every page. Every other slot goes back
/// to the stream; the rest are filled again at once. Returns how many pages the CPU did.
pub(super) fn run(compressor: &mut Compressor, way: StreamKind, sample: &Sample) -> usize {
    let before = compressor.stats().clone();
    let results = match way {
        StreamKind::Compress => compress(compressor, &sample.pages),
        StreamKind::Decompress => decompress(compressor, sample),
    };
    assert!(results == sample.pages, "{way:?}: {:?}", compressor.stats());
    let stats = compressor.stats();
    let done = match way {
        StreamKind::Compress => stats.pages_compressed - before.pages_compressed,
        StreamKind::Decompress => stats.pages_decompressed - before.pages_decompressed,
    };
    assert_eq!(done, sample.pages.len() as u64, "{way:?}");
    usize::try_from(stats.fallback.pages - before.fallback.pages).unwrap()
}

fn compress(compressor: &mut Compressor, pages: &[Page]) -> Vec<Page> {
    let stream = compressor.compress_stream().unwrap();
    let (mut results, mut left) = (Vec::new(), pages.chunks(stream.slot_pages()));
    let mut reused = None;
    while results.len() < pages.len() {
        if left.len() > 0
            && let Some(mut slot) = reused.take().or_else(|| stream.try_slot().unwrap())
        {
            fill(&mut slot, left.next().unwrap());
            stream.submit(slot, left.len()).unwrap();
            continue;
        }
        let (compressed, left_then) = stream.next().unwrap().expect("slots are in flight");
        assert_eq!(left_then, pages[results.len()..].len().div_ceil(stream.slot_pages()) - 1, "the tag of this slot");
        assert_eq!(compressed.pages(), &pages[results.len()..][..compressed.len()]);
        results.extend(compressed.iter().map(restored));
        reused = (left.len() % 2 == 0).then(|| compressed.into_slot());
    }
    assert_eq!(stream.pending(), 0);
    stream.close();
    assert!(stream.next().unwrap().is_none());
    results
}

fn decompress(compressor: &mut Compressor, sample: &Sample) -> Vec<Page> {
    let stream = compressor.decompress_stream().unwrap();
    let held: Vec<PageData<'_>> = sample.held.iter().collect();
    let (mut results, mut left) = (Vec::new(), held.chunks(stream.slot_pages()));
    let mut reused = None;
    while results.len() < held.len() {
        if left.len() > 0
            && let Some(mut slot) = reused.take().or_else(|| stream.try_slot().unwrap())
        {
            left.next().unwrap().iter().for_each(|page| slot.push(*page).unwrap());
            stream.submit(slot, ()).unwrap();
            continue;
        }
        let (restored, ()) = stream.next().unwrap().expect("slots are in flight");
        assert_eq!(restored.check(), Ok(()));
        results.extend_from_slice(restored.pages());
        reused = (left.len() % 2 == 0).then(|| restored.into_slot());
    }
    results
}

/// Ends a compressor: all memory is freed, and nothing was done that a GPU would punish.
pub(super) fn end(compressor: Compressor, fake: &FakeDevice) {
    drop(compressor);
    assert_freed(fake);
    assert_eq!(fake.seen().misuses, Vec::<String>::new());
}

#[test]
fn bytes_are_right_in_every_order_and_with_every_number_of_slots() {
    for (way, format) in StreamKind::BOTH.into_iter().flat_map(|way| PageFormat::ALL.map(|format| (way, format))) {
        for slots in 1..=3 {
            let starved =
                [DeviceQueue::H2d, DeviceQueue::Compute, DeviceQueue::D2h].map(|queue| Schedule::Starved(queue, 20));
            let others = [Schedule::Eager, Schedule::OneByOne, Schedule::LastFirst, Schedule::Random(slots as u64)];
            for schedule in starved.into_iter().chain(others) {
                let fake = FakeDevice::with_format(schedule, format);
                let mut compressor = compressor(&fake, SampleShape { slots, ..SHAPE });
                for _ in 0..2 {
                    let by_cpu = run(&mut compressor, way, &sample_in(format, 70));
                    assert_eq!(by_cpu, 0, "{way:?}, {format:?}, {slots} slots, {schedule:?}");
                }
                assert_eq!(fake.pending(), 0);
                end(compressor, &fake);
            }
        }
    }
}

#[test]
fn batches_follow_each_other_without_a_drain() {
    for way in StreamKind::BOTH {
        // Nothing comes back before every slot of the stream has work queued: with a drain in between it never would.
        let fake = FakeDevice::new(Schedule::Held(DeviceQueue::D2h, STREAM_SLOTS * 2));
        let mut compressor = compressor(&fake, SampleShape { slots: 2, ..SHAPE });
        assert_eq!(run(&mut compressor, way, &sample(70)), 0);
        assert_eq!(fake.seen().most_in_flight, STREAM_SLOTS * 2, "{way:?}");
        end(compressor, &fake);
    }
}

#[test]
fn streams_and_calls_take_turns_and_allocate_once() {
    for way in StreamKind::BOTH {
        let fake = FakeDevice::new(Schedule::Random(3));
        let mut compressor = compressor(&fake, SHAPE);
        let sample = sample(70);
        let round = |compressor: &mut Compressor| {
            assert_eq!(run(compressor, way, &sample), 0);
            let result = compressor.compress_batch(&sample.pages).unwrap();
            assert!(result.pages.iter().zip(&sample.pages).all(|(held, page)| restored(held.data()) == *page));
        };
        round(&mut compressor);
        let allocations = fake.seen().allocations;
        (0..3).for_each(|_| round(&mut compressor));
        assert_eq!(fake.seen().allocations, allocations, "{way:?}");
        end(compressor, &fake);
    }
}

#[test]
fn times_and_stats_add_up() {
    let fake = FakeDevice::new(Schedule::OneByOne);
    let mut compressor = compressor(&fake, SHAPE);
    let (sample, mut totals) = (sample(12), 0);
    let stream = compressor.compress_stream().unwrap();
    for pages in sample.pages.chunks(4) {
        let mut slot = stream.slot().unwrap();
        fill(&mut slot, pages);
        stream.submit(slot, ()).unwrap();
    }
    stream.close();
    let mut held_bytes = 0;
    while let Some((compressed, ())) = stream.next().unwrap() {
        let times = compressed.times();
        assert!(times.h2d_time_ns > 0 && times.kernel_time_ns > 0 && times.d2h_time_ns > 0, "{times:?}");
        totals += times.total_time_ns;
        held_bytes += compressed.iter().map(|page| page.bytes().len() as u64).sum::<u64>();
    }
    drop(stream);
    let stats = compressor.stats();
    assert_eq!((stats.total_time_ns, stats.total_bytes_out, stats.total_bytes_in), (totals, held_bytes, 12 * 4096));
    end(compressor, &fake);
}

#[test]
fn several_threads_fill_slots_while_another_takes_results() {
    let fake = FakeDevice::new(Schedule::Random(5));
    let mut compressor = compressor(&fake, SampleShape { slots: 2, ..SHAPE });
    let sample = sample(200);
    let stream = compressor.compress_stream().unwrap();
    let (to_fillers, slots) = channel::<(usize, PageSlot<FakeDevice>)>();
    let slots = std::sync::Mutex::new(slots);
    let (to_submitter, filled) = channel();
    let mut results = Vec::new();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let to_submitter = to_submitter.clone();
            let (slots, pages) = (&slots, &sample.pages);
            scope.spawn(move || {
                loop {
                    let next = slots.lock().unwrap().recv();
                    let Ok((number, mut slot)) = next else { return };
                    fill(&mut slot, &pages[4 * number..][..4]);
                    to_submitter.send((number, slot)).unwrap();
                }
            });
        }
        drop(to_submitter);
        scope.spawn(|| {
            for number in 0..50 {
                to_fillers.send((number, stream.slot().unwrap())).unwrap();
            }
            drop(to_fillers);
        });
        scope.spawn(|| {
            // Slots come filled in any order, and are submitted in that of their pages.
            let mut waiting = std::collections::BTreeMap::new();
            let mut next = 0;
            for (number, slot) in filled {
                waiting.insert(number, slot);
                while let Some(slot) = waiting.remove(&next) {
                    stream.submit(slot, ()).unwrap();
                    next += 1;
                }
            }
            stream.close();
        });
        while let Some((compressed, ())) = stream.next().unwrap() {
            results.extend(compressed.iter().map(restored));
        }
    });
    assert!(results == sample.pages);
    drop(stream);
    assert_eq!(compressor.stats().fallback.pages, 0);
    end(compressor, &fake);
}

#[test]
fn two_compressors_stream_through_one_device_at_the_same_time() {
    let fake = FakeDevice::new(Schedule::Random(11));
    let mut both = [compressor(&fake, SHAPE), compressor(&fake, SHAPE)];
    std::thread::scope(|scope| {
        for (compressor, way) in both.iter_mut().zip(StreamKind::BOTH) {
            scope.spawn(move || (0..3).for_each(|_| assert_eq!(run(compressor, way, &sample(70)), 0)));
        }
    });
    drop(both);
    assert_freed(&fake);
    assert_eq!(fake.seen().misuses, Vec::<String>::new());
}

#[test]
fn empty_slots_and_short_slots_keep_their_places() {
    let fake = FakeDevice::new(Schedule::OneByOne);
    let mut compressor = compressor(&fake, SHAPE);
    let stream = compressor.compress_stream().unwrap();
    for len in [0, 3, 0] {
        let mut slot = stream.slot().unwrap();
        slot.set_len(len);
        assert_eq!((slot.len(), slot.is_empty()), (len, len == 0));
        slot.pages_mut().fill([9; PAGE_SIZE]);
        stream.submit(slot, ()).unwrap();
    }
    assert!(stream.try_slot().unwrap().is_none(), "all three are in use");
    let lens: Vec<usize> = (0..3).map(|_| stream.next().unwrap().unwrap().0.len()).collect();
    assert_eq!(lens, [0, 3, 0]);
    assert!(stream.try_next().unwrap().is_none());
    drop(stream);
    end(compressor, &fake);
}

/// A stream that ends half-way: some slots are in flight, one is being filled, one read.
fn half_way(compressor: &mut Compressor) -> (PageSlot<FakeDevice>, crate::batch::CompressedSlot<FakeDevice>) {
    let sample = sample(70);
    let stream = compressor.compress_stream().unwrap();
    for pages in sample.pages.chunks(4).take(4) {
        let mut slot = stream.slot().unwrap();
        fill(&mut slot, pages);
        stream.submit(slot, ()).unwrap();
    }
    let (read, ()) = stream.next().unwrap().unwrap();
    (stream.slot().unwrap(), read)
}

#[test]
fn a_stream_dropped_half_way_leaves_device_and_compressor_usable() {
    for schedule in [Schedule::Eager, Schedule::OneByOne, Schedule::LastFirst, Schedule::Random(2)] {
        let fake = FakeDevice::new(schedule);
        let mut compressor = compressor(&fake, SampleShape { slots: 2, ..SHAPE });
        let (mut unused, read) = half_way(&mut compressor);
        assert_eq!(fake.pending(), 0, "no copy is in progress");
        let allocations = fake.seen().allocations;
        let before: Vec<Page> = read.iter().map(restored).collect();
        for way in StreamKind::BOTH {
            assert_eq!(run(&mut compressor, way, &sample(70)), 0, "{schedule:?}");
        }
        assert!(fake.seen().allocations >= allocations);
        // Slots of the old stream hold what they held, on any thread.
        let after = std::thread::spawn(move || {
            unused.pages_mut().fill([1; PAGE_SIZE]);
            let after: Vec<Page> = read.iter().map(restored).collect();
            drop((unused, read));
            after
        });
        assert!(after.join().unwrap() == before && before == sample(70).pages[..4]);
        assert_eq!(run(&mut compressor, StreamKind::Compress, &sample(70)), 0);
        end(compressor, &fake);
    }
}

#[test]
fn slots_outlive_the_compressor_and_are_freed_when_dropped() {
    let fake = FakeDevice::new(Schedule::OneByOne);
    let mut compressor = compressor(&fake, SampleShape { slots: 2, ..SHAPE });
    let (mut unused, read) = half_way(&mut compressor);
    drop(compressor);
    assert_eq!(fake.seen().slots, 2, "those in use");
    unused.pages_mut()[0] = [3; PAGE_SIZE];
    assert!(read.iter().map(restored).eq(sample(70).pages[..4].iter().copied()));
    drop((unused, read));
    assert_freed(&fake);
    assert_eq!(fake.seen().misuses, Vec::<String>::new());
}

#[test]
fn a_panic_of_the_caller_leaves_device_and_compressor_usable() {
    for schedule in [Schedule::OneByOne, Schedule::LastFirst] {
        let fake = FakeDevice::new(schedule);
        let mut compressor = compressor(&fake, SampleShape { slots: 2, ..SHAPE });
        let panic = catch_unwind(AssertUnwindSafe(|| {
            let _slots = half_way(&mut compressor);
            let stream = compressor.compress_stream().unwrap();
            let (slot, _unused) = (stream.slot().unwrap(), stream.slot().unwrap());
            stream.submit(slot, ()).unwrap();
            panic!("the caller's own");
        }));
        assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"the caller's own"));
        assert_eq!(fake.pending(), 0, "no copy is in progress");
        assert_eq!(run(&mut compressor, StreamKind::Compress, &sample(70)), 0);
        end(compressor, &fake);
    }
}

#[test]
fn a_slot_of_another_stream_is_done_by_the_cpu_in_its_place() {
    let fakes = [1, 2].map(|seed| FakeDevice::new(Schedule::Random(seed)));
    let [mut one, mut other] = [&fakes[0], &fakes[1]].map(|fake| compressor(fake, SampleShape { slots: 2, ..SHAPE }));
    let sample = sample(12);
    let foreign = other.compress_stream::<()>().unwrap().slot().unwrap();
    let stream = one.compress_stream().unwrap();
    let mut slots = vec![stream.slot().unwrap(), foreign, stream.slot().unwrap()];
    slots.iter_mut().zip(sample.pages.chunks(4)).for_each(|(slot, pages)| fill(slot, pages));
    slots.into_iter().for_each(|slot| stream.submit(slot, ()).unwrap());
    stream.close();
    let mut results = Vec::new();
    while let Some((compressed, ())) = stream.next().unwrap() {
        results.extend(compressed.iter().map(restored));
    }
    assert!(results == sample.pages);
    drop(stream);
    assert_eq!(one.stats().fallback.pages, 4);
    end(one, &fakes[0]);
    end(other, &fakes[1]);
}

fn push_all<'a>(slot: &mut PackedSlot<FakeDevice>, pages: impl IntoIterator<Item = PageData<'a>>) {
    pages.into_iter().for_each(|page| slot.push(page).unwrap());
}

#[test]
fn corrupt_pages_are_errors_of_their_slot_and_harm_no_other() {
    for format in PageFormat::ALL {
        corrupt_pages_are_errors_of_their_slot(format);
    }
}

fn corrupt_pages_are_errors_of_their_slot(format: PageFormat) {
    let fake = FakeDevice::with_format(Schedule::OneByOne, format);
    let mut compressor = compressor(&fake, SHAPE);
    assert_eq!(run(&mut compressor, StreamKind::Decompress, &sample_in(format, 23)), 0); // leaves pages in the slots' memory
    let sample = sample_in(format, 4);
    let held = |page: usize| sample.held.get(page).unwrap();
    let corrupt = PageData::new(format.kind(), &[0xff; 40]).unwrap();
    let stream = compressor.decompress_stream().unwrap();
    let mut slot = stream.slot().unwrap();
    push_all(&mut slot, [held(0), corrupt, held(2), corrupt]);
    assert_eq!(slot.push(corrupt), Err(Error::PageCount { batch_pages: 5, destination_pages: 4 }));
    stream.submit(slot, ()).unwrap();
    let mut slot = stream.slot().unwrap();
    push_all(&mut slot, [held(3)]);
    stream.submit(slot, ()).unwrap();
    let (with_errors, ()) = stream.next().unwrap().unwrap();
    assert_eq!(with_errors.pages(), [sample.pages[0], [0; PAGE_SIZE], sample.pages[2], [0; PAGE_SIZE]]);
    let index = |error: &Error| match error {
        Error::InPage { index, error } if matches!(**error, Error::CorruptLz4(_) | Error::CorruptZstd { .. }) => *index,
        other => panic!("{other}"),
    };
    assert_eq!(with_errors.errors().iter().map(index).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(with_errors.check().as_ref(), Err(&with_errors.errors()[0]));
    let (restored, ()) = stream.next().unwrap().unwrap();
    assert!(restored.check().is_ok() && restored.pages() == [sample.pages[3]]);
    drop((restored, with_errors, stream));
    assert_eq!(compressor.stats().fallback.batches, 0, "corrupt pages are not the device's fault");
    end(compressor, &fake);
}

#[test]
fn pages_that_the_kernel_does_not_decode_are_restored_by_the_cpu_and_counted() {
    for (format, other) in [(PageFormat::Lz4, PageFormat::Zstd), (PageFormat::Zstd, PageFormat::Lz4)] {
        let fake = FakeDevice::with_format(Schedule::Random(4), format);
        let mut compressor = compressor(&fake, SHAPE);
        let (sample, foreign) = (sample_in(format, 4), sample_in(other, 4));
        let two_blocks = PageData::new(PageKind::Zstd, &TWO_BLOCKS).unwrap();
        let pages = [sample.held.get(0), foreign.held.get(2), Some(two_blocks), sample.held.get(3)].map(Option::unwrap);
        assert_eq!(pages[1].kind(), other.kind());
        let stream = compressor.decompress_stream().unwrap();
        let mut slot = stream.slot().unwrap();
        push_all(&mut slot, pages);
        stream.submit(slot, ()).unwrap();
        let (restored, ()) = stream.next().unwrap().unwrap();
        let halves = std::array::from_fn(|i| if i < PAGE_SIZE / 2 { b'x' } else { b'y' });
        let expected = [sample.pages[0], sample.pages[2], halves, sample.pages[3]];
        assert!(restored.check().is_ok() && restored.pages() == expected, "{format:?}");
        drop((restored, stream));
        let fallback = &compressor.stats().fallback;
        assert_eq!((fallback.batches, fallback.pages, fallback.unsupported_pages), (0, 0, 2), "{format:?}");
        end(compressor, &fake);
    }
}

#[test]
fn a_stream_without_a_device_has_as_many_slots_and_gives_the_same_pages() {
    let fake = FakeDevice::new(Schedule::Eager);
    let mut compressor = compressor(&fake, SHAPE);
    fake.give_up("by someone else");
    for way in StreamKind::BOTH {
        assert_eq!(run(&mut compressor, way, &sample(70)), 70, "{way:?}");
    }
    assert!(!compressor.uses_device());
    let why = compressor.stats().fallback.device_given_up.clone().unwrap();
    assert!(why.contains("by someone else"), "{why}");
    let stream = compressor.compress_stream::<()>().unwrap();
    let slots: Vec<_> = std::iter::from_fn(|| stream.try_slot().unwrap()).collect();
    assert_eq!(slots.len(), STREAM_SLOTS);
    drop((slots, stream));
    end(compressor, &fake);
}
