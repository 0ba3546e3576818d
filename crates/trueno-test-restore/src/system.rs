//! Calls of the system by which a process changes its memory, and has children.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;

const PAGE: usize = trueno_zram_core::PAGE_SIZE;
/// The bit of a status that says that there is a core file.
const CORE_DUMPED: i32 = 0x80;

/// Moves memory to addresses, from which the kernel removes what is there.
///
/// # Panics
/// If the system does not allow it.
pub fn move_memory(from: u64, len: usize, new_len: usize, to: u64) {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the pages are mapped, and nothing refers to them, nor to what is at the new addresses.
    let moved = unsafe { libc::mremap(from as *mut _, len, new_len, flags, to as *mut libc::c_void) };
    assert_eq!(moved as u64, to, "{}", io::Error::last_os_error());
}

/// Gives the content of memory back: it is zeros from now on.
///
/// # Panics
/// If the system does not allow it.
pub fn give_back(start: u64, len: usize) {
    // SAFETY: the pages are mapped, and nothing refers to them.
    let result = unsafe { libc::madvise(start as *mut _, len, libc::MADV_DONTNEED) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

/// Unmaps memory.
///
/// # Panics
/// If the system does not allow it.
pub fn unmap_memory(start: u64, len: usize) {
    // SAFETY: the pages are mapped, and nothing refers to them.
    let result = unsafe { libc::munmap(start as *mut _, len) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

/// Returns `true` if nothing is mapped at the page of an address.
#[must_use]
pub fn is_free(address: u64) -> bool {
    let mut is_resident = 0;
    // SAFETY: writes one byte for one page. It does not matter whether that is mapped.
    let result = unsafe { libc::mincore(address as *mut _, PAGE, &raw mut is_resident) };
    result != 0
}

/// Drops a file from the page cache, and returns the number of its pages that stay there: those that somebody has mapped or changed.
///
/// # Errors
/// Those of the operating system.
pub fn drop_from_cache(file: &File) -> io::Result<usize> {
    file.sync_all()?;
    // SAFETY: takes a descriptor and numbers.
    let result = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    if result != 0 {
        return Err(io::Error::from_raw_os_error(result));
    }
    let len = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    if len == 0 {
        return Ok(0);
    }
    // SAFETY: a new mapping, which replaces none.
    let base = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let mut resident = vec![0_u8; len.div_ceil(PAGE)];
    // SAFETY: the mapping has this length, and there is a byte for each of its pages.
    let result = unsafe { libc::mincore(base, len, resident.as_mut_ptr()) };
    let error = io::Error::last_os_error();
    // SAFETY: the mapping was made here, and nothing refers to it.
    unsafe { libc::munmap(base, len) };
    if result != 0 {
        return Err(error);
    }
    Ok(resident.iter().filter(|page| *page & 1 == 1).count())
}

/// Forks a child that ends with 0 if the answer is right, and with 1 otherwise.
///
/// # Panics
/// If the system does not allow it.
pub fn fork(is_right: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child uses only its own memory, and ends without returning.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_right = is_right();
        // SAFETY: ends the process.
        unsafe { libc::_exit(i32::from(!is_right)) }
    }
    assert!(child > 0, "{}", io::Error::last_os_error());
    child
}

/// Waits for a child, and returns its status: 0 if all was right, and the number of a signal that ended it.
///
/// # Panics
/// If it is not a child of this process.
pub fn wait(child: i32) -> i32 {
    let mut status = 0;
    // SAFETY: writes the status of a child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status & !CORE_DUMPED
}
