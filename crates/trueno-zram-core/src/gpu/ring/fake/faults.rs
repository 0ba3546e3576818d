//! Which calls fail, and how.

use std::collections::BTreeMap;

use super::State;
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
    /// The same, with a time limit, after a failure.
    Settle,
}

impl Call {
    /// What the driver would have been asked.
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

    /// Whether it is asked of the device, by the thread that drives the ring.
    fn is_of_device(self) -> bool {
        !matches!(self, Self::Wait | Self::Settle)
    }
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The call is refused; the device goes on.
    OutOfMemory,
    /// The call reports it, and nothing works any more.
    IllegalAddress,
    LaunchFailed,
    DeviceLost,
    /// The call itself goes through; the next one reports it.
    IllegalAddressLater,
    /// As `IllegalAddress`, to workers alone; and the thread that drives the ring sees the loss first.
    IllegalAddressTold,
    /// The call goes through; after it no queue runs anything any more.
    Hang,
    /// A kernel's index, or status, lies. Other calls go through.
    WrongIndex,
    /// The thread that made the call panics.
    Panic,
}

impl Fault {
    /// The CUDA error that it shows as.
    pub(crate) fn error(self) -> Option<(&'static str, u32)> {
        match self {
            Self::OutOfMemory => Some(("CUDA_ERROR_OUT_OF_MEMORY", 2)),
            Self::IllegalAddress | Self::IllegalAddressLater | Self::IllegalAddressTold => {
                Some(("CUDA_ERROR_ILLEGAL_ADDRESS", 700))
            }
            Self::LaunchFailed => Some(("CUDA_ERROR_LAUNCH_FAILED", 719)),
            Self::DeviceLost => Some(("CUDA_ERROR_UNKNOWN", 999)),
            Self::Hang | Self::WrongIndex | Self::Panic => None,
        }
    }
}

/// A way for an index to lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lie {
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
pub(super) struct Plan {
    by_number: BTreeMap<usize, Fault>,
    always: Option<(Call, Fault)>,
    /// After the given number of calls of the kind by workers.
    of_worker: Option<(Call, usize, Fault)>,
    calls: Vec<Call>,
    fired: Vec<(Call, Fault)>,
    /// To be reported by the next call.
    later: Option<Fault>,
    lies: usize,
}

impl Plan {
    pub(super) fn arm(&mut self, faults: impl IntoIterator<Item = (usize, Fault)>) {
        self.by_number = faults.into_iter().collect();
        self.calls.clear();
        self.fired.clear();
    }

    pub(super) fn arm_always(&mut self, call: Call, fault: Fault) {
        self.always = Some((call, fault));
    }

    pub(super) fn arm_worker(&mut self, call: Call, earlier: usize, fault: Fault) {
        self.of_worker = Some((call, earlier, fault));
    }

    pub(super) fn calls(&self) -> &[Call] {
        &self.calls
    }

    pub(super) fn fired(&self) -> &[(Call, Fault)] {
        &self.fired
    }

    /// Each time another.
    pub(super) fn next_lie(&mut self) -> Lie {
        const ALL: [Lie; 5] = [Lie::EndsOutside, Lie::NotPlaced, Lie::StartsLate, Lie::NoSuchKind, Lie::NoSuchLength];
        self.lies += 1;
        // The calls made before count too, so that new devices vary the lie.
        ALL[(self.lies + self.calls.len()) % ALL.len()]
    }

    /// Counts a call; the fault that is meant for it.
    fn count(&mut self, call: Call) -> Option<Fault> {
        let number = self.calls.len();
        self.calls.push(call);
        let is_worker = rayon::current_thread_index().is_some();
        let is_meant =
            |(kind, fault): &(Call, Fault)| *kind == call && (is_worker || *fault != Fault::IllegalAddressTold);
        let always = self.always.filter(is_meant).map(|(_, fault)| fault);
        let of_worker = if is_worker { self.of_worker(call) } else { None };
        let fault = self.by_number.remove(&number).or(of_worker).or(always)?;
        self.fired.push((call, fault));
        Some(fault)
    }

    /// The fault that is meant for a worker, if this is the call.
    fn of_worker(&mut self, call: Call) -> Option<Fault> {
        let (_, earlier, fault) = self.of_worker.as_mut().filter(|(kind, _, _)| *kind == call)?;
        let fault = *fault;
        match earlier.checked_sub(1) {
            Some(left) => *earlier = left,
            None => self.of_worker = None,
        }
        self.of_worker.is_none().then_some(fault)
    }
}

impl State {
    /// Whether work goes on.
    pub(super) fn lives(&self) -> bool {
        self.lost.is_none() && self.faults.later.is_none()
    }

    /// Whether the next call will report a failure.
    pub(super) fn is_failing(&self) -> bool {
        !self.lives()
    }

    /// Starts a call: its failure, or a fault that it goes through with.
    pub(super) fn enter(&mut self, call: Call) -> GpuResult<Option<Fault>> {
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
            Some(Fault::Panic) => panic!("injected panic in {call:?}"),
            Some(Fault::IllegalAddressLater) => self.faults.later = fault,
            Some(Fault::Hang) => self.hung = [true; 3],
            Some(Fault::WrongIndex) | None => {}
            Some(fault) => return Err(self.fail(call, fault)),
        }
        Ok(fault)
    }

    /// Whether the thread that drives the ring is yet to find out.
    pub(super) fn is_to_be_told(&self) -> bool {
        !self.loss_is_known && matches!(self.faults.fired.last(), Some((_, Fault::IllegalAddressTold)))
    }

    fn fail(&mut self, call: Call, fault: Fault) -> GpuError {
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
