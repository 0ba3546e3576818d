//! Page-locked host memory, which the GPU copies from and to directly.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::time::Duration;

use memmap2::{Advice, MmapMut};

use super::context::GpuContext;
use super::error::{GpuError, GpuResult};
use super::event::CudaEvent;

/// The length of a huge page on x86-64, and the shortest buffer that is not allocated by the driver.
const MIN_MAPPED_BYTES: usize = 2 << 20;

/// The CPU's caching of page-locked memory.
///
/// ```
/// use trueno_zram_core::gpu::raw::HostCaching;
/// assert_ne!(HostCaching::Cached, HostCaching::WriteCombined);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostCaching {
    /// Like ordinary memory. For everything that the CPU reads.
    Cached,
    /// Bypasses the caches. For memory that the CPU only writes, front to back. Reading it is a hundred times slower.
    WriteCombined,
}

impl HostCaching {
    /// Usable from every context of the process, not only the one that allocated it.
    const PORTABLE: u32 = 0x1;
    const WRITE_COMBINED: u32 = 0x4;

    fn flags(self) -> u32 {
        match self {
            Self::Cached => Self::PORTABLE,
            Self::WriteCombined => Self::PORTABLE | Self::WRITE_COMBINED,
        }
    }
}

/// A page-locked buffer on the host.
///
/// Copies to and from it run while the CPU does other work. To keep accesses away from bytes in flight, each copy
/// leaves an event in the buffer. [`bytes_mut`](Self::bytes_mut) waits for it, and so does [`bytes`](Self::bytes) if
/// the copy writes to the buffer. No copy can start while either borrow lives, since starting one takes `&mut`. Copies
/// by several streams are ordered. Dropping waits too, without a time limit, and the driver may then wait for
/// everything that runs in the context.
///
/// Bytes that the GPU only reads stay readable even after the context is lost. This allows the CPU to redo a failed
/// batch.
///
/// ```no_run
/// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, HostCaching, PinnedBuffer, CudaStream};
/// let context = GpuContext::new(0)?;
/// let stream = CudaStream::new(&context)?;
/// let mut pinned = PinnedBuffer::new(&context, 4096, HostCaching::Cached)?;
/// let buffer = DeviceBuffer::new(&context, 4096)?;
/// pinned.bytes_mut()?.fill(7);
/// stream.upload_pinned(&buffer, 0, &mut pinned, 0..4096)?; // returns at once
/// assert_eq!(pinned.bytes()?[0], 7); // both only read, so this does not wait
/// pinned.bytes_mut()?.fill(8); // waits for the copy
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
pub struct PinnedBuffer {
    /// The context that allocated the memory and frees it.
    context: GpuContext,
    address: NonNull<u8>,
    /// The mapping of this process that the driver page-locked; `None` if the driver allocated the memory.
    mapping: Option<MmapMut>,
    len_bytes: usize,
    /// Recorded after the newest copy, which runs after all earlier ones. Belongs to the context that copies.
    last_copy: CudaEvent,
    in_flight: PendingAccess,
}

/// The strongest access by copies that have not been waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PendingAccess {
    Nothing,
    /// The GPU reads them.
    Reads,
    /// The GPU writes them.
    Writes,
}

