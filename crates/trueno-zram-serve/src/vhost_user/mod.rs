//! A virtio block device for virtual machines, over vhost-user.
//!
//! QEMU, Cloud Hypervisor and Firecracker attach to the socket without root and without kernel modules. The guest's memory
//! must be shared (`memory-backend-memfd,share=on`). Each queue has a thread.

mod connection;
mod exit_event;
mod first_message;
mod memory;
mod request;
mod vring;

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use trueno_zram_connections::stop_accepting;
use trueno_zram_io::UnixSocket;
use vhost::vhost_user::Listener;
use vhost_user_backend::VhostUserDaemon;
use vm_memory::GuestMemoryMmap;

use crate::export::{Export, ExportError, SECTOR_BYTES};
use connection::{GuestConnection, GuestMemory};
use request::{BUFFER_BYTES, MAX_SEGMENT_SECTORS, MAX_SEGMENTS, QueueIo};

/// Requests per queue that may be in flight.
const QUEUE_SIZE: usize = 256;

/// The most queues of a device.
const MAX_QUEUES: u16 = 64;

/// Descriptors with data per request.
const MAX_DATA_SEGMENTS: u32 = 128;

/// The time after which a silent connection is displaced by one that waits. If none waits, it may stay silent: QEMU connects
/// before it allocates the guest's memory, which can take long.
const SILENCE_LIMIT: Duration = Duration::from_secs(1);

/// Feature bits (virtio 1.2, sections 5.2.3 and 6).
mod feature {
    pub(super) const SEG_MAX: u64 = 1 << 2;
    pub(super) const READ_ONLY: u64 = 1 << 5;
    pub(super) const BLOCK_SIZE: u64 = 1 << 6;
    pub(super) const FLUSH: u64 = 1 << 9;
    pub(super) const TOPOLOGY: u64 = 1 << 10;
    pub(super) const MULTI_QUEUE: u64 = 1 << 12;
    pub(super) const DISCARD: u64 = 1 << 13;
    pub(super) const WRITE_ZEROES: u64 = 1 << 14;
    pub(super) const INDIRECT_DESCRIPTORS: u64 = 1 << 28;
    pub(super) const EVENT_INDEX: u64 = 1 << 29;
    pub(super) const VERSION_1: u64 = 1 << 32;
}

/// A device on a socket, for one virtual machine at a time. Dropping it ends the connection.
///
/// A connection that has not asked for the features of the device is displaced by one that waits. A virtual machine that breaks
/// the protocol, or whose memory is shorter than announced or truncated later, is disconnected.
///
/// ```
/// use std::sync::Arc;
/// use trueno_zram_serve::vhost_user::VhostUserServer;
/// use trueno_zram_serve::{Export, StoreExport};
/// use trueno_zram_store::{Store, StoreOptions};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("disk.sock");
/// let store = Arc::new(Store::create(&StoreOptions::new(1 << 30))?);
/// let export: Arc<dyn Export> = Arc::new(StoreExport::new(store));
/// let server = VhostUserServer::start(&path, &export, 2)?;
/// // qemu: -chardev socket,id=disk,path=disk.sock -device vhost-user-blk-pci,chardev=disk,num-queues=2
/// # drop(server);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct VhostUserServer {
    socket: Arc<VhostUserSocket>,
    thread: Option<JoinHandle<()>>,
}

struct VhostUserSocket {
    listening: UnixSocket,
    stopping: AtomicBool,
    connection: Mutex<Option<Arc<GuestConnection>>>,
}

impl std::fmt::Debug for VhostUserSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "VhostUserSocket({})", self.listening.path().display())
    }
}

impl VhostUserServer {
    /// Serves `export` at `path` with this many queues, 1 to 64, to one virtual machine after the other.
    ///
    /// # Errors
    /// If the socket cannot be created, the export cannot be opened, or no thread can be started.
    pub fn start(path: &Path, export: &Arc<dyn Export>, queues: u16) -> io::Result<Self> {
        let queues = queues.clamp(1, MAX_QUEUES);
        let device = Arc::new(VirtioDevice::new(export, queues).map_err(io::Error::other)?);
        let listening = UnixSocket::bind(path)?;
        let listener = Listener::from(listening.listener().try_clone()?);
        let socket =
            Arc::new(VhostUserSocket { listening, stopping: AtomicBool::new(false), connection: Mutex::new(None) });
        let thread = std::thread::Builder::new().name("vhost-user".to_owned()).spawn({
            let socket = Arc::clone(&socket);
            move || socket.serve_all(listener, &device)
        })?;
        Ok(Self { socket, thread: Some(thread) })
    }
}

