//! The side of a virtual machine: its memory in a file, a queue in that memory, and the messages about both.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserProtocolFeatures, VhostUserVirtioFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

/// The virtual machine's own address of its memory. It only has to differ from that of the guest.
const VMM_ADDRESS: u64 = 0x7000_0000;

/// Requests in the queue, and where its parts are in the memory.
const QUEUE_SIZE: u16 = 16;
const DESCRIPTORS_AT: u64 = 0;
const AVAILABLE_AT: u64 = 0x1000;
const USED_AT: u64 = 0x2000;
const HEADER_AT: u64 = 0x3000;
const STATUS_AT: u64 = 0x3100;
/// The position of data, by default.
pub(crate) const DATA_AT: u64 = 0x10000;

/// Flags of descriptors.
const NEXT: u16 = 1;
const WRITE: u16 = 2;

/// Kinds of requests.
const IN: u32 = 0;
const OUT: u32 = 1;

/// The features that a guest uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notifications {
    Always,
    /// `VIRTIO_F_EVENT_IDX`.
    EventIndex,
}

impl Notifications {
    pub(crate) const ALL: [Self; 2] = [Self::Always, Self::EventIndex];
}

/// A file of this many bytes, in memory.
pub(crate) fn memory_file(len_bytes: u64) -> File {
    let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
    file.set_len(len_bytes).unwrap();
    file
}

/// A virtual machine whose device is at a socket.
pub(crate) struct Guest {
    front_end: Frontend,
    /// The connection, to see its end.
    stream: UnixStream,
    pub(crate) memory: File,
    kick: EventFd,
    call: EventFd,
    requests: u16,
}

