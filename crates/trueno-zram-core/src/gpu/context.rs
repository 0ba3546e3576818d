//! A device's primary context: made current for each call, and given up for good when it breaks.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::device::{Device, DeviceLimits, GpuDeviceInfo};
use super::driver::{CUcontext, Driver, driver};
use super::error::{DriverError, GpuError, GpuResult};

/// A device in use. Clones share it; buffers, streams, events and modules keep it alive.
///
/// It is the device's *primary* context, the one that libraries over the CUDA runtime use: memory can be shared with
/// them. Each call makes it current on the calling thread and restores what was current before, so any thread may call.
///
/// **When it breaks.** The first error that [poisons](GpuError::poisons_context) the context, or [`abandon`](Self::abandon), ends
/// its use, by this value and by all others of the process on that device: every later call gives
/// [`GpuError::ContextLost`] with the first reason, the device cannot be opened again, and what lives in the context is
/// leaked, not freed. CUDA would refuse to free it, and under a hung kernel would wait for ever.
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
    device: Device,
    limits: DeviceLimits,
    handle: CUcontext,
    lost: Arc<Lost>,
}

/// Why a device's primary context was given up, once it was.
type Lost = OnceLock<Loss>;

/// Why a context can be used no more.
#[derive(Debug, PartialEq, Eq)]
struct Loss {
    reason: String,
    /// Whether it is known that the device does nothing for the context any more.
    stopped: bool,
}

/// The process has one primary context a device: what is lost to one user of it is lost to all.
fn lost_of(device_index: u32) -> Arc<Lost> {
    static BY_DEVICE: Mutex<BTreeMap<u32, Arc<Lost>>> = Mutex::new(BTreeMap::new());
    // A map is whole between any two of its operations, whatever panicked.
    let mut by_device = BY_DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(by_device.entry(device_index).or_default())
}

