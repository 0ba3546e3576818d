//! Read leases: while one is held, nobody can write to a file or make it shorter.
#![allow(unsafe_code, reason = "leases have no safe interface")]

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Mutex;

use crate::files::file_system::{self, BTRFS, EXT, F2FS, TMPFS, XFS};
use crate::lock::lock;

/// `F_SETSIG` of `asm-generic/fcntl.h`.
const F_SETSIG: c_int = 10;

/// File systems whose files change only through this kernel, which keeps leases. A server may change the files of
/// others.
const LOCAL_SYSTEMS: [u64; 5] = [TMPFS, EXT, XFS, BTRFS, F2FS];

/// A file on which a read lease (`F_SETLEASE` of `fcntl`) is taken and given back many times, by many threads.
///
/// The kernel grants the lease only if nobody has the file open for writing. From then on, a process that opens it
/// for writing, or truncates it by its path, waits until the lease is given back, but no longer than
/// `/proc/sys/fs/lease-break-time` (45 seconds unless changed). With `O_NONBLOCK`, opening fails with `EWOULDBLOCK`.
///
/// The holds of several threads may overlap without a gap. As soon as a writer waits, no thread takes the lease again, so the
/// writer waits for one part of each lane: a few milliseconds. A holder checks before and after its work if a writer waits.
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
    /// Opens a file again, for reading; `None` if it cannot be opened again, or its file system is not known to
    /// keep leases.
    pub(crate) fn new(file: &File) -> Option<Self> {
        if !LOCAL_SYSTEMS.contains(&file_system::kind_of(file)?) {
            return None;
        }
        // A lease belongs to an open file description, and standard input shares its own with other processes.
        let file = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
        Some(Self { file, holders: Mutex::new(0) })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Takes the lease; `None` if somebody has the file open for writing or waits for it, if it belongs to another user, or
    /// if its file system has no leases.
    pub(crate) fn hold(&self) -> Option<Lease<'_>> {
        let mut holders = lock(&self.holders);
        // The kernel counts waiting processes as writers, so `take` fails as well while one waits.
        let has_lease = if *holders == 0 { self.take().is_ok() } else { self.is_unbroken() };
        if has_lease {
            *holders += 1;
        }
        // Not `then_some`: a lease that is not held must not be dropped.
        has_lease.then(|| Lease(self))
    }

    fn take(&self) -> io::Result<()> {
        // The kernel sends the holder a signal when somebody waits. SIGIO would end the process; SIGURG is ignored unless
        // it has a handler. The kernel forgets the choice with each lease.
        let is_taken = self.control(F_SETSIG, libc::SIGURG) == 0 && self.control(libc::F_SETLEASE, libc::F_RDLCK) == 0;
        if is_taken { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn control(&self, command: c_int, value: c_int) -> c_int {
        // SAFETY: asks for or changes a property of an open file that is this value's own. The commands here take a
        // number.
        unsafe { libc::fcntl(self.file.as_raw_fd(), command, value) }
    }

    fn is_unbroken(&self) -> bool {
        self.control(libc::F_GETLEASE, 0) == libc::F_RDLCK
    }
}

impl Lease<'_> {
    /// Returns `true` if no process waits for the lease to end. Then the file has not changed since it was taken.
    pub(crate) fn is_unbroken(&self) -> bool {
        self.0.is_unbroken()
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

/// An input that will be removed after it was read, and that must not change until then.
///
/// Bytes written to it after it was read would be lost. A write through a shared mapping may change neither its length nor its
/// times. So a read lease is held on it all the time, if its file system keeps leases and it belongs
/// to this user. Otherwise changes go unnoticed.
///
/// ```
/// use std::fs::File;
/// use trueno_zram_io::{OpenForWriting, ReservedInput};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("image");
/// std::fs::write(&path, b"some bytes")?;
/// let input = ReservedInput::new(&File::open(&path)?)?;
/// // read the file here
/// assert_eq!(input.check(), Ok(()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ReservedInput(Option<LeasedFile>);

/// Somebody has the file open for writing, or has mapped it so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is open for writing elsewhere")]
pub struct OpenForWriting;

impl ReservedInput {
    /// Takes the lease. It is given back when this is dropped; until then, a process that opens the file for writing waits, but
    /// no longer than `/proc/sys/fs/lease-break-time`.
    ///
    /// # Errors
    /// [`OpenForWriting`].
    pub fn new(file: &File) -> Result<Self, OpenForWriting> {
        let leased = LeasedFile::new(file);
        match leased.as_ref().map(LeasedFile::take) {
            Some(Ok(())) => Ok(Self(leased)),
            Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => Err(OpenForWriting),
            // Not a file of this user, or not one that can be leased.
            _ => Ok(Self(None)),
        }
    }

    /// Returns `true` if the lease is held. Otherwise [`check`](Self::check) finds nothing.
    #[must_use]
    pub fn is_leased(&self) -> bool {
        self.0.is_some()
    }

    /// Checks that nobody has opened the file for writing since, or waits to do so.
    ///
    /// # Errors
    /// [`OpenForWriting`].
    pub fn check(&self) -> Result<(), OpenForWriting> {
        if self.0.as_ref().is_none_or(LeasedFile::is_unbroken) { Ok(()) } else { Err(OpenForWriting) }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::OpenOptionsExt;

    use rustix::mm::ProtFlags;

    use super::*;
    use crate::mapping::guarded_mapping::GuardedMapping;

    #[test]
    fn an_input_is_reserved_until_somebody_opens_it_for_writing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("input");
        let writer = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        let input = File::open(&path).unwrap();
        if LeasedFile::new(&input).is_none() {
            return;
        }
        assert_eq!(ReservedInput::new(&input).unwrap_err(), OpenForWriting);
        writer.set_len(5000).unwrap();
        let mapping = GuardedMapping::new(&writer, 0, 5000, ProtFlags::READ | ProtFlags::WRITE);
        drop(writer);
        assert_eq!(ReservedInput::new(&input).unwrap_err(), OpenForWriting, "it is mapped");
        drop(mapping.unwrap());
        let reserved = ReservedInput::new(&input).unwrap();
        let _reader = File::open(&path).unwrap();
        assert_eq!(reserved.check(), Ok(()));
        // It would wait until the lease is given back.
        let refused = File::options().write(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        assert_eq!(reserved.check(), Err(OpenForWriting));
        drop(reserved);
        File::options().write(true).open(&path).unwrap();
    }

    #[test]
    fn files_of_unlisted_file_systems_are_not_leased() {
        // procfs is not listed.
        let file = File::open("/proc/self/status").unwrap();
        assert!(LeasedFile::new(&file).is_none());
    }
}