// SAFETY: the buffer owns its memory, like a `Vec<u8>`; the driver may be called from any thread.
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
    /// Usually `CUDA_ERROR_OUT_OF_MEMORY`: page-locked memory is scarcer than ordinary memory.
    pub fn new(context: &GpuContext, len_bytes: usize, caching: HostCaching) -> GpuResult<Self> {
        let last_copy = CudaEvent::ordering(context)?;
        if caching == HostCaching::Cached
            && len_bytes >= MIN_MAPPED_BYTES
            && let Some((mapping, address)) = page_locked_mapping(context, len_bytes)
        {
            let (context, in_flight) = (context.clone(), PendingAccess::Nothing);
            return Ok(Self { context, address, mapping: Some(mapping), len_bytes, last_copy, in_flight });
        }
        // A slice must not be longer than Rust allows, and the driver rejects allocations of 0 bytes.
        let allocated = len_bytes.clamp(1, isize::MAX.unsigned_abs());
        let mut address: *mut c_void = std::ptr::null_mut();
        // SAFETY: the destination is a local variable; `drop` frees the memory.
        context.call(|driver| unsafe { driver.cuMemHostAlloc(&raw mut address, allocated, caching.flags()) })?;
        let address =
            NonNull::new(address.cast::<u8>()).ok_or(GpuError::OutOfRange { what: "host address", value: 0 })?;
        // SAFETY: the driver allocated `allocated` bytes there. They are zeroed because slices must not be
        // uninitialised.
        unsafe { address.write_bytes(0, allocated) };
        Ok(Self {
            context: context.clone(),
            address,
            mapping: None,
            len_bytes: len_bytes.min(allocated),
            last_copy,
            in_flight: PendingAccess::Nothing,
        })
    }

    /// Returns the length in bytes.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, HostCaching, PinnedBuffer, CudaStream};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = CudaStream::new(&context)?;
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

    /// Returns the bytes, after waiting for copies that write them.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, HostCaching, PinnedBuffer, CudaStream};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = CudaStream::new(&context)?;
    /// # let buffer = DeviceBuffer::new(&context, 8192)?;
    /// # let mut pinned = PinnedBuffer::new(&context, 8192, HostCaching::Cached)?;
    /// stream.download_pinned(&buffer, 0, &mut pinned, 0..8192)?; // returns at once
    /// let sum: u64 = pinned.bytes()?.iter().map(|byte| u64::from(*byte)).sum(); // waits for the copy
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of the copy. The bytes are then not accessible.
    pub fn bytes(&self) -> GpuResult<&[u8]> {
        if self.in_flight == PendingAccess::Writes {
            self.last_copy.wait()?;
        }
        // SAFETY: we own the memory, it has this length, `new` initialised it, and no copy writes it: earlier ones are
        // done, and starting one needs `&mut self` while the slice holds `&self`.
        Ok(unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.len_bytes) })
    }

    /// Returns the bytes mutably, after waiting for all copies.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, HostCaching, PinnedBuffer, CudaStream};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = CudaStream::new(&context)?;
    /// # let buffer = DeviceBuffer::new(&context, 8192)?;
    /// # let mut pinned = PinnedBuffer::new(&context, 8192, HostCaching::Cached)?;
    /// for round in 0..3 {
    ///     pinned.bytes_mut()?.fill(round); // waits for the previous round's copy
    ///     stream.upload_pinned(&buffer, 0, &mut pinned, 0..8192)?;
    /// }
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of the copy. The bytes are then not accessible.
    pub fn bytes_mut(&mut self) -> GpuResult<&mut [u8]> {
        self.wait()?;
        // SAFETY: as in `bytes`; after `wait` no copy reads it either.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.len_bytes) })
    }

    /// Waits until no copy is in flight.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, HostCaching, PinnedBuffer, CudaStream};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = CudaStream::new(&context)?;
    /// # let buffer = DeviceBuffer::new(&context, 8192)?;
    /// # let mut pinned = PinnedBuffer::new(&context, 8192, HostCaching::Cached)?;
    /// stream.upload_pinned(&buffer, 0, &mut pinned, 0..8192)?;
    /// if let Err(error) = pinned.wait() {
    ///     println!("the batch must be redone: {error}");
    /// }
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of the copy.
    pub fn wait(&mut self) -> GpuResult<()> {
        if self.in_flight != PendingAccess::Nothing {
            self.last_copy.wait()?;
            self.in_flight = PendingAccess::Nothing;
        }
        Ok(())
    }

    /// Waits until no copy is in flight, but no longer than `timeout`.
    pub(crate) fn wait_for(&mut self, timeout: Duration) -> GpuResult<()> {
        if self.in_flight != PendingAccess::Nothing {
            self.last_copy.wait_for(timeout)?;
            self.in_flight = PendingAccess::Nothing;
        }
        Ok(())
    }

    /// Takes the bytes back without waiting, so that the CPU can finish the work of a lost context.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, HostCaching, PinnedBuffer, CudaStream};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = CudaStream::new(&context)?;
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
    /// No copy is in flight. This is known, for example, if the driver has reported the context as broken, because it
    /// stops the device's work for the context before that. It does not follow from giving a context up because a
    /// kernel hangs.
    pub unsafe fn assume_idle(&mut self) {
        self.in_flight = PendingAccess::Nothing;
    }

    /// Returns the event after the newest copy, if one is in flight.
    pub(crate) fn copy_in_flight(&self) -> Option<&CudaEvent> {
        (self.in_flight != PendingAccess::Nothing).then_some(&self.last_copy)
    }

    /// Registers a copy. The caller records the returned event after it. If it cannot, it must wait for the copy in
    /// another way or give the context up; then the event cannot be waited for, and the bytes stay inaccessible.
    pub(crate) fn begin_copy(&mut self, copy: PendingAccess) -> (*mut u8, &CudaEvent) {
        self.in_flight = self.in_flight.max(copy);
        (self.address.as_ptr(), &self.last_copy)
    }

    /// Lets another context copy from and to the buffer. The memory is portable, but a stream can only record events of
    /// its own context. Fails while a copy of the previous context may be in flight.
    pub(crate) fn adopt(&mut self, context: &GpuContext) -> GpuResult<()> {
        if context.is_same(self.context()) {
            return Ok(());
        }
        self.wait_for(Duration::ZERO)?;
        self.last_copy = CudaEvent::ordering(context)?;
        Ok(())
    }

    /// Returns the context that copies from and to the buffer.
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
        let mapping = self.mapping.take().map(ManuallyDrop::new);
        if self.wait().is_err() {
            // A copy may still be running. Leaking the memory is better than letting the copy write to its next owner.
            return;
        }
        let address = self.address.as_ptr().cast();
        match mapping {
            // SAFETY: `new` allocated the memory, and no copy is in flight.
            None => self.context.call_in_drop(|driver| unsafe { driver.cuMemFreeHost(address) }),
            Some(mapping) => {
                // SAFETY: `page_locked_mapping` registered the memory, and no copy is in flight.
                let unlocked = self.context.call(|driver| unsafe { driver.cuMemHostUnregister(address) });
                // Memory that may still be page-locked is leaked.
                if unlocked.is_ok() {
                    drop(ManuallyDrop::into_inner(mapping));
                }
            }
        }
    }
}

/// Maps zeroed memory and page-locks it, from [`MIN_MAPPED_BYTES`] on. That is several times as fast as an allocation by the
/// driver: the memory is of huge pages where the system has them, and several threads can do it at the same time. `None` if
/// the system or the driver refuses.
fn page_locked_mapping(context: &GpuContext, len_bytes: usize) -> Option<(MmapMut, NonNull<u8>)> {
    let mut mapping = MmapMut::map_anon(len_bytes).ok()?;
    // After a fork, a write here must not move the page to another physical address, which the device would not know.
    mapping.advise(Advice::DontFork).ok()?;
    // Both only make it faster: without them, the memory is of small pages, and the driver touches it.
    let _ = mapping.advise(Advice::HugePage);
    let _ = mapping.advise(Advice::PopulateWrite);
    let address = NonNull::new(mapping.as_mut_ptr())?;
    let (start, flags) = (address.as_ptr().cast(), HostCaching::Cached.flags());
    // SAFETY: the mapping has this length, and `drop` ends the registration before it is unmapped.
    context.call(|driver| unsafe { driver.cuMemHostRegister_v2(start, len_bytes, flags) }).ok()?;
    Some((mapping, address))
}
