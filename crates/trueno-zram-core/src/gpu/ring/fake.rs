//! A device for tests: queued work runs later, in any order that a GPU might choose, and fails on demand.
//!
//! Work is put into three queues and runs when the device is polled, as much of it as the [`Schedule`] says. Every call
//! is counted, and can be made to fail ([`InjectedFault`]). The fake panics where the ring does what a GPU would punish with wrong
//! bytes: copies that race with a kernel or with each other, kernels without fresh input, memory freed under a copy.

mod faults;
mod host;
mod kernels;
mod queues;
mod schedule;
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::ThreadId;
use std::time::Duration;

use super::device::{DeviceAllocator, DeviceQueue, Mark, RingDevice, SlotBuffer};
use crate::gpu::codec::PageFormat;
use crate::gpu::error::{GpuError, GpuResult};
use crate::gpu::pinned::{HostCaching, PendingAccess};
pub(crate) use faults::{Call, InjectedFault};
pub(crate) use host::FakePinned;
use host::Host;
use kernels::DeviceSlot;
use queues::{QueuedOperation, QueuedWork};
pub(crate) use schedule::Schedule;

/// The device. A clone is the same device: tests keep one to inspect.
#[derive(Clone, Debug)]
pub(crate) struct FakeDevice {
    state: Shared,
    format: PageFormat,
}

type Shared = Arc<Mutex<FakeState>>;

/// A slot of it.
#[derive(Debug)]
pub(crate) struct FakeSlot {
    state: Shared,
    id: usize,
}

/// Counts of what the ring did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Observations {
    /// Slots and page-locked buffers that live.
    pub(crate) slots: usize,
    pub(crate) pinned: usize,
    /// All that were ever made.
    pub(crate) allocations: usize,
    /// Slots that had work queued at the same time, at most.
    pub(crate) most_in_flight: usize,
    /// Calls made although one had said that the device is lost.
    pub(crate) calls_after_loss: usize,
    /// Pages compressed and restored by kernels.
    pub(crate) pages: usize,
    /// Descriptions of what the ring did wrong.
    pub(crate) misuses: Vec<String>,
}

#[derive(Debug, Default)]
struct FakeState {
    schedule: Schedule,
    faults: faults::FaultPlan,
    queues: [std::collections::VecDeque<QueuedOperation>; 3],
    /// Queues that run nothing any more.
    hung: [bool; 3],
    slots: BTreeMap<usize, DeviceSlot>,
    hosts: BTreeMap<usize, Host>,
    /// Counts operations queued and run: orders them, and is the clock.
    ticks: u64,
    next_id: usize,
    /// Why it can be used no more.
    lost: Option<String>,
    /// It has said so itself, and does nothing any more.
    stopped: bool,
    /// A call of the device, not of page-locked memory, has said so.
    loss_is_known: bool,
    foreign_kernel: Option<ForeignKernel>,
    seen: Observations,
}

/// A kernel launched by another user of the context: memory is freed when it ends.
#[derive(Clone, Debug)]
struct ForeignKernel {
    /// Held by the kernel.
    kernel: Arc<RwLock<()>>,
    /// The thread that must not wait for it.
    caller: ThreadId,
}

fn lock(state: &Shared) -> MutexGuard<'_, FakeState> {
    // A panic in here is a failed test.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FakeDevice {
    pub(crate) fn new(schedule: Schedule) -> Self {
        Self::with_format(schedule, PageFormat::Lz4)
    }

    pub(crate) fn with_format(schedule: Schedule, format: PageFormat) -> Self {
        Self { state: Arc::new(Mutex::new(FakeState { schedule, ..FakeState::default() })), format }
    }

    /// Counts calls from 0 again, and lets those of the given numbers fail.
    pub(crate) fn arm(&self, faults: impl IntoIterator<Item = (usize, InjectedFault)>) {
        lock(&self.state).faults.arm(faults);
    }

    /// Lets every call of a kind fail.
    pub(crate) fn arm_always(&self, call: Call, fault: InjectedFault) {
        lock(&self.state).faults.arm_always(call, fault);
    }

    /// Lets one call of a kind fail that a worker makes, after the given number of earlier ones.
    pub(crate) fn arm_worker(&self, call: Call, earlier: usize, fault: InjectedFault) {
        lock(&self.state).faults.arm_worker(call, earlier, fault);
    }

    /// The calls since it was armed, but for polls that found nothing new.
    pub(crate) fn calls(&self) -> Vec<Call> {
        lock(&self.state).faults.calls().to_vec()
    }

    /// The faults that came to pass since it was armed.
    pub(crate) fn fired(&self) -> Vec<(Call, InjectedFault)> {
        lock(&self.state).faults.fired().to_vec()
    }

    pub(crate) fn seen(&self) -> Observations {
        lock(&self.state).seen.clone()
    }

    /// Makes freeing of memory wait until no one holds `kernel`. This thread must not free any, since it would wait forever.
    pub(crate) fn share_with(&self, kernel: &Arc<RwLock<()>>) {
        let caller = std::thread::current().id();
        lock(&self.state).foreign_kernel = Some(ForeignKernel { kernel: Arc::clone(kernel), caller });
    }

    /// Operations that were queued and have not run.
    pub(crate) fn pending(&self) -> usize {
        lock(&self.state).queues.iter().map(std::collections::VecDeque::len).sum()
    }
}

