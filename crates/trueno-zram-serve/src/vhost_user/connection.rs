//! The connection of a virtual machine: its memory, its queues, and its end.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost_user_backend::{ShutdownHandle, VhostUserBackend, VringT};
use virtio_queue::QueueT;
use vm_memory::{GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{EventConsumer, EventNotifier};

use super::exit_event::ExitEvent;
use super::first_message::FirstMessage;
use super::memory::GuardedMemory;
use super::request::QueueIo;
use super::vring::NonblockingVring;
use super::{QUEUE_SIZE, VirtioDevice, feature};

pub(super) type GuestMemory = GuestMemoryAtomic<GuestMemoryMmap>;

/// A virtual machine that uses the device.
pub(super) struct GuestConnection {
    device: Arc<VirtioDevice>,
    event_index: AtomicBool,
    memory: RwLock<Arc<GuardedMemory>>,
    /// One per queue.
    exit_events: Vec<ExitEvent>,
    pub(super) first_message: FirstMessage,
    has_ended: AtomicBool,
    /// `None` until a virtual machine has connected.
    socket: Mutex<Option<ShutdownHandle>>,
}

impl GuestConnection {
    pub(super) fn new(device: &Arc<VirtioDevice>) -> io::Result<Self> {
        Ok(Self {
            device: Arc::clone(device),
            event_index: AtomicBool::new(false),
            memory: RwLock::default(),
            exit_events: (0..device.queues).map(|_| ExitEvent::new()).collect::<io::Result<_>>()?,
            first_message: FirstMessage::default(),
            has_ended: AtomicBool::new(false),
            socket: Mutex::new(None),
        })
    }

    /// Sets the socket of the virtual machine.
    pub(super) fn set_socket(&self, socket: Option<ShutdownHandle>) {
        *self.socket() = socket;
        // Its memory may have failed before the socket was known.
        if self.has_ended.load(Ordering::Relaxed) {
            self.end();
        }
    }

    /// Disconnects the virtual machine, and ends the work on its queues.
    pub(super) fn end(&self) {
        self.first_message.end_wait();
        let socket = self.socket();
        self.has_ended.store(true, Ordering::Relaxed);
        if let Some(socket) = &*socket {
            socket.shutdown();
        }
    }

    /// Ends the threads of queues. vhost-user-backend does that itself unless it fails halfway through their creation.
    pub(super) fn end_threads(&self) {
        self.exit_events.iter().for_each(ExitEvent::notify);
    }

    fn socket(&self) -> MutexGuard<'_, Option<ShutdownHandle>> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn memory(&self) -> Arc<GuardedMemory> {
        Arc::clone(&self.memory.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn set_memory(&self, memory: GuardedMemory) {
        *self.memory.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(memory);
    }

    /// Serves a queue until it is empty.
    fn serve_event(&self, event: u16, events: EventSet, vrings: &[NonblockingVring], thread: usize) -> io::Result<()> {
        let (Some(vring), Some(io)) = (vrings.get(usize::from(event)), self.device.io.get(thread)) else {
            return Err(io::Error::other(format!("there is no queue {event} in thread {thread}")));
        };
        if events != EventSet::IN {
            return Err(io::Error::other(format!("unexpected event {events:?} of queue {event}")));
        }
        let mut io = io.lock().unwrap_or_else(PoisonError::into_inner);
        // Not the vring's own memory: vhost-user-backend replaces that one before `update_memory` has guarded it.
        let memory = self.memory();
        if !self.event_index.load(Ordering::Relaxed) {
            return self.serve_queue(vring, &memory, &mut io);
        }
        // Requests that arrive while notifications are off are found by looking again after they are on.
        loop {
            vring.get_mut().get_queue_mut().disable_notification(memory.guest()).map_err(io::Error::other)?;
            self.serve_queue(vring, &memory, &mut io)?;
            let has_more = vring.get_mut().get_queue_mut().enable_notification(memory.guest());
            if !has_more.map_err(io::Error::other)? || self.has_ended.load(Ordering::Relaxed) {
                return memory.check();
            }
        }
    }

    /// Serves all requests that are in a queue.
    fn serve_queue(&self, vring: &NonblockingVring, memory: &GuardedMemory, io: &mut QueueIo) -> io::Result<()> {
        let guest = memory.guest();
        let mut served = false;
        // A guest that keeps its queue full must not delay the next guest after it has been disconnected.
        while !self.has_ended.load(Ordering::Relaxed) {
            let chain = vring.get_mut().get_queue_mut().pop_descriptor_chain(guest);
            let Some(chain) = chain else { break };
            let head = chain.head_index();
            let mut written = 0;
            let parts = chain.clone().reader(guest).and_then(|input| Ok((input, chain.writer(guest)?)));
            // A chain that does not describe memory of the guest, or has no room for a status, gets no answer but its end.
            if let Ok((input, mut output)) = parts
                && let Some(data_bytes) = output.available_bytes().checked_sub(1)
                && let Ok(mut status) = output.split_at(data_bytes)
            {
                let result = io.serve(&mut memory.checked(input), &mut output, data_bytes);
                if status.write_obj(result as u8).is_ok() {
                    written = output.bytes_written() + 1;
                }
            }
            let len = u32::try_from(written).unwrap_or(u32::MAX);
            vring.get_mut().get_queue_mut().add_used(guest, head, len).map_err(io::Error::other)?;
            memory.check()?;
            served = true;
        }
        if served && vring.get_mut().get_queue_mut().needs_notification(guest).map_err(io::Error::other)? {
            vring.signal_used_queue()?;
        }
        memory.check()
    }
}

impl VhostUserBackend for GuestConnection {
    type Bitmap = ();
    type Vring = NonblockingVring;

    fn num_queues(&self) -> usize {
        self.device.queues.into()
    }

    fn max_queue_size(&self) -> usize {
        QUEUE_SIZE
    }

    /// Returns the features, which every virtual machine asks for at the start.
    fn features(&self) -> u64 {
        self.first_message.end_wait();
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
            | if self.device.read_only { feature::READ_ONLY } else { writable }
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::CONFIG | VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::REPLY_ACK
    }

    fn set_event_idx(&self, enabled: bool) {
        self.event_index.store(enabled, Ordering::Relaxed);
    }

    /// Returns a part of the configuration. Later versions of virtual machines ask for more than there is: the rest is zeros.
    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let known = self.device.config().into_iter().skip(offset as usize);
        known.chain(std::iter::repeat(0)).take((size as usize).min(4096)).collect()
    }

    /// Takes the guest's memory, or none of it if some of it cannot be used. The connection ends with an error.
    fn update_memory(&self, memory: GuestMemory) -> io::Result<()> {
        let guarded = GuardedMemory::new(memory.memory().into_inner()).map_err(io::Error::other);
        // A region of the new memory may be one of the old, and may have failed before it was guarded again.
        let guarded = guarded.and_then(|guarded| self.memory().check().map(|()| guarded));
        if guarded.is_err() {
            // Messages that have arrived are still served, and must not find memory that is not guarded.
            memory.lock().unwrap_or_else(PoisonError::into_inner).replace(GuestMemoryMmap::new());
        }
        guarded.map(|guarded| self.set_memory(guarded)).inspect_err(|_| self.set_memory(GuardedMemory::default()))
    }

    /// Returns a bit mask of queues per thread: each thread has one queue.
    fn queues_per_thread(&self) -> Vec<u64> {
        (0..self.device.queues).map(|queue| 1 << queue).collect()
    }

    fn exit_event(&self, thread_index: usize) -> Option<(EventConsumer, EventNotifier)> {
        self.exit_events.get(thread_index)?.hand_out()
    }

    fn handle_event(&self, event: u16, events: EventSet, vrings: &[NonblockingVring], thread: usize) -> io::Result<()> {
        // The thread of the queue ends with an error. The guest must not wait for it.
        self.serve_event(event, events, vrings, thread).inspect_err(|_| self.end())
    }
}
