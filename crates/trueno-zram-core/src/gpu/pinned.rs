//! Page-locked host memory, which the GPU copies from and to by itself.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::time::Duration;

use super::context::GpuContext;
use super::error::{GpuError, GpuResult};
use super::event::Event;

/// How the CPU sees page-locked memory.
///
/// ```
/// use trueno_zram_core::gpu::raw::HostCaching;
/// assert_ne!(HostCaching::Cached, HostCaching::WriteCombined);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostCaching {
    /// As all memory. For everything that the CPU reads.
    Cached,
    /// Past the caches: for memory that the CPU only ever writes, front to back. Reading it is a hundred times slower.
    WriteCombined,
}

impl HostCaching {
    /// Usable from every context of the process, whichever it was allocated in.
    const PORTABLE: u32 = 0x1;
    const WRITE_COMBINED: u32 = 0x4;

    fn flags(self) -> u32 {
        match self {
            Self::Cached => Self::PORTABLE,
            Self::WriteCombined => Self::PORTABLE | Self::WRITE_COMBINED,
        }
    }
}

/// Page-locked bytes on the host.
///
/// Copies to and from it run while the CPU does other things. So that no one is in the way of bytes in flight, each copy
/// leaves an event in the buffer: [`bytes_mut`](Self::bytes_mut) waits for it, and so does [`bytes`](Self::bytes) where the copy writes here. While the
/// borrow that they give lives, no copy can start, since starting one takes `&mut`. Copies by several streams are put in
/// order. Dropping waits too, without a limit; and the driver may wait then for all that runs in the context.
///
/// Bytes that the GPU only reads stay readable, even after the context is lost: that is how a failed batch is done again.
///
/// ```no_run
/// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, HostCaching, PinnedBuffer, Stream};
/// let context = GpuContext::new(0)?;
/// let stream = Stream::new(&context)?;
/// let mut pinned = PinnedBuffer::new(&context, 4096, HostCaching::Cached)?;
/// let buffer = DeviceBuffer::new(&context, 4096)?;
/// pinned.bytes_mut()?.fill(7);
/// stream.upload_pinned(&buffer, 0, &mut pinned, 0..4096)?; // returns at once
/// assert_eq!(pinned.bytes()?[0], 7); // two readers are in no one's way
/// pinned.bytes_mut()?.fill(8); // waits for the copy
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
pub struct PinnedBuffer {
    /// Where it was allocated, and is freed.
    context: GpuContext,
    address: NonNull<u8>,
    len_bytes: usize,
    /// Recorded behind the newest copy, which runs after all earlier ones. Of the context that copies.
    last_copy: Event,
    in_flight: InFlight,
}

/// What copies that were not waited for do to the bytes; the worst of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum InFlight {
    Nothing,
    /// The GPU reads them.
    Reads,
    /// The GPU writes them.
    Writes,
}