impl FakeState {
    fn new_id(&mut self) -> usize {
        self.seen.allocations += 1;
        self.next_id += 1;
        self.next_id
    }

    /// Reports a misuse by the ring. In a thread that panics already, a second panic would end the process.
    fn misuse(&mut self, what: String) {
        self.seen.misuses.push(what.clone());
        assert!(std::thread::panicking(), "the ring misuses the device: {what}");
    }

    fn slot(&mut self, slot: &FakeSlot) -> &mut DeviceSlot {
        self.slots.get_mut(&slot.id).expect("slots live as long as their handles")
    }

    /// Queues work of a slot, and checks it against everything queued elsewhere.
    fn queue(&mut self, queue: DeviceQueue, slot: &FakeSlot, work: QueuedWork) {
        self.ticks += 1;
        let operation = QueuedOperation { slot: slot.id, tick: self.ticks, work };
        if let Some(race) = self.race(queue, &operation) {
            self.misuse(race);
        }
        self.queues[queue as usize].push_back(operation);
        let mut busy: Vec<usize> = self.queues.iter().flatten().map(|operation| operation.slot).collect();
        busy.sort_unstable();
        busy.dedup();
        self.seen.most_in_flight = self.seen.most_in_flight.max(busy.len());
    }

    fn queue_mark(&mut self, slot: &FakeSlot, mark: Mark) {
        self.queue(mark.queue(), slot, QueuedWork::Mark(mark));
        let tick = self.ticks;
        self.slot(slot).marks[mark as usize].queued = tick;
    }

    fn queue_kernel(&mut self, slot: &FakeSlot, work: QueuedWork) {
        if self.queues.iter().flatten().any(|operation| operation.slot == slot.id && operation.work.is_kernel()) {
            self.misuse(format!("{work:?} while slot {} has a kernel queued", slot.id));
        }
        let until = self.slot(slot).marks[Mark::H2dEnd as usize].queued;
        self.queue(DeviceQueue::Compute, slot, QueuedWork::WaitForUploads { until });
        self.queue_mark(slot, Mark::KernelStart);
        self.queue(DeviceQueue::Compute, slot, work);
        self.queue_mark(slot, Mark::KernelEnd);
    }
}

/// Allocates memory of the device.
#[derive(Clone, Debug)]
pub(crate) struct FakeAllocator(FakeDevice);

impl DeviceAllocator for FakeAllocator {
    type Pinned = FakePinned;
    type Slot = FakeSlot;

    fn pinned(&self, len_bytes: usize, _caching: HostCaching) -> GpuResult<FakePinned> {
        let mut state = lock(&self.0.state);
        state.enter(Call::Pinned)?;
        let id = state.new_id();
        state.seen.pinned += 1;
        state.hosts.insert(id, Host::new(len_bytes));
        Ok(FakePinned::new(Arc::clone(&self.0.state), id))
    }

    fn slot(&self, pages: u32) -> GpuResult<FakeSlot> {
        let mut state = lock(&self.0.state);
        state.enter(Call::Slot)?;
        let id = state.new_id();
        state.seen.slots += 1;
        state.slots.insert(id, DeviceSlot::new(pages as usize, self.0.format));
        Ok(FakeSlot { state: Arc::clone(&self.0.state), id })
    }
}

impl RingDevice for FakeDevice {
    const NAME: &'static str = "fake";
    const DESCRIPTION: &'static str = "fake GPU";

    type Pinned = FakePinned;
    type Slot = FakeSlot;
    type Allocator = FakeAllocator;

    fn allocator(&self) -> FakeAllocator {
        FakeAllocator(self.clone())
    }

    fn format(&self) -> PageFormat {
        self.format
    }

    fn adopt(&self, memory: &mut FakePinned) -> GpuResult<()> {
        memory.adopt(&self.state)
    }

    fn upload(
        &self,
        slot: &mut FakeSlot,
        to: SlotBuffer,
        at: usize,
        from: &mut FakePinned,
        part: Range<usize>,
    ) -> GpuResult<()> {
        let mut state = lock(&self.state);
        state.enter(Call::Upload)?;
        from.check_is_of(&self.state)?;
        state.check_part(from.id(), &part, slot, to, at)?;
        from.lend(&mut state, PendingAccess::Reads);
        state.queue(DeviceQueue::H2d, slot, QueuedWork::Upload { to, at, host: from.id(), part });
        Ok(())
    }

