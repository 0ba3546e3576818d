//! Reads the memory of another process.
#![allow(unsafe_code, reason = "the system call takes raw addresses")]

use std::io;

/// Copies memory of a process into `bytes`, and returns the number of bytes copied, which may be smaller. Several threads may do this at
/// the same time. Reading `/proc/PID/mem` copies every byte twice.
///
/// A process number may be reused: the caller checks afterwards that it is still the same process.
///
/// ```
/// let (bytes, mut copy) = (*b"some bytes", [0; 10]);
/// let address = bytes.as_ptr() as u64;
/// let copied = trueno_zram_io::read_process_memory(std::process::id(), address, &mut copy)?;
/// assert_eq!((copied, copy), (10, bytes));
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// The system's own: `EFAULT` for memory that cannot be read, `EPERM`, `ESRCH`.
pub fn read_process_memory(pid: u32, address: u64, bytes: &mut [u8]) -> io::Result<usize> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    let address = usize::try_from(address).map_err(|_| io::Error::from_raw_os_error(libc::EFAULT))?;
    let here = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let there = libc::iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len: bytes.len() };
    // SAFETY: the kernel writes to `here` alone, which is `bytes`, and checks the addresses of the other process itself.
    let copied = unsafe { libc::process_vm_readv(pid, &raw const here, 1, &raw const there, 1, 0) };
    usize::try_from(copied).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_memory_and_refuses_what_is_not_there() {
        let from: Vec<u8> = (0..10_000_u32).map(|i| i.to_le_bytes()[0]).collect();
        let mut to = vec![0; from.len()];
        let address = from.as_ptr() as u64;
        assert_eq!(read_process_memory(std::process::id(), address, &mut to).unwrap(), from.len());
        assert_eq!(to, from);
        let error = read_process_memory(std::process::id(), 8, &mut to).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
        assert!(read_process_memory(u32::MAX, address, &mut to).is_err());
    }
}
