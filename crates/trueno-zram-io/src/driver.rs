//! The threads beside the lanes of a GPU: one drives it, a few make its slots.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use trueno_zram_core::Result;

use crate::Observer;
use crate::error::Error;
use crate::ordered::lock;
use crate::slots::Slots;
use crate::timeline::{Stage, timed};

/// Threads that make slots. The driver serialises a part of that work, so more would not be faster.
const MAKERS: usize = 3;

/// Time between two looks at the GPU: each asks the driver about every slot.
const BETWEEN_LOOKS: Duration = Duration::from_micros(3);
/// After this long without a result, the thread sleeps between two looks.
const SLEEPS_AFTER: Duration = Duration::from_millis(2);
const SLEEP: Duration = Duration::from_micros(50);

/// Time after which a maker looks again whether a slot is wanted.
const MAKER_SLEEP: Duration = Duration::from_micros(500);

/// The calls of a stream that the threads here make.
pub(crate) trait GpuStream: Sync {
    type Slot: Send;
    type Done: Send;

    /// A slot to fill; `None` if there can be no more.
    fn try_slot(&self) -> Result<Option<Self::Slot>>;
    fn submit(&self, slot: Self::Slot) -> Result<()>;
    /// The result of the oldest slot, if it is ready.
    fn try_next(&self) -> Result<Option<Self::Done>>;
}

/// The slots of a stream and what they hold.
pub(crate) type SlotsOf<St, Tag> = Slots<<St as GpuStream>::Slot, Tag, <St as GpuStream>::Done>;

/// Submits slots that lanes have filled, and takes results, until `has_ended` is set and nothing is left. Calls `notify` after
/// each result.
pub(crate) fn drive<St: GpuStream, Tag>(
    stream: &St,
    slots: &Mutex<SlotsOf<St, Tag>>,
    has_ended: &AtomicBool,
    notify: impl Fn(),
) -> Result<()> {
    let mut submitted = VecDeque::new();
    let mut quiet_since = Instant::now();
    loop {
        // Asked first: what lanes have left by then is seen below.
        let has_ended = has_ended.load(Ordering::Acquire);
        let filled = lock(slots).take_filled();
        let is_quiet = filled.is_empty();
        for (slot, tag) in filled {
            stream.submit(slot)?;
            submitted.push_back(tag);
        }
        if let Some(done) = stream.try_next()? {
            let tag = submitted.pop_front().expect("a result was submitted");
            lock(slots).put_result(tag, done);
            notify();
            quiet_since = Instant::now();
        } else if has_ended && is_quiet && submitted.is_empty() {
            return Ok(());
        } else if is_quiet && quiet_since.elapsed() > SLEEPS_AFTER {
            thread::sleep(SLEEP);
        } else if is_quiet {
            let start = Instant::now();
            while start.elapsed() < BETWEEN_LOOKS {
                std::hint::spin_loop();
            }
        }
    }
}

/// Makes slots as they are wanted, at most `wanted()` of them, until all are made or `has_ended` is set. Calls `notify` after
/// each.
pub(crate) fn make_slots<St: GpuStream, Tag>(
    stream: &St,
    slots: &Mutex<SlotsOf<St, Tag>>,
    has_ended: &AtomicBool,
    wanted: impl Fn() -> usize,
    notify: impl Fn(),
    observer: &dyn Observer,
) -> Result<()> {
    while !has_ended.load(Ordering::Acquire) && !lock(slots).are_all_made() {
        if lock(slots).begin_making(wanted()) {
            let slot = timed(observer, Stage::Start, || stream.try_slot());
            let made = slot.as_ref().is_ok_and(Option::is_some);
            lock(slots).end_making(slot?);
            if made {
                notify();
            }
        } else {
            thread::sleep(MAKER_SLEEP);
        }
    }
    Ok(())
}

/// Runs `drive`, a few of `make` and all `lanes` on threads of their own, and returns when they have ended. `has_ended` is set
/// when the lanes have: it ends the others, once the GPU is drained.
pub(crate) fn run_beside<L: FnOnce() + Send>(
    drive: impl FnOnce() + Send,
    make: impl Fn() + Sync,
    lanes: impl Iterator<Item = L>,
    has_ended: &AtomicBool,
) -> std::result::Result<(), Error> {
    thread::scope(|scope| {
        let driver = thread::Builder::new().name("gpu".into());
        let driver = driver.spawn_scoped(scope, drive).map_err(Error::Thread)?;
        let make = &make;
        let mut makers = Vec::new();
        let mut running = Vec::new();
        let mut failed = None;
        for number in 0..MAKERS {
            match thread::Builder::new().name(format!("slots-{number}")).spawn_scoped(scope, make) {
                Ok(maker) => makers.push(maker),
                // Those that run make all slots.
                Err(error) => {
                    failed = makers.is_empty().then_some(error);
                    break;
                }
            }
        }
        for (number, lane) in lanes.enumerate().take(if failed.is_some() { 0 } else { usize::MAX }) {
            match thread::Builder::new().name(format!("lane-{number}")).spawn_scoped(scope, lane) {
                Ok(lane) => running.push(lane),
                // Those that run do all the work.
                Err(error) => {
                    failed = running.is_empty().then_some(error);
                    break;
                }
            }
        }
        let panics: Vec<_> = running.into_iter().filter_map(|lane| lane.join().err()).collect();
        has_ended.store(true, Ordering::Release);
        let others = makers.into_iter().chain([driver]).filter_map(|thread| thread.join().err());
        if let Some(panic) = panics.into_iter().chain(others).next() {
            std::panic::resume_unwind(panic);
        }
        failed.map_or(Ok(()), |error| Err(Error::Thread(error)))
    })
}