impl Drop for VhostUserServer {
    fn drop(&mut self) {
        self.socket.stopping.store(true, Ordering::Relaxed);
        stop_accepting(&self.socket.listening);
        let connection = self.socket.connection().take();
        if let Some(connection) = connection {
            connection.end();
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl VhostUserSocket {
    fn connection(&self) -> MutexGuard<'_, Option<Arc<GuestConnection>>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve_all(&self, mut listener: Listener, device: &Arc<VirtioDevice>) {
        while !self.stopping.load(Ordering::Relaxed) {
            // Out of descriptors, threads or memory: back off.
            if self.serve_one(&mut listener, device).is_err() {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }

    /// Serves a virtual machine to its end. A virtual machine that fails is not an error: the next one is not affected.
    fn serve_one(&self, listener: &mut Listener, device: &Arc<VirtioDevice>) -> Result<(), vhost_user_backend::Error> {
        let connection = GuestConnection::new(device).map_err(vhost_user_backend::Error::StartDaemon)?;
        let connection = Arc::new(connection);
        let memory = GuestMemory::new(GuestMemoryMmap::new());
        let daemon = VhostUserDaemon::new("vhost-user".to_owned(), Arc::clone(&connection), memory);
        let mut daemon = daemon.inspect_err(|_| connection.end_threads())?;
        daemon.start(listener)?;
        connection.set_socket(daemon.shutdown_handle());
        *self.connection() = Some(Arc::clone(&connection));
        if self.stopping.load(Ordering::Relaxed) {
            connection.end();
        }
        std::thread::scope(|threads| {
            // Without this thread, a silent connection stays.
            let displace = || self.displace_if_silent(&connection);
            let _ = std::thread::Builder::new().name("vhost-silence".to_owned()).spawn_scoped(threads, displace);
            let _ = daemon.wait();
            self.connection().take();
            // Before the threads of the queues are waited for.
            connection.end();
        });
        Ok(())
    }

    /// Ends a connection that sends nothing while another one waits.
    fn displace_if_silent(&self, connection: &GuestConnection) {
        while connection.first_message.is_awaited_after(SILENCE_LIMIT) {
            let mut listener = [PollFd::new(self.listening.listener(), PollFlags::IN)];
            let is_waited_for = poll(&mut listener, Some(&Timespec::default())).is_ok_and(|waiting| waiting > 0);
            if is_waited_for && connection.first_message.give_up() {
                connection.end();
            }
        }
    }
}

/// The device behind the socket.
struct VirtioDevice {
    queues: u16,
    export: Arc<dyn Export>,
    read_only: bool,
    /// One per queue. Only the thread of the queue takes it.
    io: Vec<Mutex<QueueIo>>,
}

impl VirtioDevice {
    fn new(export: &Arc<dyn Export>, queues: u16) -> Result<Self, ExportError> {
        let read_only = export.is_read_only();
        let mut io = Vec::new();
        for _ in 0..queues {
            let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
            io.push(Mutex::new(QueueIo { io: export.open()?, buffer, read_only }));
        }
        Ok(Self { queues, export: Arc::clone(export), read_only, io })
    }

    /// Returns the configuration space with the length that the device has now.
    fn config(&self) -> Vec<u8> {
        config_space(self.export.size_bytes(), self.queues)
    }
}

/// The configuration space (virtio 1.2, section 5.2.4), up to `write_zeroes_may_unmap`.
fn config_space(size_bytes: u64, queues: u16) -> Vec<u8> {
    let mut config = Vec::with_capacity(60);
    config.extend((size_bytes / SECTOR_BYTES).to_le_bytes());
    config.extend(0u32.to_le_bytes()); // size_max: no limit
    config.extend(MAX_DATA_SEGMENTS.to_le_bytes());
    config.extend([0; 4]); // geometry
    config.extend(4096u32.to_le_bytes()); // blk_size: whole pages
    config.extend([0, 0]); // topology: a physical block is a logical one, aligned
    config.extend(1u16.to_le_bytes());
    config.extend(1u32.to_le_bytes());
    config.extend([0, 0]); // writeback, unused
    config.extend(queues.to_le_bytes());
    config.extend(MAX_SEGMENT_SECTORS.to_le_bytes()); // discard
    config.extend(MAX_SEGMENTS.to_le_bytes());
    config.extend(8u32.to_le_bytes()); // discard in whole pages
    config.extend(MAX_SEGMENT_SECTORS.to_le_bytes()); // write zeroes
    config.extend(MAX_SEGMENTS.to_le_bytes());
    config.extend([1, 0, 0, 0]); // write_zeroes_may_unmap
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_has_the_layout_of_virtio() {
        let config = config_space(1 << 30, 4);
        assert_eq!(config.len(), 60);
        let word = |at: usize| u32::from_le_bytes(config[at..at + 4].try_into().unwrap());
        assert_eq!(word(0), (1 << 30) / 512);
        assert_eq!((word(12), word(20)), (128, 4096));
        assert_eq!(u16::from_le_bytes([config[34], config[35]]), 4);
        assert_eq!((word(36), word(40), word(44)), (1 << 21, 32, 8));
        assert_eq!((word(48), word(52), config[56]), (1 << 21, 32, 1));
    }
}
