//! A block device of this machine, `/dev/ublkbN`, through the kernel's ublk driver.
//!
//! Needs Linux 6.5 or later, the module `ublk_drv`, and root. Each queue has a thread, which gets requests through io_uring,
//! and their data by reading and writing the device's file. Under memory pressure it needs no memory: its
//! buffers are allocated before the device starts.

mod layout;
mod queue;
mod queue_threads;
mod ring;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use trueno_zram_core::PAGE_SIZE;

use crate::export::{Export, SECTOR_BYTES};
use layout::{DeviceInfo, DeviceParameters, FEATURES, control};
use queue::{MAX_IO_BYTES, UblkQueue};
use queue_threads::{QueueEvents, QueueThreads, RunQueue};
use ring::ControlRing;

pub use queue_threads::UblkError;

/// Requests per queue that may be in flight.
const QUEUE_DEPTH: u16 = 128;

/// The most queues of a device.
const MAX_QUEUES: u16 = 64;

/// The most sectors of one discard or write zeroes request: 1 GiB.
const MAX_ZERO_SECTORS: u32 = 1 << 21;

/// The time within which the device's file must appear, and its queues must be ready.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Marks this thread, and every thread that it starts, as part of the path by which the kernel frees memory.
///
/// A thread that serves swap must not wait for memory that only swapping out frees: its own allocations would wait for
/// itself. With the flag, the kernel looks for memory without any I/O when such a thread needs some. It is a flag of a
/// thread that new threads inherit, so a server sets it before it starts any. [`UblkDevice`] has an example.
///
/// # Errors
/// Without the capability `CAP_SYS_RESOURCE`. A server whose memory is all locked then rarely needs memory, but it may.
pub fn become_io_flusher() -> io::Result<()> {
    Ok(rustix::process::configure_io_flusher_behavior(true)?)
}

/// A device. Dropping it removes the device: its users then get errors.
///
/// ```no_run
/// use std::sync::Arc;
/// use trueno_zram_serve::ublk::{UblkDevice, become_io_flusher};
/// use trueno_zram_serve::{Export, StoreExport};
/// use trueno_zram_store::{Store, StoreOptions};
/// become_io_flusher()?; // the device is used for swap
/// let store = Arc::new(Store::create(&StoreOptions::new(8 << 30).with_limit_bytes(2 << 30).with_locked(true))?);
/// let export: Arc<dyn Export> = Arc::new(StoreExport::new(store));
/// let device = UblkDevice::start(&export, 4)?;
/// println!("mkswap {0} && swapon {0}", device.path().display());
/// device.wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct UblkDevice {
    control: Mutex<ControlRing>,
    id: u32,
    path: PathBuf,
    threads: Mutex<QueueThreads>,
    /// `None` before the threads are started.
    events: Mutex<Option<QueueEvents>>,
    /// `true` once this process wants the device to end.
    stopping: AtomicBool,
    /// `true` once the device is removed. Another device may have its number then.
    is_removed: Mutex<bool>,
}

impl std::fmt::Debug for UblkDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UblkDevice({})", self.path.display())
    }
}