// SAFETY: the buffer owns its memory, as a `Vec<u8>` does; the driver's calls may come from any thread.
unsafe impl Send for PinnedBuffer {}
// SAFETY: through `&self` the memory is only read.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// Allocates `len_bytes` zero bytes.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{GpuContext, HostCaching, PinnedBuffer};
    /// # let context = GpuContext::new(0)?;
    /// let input = PinnedBuffer::new(&context, 1000 * 4096, HostCaching::WriteCombined)?; // only ever written here
    /// let output = PinnedBuffer::new(&context, 1000 * 4096, HostCaching::Cached)?;
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY`, mostly: page-locked memory is scarcer than other memory.
    pub fn new(context: &GpuContext, len_bytes: usize, caching: HostCaching) -> GpuResult<Self> {
        let last_copy = Event::ordering(context)?;
        // A slice of the memory must not be longer than Rust allows; the driver refuses to allocate nothing.
        let allocated = len_bytes.clamp(1, isize::MAX.unsigned_abs());
        let mut address: *mut c_void = std::ptr::null_mut();
        // SAFETY: the destination is a value of ours; `drop` frees the memory.
        context.call(|driver| unsafe { driver.cuMemHostAlloc(&raw mut address, allocated, caching.flags()) })?;
        let address =
            NonNull::new(address.cast::<u8>()).ok_or(GpuError::OutOfRange { what: "host address", value: 0 })?;
        // SAFETY: the driver gave `allocated` bytes there. They are zeroed, since Rust's slices hold no uninitialised bytes.
        unsafe { address.write_bytes(0, allocated) };
        Ok(Self {
            context: context.clone(),
            address,
            len_bytes: len_bytes.min(allocated),
            last_copy,
            in_flight: InFlight::Nothing,
        })
    }

    /// Its length.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, HostCaching, PinnedBuffer, Stream};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = Stream::new(&context)?;
    /// # let buffer = DeviceBuffer::new(&context, 8192)?;
    /// let mut pinned = PinnedBuffer::new(&context, 8192, HostCaching::Cached)?;
    /// let all = 0..pinned.len_bytes();
    /// stream.download_pinned(&buffer, 0, &mut pinned, all)?;
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// The bytes, once no copy writes them any more.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, HostCaching, PinnedBuffer, Stream};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = Stream::new(&context)?;
    /// # let buffer = DeviceBuffer::new(&context, 8192)?;
    /// # let mut pinned = PinnedBuffer::new(&context, 8192, HostCaching::Cached)?;
    /// stream.download_pinned(&buffer, 0, &mut pinned, 0..8192)?; // returns at once
    /// let sum: u64 = pinned.bytes()?.iter().map(|byte| u64::from(*byte)).sum(); // waits for the copy
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of the copy; the bytes are then not seen.
    pub fn bytes(&self) -> GpuResult<&[u8]> {
        if self.in_flight == InFlight::Writes {
            self.last_copy.wait()?;
        }
        // SAFETY: the memory is ours, as long as that, written whole in `new`, and no copy writes it: those before are done,
        // and starting one needs `&mut self`, while the slice holds `&self`.
        Ok(unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.len_bytes) })
    }

    /// The bytes to change, once no copy is in flight.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, HostCaching, PinnedBuffer, Stream};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = Stream::new(&context)?;
    /// # let buffer = DeviceBuffer::new(&context, 8192)?;
    /// # let mut pinned = PinnedBuffer::new(&context, 8192, HostCaching::Cached)?;
    /// for round in 0..3 {
    ///     pinned.bytes_mut()?.fill(round); // waits for the copy of the round before
    ///     stream.upload_pinned(&buffer, 0, &mut pinned, 0..8192)?;
    /// }
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of the copy; the bytes are then not seen.
    pub fn bytes_mut(&mut self) -> GpuResult<&mut [u8]> {
        self.wait()?;
        // SAFETY: as in `bytes`; no copy reads it either, after `wait`.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.len_bytes) })
    }

    /// Waits until no copy is in flight.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, HostCaching, PinnedBuffer, Stream};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = Stream::new(&context)?;
    /// # let buffer = DeviceBuffer::new(&context, 8192)?;
    /// # let mut pinned = PinnedBuffer::new(&context, 8192, HostCaching::Cached)?;
    /// stream.upload_pinned(&buffer, 0, &mut pinned, 0..8192)?;
    /// if let Err(error) = pinned.wait() {
    ///     println!("the batch is to be done again: {error}");
    /// }
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of the copy.
    pub fn wait(&mut self) -> GpuResult<()> {
        if self.in_flight != InFlight::Nothing {
            self.last_copy.wait()?;
            self.in_flight = InFlight::Nothing;
        }
        Ok(())
    }

    /// Waits until no copy is in flight, but no longer than `timeout`.
    pub(crate) fn wait_for(&mut self, timeout: Duration) -> GpuResult<()> {
        if self.in_flight != InFlight::Nothing {
            self.last_copy.wait_for(timeout)?;
            self.in_flight = InFlight::Nothing;
        }
        Ok(())
    }

    /// Takes the bytes back without waiting, to finish on the CPU what a lost context has left.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, HostCaching, PinnedBuffer, Stream};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = Stream::new(&context)?;
    /// # let buffer = DeviceBuffer::new(&context, 8192)?;
    /// # let mut pinned = PinnedBuffer::new(&context, 8192, HostCaching::Cached)?;
    /// stream.upload_pinned(&buffer, 0, &mut pinned, 0..8192)?;
    /// if let Err(error) = stream.synchronize()
    ///     && error.poisons_context()
    /// {
    ///     // SAFETY: the driver reported the context as broken, so it has stopped the copy.
    ///     unsafe { pinned.assume_idle() };
    ///     pinned.bytes_mut()?.fill(0); // for the next use, by the CPU
    /// }
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Safety
    /// No copy is in flight, for whatever reason is known: the driver has reported the context as broken (it stops the
    /// device's work for it before it does), say. A context given up because a kernel hangs is no such reason.
    pub unsafe fn assume_idle(&mut self) {
        self.in_flight = InFlight::Nothing;
    }

    /// The event behind the newest copy, where one is in flight.
    pub(crate) fn copy_in_flight(&self) -> Option<&Event> {
        (self.in_flight != InFlight::Nothing).then_some(&self.last_copy)
    }

    /// Notes that a copy follows, behind which the caller records the event. If it cannot, it must wait for the copy in
    /// another way, or give the context up: then the event cannot be waited for, and the bytes stay out of reach.
    pub(crate) fn begin_copy(&mut self, copy: InFlight) -> (*mut u8, &Event) {
        self.in_flight = self.in_flight.max(copy);
        (self.address.as_ptr(), &self.last_copy)
    }

    /// Lets another context copy from and to it: the memory is portable, but a stream can record no event of a context other
    /// than its own. Refused while a copy of the context before may be under way.
    pub(crate) fn adopt(&mut self, context: &GpuContext) -> GpuResult<()> {
        if context.is_same(self.context()) {
            return Ok(());
        }
        self.wait_for(Duration::ZERO)?;
        self.last_copy = Event::ordering(context)?;
        Ok(())
    }

    /// The context that copies from and to it.
    pub(crate) fn context(&self) -> &GpuContext {
        self.last_copy.context()
    }
}

impl fmt::Debug for PinnedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedBuffer({} bytes)", self.len_bytes)
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if self.wait().is_err() {
            // A copy may still run: better to leak the memory than to have it written to in another's hands.
            return;
        }
        // SAFETY: `new` allocated it, and no copy is in flight.
        self.context.call_in_drop(|driver| unsafe { driver.cuMemFreeHost(self.address.as_ptr().cast()) });
    }
}
