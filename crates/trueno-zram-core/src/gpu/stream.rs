//! Streams: queues of copies and kernels, which run in order, and the copies between host and device.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::context::GpuContext;
use super::driver::{CUstream, Driver};
use super::error::{DriverError, GpuResult};
use super::event::CudaEvent;
use super::memory::{DeviceBuffer, check_part};
use super::pinned::{HostCaching, PendingAccess, PinnedBuffer};

/// Bytes that [`CudaStream::upload`] and [`CudaStream::download`] copy at a time.
const STAGING_BYTES: usize = 1 << 20;

/// A queue of copies and kernels for a device. They run in order. Streams run in parallel, unless a [`CudaEvent`] orders them.
///
/// ```no_run
/// use trueno_zram_core::gpu::raw::{CudaEvent, GpuContext, CudaStream};
/// let context = GpuContext::new(0)?;
/// let (copies, kernels) = (CudaStream::new(&context)?, CudaStream::new(&context)?);
/// let copied = CudaEvent::ordering(&context)?;
/// copies.record(&copied)?;
/// kernels.wait_for_event(&copied)?; // what is queued in `kernels` from here on runs after `copied`
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
pub struct CudaStream {
    context: GpuContext,
    handle: CUstream,
    /// Page-locked memory of `upload` and `download`, allocated by the first of them and freed with the stream: freeing
    /// page-locked memory waits for every kernel in the context.
    staging: Mutex<Option<PinnedBuffer>>,
}

// SAFETY: the handle is a driver token that any thread may use.
unsafe impl Send for CudaStream {}
// SAFETY: as above; the driver does its own locking.
unsafe impl Sync for CudaStream {}

impl CudaStream {
    /// The stream does not wait for the default stream, which other libraries may use.
    const NON_BLOCKING: u32 = 0x1;

