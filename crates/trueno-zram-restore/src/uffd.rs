//! The userfaultfd of another process: the system calls that Rust cannot check.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use trueno_zram_core::PAGE_SIZE;

use crate::error::Error;
use crate::event::{FORK, MESSAGE_LEN};

// The numbers of <linux/userfaultfd.h>. UFFDIO_POISON is Linux 6.6; its number is never reused.
const GROUP: u8 = 0xaa;
const UNREGISTER: Opcode = opcode::read::<UffdioRange>(GROUP, 0x01);
const WAKE: Opcode = opcode::read::<UffdioRange>(GROUP, 0x02);
const COPY: Opcode = opcode::read_write::<UffdioCopy>(GROUP, 0x03);
const ZEROPAGE: Opcode = opcode::read_write::<UffdioFill>(GROUP, 0x04);
const POISON: Opcode = opcode::read_write::<UffdioFill>(GROUP, 0x08);

/// A feature that the creator of a userfaultfd asks the kernel for: its bit, and its name without `UFFD_FEATURE_`.
type Feature = (u64, &'static str);

const EVENT_FORK: Feature = (1 << 1, "EVENT_FORK");
const EVENT_REMAP: Feature = (1 << 2, "EVENT_REMAP");
const EVENT_REMOVE: Feature = (1 << 3, "EVENT_REMOVE");
const EVENT_UNMAP: Feature = (1 << 6, "EVENT_UNMAP");
/// Faults raise a signal in the process and never reach the handler.
const SIGBUS: Feature = (1 << 7, "SIGBUS");

/// The lowest address that processes may map. Filling it with zeros fails with ESRCH if the memory no longer exists. Used only if no
/// content belongs there.
pub(crate) const PROBE_ADDRESS: u64 = 0x1_0000;

/// `struct uffdio_range`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct UffdioRange {
    start: u64,
    len: u64,
}

/// `struct uffdio_copy`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct UffdioCopy {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    copied: i64,
}

/// `struct uffdio_zeropage` and `struct uffdio_poison`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct UffdioFill {
    range: UffdioRange,
    mode: u64,
    filled: i64,
}

/// The progress of an operation: the bytes that are done, and the error that stopped it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) done: u64,
    pub(crate) stopped: Option<Errno>,
}

impl Progress {
    /// The kernel stores the bytes done, or a negative error number; bytes done with an error mean that a later page failed.
    fn of(result: Result<(), Errno>, stored: i64) -> Self {
        Self { done: u64::try_from(stored).unwrap_or(0), stopped: result.err() }
    }
}

/// A userfaultfd that another process created and sent.
#[derive(Debug)]
pub(crate) struct Userfaultfd {
    fd: OwnedFd,
}