    fn download(
        &self,
        queue: DeviceQueue,
        slot: &mut FakeSlot,
        from: SlotBuffer,
        to: &mut FakePinned,
        part: Range<usize>,
    ) -> GpuResult<()> {
        let mut state = lock(&self.state);
        state.enter(Call::Download)?;
        to.check_is_of(&self.state)?;
        state.check_part(to.id(), &part, slot, from, 0)?;
        to.lend(&mut state, PendingAccess::Writes);
        state.queue(queue, slot, QueuedWork::Download { from, at: 0, host: to.id(), part });
        Ok(())
    }

    fn compress(&mut self, slot: &mut FakeSlot, pages: u32) -> GpuResult<()> {
        let mut state = lock(&self.state);
        let fault = state.enter(Call::Compress)?;
        let damage = fault.filter(|fault| *fault == InjectedFault::WrongIndex).map(|_| state.faults.next_damage());
        state.queue_kernel(slot, QueuedWork::Compress { pages: pages as usize, damage });
        Ok(())
    }

    fn decompress(&mut self, slot: &mut FakeSlot, packed_bytes: usize, pages: u32) -> GpuResult<()> {
        let mut state = lock(&self.state);
        let fault = state.enter(Call::Decompress)?;
        let wrong_status = fault == Some(InjectedFault::WrongIndex);
        state.queue_kernel(slot, QueuedWork::Decompress { packed_bytes, pages: pages as usize, wrong_status });
        Ok(())
    }

    fn mark(&self, slot: &mut FakeSlot, mark: Mark) -> GpuResult<()> {
        let mut state = lock(&self.state);
        state.enter(Call::Mark)?;
        state.queue_mark(slot, mark);
        Ok(())
    }

    /// Only a device that was made to hang does, however slow the machine is that runs the tests.
    fn hangs(&self, waiting: Duration, time_limit: Duration) -> bool {
        waiting > time_limit && lock(&self.state).hung.contains(&true)
    }

    fn is_reached(&self, slot: &FakeSlot, mark: Mark) -> GpuResult<bool> {
        let mut state = lock(&self.state);
        state.poll();
        if !state.is_working() || state.slot(slot).marks[mark as usize].is_reached() {
            state.enter(Call::IsReached)?;
            return Ok(true);
        }
        // The number of these polls depends on timing, so they are not counted. Polling again at once would keep the lock
        // from the workers.
        drop(state);
        std::thread::yield_now();
        Ok(false)
    }

    fn elapsed(&self, slot: &FakeSlot, from: Mark, to: Mark) -> GpuResult<Duration> {
        let mut state = lock(&self.state);
        state.enter(Call::Elapsed)?;
        let [from, to] = [from, to].map(|mark| state.slot(slot).marks[mark as usize]);
        if !(from.is_set() && to.is_set()) {
            state.misuse(format!("the time between {from:?} and {to:?}"));
        }
        Ok(Duration::from_nanos(to.reached.saturating_sub(from.reached)))
    }

    fn drain(&self, time_limit: Duration) -> GpuResult<()> {
        let mut state = lock(&self.state);
        state.run_all(|state| state.queues.iter().all(std::collections::VecDeque::is_empty));
        state.enter(Call::Drain)?;
        if state.queues.iter().any(|queue| !queue.is_empty()) {
            return Err(GpuError::TimedOut { timeout_ms: time_limit.as_millis() });
        }
        Ok(())
    }

    fn give_up(&self, reason: &str) {
        let mut state = lock(&self.state);
        state.lost.get_or_insert_with(|| reason.to_owned());
        state.loss_is_known = true;
    }

    fn loss(&self) -> Option<String> {
        lock(&self.state).lost.clone()
    }
}

/// Freeing memory waits for kernels launched by other users of the context, unless the device was given up: then it leaks.
fn wait_for_foreign_kernel(shared: &Shared) {
    let mut state = lock(shared);
    let Some(foreign_kernel) = state.foreign_kernel.clone().filter(|_| state.is_working()) else { return };
    if foreign_kernel.caller == std::thread::current().id() {
        state.misuse("freeing waits for ever for a kernel of another user of the context".to_owned());
        return;
    }
    drop(state);
    // Ignore a failed test's lock.
    drop(foreign_kernel.kernel.read());
}

impl Drop for FakeSlot {
    fn drop(&mut self) {
        wait_for_foreign_kernel(&self.state);
        let mut state = lock(&self.state);
        state.seen.slots -= 1;
        state.slots.remove(&self.id);
        if state.is_working() && state.queues.iter().flatten().any(|operation| operation.slot == self.id) {
            state.misuse(format!("slot {} is freed while it has work queued", self.id));
        }
    }
}