    /// Creates a stream.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{GpuContext, CudaStream};
    /// let context = GpuContext::new(0)?;
    /// let (one, two) = (CudaStream::new(&context)?, CudaStream::new(&context)?); // to copy one batch and compress another
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the driver call fails.
    pub fn new(context: &GpuContext) -> GpuResult<Self> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the destination is a local variable; `drop` destroys the stream.
        context.call(|driver| unsafe { driver.cuStreamCreate(&raw mut handle, Self::NON_BLOCKING) })?;
        Ok(Self { context: context.clone(), handle, staging: Mutex::new(None) })
    }

    /// Copies bytes from the host to a buffer and waits.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, CudaStream};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = CudaStream::new(&context)?;
    /// let buffer = DeviceBuffer::new(&context, 8192)?;
    /// stream.upload(&buffer, 4096, &[7; 4096])?; // the second page
    /// assert!(stream.upload(&buffer, 4097, &[7; 4096]).is_err(), "one byte too far");
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`GpuError::OutsideBuffer`](crate::gpu::GpuError::OutsideBuffer), or the errors of the copy and of the work queued
    /// before it.
    pub fn upload(&self, to: &DeviceBuffer, offset: usize, bytes: &[u8]) -> GpuResult<()> {
        self.part_of(to, offset, bytes.len())?;
        if bytes.is_empty() {
            return self.synchronize();
        }
        let mut staging = self.staging();
        let staging = staging_of(&self.context, &mut staging)?;
        for (number, part) in bytes.chunks(STAGING_BYTES).enumerate() {
            staging.bytes_mut()?[..part.len()].copy_from_slice(part);
            self.upload_pinned(to, offset + number * STAGING_BYTES, staging, 0..part.len())?;
        }
        staging.wait()
    }

    /// Copies bytes from a buffer to the host and waits.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, CudaStream};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = CudaStream::new(&context)?;
    /// let buffer = DeviceBuffer::new(&context, 8192)?;
    /// stream.fill(&buffer, 0..8192, 7)?;
    /// let mut last = [0; 4];
    /// stream.download(&buffer, 8188, &mut last)?; // runs after the fill
    /// assert_eq!(last, [7; 4]);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`GpuError::OutsideBuffer`](crate::gpu::GpuError::OutsideBuffer), or the errors of the copy and of the work queued
    /// before it.
    pub fn download(&self, from: &DeviceBuffer, offset: usize, bytes: &mut [u8]) -> GpuResult<()> {
        self.part_of(from, offset, bytes.len())?;
        if bytes.is_empty() {
            return self.synchronize();
        }
        let mut staging = self.staging();
        let staging = staging_of(&self.context, &mut staging)?;
        for (number, part) in bytes.chunks_mut(STAGING_BYTES).enumerate() {
            self.download_pinned(from, offset + number * STAGING_BYTES, staging, 0..part.len())?;
            part.copy_from_slice(&staging.bytes()?[..part.len()]);
        }
        Ok(())
    }

    fn staging(&self) -> MutexGuard<'_, Option<PinnedBuffer>> {
        // The buffer keeps track of its own copies, so it is consistent even after a panic.
        self.staging.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a copy of `part` of page-locked memory to byte `offset` of a buffer. Until the copy is done, writing to the memory
    /// waits.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, HostCaching, PinnedBuffer, CudaStream};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = CudaStream::new(&context)?;
    /// # let buffer = DeviceBuffer::new(&context, 8192)?;
    /// let mut pinned = PinnedBuffer::new(&context, 8192, HostCaching::Cached)?;
    /// pinned.bytes_mut()?[..4].copy_from_slice(b"page");
    /// stream.upload_pinned(&buffer, 4096, &mut pinned, 0..4096)?; // returns at once
    /// pinned.bytes_mut()?.fill(0); // waits for the copy
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`GpuError::OutsideBuffer`](crate::gpu::GpuError::OutsideBuffer), or the driver's error.
    pub fn upload_pinned(
        &self,
        to: &DeviceBuffer,
        offset: usize,
        from: &mut PinnedBuffer,
        part: Range<usize>,
    ) -> GpuResult<()> {
        let to = self.part_of(to, offset, part.len())?;
        self.copy_pinned(from, part, PendingAccess::Reads, |driver, bytes, len| {
            // SAFETY: both parts have that length; `copy_pinned` keeps the host's memory in place until the copy is done.
            unsafe { driver.cuMemcpyHtoDAsync_v2(to, bytes, len, self.handle) }
        })
    }

    /// Queues a copy from byte `offset` of a buffer to `part` of page-locked memory. Until the copy is done, every access to the
    /// memory waits.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, HostCaching, PinnedBuffer, CudaStream};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = CudaStream::new(&context)?;
    /// # let buffer = DeviceBuffer::new(&context, 8192)?;
    /// let mut pinned = PinnedBuffer::new(&context, 8192, HostCaching::Cached)?;
    /// stream.fill(&buffer, 0..8192, 7)?;
    /// stream.download_pinned(&buffer, 0, &mut pinned, 0..8192)?; // returns at once
    /// assert_eq!(pinned.bytes()?[8191], 7); // waits for the copy
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`GpuError::OutsideBuffer`](crate::gpu::GpuError::OutsideBuffer), or the driver's error.
    pub fn download_pinned(
        &self,
        from: &DeviceBuffer,
        offset: usize,
        to: &mut PinnedBuffer,
        part: Range<usize>,
    ) -> GpuResult<()> {
        let from = self.part_of(from, offset, part.len())?;
        self.copy_pinned(to, part, PendingAccess::Writes, |driver, bytes, len| {
            // SAFETY: both parts have that length; `copy_pinned` keeps the host's memory in place until the copy is done.
            unsafe { driver.cuMemcpyDtoHAsync_v2(bytes, from, len, self.handle) }
        })
    }

    fn copy_pinned(
        &self,
        pinned: &mut PinnedBuffer,
        part: Range<usize>,
        direction: PendingAccess,
        copy: impl FnOnce(&Driver, *mut c_void, usize) -> Result<(), DriverError>,
    ) -> GpuResult<()> {
        self.context.check_same(pinned.context(), "the page-locked buffer")?;
        let part = check_part(part.start, part.len(), pinned.len_bytes())?;
        if let Some(earlier) = pinned.copy_in_flight() {
            self.wait_for_event(earlier)?;
        }
        let (address, last_copy) = pinned.begin_copy(direction);
        // SAFETY: the part lies within the memory.
        let bytes = unsafe { address.add(part.start) };
        let queued = self.context.call(|driver| copy(driver, bytes.cast(), part.len()));
        let recorded = self.record(last_copy);
        if recorded.is_err() && self.synchronize().is_err() {
            // A copy may be in flight that has no event, and nothing can wait for it: see `begin_copy`.
            self.context.abandon("a copy could be neither marked nor waited for");
        }
        queued.and(recorded)
    }

    /// Queues setting every byte of `part` of a buffer to `byte`.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, CudaStream};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = CudaStream::new(&context)?;
    /// let buffer = DeviceBuffer::new(&context, 8192)?;
    /// stream.fill(&buffer, 0..buffer.len_bytes(), 0)?;
    /// stream.fill(&buffer, 0..4096, 0xff)?; // runs after the first
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`GpuError::OutsideBuffer`](crate::gpu::GpuError::OutsideBuffer), or the driver's error.
    pub fn fill(&self, buffer: &DeviceBuffer, part: Range<usize>, byte: u8) -> GpuResult<()> {
        let len_bytes = part.len();
        let to = self.part_of(buffer, part.start, len_bytes)?;
        // SAFETY: the part lies within the buffer, which is freed only when the stream has run.
        self.context.call(|driver| unsafe { driver.cuMemsetD8Async(to, byte, len_bytes, self.handle) })
    }

    /// Queues the recording of an event: it is reached when all work queued before is done.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, CudaEvent, GpuContext, CudaStream};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = CudaStream::new(&context)?;
    /// # let buffer = DeviceBuffer::new(&context, 8192)?;
    /// let zeroed = CudaEvent::ordering(&context)?;
    /// stream.fill(&buffer, 0..8192, 0)?;
    /// stream.record(&zeroed)?;
    /// zeroed.wait()?; // for the fill, not for work that may be queued after it
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the driver call fails.
    pub fn record(&self, event: &CudaEvent) -> GpuResult<()> {
        self.context.check_same(event.context(), "the event")?;
        // SAFETY: event and stream exist.
        self.context.call(|driver| unsafe { driver.cuEventRecord(event.handle(), self.handle) })
    }

    /// Makes all work that is queued later wait for an event, as it was last recorded.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, CudaEvent, GpuContext, CudaStream};
    /// # let context = GpuContext::new(0)?;
    /// # let buffer = DeviceBuffer::new(&context, 8192)?;
    /// let (first, second) = (CudaStream::new(&context)?, CudaStream::new(&context)?);
    /// let zeroed = CudaEvent::ordering(&context)?;
    /// first.fill(&buffer, 0..8192, 0)?;
    /// first.record(&zeroed)?;
    /// second.wait_for_event(&zeroed)?;
    /// second.fill(&buffer, 0..4096, 1)?; // runs after the other stream's fill
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the driver call fails.
    pub fn wait_for_event(&self, event: &CudaEvent) -> GpuResult<()> {
        self.context.check_same(event.context(), "the event")?;
        // SAFETY: event and stream exist.
        self.context.call(|driver| unsafe { driver.cuStreamWaitEvent(self.handle, event.handle(), 0) })
    }

    /// Waits until all work queued so far is done.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, CudaStream};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = CudaStream::new(&context)?;
    /// # let buffer = DeviceBuffer::new(&context, 8192)?;
    /// stream.fill(&buffer, 0..8192, 0)?; // returns at once
    /// stream.synchronize()?; // waits for the fill
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of that work.
    pub fn synchronize(&self) -> GpuResult<()> {
        // SAFETY: the stream exists.
        self.context.call(|driver| unsafe { driver.cuStreamSynchronize(self.handle) })
    }

    /// Returns the driver's handle, a `CUstream`, for other libraries.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{GpuContext, CudaStream};
    /// # let context = GpuContext::new(0)?;
    /// extern "C" fn other_library(_stream: *mut std::ffi::c_void) { /* queues its own work there */ }
    /// let stream = CudaStream::new(&context)?;
    /// other_library(stream.as_raw());
    /// stream.synchronize()?; // waits for that work too
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn as_raw(&self) -> *mut c_void {
        self.handle.cast()
    }

    pub(crate) fn handle(&self) -> CUstream {
        self.handle
    }

    pub(crate) fn context(&self) -> &GpuContext {
        &self.context
    }

    fn part_of(&self, buffer: &DeviceBuffer, offset: usize, len_bytes: usize) -> GpuResult<u64> {
        self.context.check_same(buffer.context(), "the buffer")?;
        buffer.part(offset, len_bytes)
    }
}

/// Returns the stream's own page-locked memory, allocated on first use. The device never accesses borrowed memory: if a copy
/// cannot be waited for, this memory leaks, and the borrow can end.
fn staging_of<'a>(context: &GpuContext, staging: &'a mut Option<PinnedBuffer>) -> GpuResult<&'a mut PinnedBuffer> {
    match staging {
        Some(staging) => Ok(staging),
        empty => Ok(empty.insert(PinnedBuffer::new(context, STAGING_BYTES, HostCaching::Cached)?)),
    }
}

impl fmt::Debug for CudaStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaStream({:p})", self.handle)
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        // SAFETY: `new` created the stream. The driver finishes the queued work first, without waiting here.
        self.context.call_in_drop(|driver| unsafe { driver.cuStreamDestroy_v2(self.handle) });
    }
}
