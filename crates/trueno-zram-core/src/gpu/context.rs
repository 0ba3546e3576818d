//! A device's primary context: made current for each call, and given up for good after a failure that poisons it.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::device::{CudaDevice, DeviceLimits, GpuDeviceInfo};
use super::driver::{CUcontext, Driver, driver};
use super::error::{DriverError, GpuError, GpuResult};

/// A device in use. Clones share it. Buffers, streams, events and modules keep it alive.
///
/// This is the device's *primary* context, which libraries built on the CUDA runtime also use, so memory can be shared
/// with them. Each call makes the context current on the calling thread and restores the previous one, so any thread
/// may call.
///
/// **Failure.** The first error that [poisons](GpuError::poisons_context) the context, or a call of
/// [`abandon`](Self::abandon), ends its use: by this value and by all others of the process on that device. Every later
/// call returns [`GpuError::ContextLost`] with the first reason, and the device cannot be opened again. Objects in the
/// context are leaked, not freed: CUDA would refuse to free them, and under a hung kernel would wait forever.
///
/// ```
/// use trueno_zram_core::{Error, gpu::raw::GpuContext};
/// match GpuContext::new(0) {
///     Ok(context) => println!("{}", context.info().name),
///     Err(Error::GpuNotAvailable(why)) => println!("no GPU: {why}"),
///     Err(other) => panic!("{other}"),
/// }
/// ```
#[derive(Clone)]
pub struct GpuContext {
    inner: Arc<Inner>,
}

struct Inner {
    driver: &'static Driver,
    device: CudaDevice,
    limits: DeviceLimits,
    handle: CUcontext,
    lost: Arc<Lost>,
}

/// The reason why a device's primary context was given up, once set.
type Lost = OnceLock<Loss>;

/// The reason why a context can no longer be used.
#[derive(Debug, PartialEq, Eq)]
struct Loss {
    reason: String,
    /// `true` if the device is known to have stopped all work of the context.
    stopped: bool,
}

/// Returns the shared loss state of a device. A process has one primary context per device, so all its users lose it
/// together.
fn lost_of(device_index: u32) -> Arc<Lost> {
    static BY_DEVICE: Mutex<BTreeMap<u32, Arc<Lost>>> = Mutex::new(BTreeMap::new());
    // The map is consistent between any two of its operations, even after a panic.
    let mut by_device = BY_DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(by_device.entry(device_index).or_default())
}

// SAFETY: the handle is an opaque driver token that any thread may use; the rest is plain data.
unsafe impl Send for Inner {}
// SAFETY: as above; the driver does its own locking.
unsafe impl Sync for Inner {}

