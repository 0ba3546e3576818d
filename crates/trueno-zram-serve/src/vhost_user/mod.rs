//! A virtio block device for virtual machines, over vhost-user.
//!
//! QEMU, Cloud Hypervisor and Firecracker attach to the socket without root and without kernel modules. The guest's memory
//! must be shared (`memory-backend-memfd,share=on`). Each queue has a thread.

mod request;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use vhost::vhost_user::Listener;
use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost_user_backend::{ShutdownHandle, VhostUserBackend, VhostUserDaemon, VringRwLock, VringT};
use virtio_queue::QueueT;
use vm_memory::{GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier};

use crate::export::{Export, ExportError};
use request::{BUFFER_BYTES, MAX_SEGMENT_SECTORS, MAX_SEGMENTS, QueueIo, SECTOR_BYTES};

/// Requests per queue that may be on their way.
const QUEUE_SIZE: usize = 256;

/// The most queues of a device.
const MAX_QUEUES: u16 = 64;

/// Descriptors with data per request.
const MAX_DATA_SEGMENTS: u32 = 128;

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

type Memory = GuestMemoryAtomic<GuestMemoryMmap>;

/// A device on a socket, for one virtual machine at a time. Dropping it ends the connection.
#[derive(Debug)]
pub struct VhostUserServer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    path: PathBuf,
    stopping: AtomicBool,
    connection: Mutex<Option<ShutdownHandle>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shared({})", self.path.display())
    }
}

