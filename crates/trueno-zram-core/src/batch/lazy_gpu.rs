//! A GPU that is opened on a thread of its own, while the CPU works.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;

use super::gpu_batch_compressor::GpuBatchCompressor;
use super::options::GpuOptions;
use crate::error::{Error, Result};
use crate::gpu::GpuBatchConfig;
use crate::gpu::ring::cuda::Cuda;
use crate::gpu::ring::device::RingDevice;

/// Threads of this process that open a GPU.
static OPENING: AtomicUsize = AtomicUsize::new(0);

/// Returns `true` while a thread of a [`LazyGpu`] opens a GPU.
///
/// The driver may hang in that thread. `exit` would then wait for the locks that it holds, so a program that ends meanwhile
/// should do so without running exit handlers.
///
/// ```
/// assert!(!trueno_zram_core::gpu::gpu_is_opening(), "nothing was asked of a GPU");
/// ```
#[must_use]
pub fn gpu_is_opening() -> bool {
    OPENING.load(Ordering::Acquire) > 0
}

/// A GPU that is opened in the background, while the caller works without it.
///
/// CUDA takes a third of a second to start and to end, in which 16 cores compress gigabytes. So nothing of the driver is
/// touched until [`open`](Self::open), which returns at once; [`CpuProgress`](super::CpuProgress) tells when that pays. The thread
/// is never waited for: a driver that hangs costs nothing but the GPU.
///
/// ```
/// use trueno_zram_core::gpu::{GpuBatchConfig, GpuOptions, LazyGpu};
/// let mut gpu = LazyGpu::new(GpuBatchConfig::default(), &GpuOptions::default())?;
/// gpu.open();
/// // ... work on the CPU meanwhile ...
/// match gpu.get() {
///     Some(gpu) => println!("{} pages per slot", gpu.config().batch_size),
///     None => println!("not ready, or not there: {:?}", gpu.failure()),
/// }
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
pub struct LazyGpu<D: RingDevice = Cuda> {
    state: LazyState<D>,
}

enum LazyState<D: RingDevice> {
    Closed(Box<dyn FnOnce() -> Result<GpuBatchCompressor<D>> + Send + Sync>),
    /// The mutex is never locked: it lets threads share what has it.
    Opening(Mutex<Receiver<Result<GpuBatchCompressor<D>>>>),
    Open(Box<GpuBatchCompressor<D>>),
    /// It could not be opened, for this reason.
    Failed(String),
}

impl LazyGpu {
    /// Prepares to open a GPU. The driver is not touched.
    ///
    /// ```
    /// use trueno_zram_core::{Algorithm, Error, gpu::{GpuBatchConfig, GpuOptions, LazyGpu}};
    /// let config = GpuBatchConfig { algorithm: Algorithm::Zstd { level: 19 }, ..GpuBatchConfig::default() };
    /// assert!(matches!(LazyGpu::new(config, &GpuOptions::default()), Err(Error::Unsupported { .. })));
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`] if a size is out of range; [`Error::Unsupported`] for algorithms that GPUs do not run.
    pub fn new(config: GpuBatchConfig, options: &GpuOptions) -> Result<Self> {
        config.check()?;
        let options = options.clone();
        Ok(Self::with(move || GpuBatchCompressor::with_options(config, &options)))
    }
}

impl<D: RingDevice> LazyGpu<D> {
    /// Prepares to open a GPU with `open`.
    pub(crate) fn with(open: impl FnOnce() -> Result<GpuBatchCompressor<D>> + Send + Sync + 'static) -> Self {
        Self { state: LazyState::Closed(Box::new(open)) }
    }

    /// Begins to open the GPU on a thread of its own, unless that was done before.
    ///
    /// ```
    /// use trueno_zram_core::gpu::{GpuBatchConfig, GpuOptions, LazyGpu};
    /// let mut gpu = LazyGpu::new(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// assert!(!gpu.was_opened());
    /// gpu.open();
    /// assert!(gpu.was_opened());
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    pub fn open(&mut self) {
        let LazyState::Closed(open) = &mut self.state else { return };
        let open = std::mem::replace(open, Box::new(|| unreachable!("it is opened once")));
        let (sender, receiver) = sync_channel(1);
        OPENING.fetch_add(1, Ordering::AcqRel);
        let spawned = thread::Builder::new().name("open-gpu".to_owned()).spawn(move || {
            let _opening = OpeningGuard;
            // Nobody may be left to use it. Then it is dropped here, which may hang as well.
            drop(sender.send(open()));
        });
        self.state = match spawned {
            Ok(_) => LazyState::Opening(Mutex::new(receiver)),
            Err(error) => {
                drop(OpeningGuard);
                LazyState::Failed(format!("no thread could be started to open it: {error}"))
            }
        };
    }

    /// Returns `true` once [`open`](Self::open) was called, whatever came of it.
    #[must_use]
    pub fn was_opened(&self) -> bool {
        !matches!(self.state, LazyState::Closed(_))
    }

    /// Returns the GPU if it is open and can be used.
    ///
    /// ```
    /// use trueno_zram_core::gpu::{GpuBatchConfig, GpuOptions, LazyGpu};
    /// let mut gpu = LazyGpu::new(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// assert!(gpu.get().is_none(), "nobody has opened it");
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    pub fn get(&mut self) -> Option<&mut GpuBatchCompressor<D>> {
        if let LazyState::Opening(receiver) = &mut self.state {
            match receiver.get_mut().expect("never locked").try_recv() {
                Ok(opened) => self.set(opened),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => self.set_panicked(),
            }
        }
        match &mut self.state {
            LazyState::Open(gpu) if gpu.uses_device() => Some(gpu),
            _ => None,
        }
    }

