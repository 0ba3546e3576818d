//! Events: markers in a stream, to wait for and to measure between.
#![allow(unsafe_code)]

use std::fmt;
use std::time::{Duration, Instant};

use super::context::GpuContext;
use super::driver::CUevent;
use super::error::{DriverError, GpuError, GpuResult};

/// A marker that a [`CudaStream`](super::stream::CudaStream) reaches when all work before it is done. An event that was never
/// recorded counts as reached.
///
/// ```no_run
/// use trueno_zram_core::gpu::raw::{CudaEvent, GpuContext, CudaStream};
/// let context = GpuContext::new(0)?;
/// let stream = CudaStream::new(&context)?;
/// let (start, end) = (CudaEvent::timed(&context)?, CudaEvent::timed(&context)?);
/// stream.record(&start)?;
/// stream.record(&end)?;
/// end.wait()?;
/// println!("{:?} for no work", end.since(&start)?);
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
pub struct CudaEvent {
    context: GpuContext,
    handle: CUevent,
}

// SAFETY: the handle is a driver token that any thread may use.
unsafe impl Send for CudaEvent {}
// SAFETY: as above; the driver does its own locking.
unsafe impl Sync for CudaEvent {}

/// The time that [`CudaEvent::wait_for`] sleeps between two queries: short compared with a batch, long compared with a query.
const POLL: Duration = Duration::from_micros(20);

impl CudaEvent {
    const DISABLE_TIMING: u32 = 0x2;

    /// Creates an event that records the time.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{CudaEvent, GpuContext, CudaStream};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = CudaStream::new(&context)?;
    /// let (start, end) = (CudaEvent::timed(&context)?, CudaEvent::timed(&context)?);
    /// stream.record(&start)?;
    /// // ... the work to measure ...
    /// stream.record(&end)?;
    /// end.wait()?;
    /// println!("{:?}", end.since(&start)?);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the driver call fails.
    pub fn timed(context: &GpuContext) -> GpuResult<Self> {
        Self::with_flags(context, 0)
    }

    /// Creates an event without timing, which is cheaper.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{CudaEvent, GpuContext, CudaStream};
    /// # let context = GpuContext::new(0)?;
    /// # let (first, second) = (CudaStream::new(&context)?, CudaStream::new(&context)?);
    /// let done = CudaEvent::ordering(&context)?;
    /// first.record(&done)?;
    /// second.wait_for_event(&done)?;
    /// assert!(done.since(&done).is_err(), "the event has no timing");
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the driver call fails.
    pub fn ordering(context: &GpuContext) -> GpuResult<Self> {
        Self::with_flags(context, Self::DISABLE_TIMING)
    }

    fn with_flags(context: &GpuContext, flags: u32) -> GpuResult<Self> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the destination is a local variable; `drop` destroys the event.
        context.call(|driver| unsafe { driver.cuEventCreate(&raw mut handle, flags) })?;
        Ok(Self { context: context.clone(), handle })
    }

    /// Waits until the event is reached.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{CudaEvent, GpuContext, CudaStream};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = CudaStream::new(&context)?;
    /// let half = CudaEvent::ordering(&context)?;
    /// // ... the first half of the work ...
    /// stream.record(&half)?;
    /// // ... the second half ...
    /// half.wait()?; // the first half is done, the second runs
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of the work before the event.
    pub fn wait(&self) -> GpuResult<()> {
        // SAFETY: the event exists.
        self.context.call(|driver| unsafe { driver.cuEventSynchronize(self.handle) })
    }

    /// Waits until the event is reached, but no longer than `timeout`.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::GpuError;
    /// use trueno_zram_core::gpu::raw::{CudaEvent, GpuContext, CudaStream};
    /// # use std::time::Duration;
    /// # let context = GpuContext::new(0)?;
    /// # let stream = CudaStream::new(&context)?;
    /// let done = CudaEvent::ordering(&context)?;
    /// // ... a launch ...
    /// stream.record(&done)?;
    /// if let Err(GpuError::TimedOut { .. }) = done.wait_for(Duration::from_secs(2)) {
    ///     context.abandon("the kernel hangs"); // its buffers are leaked: freeing them would wait for the kernel
    /// }
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`GpuError::TimedOut`], or the errors of the work before the event.
    pub fn wait_for(&self, timeout: Duration) -> GpuResult<()> {
        let start = Instant::now();
        while !self.is_reached()? {
            if start.elapsed() >= timeout {
                return Err(GpuError::TimedOut { timeout_ms: timeout.as_millis() });
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Returns `true` if the event is reached.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{CudaEvent, GpuContext, CudaStream};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = CudaStream::new(&context)?;
    /// let done = CudaEvent::ordering(&context)?;
    /// stream.record(&done)?;
    /// while !done.is_reached()? {
    ///     std::thread::yield_now(); // or do useful work
    /// }
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of the work before the event.
    pub fn is_reached(&self) -> GpuResult<bool> {
        // SAFETY: the event exists.
        match self.context.call(|driver| unsafe { driver.cuEventQuery(self.handle) }) {
            Ok(()) => Ok(true),
            Err(GpuError::Driver(DriverError { number: DriverError::NOT_READY, .. })) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the GPU time between two [timed](Self::timed) events, both reached, to about half a microsecond.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, CudaEvent, GpuContext, CudaStream};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = CudaStream::new(&context)?;
    /// # let buffer = DeviceBuffer::new(&context, 1 << 30)?;
    /// let (start, end) = (CudaEvent::timed(&context)?, CudaEvent::timed(&context)?);
    /// stream.record(&start)?;
    /// stream.fill(&buffer, 0..1 << 30, 0)?;
    /// stream.record(&end)?;
    /// end.wait()?;
    /// println!("{:.0} GB/s", (1u64 << 30) as f64 / end.since(&start)?.as_secs_f64() / 1e9);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If either event was not recorded, is not reached, or has no timing.
    pub fn since(&self, start: &Self) -> GpuResult<Duration> {
        self.context.check_same(&start.context, "the event")?;
        let mut milliseconds = 0f32;
        self.context.call(|driver| {
            // SAFETY: the destination is a local variable; both events exist.
            unsafe { driver.cuEventElapsedTime(&raw mut milliseconds, start.handle, self.handle) }
        })?;
        // The driver returns a negative time if the end precedes the start, and a duration cannot be negative.
        Ok(Duration::try_from_secs_f64(f64::from(milliseconds) / 1e3).unwrap_or_default())
    }

    pub(crate) fn handle(&self) -> CUevent {
        self.handle
    }

    pub(crate) fn context(&self) -> &GpuContext {
        &self.context
    }
}

impl fmt::Debug for CudaEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaEvent({:p})", self.handle)
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        // SAFETY: `with_flags` created the event. The driver keeps it as long as pending work needs it.
        self.context.call_in_drop(|driver| unsafe { driver.cuEventDestroy_v2(self.handle) });
    }
}