// SAFETY: the handle is an opaque token of the driver, which may be used from any thread; the rest is plain data.
unsafe impl Send for Inner {}
// SAFETY: as above; the driver locks for itself.
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
    /// [`Error::GpuNotAvailable`](crate::Error::GpuNotAvailable), with the failed call and the CUDA error's name, if
    /// there is no driver, no such device, the device is not [supported](GpuDeviceInfo::is_supported), or it was given up before.
    pub fn new(device_index: u32) -> crate::Result<Self> {
        Self::open(device_index).map_err(GpuError::not_available)
    }

    fn open(device_index: u32) -> GpuResult<Self> {
        let driver = driver()?;
        let device = Device::find(driver, device_index)?;
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
        // SAFETY: the destination is a value of ours, the device the driver's; `Inner::drop` releases it.
        unsafe { driver.cuDevicePrimaryCtxRetain(&raw mut handle, device.handle) }?;
        Ok(Self { inner: Arc::new(Inner { driver, device, limits, handle, lost }) })
    }

    /// The device.
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

    /// What bounds a launch on it.
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

    /// Waits until all work of the context, of every stream, is done.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, Stream};
    /// # let context = GpuContext::new(0)?;
    /// # let buffer = DeviceBuffer::new(&context, 8192)?;
    /// let (one, two) = (Stream::new(&context)?, Stream::new(&context)?);
    /// one.fill(&buffer, 0..4096, 1)?;
    /// two.fill(&buffer, 4096..8192, 2)?;
    /// context.synchronize()?; // both are done
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of the work waited for.
    pub fn synchronize(&self) -> GpuResult<()> {
        // SAFETY: it takes no arguments; the context is current.
        self.call(|driver| unsafe { driver.cuCtxSynchronize() })
    }

    /// Bytes of device memory that are free now.
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
        // SAFETY: both destinations are values of ours.
        self.call(|driver| unsafe { driver.cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
        Ok(free as u64)
    }

    /// Runs `f` with the context current on this thread, for libraries that use what is current.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::GpuContext;
    /// extern "C" fn foreign() { /* allocates in whatever context is current */ }
    /// let context = GpuContext::new(0)?;
    /// context.with_current(|| foreign())?;
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the context is lost, or cannot be made current.
    pub fn with_current<T>(&self, f: impl FnOnce() -> T) -> GpuResult<T> {
        self.call(|_| Ok(f()))
    }

    /// Gives the context up: for a kernel that hangs, say. Nothing in it can be used again. The first reason given stays.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::GpuError;
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext};
    /// let context = GpuContext::new(0)?;
    /// context.abandon("a kernel hangs");
    /// let later = DeviceBuffer::new(&context, 4096).err();
    /// assert_eq!(later, Some(GpuError::ContextLost { reason: "a kernel hangs".into() }));
    /// assert!(GpuContext::new(0).is_err(), "nor can it be opened again");
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    pub fn abandon(&self, reason: &str) {
        self.lose(Loss { reason: reason.to_owned(), stopped: false });
    }

    fn lose(&self, loss: Loss) {
        // The first reason is the cause; later ones are its consequences.
        let _ = self.inner.lost.set(loss);
    }

    /// Whether the context was lost in a way that has stopped all its copies.
    pub(crate) fn has_stopped(&self) -> bool {
        self.inner.lost.get().is_some_and(|loss| loss.stopped)
    }

    /// Why the context is lost, if it is.
    pub(crate) fn loss(&self) -> Option<&str> {
        self.inner.lost.get().map(|loss| loss.reason.as_str())
    }

    /// Whether the context was given up.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::GpuContext;
    /// let context = GpuContext::new(0)?;
    /// let finished = context.synchronize();
    /// if context.is_lost() {
    ///     println!("from here on the CPU does it: {finished:?}");
    /// }
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.inner.lost.get().is_some()
    }

    /// The one way to the driver: refuses a lost context, makes it current, and notices errors that poison it.
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

    /// For `Drop`, which can report nothing: a lost context's objects are leaked, and other failures leave nothing to do.
    pub(crate) fn call_in_drop(&self, f: impl FnOnce(&Driver) -> Result<(), DriverError>) {
        let _ = self.call(f);
    }

    /// Refuses what belongs to another context.
    pub(crate) fn check_same(&self, other: &Self, what: &'static str) -> GpuResult<()> {
        if self.is_same(other) { Ok(()) } else { Err(GpuError::ForeignContext { what }) }
    }

    /// Contexts opened twice on one device are the same primary context.
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
            // SAFETY: `open` retained it once; nothing of ours lives in it, since all hold the `Arc`.
            let _ = unsafe { self.driver.cuDevicePrimaryCtxRelease_v2(self.device.handle) };
        }
    }
}

/// A context made current on this thread. Popped on unwinding too, so that the caller's own context is back in its place.
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
        // SAFETY: the destination is a value of ours; `push` put a context on this thread's stack.
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
    fn without_a_driver_the_error_says_so() {
        if driver().err() != Some(GpuError::NoDriver) {
            return; // tests/gpu_device.rs has the rest.
        }
        let Err(Error::GpuNotAvailable(why)) = GpuContext::new(0) else { panic!("another answer") };
        assert!(why.contains("libcuda"), "{why}");
    }

    #[test]
    fn a_loss_is_shared_by_device_and_keeps_its_first_reason() {
        // No machine has as many devices: no other test is disturbed.
        let loss = |reason: &str| Loss { reason: reason.to_owned(), stopped: false };
        let (one, same, other) = (lost_of(u32::MAX), lost_of(u32::MAX), lost_of(u32::MAX - 1));
        assert_eq!(one.set(loss("first")), Ok(()));
        assert!(same.set(loss("second")).is_err());
        assert_eq!(same.get(), Some(&loss("first")));
        assert_eq!(other.get(), None);
    }

    #[test]
    fn a_device_that_is_not_there_is_an_error() {
        assert!(matches!(GpuContext::new(u32::MAX), Err(Error::GpuNotAvailable(_))));
    }
}
