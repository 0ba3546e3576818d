//! Memory whose pages are missing until a handler fills them.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The event of memory that is given back, for VMs.
pub const EVENT_REMOVE: u64 = 1 << 3;
/// The events for fork, remap, remove and unmap, for processes.
pub const PROCESS_EVENTS: u64 = 1 << 1 | 1 << 2 | EVENT_REMOVE | 1 << 6;

/// `struct uffdio_api`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;

/// Creates a userfaultfd: for faults of the kernel as well if that is allowed.
///
/// # Errors
/// Those of the operating system, which may not allow the features to this user.
///
/// # Panics
/// Never: a descriptor has 32 bits.
pub fn create(features: u64) -> io::Result<OwnedFd> {
    const USER_MODE_ONLY: i32 = 1;
    let open = |flags: i32| {
        // SAFETY: the call takes flags and returns a new descriptor.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags | libc::O_CLOEXEC | libc::O_NONBLOCK) };
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(i32::try_from(fd).expect("a descriptor")) }
    };
    let fd = open(0).or_else(|_| open(USER_MODE_ONLY))?;
    // SAFETY: nothing else owns the new descriptor.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut api = Api { api: 0xaa, features, ioctls: 0 };
    // SAFETY: UFFDIO_API takes a `uffdio_api`.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API as _, &raw mut api) };
    if result == 0 { Ok(fd) } else { Err(io::Error::last_os_error()) }
}

/// Returns `true` if the kernel lets this user create a userfaultfd with these features. Prints the reason if not.
#[must_use]
pub fn is_allowed(features: u64) -> bool {
    match create(features) {
        Ok(_) => true,
        Err(error) => {
            println!("skipped: this kernel refuses userfaultfd with features {features:#x} to this user: {error}");
            false
        }
    }
}

/// Maps private memory of `len` bytes, all of it missing, and returns its address: `address`, or one that the kernel chooses if
/// that is 0.
///
/// # Errors
/// Those of the operating system. The memory may stay mapped then.
pub fn map_missing(uffd: &OwnedFd, address: u64, len: usize, more_flags: i32) -> io::Result<u64> {
    let fixed = if address == 0 { 0 } else { libc::MAP_FIXED_NOREPLACE };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed | more_flags;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, which replaces none.
    let base = unsafe { libc::mmap(address as *mut _, len, access, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let mut register = Register { start: base as u64, len: len as u64, mode: 1, ioctls: 0 };
    // SAFETY: UFFDIO_REGISTER takes a `uffdio_register`.
    let result = unsafe { libc::ioctl(uffd.as_raw_fd(), UFFDIO_REGISTER as _, &raw mut register) };
    if result == 0 { Ok(base as u64) } else { Err(io::Error::last_os_error()) }
}
