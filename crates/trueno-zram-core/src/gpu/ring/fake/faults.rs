//! Injected failures of calls.

use std::collections::BTreeMap;

use super::FakeState;
use crate::gpu::error::{DriverError, GpuError, GpuResult};

/// The calls that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Pinned,
    /// Page-locked memory of another device is to be used.
    Adopt,
    Slot,
    Upload,
    Download,
    Compress,
    Decompress,
    Mark,
    IsReached,
    Elapsed,
    Drain,
    /// Page-locked memory waits for its copies.
    Wait,
    /// Page-locked memory waits for its copies, with a time limit, after a failure.
    Settle,
}

impl Call {
    /// Returns the name of the corresponding driver call.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pinned => "cuMemHostAlloc",
            Self::Adopt => "cuEventCreate",
            Self::Slot => "cuMemAlloc",
            Self::Upload => "cuMemcpyHtoDAsync",
            Self::Download => "cuMemcpyDtoHAsync",
            Self::Compress | Self::Decompress => "cuLaunchKernel",
            Self::Mark => "cuEventRecord",
            Self::IsReached | Self::Settle => "cuEventQuery",
            Self::Elapsed => "cuEventElapsedTime",
            Self::Drain => "cuStreamSynchronize",
            Self::Wait => "cuEventSynchronize",
        }
    }

    /// Returns `true` if the thread that drives the ring makes the call.
    fn is_of_device(self) -> bool {
        !matches!(self, Self::Wait | Self::Settle)
    }
}

/// A failure of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InjectedFault {
    /// The call is refused; the device goes on.
    OutOfMemory,
    /// The call reports it, and nothing works any more.
    IllegalAddress,
    LaunchFailed,
    DeviceLost,
    /// The call itself succeeds; the next one reports the fault.
    IllegalAddressLater,
    /// Like `IllegalAddress`, but only calls of workers fail. The thread that drives the ring sees the loss first.
    IllegalAddressInWorker,
    /// The call succeeds; after it, no queue runs anything any more.
    Hang,
    /// A kernel's index or status is wrong. Other calls succeed.
    WrongIndex,
    /// The thread that made the call panics.
    Panic,
}

impl InjectedFault {
    /// Returns the CUDA error that it is reported as.
    pub(crate) fn error(self) -> Option<(&'static str, u32)> {
        match self {
            Self::OutOfMemory => Some(("CUDA_ERROR_OUT_OF_MEMORY", 2)),
            Self::IllegalAddress | Self::IllegalAddressLater | Self::IllegalAddressInWorker => {
                Some(("CUDA_ERROR_ILLEGAL_ADDRESS", 700))
            }
            Self::LaunchFailed => Some(("CUDA_ERROR_LAUNCH_FAILED", 719)),
            Self::DeviceLost => Some(("CUDA_ERROR_UNKNOWN", 999)),
            Self::Hang | Self::WrongIndex | Self::Panic => None,
        }
    }
}

/// A way for an index to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IndexDamage {
    /// The last page ends past the buffer.
    EndsOutside,
    /// The last entry is not complete.
    NotPlaced,
    /// The first page starts elsewhere than at the start.
    StartsLate,
    /// The first page has an unknown kind.
    NoSuchKind,
    /// The first page has an impossible length for its kind.
    NoSuchLength,
}

/// The faults to come, and those that came.
#[derive(Debug, Default)]
pub(super) struct FaultPlan {
    by_number: BTreeMap<usize, InjectedFault>,
    always: Option<(Call, InjectedFault)>,
    /// After the given number of calls of the kind by workers.
    of_worker: Option<(Call, usize, InjectedFault)>,
    calls: Vec<Call>,
    fired: Vec<(Call, InjectedFault)>,
    /// To be reported by the next call.
    later: Option<InjectedFault>,
    damages: usize,
}

impl FaultPlan {
    pub(super) fn arm(&mut self, faults: impl IntoIterator<Item = (usize, InjectedFault)>) {
        self.by_number = faults.into_iter().collect();
        self.calls.clear();
        self.fired.clear();
    }