impl VhostUserServer {
    /// Serves `export` at `path` with this many queues, 1 to 64, to one virtual machine after the other.
    ///
    /// # Errors
    /// If the socket cannot be created, the export cannot be opened, or no thread can be started.
    pub fn start(path: &Path, export: &Arc<dyn Export>, queues: u16) -> io::Result<Self> {
        let queues = queues.clamp(1, MAX_QUEUES);
        let listener = Listener::new(path, true).map_err(io::Error::other)?;
        let device = Arc::new(Device::new(export, queues).map_err(io::Error::other)?);
        let shared =
            Arc::new(Shared { path: path.to_owned(), stopping: AtomicBool::new(false), connection: Mutex::new(None) });
        let thread = std::thread::Builder::new().name("vhost-user".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || shared.serve_all(listener, &device)
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }
}

impl Drop for VhostUserServer {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        let connection = self.shared.connection.lock().unwrap_or_else(PoisonError::into_inner).take();
        match connection {
            Some(connection) => connection.shutdown(),
            // The thread waits for a virtual machine: a connection wakes it up.
            None => drop(std::os::unix::net::UnixStream::connect(&self.shared.path)),
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // The listener may have removed it.
        let _ = std::fs::remove_file(&self.shared.path);
    }
}

impl Shared {
    fn serve_all(&self, mut listener: Listener, device: &Arc<Device>) {
        while !self.stopping.load(Ordering::Relaxed) {
            // A virtual machine that fails is not the concern of the next one.
            if self.serve_one(&mut listener, device).is_err() {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }

    fn serve_one(&self, listener: &mut Listener, device: &Arc<Device>) -> Result<(), vhost_user_backend::Error> {
        let memory = Memory::new(GuestMemoryMmap::new());
        let mut daemon = VhostUserDaemon::new("vhost-user".to_owned(), Arc::clone(device), memory)?;
        daemon.start(listener)?;
        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = daemon.shutdown_handle();
        if self.stopping.load(Ordering::Relaxed) {
            daemon.request_shutdown();
        }
        let ended = daemon.wait();
        self.connection.lock().unwrap_or_else(PoisonError::into_inner).take();
        ended
    }
}

/// The device behind the socket.
struct Device {
    queues: u16,
    config: Vec<u8>,
    read_only: bool,
    event_index: AtomicBool,
    memory: RwLock<Memory>,
    /// One per queue. Only the thread of the queue takes it.
    io: Vec<Mutex<QueueIo>>,
}

impl Device {
    fn new(export: &Arc<dyn Export>, queues: u16) -> Result<Self, ExportError> {
        let read_only = export.is_read_only();
        let mut io = Vec::new();
        for _ in 0..queues {
            let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
            io.push(Mutex::new(QueueIo { io: export.open()?, buffer, read_only }));
        }
        Ok(Self {
            queues,
            config: config_space(export.size_bytes(), queues),
            read_only,
            event_index: AtomicBool::new(false),
            memory: RwLock::new(Memory::new(GuestMemoryMmap::new())),
            io,
        })
    }

    /// Serves all requests that are in a queue.
    fn serve_queue(&self, vring: &VringRwLock, io: &mut QueueIo) -> io::Result<()> {
        let memory = self.memory.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut served = false;
        loop {
            let memory = memory.memory();
            let chain = vring.get_mut().get_queue_mut().pop_descriptor_chain(memory.clone());
            let Some(chain) = chain else { break };
            let head = chain.head_index();
            let mut written = 0;
            let parts = chain.clone().reader(&memory).and_then(|input| Ok((input, chain.writer(&memory)?)));
            // A chain that does not describe memory of the guest, or has no room for a status, gets no answer but its end.
            if let Ok((mut input, mut output)) = parts
                && let Some(data_bytes) = output.available_bytes().checked_sub(1)
                && let Ok(mut status) = output.split_at(data_bytes)
            {
                let result = io.serve(&mut input, &mut output, data_bytes);
                if status.write_obj(result as u8).is_ok() {
                    written = output.bytes_written() + 1;
                }
            }
            let len = u32::try_from(written).unwrap_or(u32::MAX);
            vring.add_used(head, len).map_err(io::Error::other)?;
            served = true;
        }
        if served && vring.needs_notification().map_err(io::Error::other)? {
            vring.signal_used_queue()?;
        }
        Ok(())
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

impl VhostUserBackend for Device {
    type Bitmap = ();
    type Vring = VringRwLock;

    fn num_queues(&self) -> usize {
        self.queues.into()
    }

    fn max_queue_size(&self) -> usize {
        QUEUE_SIZE
    }

    fn features(&self) -> u64 {
        let writable = feature::DISCARD | feature::WRITE_ZEROES;
        feature::SEG_MAX
            | feature::BLOCK_SIZE
            | feature::FLUSH
            | feature::TOPOLOGY
            | feature::MULTI_QUEUE
            | feature::INDIRECT_DESCRIPTORS
            | feature::EVENT_INDEX
            | feature::VERSION_1
            | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
            | if self.read_only { feature::READ_ONLY } else { writable }
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::CONFIG | VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::REPLY_ACK
    }

    fn set_event_idx(&self, enabled: bool) {
        self.event_index.store(enabled, Ordering::Relaxed);
    }

    /// Virtual machines of later versions ask for more than there is. The rest is zeros.
    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let known = self.config.iter().skip(offset as usize).copied();
        known.chain(std::iter::repeat(0)).take((size as usize).min(4096)).collect()
    }

    fn update_memory(&self, memory: Memory) -> io::Result<()> {
        *self.memory.write().unwrap_or_else(PoisonError::into_inner) = memory;
        Ok(())
    }

    /// A bit mask of queues per thread: each thread has one.
    fn queues_per_thread(&self) -> Vec<u64> {
        (0..self.queues).map(|queue| 1 << queue).collect()
    }

    fn exit_event(&self, _thread_index: usize) -> Option<(EventConsumer, EventNotifier)> {
        new_event_consumer_and_notifier(EventFlag::NONBLOCK).ok()
    }

    fn handle_event(&self, event: u16, events: EventSet, vrings: &[VringRwLock], thread: usize) -> io::Result<()> {
        let (Some(vring), Some(io)) = (vrings.get(usize::from(event)), self.io.get(thread)) else {
            return Err(io::Error::other(format!("there is no queue {event} in thread {thread}")));
        };
        if events != EventSet::IN {
            return Err(io::Error::other(format!("unexpected event {events:?} of queue {event}")));
        }
        let mut io = io.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.event_index.load(Ordering::Relaxed) {
            return self.serve_queue(vring, &mut io);
        }
        // Requests that arrive while notifications are off are found by looking again after they are on.
        loop {
            vring.disable_notification().map_err(io::Error::other)?;
            self.serve_queue(vring, &mut io)?;
            if !vring.enable_notification().map_err(io::Error::other)? {
                return Ok(());
            }
        }
    }
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