impl GpuContext {
    /// Opens a device.
    ///
    /// ```
    /// use trueno_zram_core::gpu::{GpuDeviceInfo, raw::GpuContext};
    /// let largest = GpuDeviceInfo::all().into_iter().filter(GpuDeviceInfo::is_supported).max_by_key(|d| d.total_memory);
    /// let context = largest.map(|device| GpuContext::new(device.index)).transpose()?;
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::GpuNotAvailable`](crate::Error::GpuNotAvailable), with the failed call and the name of the CUDA error,
    /// if there is no driver or no such device, the device is not [supported](GpuDeviceInfo::is_supported), or it was
    /// given up earlier.
    pub fn new(device_index: u32) -> crate::Result<Self> {
        Self::open(device_index).map_err(GpuError::not_available)
    }

    fn open(device_index: u32) -> GpuResult<Self> {
        let driver = driver()?;
        let device = CudaDevice::find(driver, device_index)?;
        if !device.info.is_supported() {
            let (major, minor) = device.info.compute_capability;
            return Err(GpuError::OldDevice { name: device.info.name, major, minor });
        }
        let limits = device.limits(driver)?;
        let lost = lost_of(device_index);
        if let Some(loss) = lost.get() {
            return Err(GpuError::ContextLost { reason: loss.reason.clone() });
        }
        let mut handle = std::ptr::null_mut();
        // SAFETY: the destination is a local variable and the device comes from the driver; `Inner::drop` releases the
        // context.
        unsafe { driver.cuDevicePrimaryCtxRetain(&raw mut handle, device.handle) }?;
        Ok(Self { inner: Arc::new(Inner { driver, device, limits, handle, lost }) })
    }

    /// Returns the description of the device.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::GpuContext;
    /// let context = GpuContext::new(0)?;
    /// let info = context.info();
    /// println!("{}: batches of {} pages", info.name, info.optimal_batch_size());
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn info(&self) -> &GpuDeviceInfo {
        &self.inner.device.info
    }

    /// Returns the limits for launches on the device.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::GpuContext;
    /// let context = GpuContext::new(0)?;
    /// let grid = context.limits().multiprocessors * 2; // two blocks on each
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn limits(&self) -> &DeviceLimits {
        &self.inner.limits
    }

    /// Waits until all work of the context, in every stream, is done.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, CudaStream};
    /// # let context = GpuContext::new(0)?;
    /// # let buffer = DeviceBuffer::new(&context, 8192)?;
    /// let (one, two) = (CudaStream::new(&context)?, CudaStream::new(&context)?);
    /// one.fill(&buffer, 0..4096, 1)?;
    /// two.fill(&buffer, 4096..8192, 2)?;
    /// context.synchronize()?; // both are done
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of that work.
    pub fn synchronize(&self) -> GpuResult<()> {
        // SAFETY: the call takes no arguments; the context is current.
        self.call(|driver| unsafe { driver.cuCtxSynchronize() })
    }

    /// Returns the number of free bytes of device memory.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::GpuContext;
    /// let context = GpuContext::new(0)?;
    /// let pages = context.free_memory()? / 2 / 4096; // half of it for pages
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the driver call fails.
    pub fn free_memory(&self) -> GpuResult<u64> {
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: both destinations are local variables.
        self.call(|driver| unsafe { driver.cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
        Ok(free as u64)
    }

    /// Runs `f` with the context current on this thread, for libraries that use the current context.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::GpuContext;
    /// extern "C" fn other_library() { /* allocates in whatever context is current */ }
    /// let context = GpuContext::new(0)?;
    /// context.with_current(|| other_library())?;
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the context is lost or cannot be made current.
    pub fn with_current<T>(&self, f: impl FnOnce() -> T) -> GpuResult<T> {
        self.call(|_| Ok(f()))
    }

    /// Gives the context up, for example because a kernel hangs. Nothing in it can be used again. The first reason is
    /// kept.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::GpuError;
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext};
    /// let context = GpuContext::new(0)?;
    /// context.abandon("a kernel hangs");
    /// let later = DeviceBuffer::new(&context, 4096).err();
    /// assert_eq!(later, Some(GpuError::ContextLost { reason: "a kernel hangs".into() }));
    /// assert!(GpuContext::new(0).is_err(), "the device cannot be opened again");
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    pub fn abandon(&self, reason: &str) {
        self.lose(Loss { reason: reason.to_owned(), stopped: false });
    }

    fn lose(&self, loss: Loss) {
        // The first reason is the cause; later ones are consequences.
        let _ = self.inner.lost.set(loss);
    }

    /// Returns `true` if the context was lost in a way that has stopped all of its copies.
    pub(crate) fn has_stopped(&self) -> bool {
        self.inner.lost.get().is_some_and(|loss| loss.stopped)
    }

    /// Returns the reason why the context is lost, if it is.
    pub(crate) fn loss(&self) -> Option<&str> {
        self.inner.lost.get().map(|loss| loss.reason.as_str())
    }

    /// Returns `true` if the context was given up.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::GpuContext;
    /// let context = GpuContext::new(0)?;
    /// let finished = context.synchronize();
    /// if context.is_lost() {
    ///     println!("the CPU takes over: {finished:?}");
    /// }
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.inner.lost.get().is_some()
    }

    /// Calls the driver. All calls go through here: a lost context is rejected, the context is made current, and errors
    /// that poison it are recorded.
    pub(crate) fn call<T>(&self, f: impl FnOnce(&Driver) -> Result<T, DriverError>) -> GpuResult<T> {
        if let Some(loss) = self.inner.lost.get() {
            return Err(GpuError::ContextLost { reason: loss.reason.clone() });
        }
        let result = Current::push(&self.inner).and_then(|current| {
            let result = f(self.inner.driver);
            let popped = current.pop();
            result.and_then(|value| popped.map(|()| value))
        });
        result.map_err(|error| {
            if error.poisons_context() {
                self.lose(Loss { reason: error.to_string(), stopped: error.has_stopped_device() });
            }
            error.into()
        })
    }

    /// Like `call`, for `Drop`, which cannot report errors. The objects of a lost context are leaked; other failures
    /// are ignored.
    pub(crate) fn call_in_drop(&self, f: impl FnOnce(&Driver) -> Result<(), DriverError>) {
        let _ = self.call(f);
    }

    /// Rejects an object that belongs to another context.
    pub(crate) fn check_same(&self, other: &Self, what: &'static str) -> GpuResult<()> {
        if self.is_same(other) { Ok(()) } else { Err(GpuError::ForeignContext { what }) }
    }

    /// Returns `true` if both are the same primary context. Contexts opened twice on one device are.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.inner.handle == other.inner.handle
    }
}

impl fmt::Debug for GpuContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GpuContext({}: {})", self.info().index, self.info().name)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.lost.get().is_none() {
            // SAFETY: `open` retained it once; none of our objects are left in it, since each holds the `Arc`.
            let _ = unsafe { self.driver.cuDevicePrimaryCtxRelease_v2(self.device.handle) };
        }
    }
}

/// A context made current on this thread. It is popped on unwinding too, which restores the caller's own context.
struct Current<'a> {
    driver: &'a Driver,
}

impl<'a> Current<'a> {
    fn push(inner: &'a Inner) -> Result<Self, DriverError> {
        // SAFETY: the context is retained as long as `inner` lives.
        unsafe { inner.driver.cuCtxPushCurrent_v2(inner.handle) }?;
        Ok(Self { driver: inner.driver })
    }

    fn pop(self) -> Result<(), DriverError> {
        let driver = self.driver;
        std::mem::forget(self);
        Self::pop_of(driver)
    }

    fn pop_of(driver: &Driver) -> Result<(), DriverError> {
        let mut popped = std::ptr::null_mut();
        // SAFETY: the destination is a local variable; `push` put a context on this thread's stack.
        unsafe { driver.cuCtxPopCurrent_v2(&raw mut popped) }
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let _ = Self::pop_of(self.driver);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn missing_driver_is_named_in_the_error() {
        if driver().err() != Some(GpuError::NoDriver) {
            return; // A driver is installed; see tests/gpu_device.rs.
        }
        let Err(Error::GpuNotAvailable(why)) = GpuContext::new(0) else { panic!("expected GpuNotAvailable") };
        assert!(why.contains("libcuda"), "{why}");
    }

    #[test]
    fn loss_is_shared_per_device_and_keeps_its_first_reason() {
        // No machine has that many devices, so no other test is affected.
        let loss = |reason: &str| Loss { reason: reason.to_owned(), stopped: false };
        let (one, same, other) = (lost_of(u32::MAX), lost_of(u32::MAX), lost_of(u32::MAX - 1));
        assert_eq!(one.set(loss("first")), Ok(()));
        assert!(same.set(loss("second")).is_err());
        assert_eq!(same.get(), Some(&loss("first")));
        assert_eq!(other.get(), None);
    }

    #[test]
    fn rejects_a_device_that_does_not_exist() {
        assert!(matches!(GpuContext::new(u32::MAX), Err(Error::GpuNotAvailable(_))));
    }
}