impl UblkDevice {
    /// Creates a device for `export` with this many queues, 1 to 64.
    ///
    /// # Errors
    /// If the export does not consist of whole pages, the driver is not there or too old, the process may not use it, or the
    /// export cannot be opened.
    pub fn start(export: &Arc<dyn Export>, queues: u16) -> io::Result<Self> {
        let sectors = sectors_of(export.size_bytes())?;
        let mut control = ControlRing::open()?;
        let asked = DeviceInfo {
            queues: queues.clamp(1, MAX_QUEUES),
            depth: QUEUE_DEPTH,
            max_io_bytes: MAX_IO_BYTES,
            id: u32::MAX,
            features: FEATURES,
        };
        let mut info = asked.encode();
        control.call(control::ADD, u32::MAX, 0, &mut info)?;
        let info = DeviceInfo::decode(&info);
        let path = PathBuf::from(format!("/dev/ublkb{}", info.id));
        let device = Self {
            control: Mutex::new(control),
            id: info.id,
            path,
            threads: Mutex::default(),
            events: Mutex::default(),
            stopping: AtomicBool::new(false),
            is_removed: Mutex::new(false),
        };
        if info.features & FEATURES != FEATURES {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "the ublk driver is older than Linux 6.5"));
        }
        device.set_up(export, sectors, info)?;
        Ok(device)
    }

    /// Returns the path of the device.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Configures and starts a device that has a number. After an error, dropping `self` removes the device.
    fn set_up(&self, export: &Arc<dyn Export>, sectors: u64, info: DeviceInfo) -> io::Result<()> {
        let max_io_bytes = info.max_io_bytes.min(MAX_IO_BYTES);
        let parameters = DeviceParameters {
            sectors,
            max_io_bytes,
            max_zero_sectors: MAX_ZERO_SECTORS,
            read_only: export.is_read_only(),
        };
        self.call(control::SET_PARAMETERS, 0, &mut layout::parameters(parameters))?;
        let file = Arc::new(open_when_there(&PathBuf::from(format!("/dev/ublkc{}", self.id)))?);
        // Everything that can fail without the driver is done before a queue runs.
        let queue = |number| -> io::Result<RunQueue> {
            let io = export.open().map_err(io::Error::other)?;
            let queue = UblkQueue::new(Arc::clone(&file), number, info.depth, io)?;
            Ok(Box::new(move |fetching| queue.run(fetching)))
        };
        let queues = (0..info.queues).map(queue).collect::<io::Result<_>>()?;
        let (threads, events) = QueueThreads::start(queues)?;
        *lock(&self.threads) = threads;
        if !lock(&self.events).insert(events).wait_until_fetching(info.queues, TIMEOUT)? {
            return Err(self.stop().map_or_else(io::Error::other, |()| io::ErrorKind::Interrupted.into()));
        }
        self.call(control::START, std::process::id().into(), &mut [])
    }

    /// Waits until the device ends, and removes it. A queue that fails ends the device, since the requests in it would wait
    /// forever.
    ///
    /// # Errors
    /// [`UblkError`], unless [`stop`](Self::stop) was called.
    pub fn wait(&self) -> Result<(), UblkError> {
        if let Some(events) = &*lock(&self.events) {
            events.wait_for_end();
        }
        let wanted = self.stopping.load(Ordering::Acquire);
        self.stop()?;
        if wanted { Ok(()) } else { Err(UblkError::Stopped { path: self.path.clone() }) }
    }

    /// Stops all queues and removes the device. Does nothing if that has been done.
    ///
    /// # Errors
    /// [`UblkError`] if a queue had failed.
    pub fn stop(&self) -> Result<(), UblkError> {
        self.stopping.store(true, Ordering::Release);
        let mut is_removed = lock(&self.is_removed);
        if *is_removed {
            return Ok(());
        }
        // Of a device that never started, the driver only ends the fetches.
        let ended = lock(&self.threads).stop(|| _ = self.call(control::STOP, 0, &mut []));
        let _ = self.call(control::DELETE, 0, &mut []);
        *is_removed = true;
        ended
    }

    fn call(&self, command: u32, data: u64, buffer: &mut [u8]) -> io::Result<()> {
        lock(&self.control).call(command, self.id, data, buffer)
    }
}

impl Drop for UblkDevice {
    fn drop(&mut self) {
        // Callers that need the reason of a failed queue have called `wait`.
        let _ = self.stop();
    }
}

/// Nothing panics while it holds one of the locks in the middle of a change.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the length of a device in sectors. The blocks of the device are pages, so an export with a part of a page at its end is
/// refused: the kernel could not read that part.
fn sectors_of(size_bytes: u64) -> io::Result<u64> {
    if size_bytes == 0 || !size_bytes.is_multiple_of(PAGE_SIZE as u64) {
        let message = format!("a block device has whole pages of {PAGE_SIZE} bytes; the export has {size_bytes} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(size_bytes / SECTOR_BYTES)
}

/// Opens a device's file, which the system creates a moment after the device.
fn open_when_there(path: &Path) -> io::Result<File> {
    let start = Instant::now();
    loop {
        match File::options().read(true).write(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && start.elapsed() < TIMEOUT => {
                std::thread::sleep(Duration::from_millis(5));
            }
            opened => return opened,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_page_at_the_end_is_refused() {
        assert_eq!(sectors_of(8192).unwrap(), 16);
        for size_bytes in [0, 1, 512, 4095, 4097, u64::MAX] {
            assert_eq!(sectors_of(size_bytes).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }
}
