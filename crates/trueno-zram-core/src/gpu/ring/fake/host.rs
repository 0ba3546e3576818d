//! Page-locked memory of the fake: with its owner, or lent to the copies that are queued.
//!
//! As with a GPU, bytes that a queued copy writes cannot be read before it is done, and bytes that one reads cannot be changed.

use std::sync::{Arc, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use super::faults::Call;
use super::{FakeState, Shared, lock, wait_for_foreign_kernel};
use crate::gpu::error::{GpuError, GpuResult};
use crate::gpu::pinned::PendingAccess;
use crate::gpu::ring::device::PinnedMemory;

/// The owner's handle.
#[derive(Debug)]
pub(crate) struct FakePinned {
    shared: Shared,
    id: usize,
    /// The bytes, while the owner looks at them.
    seen: OnceLock<Arc<Vec<u8>>>,
}

/// The device's record of page-locked memory.
#[derive(Debug)]
pub(super) struct Host {
    len_bytes: usize,
    /// `None` while the owner has it alone.
    data: Option<Arc<Vec<u8>>>,
    /// The strongest access by pending copies, whether they have run or not.
    in_flight: PendingAccess,
}

impl Host {
    pub(super) fn new(len_bytes: usize) -> Self {
        Self { len_bytes, data: Some(Arc::new(vec![0; len_bytes])), in_flight: PendingAccess::Nothing }
    }

    pub(super) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    pub(super) fn data(&self) -> &[u8] {
        self.data.as_ref().expect("lent before a copy was queued")
    }

    pub(super) fn data_mut(&mut self) -> &mut Arc<Vec<u8>> {
        self.data.as_mut().expect("lent before a copy was queued")
    }
}

impl FakePinned {
    pub(super) fn new(shared: Shared, id: usize) -> Self {
        Self { shared, id, seen: OnceLock::new() }
    }

    pub(super) fn id(&self) -> usize {
        self.id
    }

    /// Refuses memory that this device has not adopted.
    pub(super) fn check_is_of(&self, device: &Shared) -> GpuResult<()> {
        let what = "the page-locked buffer";
        if Arc::ptr_eq(&self.shared, device) { Ok(()) } else { Err(GpuError::ForeignContext { what }) }
    }

    /// Changes the device that copies from and to it, unless the one before may still do so.
    pub(super) fn adopt(&mut self, by: &Shared) -> GpuResult<()> {
        if Arc::ptr_eq(&self.shared, by) {
            return Ok(());
        }
        let mut before = lock(&self.shared);
        if before.host(self.id).in_flight != PendingAccess::Nothing {
            before.wait(self.id, Call::Settle)?;
        }
        let mut state = lock(by);
        state.enter(Call::Adopt)?;
        let host = before.hosts.remove(&self.id).expect("host memory lives as long as its handle");
        before.seen.pinned -= 1;
        state.seen.pinned += 1;
        self.id = state.new_id();
        state.hosts.insert(self.id, host);
        drop((before, state));
        self.shared = Arc::clone(by);
        Ok(())
    }

    /// Gives the bytes to a copy.
    pub(super) fn lend(&mut self, state: &mut FakeState, copy: PendingAccess) {
        let seen = self.seen.take();
        let host = state.host(self.id);
        host.data = host.data.take().or(seen);
        host.in_flight = host.in_flight.max(copy);
    }

    /// Locks the device once no pending copy has more than the `allowed` access.
    fn lock_when(&self, allowed: PendingAccess) -> GpuResult<MutexGuard<'_, FakeState>> {
        let mut state = lock(&self.shared);
        if state.host(self.id).in_flight > allowed {
            let waited = state.wait(self.id, Call::Wait);
            drop(state);
            waited.inspect_err(|_| self.wait_for_driver())?;
            state = lock(&self.shared);
        }
        Ok(state)
    }

    /// Waits, after some failures, until the thread that drives the ring has seen the failure, too. The wait is short, since that
    /// thread may make no call.
    fn wait_for_driver(&self) {
        let start = Instant::now();
        while lock(&self.shared).driver_is_unaware() && start.elapsed() < Duration::from_millis(50) {
            std::thread::yield_now();
        }
    }
}

impl FakeState {
    fn host(&mut self, id: usize) -> &mut Host {
        self.hosts.get_mut(&id).expect("host memory lives as long as its handle")
    }

    /// Runs the queues until the copies are done.
    fn wait(&mut self, id: usize, call: Call) -> GpuResult<()> {
        self.run_all(|state| !state.has_copies(id));
        self.enter(call)?;
        if self.has_copies(id) && self.is_working() {
            if call == Call::Settle {
                return Err(GpuError::TimedOut { timeout_ms: 0 });
            }
            self.misuse(format!("host memory {id} waits for ever for a copy that never ends"));
        }
        Ok(())
    }
}

impl PinnedMemory for FakePinned {
    fn bytes(&self) -> GpuResult<&[u8]> {
        let mut state = self.lock_when(PendingAccess::Reads)?;
        let host = state.host(self.id);
        Ok(self.seen.get_or_init(|| Arc::clone(host.data_mut())))
    }

    fn bytes_mut(&mut self) -> GpuResult<&mut [u8]> {
        // The handle is written below, so the lock is taken on a clone.
        let shared = Arc::clone(&self.shared);
        drop(self.lock_when(PendingAccess::Nothing)?);
        let mut state = lock(&shared);
        let host = state.host(self.id);
        host.in_flight = PendingAccess::Nothing;
        let seen = self.seen.take();
        let alone = host.data.take().or(seen).expect("the bytes are on one side or the other");
        drop(state);
        self.seen.set(alone).expect("taken just now");
        Ok(Arc::get_mut(self.seen.get_mut().expect("set just now")).expect("no one else has it"))
    }

    fn settle(&mut self, _time_limit: Duration) -> GpuResult<()> {
        let mut state = lock(&self.shared);
        if state.host(self.id).in_flight == PendingAccess::Nothing {
            return Ok(());
        }
        let settled = state.wait(self.id, Call::Settle);
        // A device that a kernel has broken has stopped.
        if settled.is_ok() || state.stopped {
            let id = self.id;
            for queue in &mut state.queues {
                queue.retain(|operation| operation.work.host().is_none_or(|(host, _, _)| host != id));
            }
            state.host(id).in_flight = PendingAccess::Nothing;
        }
        settled
    }
}

impl Drop for FakePinned {
    fn drop(&mut self) {
        wait_for_foreign_kernel(&self.shared);
        let mut state = lock(&self.shared);
        state.seen.pinned -= 1;
        if state.is_working() && state.has_copies(self.id) {
            let id = self.id;
            state.misuse(format!("host memory {id} is freed while a copy of it is queued"));
        }
        state.hosts.remove(&self.id);
    }
}