impl Userfaultfd {
    /// Takes a file descriptor that was received, if it is a userfaultfd.
    pub(crate) fn new(fd: OwnedFd) -> Result<Self, Error> {
        let link = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).map_err(Error::proc)?;
        if link.as_os_str() != "anon_inode:[userfaultfd]" {
            return Err(Error::NotUserfaultfd { what: link.display().to_string() });
        }
        Ok(Self { fd })
    }

    /// Prepares the userfaultfd of a VMM: it must report memory that a balloon removes. Memory must not leave its regions.
    pub(crate) fn prepare_for_vm(&self) -> Result<(), Error> {
        self.prepare(&[EVENT_REMOVE], &[EVENT_FORK, EVENT_REMAP, SIGBUS])
    }

    /// Prepares the userfaultfd of a process: it must report all changes of memory.
    pub(crate) fn prepare_for_process(&self) -> Result<(), Error> {
        self.prepare(&[EVENT_FORK, EVENT_REMAP, EVENT_REMOVE, EVENT_UNMAP], &[SIGBUS])
    }

    /// Checks the features that the creator has asked for, and makes reading return at once.
    fn prepare(&self, needed: &[Feature], refused: &[Feature]) -> Result<(), Error> {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", self.fd.as_raw_fd())).map_err(Error::proc)?;
        let features = features(&info).unwrap_or(0);
        if let Some((_, name)) = refused.iter().find(|(bit, _)| features & bit != 0) {
            return Err(Error::Feature { name });
        }
        if let Some((_, name)) = needed.iter().find(|(bit, _)| features & bit == 0) {
            return Err(Error::NoEvents { name });
        }
        self.set_nonblocking()
    }

    /// Makes reading return at once.
    pub(crate) fn set_nonblocking(&self) -> Result<(), Error> {
        rustix::fs::fcntl_setfl(&self.fd, OFlags::RDWR | OFlags::NONBLOCK).map_err(Error::system("fcntl"))
    }

    /// Reads messages. The userfaultfds of children that came with them are added to `forked`, in their order.
    pub(crate) fn read(&self, messages: &mut [u8], forked: &mut VecDeque<Self>) -> Result<usize, Errno> {
        let len = rustix::io::read(&self.fd, &mut *messages)?;
        for message in messages[..len].as_chunks::<MESSAGE_LEN>().0 {
            if message[0] == FORK {
                let fd = i32::from_ne_bytes([message[8], message[9], message[10], message[11]]);
                // SAFETY: the kernel has made the descriptor for the reader of this message, which is read only once.
                let child = Self { fd: unsafe { OwnedFd::from_raw_fd(fd) } };
                // It has the flags that the first one was made with. This cannot fail for a descriptor that is open.
                let _ = child.set_nonblocking();
                forked.push_back(child);
            }
        }
        Ok(len)
    }

    /// Returns `true` if the process is changing its memory, and waits until the event of it is read. Nothing can be filled then.
    pub(crate) fn is_changing(&self) -> bool {
        // An empty range is refused, but only after that question.
        self.zero(0, 0).stopped == Some(Errno::AGAIN)
    }

    /// Returns `true` if no process has the memory any more. [`PROBE_ADDRESS`] must not have content.
    pub(crate) fn is_gone(&self) -> bool {
        self.zero(PROBE_ADDRESS, PAGE_SIZE as u64).stopped == Some(Errno::SRCH)
    }

    /// Copies `from` to the missing pages at `to`, and wakes the threads that wait for them.
    pub(crate) fn copy(&self, to: u64, from: &[u8]) -> Progress {
        let (src, len) = (from.as_ptr() as u64, from.len() as u64);
        let mut arguments = UffdioCopy { dst: to, src, len, mode: 0, copied: 0 };
        // SAFETY: UFFDIO_COPY takes a `uffdio_copy`. It reads `len` bytes at `src`, which `from` borrows until it returns.
        let result = unsafe { self.ioctl::<COPY, _>(&mut arguments) };
        Progress::of(result, arguments.copied)
    }

    /// Fills missing pages with zeros, and wakes the threads that wait for them. Not for hugetlb memory.
    pub(crate) fn zero(&self, start: u64, len: u64) -> Progress {
        let mut arguments = UffdioFill { range: UffdioRange { start, len }, mode: 0, filled: 0 };
        // SAFETY: UFFDIO_ZEROPAGE takes a `uffdio_zeropage`, and no other memory of this process.
        let result = unsafe { self.ioctl::<ZEROPAGE, _>(&mut arguments) };
        Progress::of(result, arguments.filled)
    }

    /// Makes every later access to missing pages fail like one to broken memory.
    pub(crate) fn poison(&self, start: u64, len: u64) -> Progress {
        let mut arguments = UffdioFill { range: UffdioRange { start, len }, mode: 0, filled: 0 };
        // SAFETY: UFFDIO_POISON takes a `uffdio_poison`, which has the layout of `UffdioFill`, and no other memory of this process.
        let result = unsafe { self.ioctl::<POISON, _>(&mut arguments) };
        Progress::of(result, arguments.filled)
    }

    /// Wakes the threads that wait for pages that are there already.
    pub(crate) fn wake(&self, start: u64, len: u64) -> Result<(), Errno> {
        // SAFETY: UFFDIO_WAKE takes a `uffdio_range`, and no other memory of this process.
        unsafe { self.ioctl::<WAKE, _>(&mut UffdioRange { start, len }) }
    }

    /// Leaves later faults in the range to the kernel, which fills them with zeros.
    pub(crate) fn unregister(&self, start: u64, len: u64) -> Result<(), Errno> {
        // SAFETY: UFFDIO_UNREGISTER takes a `uffdio_range`, and no other memory of this process.
        unsafe { self.ioctl::<UNREGISTER, _>(&mut UffdioRange { start, len }) }
    }

    /// # Safety
    /// `T` must be the type that the kernel expects for `OPCODE`, and memory that it points to must be valid.
    ///
    /// All operations change only missing pages of ranges that the creator of the userfaultfd registered, in its own memory.
    unsafe fn ioctl<const OPCODE: Opcode, T>(&self, arguments: &mut T) -> Result<(), Errno> {
        // SAFETY: the caller passes the type that belongs to the number.
        let call = unsafe { Updater::<OPCODE, T>::new(arguments) };
        // SAFETY: `new` has checked that this is a userfaultfd; the caller answers for the arguments.
        unsafe { ioctl(&self.fd, call) }
    }
}

impl AsFd for Userfaultfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns the features that the creator enabled, from the text of `/proc/self/fdinfo/N`: `API: aa:FEATURES:IOCTLS`.
fn features(info: &str) -> Option<u64> {
    let line = info.lines().find_map(|line| line.strip_prefix("API:"))?;
    u64::from_str_radix(line.trim().split(':').nth(1)?, 16).ok()
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags};
    use trueno_test_restore::system::give_back;
    use trueno_test_restore::userfaultfd;

    use super::*;
    use crate::wake::wait_for;

    #[test]
    fn features_are_the_middle_of_the_api_line() {
        assert_eq!(features("pos:\t0\npending:\t0\ntotal:\t0\nAPI:\taa:80000008:1ffff\n"), Some(0x8000_0008));
        for info in ["", "API:", "API:\taa", "API:\taa:zz:1"] {
            assert_eq!(features(info), None);
        }
    }

    #[test]
    fn memory_is_changing_until_the_event_is_read() {
        if !userfaultfd::is_allowed(userfaultfd::EVENT_REMOVE) {
            return;
        }
        let fd = userfaultfd::create(userfaultfd::EVENT_REMOVE).unwrap();
        let address = userfaultfd::map_missing(&fd, 0, PAGE_SIZE, 0).unwrap();
        let uffd = Userfaultfd::new(fd).unwrap();
        assert!(!uffd.is_changing());
        let was_changing = std::thread::scope(|threads| {
            threads.spawn(|| give_back(address, PAGE_SIZE));
            wait_for(&mut [PollFd::new(&uffd, PollFlags::IN)], None).unwrap();
            let is_changing = uffd.is_changing();
            uffd.read(&mut [0; MESSAGE_LEN], &mut VecDeque::new()).unwrap();
            is_changing
        });
        assert!(was_changing && !uffd.is_changing());
    }

    #[test]
    fn other_files_are_refused_by_name() {
        let file = fs::File::open("/dev/null").unwrap();
        assert!(matches!(Userfaultfd::new(file.into()), Err(Error::NotUserfaultfd { what }) if what == "/dev/null"));
    }
}
