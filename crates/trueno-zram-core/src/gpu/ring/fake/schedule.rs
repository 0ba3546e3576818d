//! The amount of queued work that runs at a poll, and the order of the queues.

use super::FakeState;
use crate::gpu::ring::device::DeviceQueue;

/// The speed and the order of the queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Schedule {
    /// All that can run does, at each poll.
    #[default]
    Eager,
    /// One operation per poll, of the first queue that has one.
    OneByOne,
    /// One operation per poll, of the last queue that has one, and there of the last slot.
    LastFirst,
    /// A few operations of any queues and slots, from a seed.
    Random(u64),
    /// One queue runs one operation per `n` polls, the others all they have.
    Starved(DeviceQueue, u64),
    /// One queue runs nothing until `n` slots have work queued.
    Held(DeviceQueue, usize),
}

const ALL: [DeviceQueue; 3] = [DeviceQueue::H2d, DeviceQueue::Compute, DeviceQueue::D2h];

impl FakeState {
    /// Runs what the schedule allows.
    pub(super) fn poll(&mut self) {
        self.ticks += 1;
        let tick = self.ticks;
        match &mut self.schedule {
            Schedule::Eager => self.run_all(|_| false),
            Schedule::OneByOne => drop(ALL.into_iter().any(|queue| self.run_next(queue))),
            Schedule::LastFirst => drop(ALL.into_iter().rev().any(|queue| self.run_of_slot(queue, usize::MAX))),
            Schedule::Random(seed) => {
                // A linear congruence: its high bits are random enough.
                *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let mut bits = *seed >> 40;
                for _ in 0..bits % 4 {
                    bits /= 4;
                    let (queue, slot) = (bits % 3, bits / 3 % 4);
                    let [queue, slot] = [queue, slot].map(|number| usize::try_from(number).expect("less than four"));
                    self.run_of_slot(ALL[queue], slot);
                }
            }
            Schedule::Starved(starved, polls) => {
                let (starved, its_turn) = (*starved, tick.is_multiple_of(*polls));
                self.run_queues(ALL.into_iter().filter(|queue| *queue != starved));
                if its_turn {
                    self.run_next(starved);
                }
            }
            Schedule::Held(held, slots) => {
                let (held, slots) = (*held, *slots);
                if self.seen.most_in_flight >= slots {
                    self.schedule = Schedule::Eager;
                }
                self.run_queues(ALL.into_iter().filter(|queue| *queue != held));
            }
        }
    }

    /// Runs everything that can run, unless `done` before.
    pub(super) fn run_all(&mut self, done: impl Fn(&Self) -> bool) {
        while !done(self) && ALL.into_iter().any(|queue| self.run_next(queue)) {}
    }

    fn run_queues(&mut self, queues: impl Iterator<Item = DeviceQueue> + Clone) {
        while queues.clone().any(|queue| self.run_next(queue)) {}
    }
}
