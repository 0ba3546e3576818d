//! A block device of this machine, `/dev/ublkbN`, through the kernel's ublk driver.
//!
//! Needs Linux 6.5 or later, the module `ublk_drv`, and root. Each queue has a thread, which gets requests through io_uring,
//! and their data by reading and writing the device's file. Under memory pressure it needs no memory: its
//! buffers are made before the device starts.

mod layout;
mod queue;
mod ring;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::export::Export;
use layout::{DeviceInfo, FEATURES, control};
use queue::{MAX_IO_BYTES, Queue, SECTOR_BYTES};
use ring::ControlRing;

/// Requests per queue that may be on their way.
const QUEUE_DEPTH: u16 = 128;

/// The most queues of a device.
const MAX_QUEUES: u16 = 64;

/// The most sectors of one discard or write zeroes request: 1 GiB.
const MAX_ZERO_SECTORS: u32 = 1 << 21;

/// How long to wait for the device's file to appear, and for its queues to be ready.
const PATIENCE: Duration = Duration::from_secs(10);

/// A device. Dropping it removes the device: whatever uses it then gets errors.
pub struct UblkDevice {
    control: Mutex<ControlRing>,
    id: u32,
    path: PathBuf,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl std::fmt::Debug for UblkDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UblkDevice({})", self.path.display())
    }
}

impl UblkDevice {
    /// Makes a device of `export` with this many queues, 1 to 64.
    ///
    /// # Errors
    /// If the driver is not there or too old, the process may not use it, or the export cannot be opened.
    pub fn start(export: &Arc<dyn Export>, queues: u16) -> io::Result<Self> {
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
        let mut device = Self { control: Mutex::new(control), id: info.id, path, threads: Vec::new() };
        if info.features & FEATURES != FEATURES {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "the ublk driver is older than Linux 6.5"));
        }
        device.set_up(export, info)?;
        Ok(device)
    }

    /// Returns the path of the device.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Everything after the device has a number. After an error, dropping `self` removes the device.
    fn set_up(&mut self, export: &Arc<dyn Export>, info: DeviceInfo) -> io::Result<()> {
        let sectors = export.size_bytes() / SECTOR_BYTES;
        let max_io_bytes = info.max_io_bytes.min(MAX_IO_BYTES);
        let mut parameters = layout::parameters(sectors, max_io_bytes, MAX_ZERO_SECTORS, export.is_read_only());
        self.call(control::SET_PARAMETERS, 0, &mut parameters)?;
        let file = Arc::new(open_when_there(&PathBuf::from(format!("/dev/ublkc{}", self.id)))?);
        let (fetching, is_fetching) = channel();
        for number in 0..info.queues {
            let io = export.open().map_err(io::Error::other)?;
            let queue = Queue::new(Arc::clone(&file), number, info.depth, io)?;
            let fetching = fetching.clone();
            let thread = std::thread::Builder::new().name(format!("ublk-{number}")).spawn(move || {
                queue.run(|| {
                    // The other side waits for it, or has given up.
                    let _ = fetching.send(());
                })
            })?;
            self.threads.push(thread);
        }
        drop(fetching);
        for _ in 0..info.queues {
            is_fetching.recv_timeout(PATIENCE).map_err(|error| match error {
                RecvTimeoutError::Timeout => io::Error::from(io::ErrorKind::TimedOut),
                RecvTimeoutError::Disconnected => io::Error::other("a queue of the device failed"),
            })?;
        }
        self.call(control::START, std::process::id().into(), &mut [])
    }

    fn call(&self, command: u32, data: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner).call(command, self.id, data, buffer)
    }
}

impl Drop for UblkDevice {
    fn drop(&mut self) {
        // A device that never started cannot be stopped, and is only deleted.
        let _ = self.call(control::STOP, 0, &mut []);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        let _ = self.call(control::DELETE, 0, &mut []);
    }
}

/// Opens a device's file, which the system makes a moment after the device.
fn open_when_there(path: &Path) -> io::Result<File> {
    let start = Instant::now();
    loop {
        match File::options().read(true).write(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && start.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(5));
            }
            opened => return opened,
        }
    }
}