    pub(super) fn arm_always(&mut self, call: Call, fault: InjectedFault) {
        self.always = Some((call, fault));
    }

    pub(super) fn arm_worker(&mut self, call: Call, earlier: usize, fault: InjectedFault) {
        self.of_worker = Some((call, earlier, fault));
    }

    pub(super) fn calls(&self) -> &[Call] {
        &self.calls
    }

    pub(super) fn fired(&self) -> &[(Call, InjectedFault)] {
        &self.fired
    }

    /// Returns another one at each call.
    pub(super) fn next_damage(&mut self) -> IndexDamage {
        const ALL: [IndexDamage; 5] = [
            IndexDamage::EndsOutside,
            IndexDamage::NotPlaced,
            IndexDamage::StartsLate,
            IndexDamage::NoSuchKind,
            IndexDamage::NoSuchLength,
        ];
        self.damages += 1;
        // The calls made before count too, so that new devices vary it.
        ALL[(self.damages + self.calls.len()) % ALL.len()]
    }

    /// Counts a call. Returns the fault that is meant for it.
    fn count(&mut self, call: Call) -> Option<InjectedFault> {
        let number = self.calls.len();
        self.calls.push(call);
        let is_worker = rayon::current_thread_index().is_some();
        let is_meant = |(kind, fault): &(Call, InjectedFault)| {
            *kind == call && (is_worker || *fault != InjectedFault::IllegalAddressInWorker)
        };
        let always = self.always.filter(is_meant).map(|(_, fault)| fault);
        let of_worker = if is_worker { self.of_worker(call) } else { None };
        let fault = self.by_number.remove(&number).or(of_worker).or(always)?;
        self.fired.push((call, fault));
        Some(fault)
    }

    /// Returns the fault that is meant for a worker, if this is the call.
    fn of_worker(&mut self, call: Call) -> Option<InjectedFault> {
        let (_, earlier, fault) = self.of_worker.as_mut().filter(|(kind, _, _)| *kind == call)?;
        let fault = *fault;
        match earlier.checked_sub(1) {
            Some(left) => *earlier = left,
            None => self.of_worker = None,
        }
        self.of_worker.is_none().then_some(fault)
    }
}

impl FakeState {
    /// Returns `true` while queued work can run.
    pub(super) fn is_working(&self) -> bool {
        self.lost.is_none() && self.faults.later.is_none()
    }

    /// Starts a call. Returns its failure, or a fault with which it succeeds.
    pub(super) fn enter(&mut self, call: Call) -> GpuResult<Option<InjectedFault>> {
        if let Some(reason) = self.lost.clone() {
            if self.loss_is_known && call.is_of_device() {
                self.seen.calls_after_loss += 1;
            }
            self.loss_is_known |= call.is_of_device();
            return Err(GpuError::ContextLost { reason });
        }
        if let Some(fault) = self.faults.later.take() {
            return Err(self.fail(call, fault));
        }
        let fault = self.faults.count(call);
        match fault {
            Some(InjectedFault::Panic) => panic!("injected panic in {call:?}"),
            Some(InjectedFault::IllegalAddressLater) => self.faults.later = fault,
            Some(InjectedFault::Hang) => self.hung = [true; 3],
            Some(InjectedFault::WrongIndex) | None => {}
            Some(fault) => return Err(self.fail(call, fault)),
        }
        Ok(fault)
    }

    /// Returns `true` if the thread that drives the ring has not seen the failure yet.
    pub(super) fn driver_is_unaware(&self) -> bool {
        !self.loss_is_known && matches!(self.faults.fired.last(), Some((_, InjectedFault::IllegalAddressInWorker)))
    }

    fn fail(&mut self, call: Call, fault: InjectedFault) -> GpuError {
        let (code, number) = fault.error().expect("faults that are reported have a code");
        let error = DriverError { call: call.name(), code, number };
        if error.poisons_context() {
            self.lost = Some(error.to_string());
            self.stopped = error.has_stopped_device();
            self.loss_is_known = call.is_of_device();
        }
        error.into()
    }
}
