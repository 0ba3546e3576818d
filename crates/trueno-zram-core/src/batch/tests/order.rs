//! Batches on a healthy device, however slow and in whatever order its queues run.

use super::{CallKind, NO_HURRY, SampleShape, Trial, config, options};
use crate::gpu::GpuBatchConfig;
use crate::gpu::codec::PageFormat;
use crate::gpu::ring::device::DeviceQueue;
use crate::gpu::ring::fake::{FakeDevice, Schedule};

fn schedules() -> Vec<Schedule> {
    let starved = [DeviceQueue::H2d, DeviceQueue::Compute, DeviceQueue::D2h].map(|queue| Schedule::Starved(queue, 20));
    let random = (0..4).map(Schedule::Random);
    [Schedule::Eager, Schedule::OneByOne, Schedule::LastFirst].into_iter().chain(starved).chain(random).collect()
}

fn check(form: CallKind, shape: SampleShape, schedule: Schedule, batches: usize) {
    let mut trial = Trial::new(form, shape, schedule, NO_HURRY);
    for _ in 0..batches {
        let done = trial.run().unwrap();
        assert_eq!(done.by_cpu, 0, "{form:?}, {shape:?}, {schedule:?}: {:?}", trial.compressor.stats().fallback);
        let times = done.times;
        assert!(times.h2d_time_ns > 0 && times.kernel_time_ns > 0 && times.d2h_time_ns > 0, "{times:?}");
        assert_eq!(trial.fake.pending(), 0, "nothing is left behind");
    }
    assert!(trial.fake.seen().most_in_flight <= shape.slots);
    trial.end();
}

#[test]
fn bytes_are_right_in_every_order_and_with_every_number_of_slots() {
    for form in CallKind::RINGS {
        for slots in 1..=4 {
            let shape = SampleShape { pages: 23, batch_size: 4, slots, format: PageFormat::Lz4 };
            for (schedule, shape) in
                schedules().into_iter().flat_map(|schedule| shape.in_all_formats().map(|shape| (schedule, shape)))
            {
                check(form, shape, schedule, 2);
            }
        }
    }
}

#[test]
fn slots_that_are_staged_in_several_pieces_come_out_right() {
    for form in CallKind::ALL {
        for schedule in [Schedule::Eager, Schedule::LastFirst, Schedule::Random(7)] {
            let shape = SampleShape { pages: 700, batch_size: 300, slots: 2, format: PageFormat::Lz4 };
            shape.in_all_formats().into_iter().for_each(|shape| check(form, shape, schedule, 2));
        }
    }
}

#[test]
fn batches_smaller_than_a_slot_and_empty_ones_come_out_right() {
    for form in CallKind::ALL {
        for pages in [3, 4, 5, 8] {
            let shape = SampleShape { pages, batch_size: 4, slots: 3, format: PageFormat::Lz4 };
            shape.in_all_formats().into_iter().for_each(|shape| check(form, shape, Schedule::OneByOne, 2));
        }
        let mut trial = Trial::new(
            form,
            SampleShape { pages: 0, batch_size: 4, slots: 2, format: PageFormat::Lz4 },
            Schedule::Eager,
            NO_HURRY,
        );
        let done = trial.run().unwrap();
        assert_eq!((done.by_device, done.by_cpu), (0, 0));
        assert_eq!(trial.compressor.stats().fallback.batches, 0);
        trial.end();
    }
}

#[test]
fn all_slots_are_under_way_at_once_and_no_more() {
    for form in CallKind::ALL {
        for slots in 1..=4 {
            // Nothing comes back before every slot has work queued: a ring that used fewer would wait for ever.
            let held = Schedule::Held(DeviceQueue::D2h, slots);
            let mut trial = Trial::new(
                form,
                SampleShape { pages: 64, batch_size: 4, slots, format: PageFormat::Lz4 },
                held,
                NO_HURRY,
            );
            assert_eq!(trial.run().unwrap().by_cpu, 0);
            assert_eq!(trial.fake.seen().most_in_flight, slots, "{form:?}");
            assert_eq!(trial.fake.seen().slots, slots);
            trial.end();
        }
    }
}

#[test]
fn without_async_dma_one_slot_is_used() {
    for form in CallKind::ALL {
        let shape = SampleShape { pages: 23, batch_size: 4, slots: 4, format: PageFormat::Lz4 };
        let config = GpuBatchConfig { async_dma: false, ..config(shape) };
        let fake = FakeDevice::new(Schedule::OneByOne);
        let mut trial = Trial::with(form, shape.pages, fake, config, &options(NO_HURRY));
        assert_eq!(trial.run().unwrap().by_cpu, 0);
        assert_eq!((trial.fake.seen().slots, trial.fake.seen().most_in_flight), (1, 1));
        trial.end();
    }
}

#[test]
fn same_filled_pages_do_not_cross_the_bus_when_staged() {
    let shape = SampleShape { pages: 23, batch_size: 4, slots: 2, format: PageFormat::Lz4 };
    let forms = [CallKind::CompressBatch, CallKind::CompressInto];
    for (form, shape) in forms.into_iter().flat_map(|form| shape.in_all_formats().map(|shape| (form, shape))) {
        let mut trial = Trial::new(form, shape, Schedule::Eager, NO_HURRY);
        trial.run().unwrap();
        let same_filled = trial.pages.iter().filter(|page| crate::same_filled(page).is_some()).count();
        assert_eq!(trial.fake.seen().pages, 23 - same_filled);
        trial.end();
    }
}

#[test]
fn a_batch_that_needs_no_device_makes_no_call() {
    let mut trial = Trial::new(
        CallKind::CompressInto,
        SampleShape { pages: 0, batch_size: 4, slots: 2, format: PageFormat::Lz4 },
        Schedule::Eager,
        NO_HURRY,
    );
    trial.pages = vec![[3; 4096]; 9];
    trial.run().unwrap(); // allocates
    trial.fake.arm([]);
    assert_eq!(trial.run().unwrap().by_device, 9);
    let queues: Vec<_> = trial.fake.calls();
    assert_eq!(queues, [], "nothing to send");
    trial.end();
}
