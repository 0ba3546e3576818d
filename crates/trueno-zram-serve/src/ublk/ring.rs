//! The driver's commands through io_uring, and its descriptors in shared memory.
#![allow(unsafe_code, reason = "io_uring and shared memory")]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::mm::{MapFlags, ProtFlags};

use super::layout::{self, DESCRIPTOR_BYTES, Descriptor, MAX_QUEUE_DEPTH};

/// Sends control commands, one at a time.
pub(super) struct ControlRing {
    /// `None` after a failure that left a command in the ring.
    ring: Option<IoUring<squeue::Entry128, cqueue::Entry>>,
    file: File,
}

impl ControlRing {
    pub(super) fn open() -> io::Result<Self> {
        let file = File::options().read(true).write(true).open("/dev/ublk-control")?;
        Ok(Self { ring: Some(IoUring::builder().build(4)?), file })
    }

    /// Sends a command with a word and a buffer, which the driver reads, and writes for some commands.
    pub(super) fn call(&mut self, command: u32, device: u32, data: u64, buffer: &mut [u8]) -> io::Result<()> {
        let len_bytes = u16::try_from(buffer.len()).map_err(io::Error::other)?;
        let address = if buffer.is_empty() { 0 } else { buffer.as_mut_ptr().expose_provenance() as u64 };
        let mut bytes = [0; 80];
        bytes[..layout::CONTROL_BYTES].copy_from_slice(&layout::control_command(device, address, len_bytes, data));
        let fd = types::Fd(self.file.as_raw_fd());
        let entry = opcode::UringCmd80::new(fd, command).cmd(bytes).build();
        let mut ring = self.ring.take().ok_or_else(|| io::Error::other("the control ring has failed"))?;
        // SAFETY: the buffer is borrowed until the command has completed, or was never taken by the kernel. In the second
        // case the ring goes away with the command in it.
        unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
        loop {
            let waited = ring.submit_and_wait(1);
            let completion = ring.completion().next();
            if let Some(completion) = completion {
                self.ring = Some(ring);
                let result = completion.result();
                return if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) };
            }
            match waited {
                Err(error) if error.kind() != io::ErrorKind::Interrupted && !ring.submission().is_empty() => {
                    return Err(error);
                }
                _ => {}
            }
        }
    }
}

/// The commands of one queue. They carry no addresses: data is read and written through the device's file.
pub(super) struct QueueRing {
    ring: IoUring,
    fd: types::Fd,
    queue: u16,
}

/// A command that completed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Completed {
    pub(super) tag: u16,
    pub(super) result: i32,
}

impl QueueRing {
    /// Creates a ring for `depth` requests of a queue. `device` must stay open as long as the ring exists.
    pub(super) fn new(device: &File, queue: u16, depth: u16) -> io::Result<Self> {
        let ring = IoUring::builder().setup_cqsize(2 * u32::from(depth)).build(u32::from(depth))?;
        Ok(Self { ring, fd: types::Fd(device.as_raw_fd()), queue })
    }

    /// Enters a command, to be sent by [`wait`](Self::wait).
    pub(super) fn push(&mut self, command: u32, tag: u16, result: i32) -> io::Result<()> {
        let bytes = layout::io_command(self.queue, tag, result);
        let entry = opcode::UringCmd16::new(self.fd, command).cmd(bytes).build().user_data(tag.into());
        // SAFETY: the command refers to no memory of this process.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)
    }

    /// Sends the entered commands, and waits until at least one command has completed.
    pub(super) fn wait(&mut self, completed: &mut Vec<Completed>) -> io::Result<()> {
        completed.clear();
        match self.ring.submit_and_wait(1) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        let entries = self.ring.completion();
        completed.extend(entries.map(|entry| Completed {
            tag: u16::try_from(entry.user_data()).unwrap_or(u16::MAX),
            result: entry.result(),
        }));
        Ok(())
    }

    /// Sends the entered commands.
    pub(super) fn submit(&mut self) -> io::Result<()> {
        self.ring.submit().map(drop)
    }
}

/// The descriptors of a queue's requests, which the driver writes.
pub(super) struct Descriptors {
    start: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the mapping belongs to this value alone, and is only read, as atomics.
unsafe impl Send for Descriptors {}

const DESCRIPTOR_WORDS: usize = DESCRIPTOR_BYTES / size_of::<AtomicU64>();

impl Descriptors {
    pub(super) fn map(device: &File, queue: u16, depth: u16) -> io::Result<Self> {
        let len_bytes = (usize::from(depth) * DESCRIPTOR_BYTES).next_multiple_of(rustix::param::page_size());
        let offset = u64::from(queue) * (MAX_QUEUE_DEPTH * DESCRIPTOR_BYTES) as u64;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps no Rust object.
        let start =
            unsafe { rustix::mm::mmap(ptr::null_mut(), len_bytes, ProtFlags::READ, flags, device.as_fd(), offset) }?;
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Self { start, words: len_bytes / size_of::<AtomicU64>() })
    }

    /// Returns the descriptor of a request that the driver has handed out.
    pub(super) fn get(&self, tag: u16) -> Option<Descriptor> {
        let at = usize::from(tag) * DESCRIPTOR_WORDS;
        // SAFETY: the mapping is page-aligned, has this many words, and lives as long as `self`. Loads of atomics from
        // memory that is mapped for reading do not write to it.
        let words = unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) };
        let [first, second, ..] = words.get(at..)? else { return None };
        Some(Descriptor::decode([first.load(Ordering::Acquire), second.load(Ordering::Acquire)]))
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: the range is this value's mapping, and no reference to it outlives the value.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.words * size_of::<AtomicU64>()) };
        debug_assert!(unmapped.is_ok(), "a mapping could not be unmapped: {unmapped:?}");
    }
}
