//! Read leases: while one is held, nobody can write to a file or make it shorter.
#![allow(unsafe_code, reason = "leases have no safe interface")]

use std::ffi::c_int;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Mutex;

use crate::file_system::{self, BTRFS, EXT, F2FS, TMPFS, XFS};
use crate::ordered::lock;

/// `F_SETSIG` of `asm-generic/fcntl.h`.
const F_SETSIG: c_int = 10;

/// File systems whose files change only through this kernel, which keeps leases. A server may change the files of
/// others.
const LOCAL_SYSTEMS: [u64; 5] = [TMPFS, EXT, XFS, BTRFS, F2FS];

/// A file on which a read lease (`F_SETLEASE` of `fcntl`) is taken and given back many times, by many threads.
///
/// The kernel grants the lease only if nobody has the file open for writing. From then on, whoever opens it for
/// writing, or truncates it by its path, waits until the lease is given back, but no longer than
/// `/proc/sys/fs/lease-break-time` (45 seconds unless changed). With `O_NONBLOCK`, opening fails with `EWOULDBLOCK`.
///
/// Threads may hold the lease by turns without a gap. As soon as somebody waits, no thread takes it again, so a writer
/// waits for one part of each lane: a few milliseconds. A holder asks before and after its work whether somebody waits.
#[derive(Debug)]
pub(crate) struct LeasedFile {
    file: File,
    /// Threads that hold the lease.
    holders: Mutex<usize>,
}

/// The lease, held until this is dropped.
#[derive(Debug)]
pub(crate) struct Lease<'a>(&'a LeasedFile);

impl LeasedFile {
    /// Opens a file again, for reading. None: it cannot be opened again, or its file system is not known to keep
    /// leases.
    pub(crate) fn new(file: &File) -> Option<Self> {
        if !LOCAL_SYSTEMS.contains(&file_system::kind_of(file)?) {
            return None;
        }
        // A lease belongs to an open file, which for standard input is that of other processes, too.
        let file = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
        Some(Self { file, holders: Mutex::new(0) })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Takes the lease. None: somebody has the file open for writing or waits for it, it belongs to another user, or
    /// its file system has no leases.
    pub(crate) fn hold(&self) -> Option<Lease<'_>> {
        let mut holders = lock(&self.holders);
        // The kernel counts those who wait as writers, so `take` fails as well while somebody waits.
        let has_lease = if *holders == 0 { self.take() } else { self.is_undisputed() };
        if has_lease {
            *holders += 1;
        }
        // Not `then_some`: a lease that is not held must not be dropped.
        has_lease.then(|| Lease(self))
    }

    fn take(&self) -> bool {
        // The kernel sends the holder a signal when somebody waits. SIGIO would end the process; SIGURG is ignored unless
        // it has a handler. The kernel forgets the choice with each lease.
        self.control(F_SETSIG, libc::SIGURG) == 0 && self.control(libc::F_SETLEASE, libc::F_RDLCK) == 0
    }

    fn control(&self, command: c_int, value: c_int) -> c_int {
        // SAFETY: asks for or changes a property of an open file that is this value's own. The commands here take a
        // number.
        unsafe { libc::fcntl(self.file.as_raw_fd(), command, value) }
    }

    fn is_undisputed(&self) -> bool {
        self.control(libc::F_GETLEASE, 0) == libc::F_RDLCK
    }
}

impl Lease<'_> {
    /// Whether nobody waits for the lease. Then the file was the same since it was taken.
    pub(crate) fn is_undisputed(&self) -> bool {
        self.0.is_undisputed()
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let mut holders = lock(&self.0.holders);
        *holders -= 1;
        if *holders == 0 {
            self.0.control(libc::F_SETLEASE, libc::F_UNLCK);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_unlisted_file_systems_are_not_leased() {
        // procfs is not listed.
        let file = File::open("/proc/self/status").unwrap();
        assert!(LeasedFile::new(&file).is_none());
    }
}