    /// Opens the GPU and waits until it can be used.
    ///
    /// ```
    /// use trueno_zram_core::gpu::{GpuBatchConfig, GpuOptions, LazyGpu, gpu_available};
    /// let mut gpu = LazyGpu::new(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// # if !gpu_available() {
    /// assert!(gpu.wait().is_none() && gpu.failure().is_some());
    /// # }
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    pub fn wait(&mut self) -> Option<&mut GpuBatchCompressor<D>> {
        self.open();
        if let LazyState::Opening(receiver) = &mut self.state {
            match receiver.get_mut().expect("never locked").recv() {
                Ok(opened) => self.set(opened),
                Err(_) => self.set_panicked(),
            }
        }
        self.get()
    }

    /// Returns the reason why the GPU cannot be used: it could not be opened, or was given up. Returns `None` if it can, or if that
    /// is not known yet.
    ///
    /// ```
    /// use trueno_zram_core::gpu::{GpuBatchConfig, GpuOptions, LazyGpu};
    /// let gpu = LazyGpu::new(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// assert_eq!(gpu.failure(), None);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        match &self.state {
            LazyState::Failed(reason) => Some(reason),
            LazyState::Open(gpu) => gpu.stats().fallback.device_given_up.as_deref(),
            LazyState::Closed(_) | LazyState::Opening(_) => None,
        }
    }

    /// Returns the GPU's compressor if it was opened, even if its device was given up since.
    pub(crate) fn compressor(&self) -> Option<&GpuBatchCompressor<D>> {
        match &self.state {
            LazyState::Open(gpu) => Some(gpu),
            LazyState::Closed(_) | LazyState::Opening(_) | LazyState::Failed(_) => None,
        }
    }

    fn set(&mut self, opened: Result<GpuBatchCompressor<D>>) {
        self.state = match opened {
            Ok(gpu) => LazyState::Open(Box::new(gpu)),
            Err(Error::GpuNotAvailable(reason)) => LazyState::Failed(reason),
            Err(error) => LazyState::Failed(error.to_string()),
        };
    }

    fn set_panicked(&mut self) {
        self.state = LazyState::Failed("the thread that opened it panicked".to_owned());
    }
}

impl<D: RingDevice> From<GpuBatchCompressor<D>> for LazyGpu<D> {
    /// Takes a GPU that is open.
    fn from(gpu: GpuBatchCompressor<D>) -> Self {
        Self { state: LazyState::Open(Box::new(gpu)) }
    }
}

impl<D: RingDevice> fmt::Debug for LazyGpu<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state {
            LazyState::Closed(_) => f.write_str("LazyGpu(closed)"),
            LazyState::Opening(_) => f.write_str("LazyGpu(opening)"),
            LazyState::Open(gpu) => f.debug_tuple("LazyGpu").field(gpu).finish(),
            LazyState::Failed(reason) => f.debug_tuple("LazyGpu").field(reason).finish(),
        }
    }
}

/// Counts a thread in [`OPENING`] until it is dropped, also by a panic.
struct OpeningGuard;

impl Drop for OpeningGuard {
    fn drop(&mut self) {
        OPENING.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use super::*;
    use crate::gpu::Interpreter;

    fn interpreted() -> Result<GpuBatchCompressor<Interpreter>> {
        GpuBatchCompressor::interpreted(GpuBatchConfig::default(), &GpuOptions::default())
    }

    #[test]
    fn the_caller_goes_on_while_the_driver_hangs() {
        let (release, hang) = channel::<()>();
        let hang = Mutex::new(hang);
        let mut gpu = LazyGpu::with(move || {
            let _ = hang.lock().unwrap().recv();
            interpreted()
        });
        assert!(gpu.get().is_none() && !gpu.was_opened());
        gpu.open();
        assert!(gpu_is_opening(), "it counts before its thread runs");
        gpu.open();
        assert!(gpu.get().is_none() && gpu.failure().is_none() && gpu.was_opened());
        drop(release);
        assert!(gpu.wait().is_some());
        assert!(gpu.get().is_some() && gpu.compressor().is_some());
    }

    #[test]
    fn a_gpu_that_cannot_be_opened_has_a_reason() {
        let mut gpu = LazyGpu::<Interpreter>::with(|| Err(Error::GpuNotAvailable("no driver".to_owned())));
        assert_eq!(gpu.failure(), None, "nobody has asked the driver");
        assert!(gpu.wait().is_none() && gpu.get().is_none() && gpu.compressor().is_none());
        assert_eq!(gpu.failure(), Some("no driver"));
    }

    #[test]
    fn a_panic_of_the_driver_layer_is_a_failure() {
        let mut gpu = LazyGpu::<Interpreter>::with(|| panic!("a test"));
        assert!(gpu.wait().is_none() && gpu.failure().is_some());
    }

    #[test]
    fn a_gpu_that_nobody_waits_for_is_dropped_when_it_is_open() {
        let (opened, is_opened) = channel();
        let alive = Arc::new(());
        let held = Arc::clone(&alive);
        let mut gpu = LazyGpu::with(move || {
            let gpu = interpreted();
            opened.send(()).unwrap();
            drop(held);
            gpu
        });
        gpu.open();
        drop(gpu);
        is_opened.recv().unwrap();
        while Arc::strong_count(&alive) > 1 {
            thread::yield_now();
        }
    }
}