impl Guest {
    /// Connects, and agrees on features.
    pub(crate) fn connect(socket: &Path, memory: File, notifications: Notifications) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        let mut front_end = Frontend::from_stream(stream.try_clone().unwrap(), 1);
        front_end.set_owner().unwrap();
        let mut features = front_end.get_features().unwrap();
        if notifications == Notifications::Always {
            features &= !(1 << 29);
        }
        assert_ne!(features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits(), 0);
        let wanted = VhostUserProtocolFeatures::CONFIG | VhostUserProtocolFeatures::REPLY_ACK;
        let offered = front_end.get_protocol_features().unwrap();
        front_end.set_protocol_features(offered & wanted).unwrap();
        front_end.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        front_end.set_features(features).unwrap();
        let (kick, call) = (EventFd::new(0).unwrap(), EventFd::new(0).unwrap());
        Self { front_end, stream, memory, kick, call, requests: 0 }
    }

    /// Hands the memory over as one region that claims to have `len_bytes`.
    pub(crate) fn hand_over(&self, len_bytes: u64) -> vhost::Result<()> {
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: len_bytes,
            userspace_addr: VMM_ADDRESS,
            mmap_offset: 0,
            mmap_handle: self.memory.as_raw_fd(),
        };
        self.front_end.set_mem_table(&[region]).map(drop)
    }

    /// Starts the queue.
    pub(crate) fn start_queue(&mut self) -> vhost::Result<()> {
        self.front_end.set_vring_num(0, QUEUE_SIZE)?;
        self.front_end.set_vring_base(0, 0)?;
        let config = VringConfigData {
            queue_max_size: QUEUE_SIZE,
            queue_size: QUEUE_SIZE,
            flags: 0,
            desc_table_addr: VMM_ADDRESS + DESCRIPTORS_AT,
            used_ring_addr: VMM_ADDRESS + USED_AT,
            avail_ring_addr: VMM_ADDRESS + AVAILABLE_AT,
            log_addr: None,
        };
        self.front_end.set_vring_addr(0, &config)?;
        self.front_end.set_vring_call(0, &self.call)?;
        self.front_end.set_vring_kick(0, &self.kick)?;
        self.front_end.set_vring_enable(0, true)
    }

    /// A machine with `len_bytes` of memory whose queue runs.
    pub(crate) fn start(socket: &Path, len_bytes: u64, notifications: Notifications) -> Self {
        let mut guest = Self::connect(socket, memory_file(len_bytes), notifications);
        guest.hand_over(len_bytes).unwrap();
        guest.start_queue().unwrap();
        guest
    }

    /// The length of the device, from its configuration as it is now.
    pub(crate) fn size_bytes(&mut self) -> u64 {
        let read = self.front_end.get_config(0, 60, VhostUserConfigFlags::empty(), &[0; 60]);
        u64::from_le_bytes(read.unwrap().1[..8].try_into().unwrap()) * 512
    }

    /// Leaves no room for notifications of the device.
    pub(crate) fn fill_notifications(&self) {
        self.call.write(u64::MAX - 1).unwrap();
    }

    pub(crate) fn write(&mut self, sector: u64, data: &[u8]) -> u8 {
        self.memory.write_all_at(data, DATA_AT).unwrap();
        self.submit(OUT, sector, (DATA_AT, data.len()));
        self.status()
    }

    pub(crate) fn read(&mut self, sector: u64, len: usize) -> Vec<u8> {
        self.submit(IN, sector, (DATA_AT, len));
        assert_eq!(self.status(), 0);
        let mut data = vec![0; len];
        self.memory.read_exact_at(&mut data, DATA_AT).unwrap();
        data
    }

    /// Submits a write of data that lies at `data_at`, whatever is there.
    pub(crate) fn submit_write(&mut self, sector: u64, data_at: u64, len: usize) {
        self.submit(OUT, sector, (data_at, len));
    }

    /// Submits a read to `data_at`.
    pub(crate) fn submit_read(&mut self, sector: u64, data_at: u64, len: usize) {
        self.submit(IN, sector, (data_at, len));
    }

    fn submit(&mut self, kind: u32, sector: u64, data: (u64, usize)) {
        self.enter(kind, sector, data);
        self.kick();
    }

    /// Puts a request into the queue, without a word to the device.
    fn enter(&mut self, kind: u32, sector: u64, (data_at, len): (u64, usize)) {
        let header = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
        self.memory.write_all_at(&header, HEADER_AT).unwrap();
        self.memory.write_all_at(&[0xff], STATUS_AT).unwrap();
        let len = u32::try_from(len).unwrap();
        let direction = if kind == IN { WRITE } else { 0 };
        let chain = [(HEADER_AT, 16, NEXT, 1), (data_at, len, NEXT | direction, 2), (STATUS_AT, 1, WRITE, 0u16)];
        for (number, (at, len, flags, next)) in (0u64..).zip(chain) {
            let bytes =
                [&at.to_le_bytes()[..], &u32::to_le_bytes(len), &flags.to_le_bytes(), &next.to_le_bytes()].concat();
            self.memory.write_all_at(&bytes, DESCRIPTORS_AT + number * 16).unwrap();
        }
        let slot = AVAILABLE_AT + 4 + u64::from(self.requests % QUEUE_SIZE) * 2;
        self.memory.write_all_at(&0u16.to_le_bytes(), slot).unwrap();
        // To be notified of the next request.
        let event = AVAILABLE_AT + 4 + u64::from(QUEUE_SIZE) * 2;
        self.memory.write_all_at(&self.requests.to_le_bytes(), event).unwrap();
        self.requests = self.requests.wrapping_add(1);
        self.memory.write_all_at(&self.requests.to_le_bytes(), AVAILABLE_AT + 2).unwrap();
    }

    pub(crate) fn kick(&self) {
        self.kick.write(1).unwrap();
    }

    /// Waits for the end of a request, and returns its status.
    fn status(&self) -> u8 {
        loop {
            // The device makes it non-blocking.
            while self.call.read().is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let mut used = [0; 2];
            self.memory.read_exact_at(&mut used, USED_AT + 2).unwrap();
            if u16::from_le_bytes(used) == self.requests {
                break;
            }
        }
        let mut status = [0];
        self.memory.read_exact_at(&mut status, STATUS_AT).unwrap();
        status[0]
    }

    /// Waits until the device has disconnected the machine.
    pub(crate) fn wait_for_end(&self) {
        self.stream.set_read_timeout(Some(Duration::from_secs(600))).unwrap();
        // Earlier messages are of no interest.
        let mut rest = [0; 64];
        loop {
            match (&self.stream).read(&mut rest) {
                Ok(1..) => {}
                Ok(0) => return,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
                Err(error) => panic!("the machine is still connected: {error}"),
            }
        }
    }

    /// Returns whether the device has disconnected the machine.
    pub(crate) fn has_ended(&self) -> bool {
        recv(&self.stream, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT).map(drop) != Err(Errno::AGAIN)
    }
}
