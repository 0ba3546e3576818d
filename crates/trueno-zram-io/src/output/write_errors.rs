//! Write errors that file systems report late: at `close`, or with the next sync.
#![allow(
    unsafe_code,
    reason = "a file is closed without a look at the result, unless its descriptor is closed by hand"
)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd};

use rustix::fs::fsync;
use rustix::io::Errno;

/// Checks that a file has taken what was written to it, as far as its file system tells without a sync.
///
/// Network and FUSE file systems keep writes back, and send them when a descriptor is closed. Only that `close` reports
/// that the server is full or that a quota is exceeded. So a duplicate of the descriptor is closed here. On local file
/// systems that does nothing, and takes a microsecond.
///
/// A server may report an error to the first `close` alone: no other duplicate may be dropped before.
pub(crate) fn check_written(file: &File) -> io::Result<()> {
    let duplicate = file.try_clone()?.into_raw_fd();
    // SAFETY: the descriptor was made above, and nobody else knows it. Whatever the result, it is gone after this.
    if unsafe { libc::close(duplicate) } != 0 {
        // EINTR as well: what was being sent may be lost.
        return Err(io::Error::last_os_error());
    }
    check_written_back(file)
}

/// Reports an error of the kernel's own writing back, which happens at any time.
fn check_written_back(file: &File) -> io::Result<()> {
    // Waits for nothing, as no file has bytes from the last position on; errors since the file was opened, or since the last
    // such call, are reported for all of it.
    // SAFETY: no memory is passed.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), i64::MAX, 0, libc::SYNC_FILE_RANGE_WAIT_BEFORE) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            // A pipe has no such errors.
            error if error.raw_os_error() == Some(libc::ESPIPE) || is_unsupported(&error) => Ok(()),
            error => Err(error),
        },
    }
}

/// Syncs a file to disk.
pub(crate) fn sync(file: &File) -> io::Result<()> {
    // Not `File::sync_all`, which repeats the call after EINTR. An error of a write is reported once, and may be EINTR.
    match fsync(file).map_err(io::Error::from) {
        // This file system has no such call.
        Err(error) if is_unsupported(&error) => Ok(()),
        synced => synced,
    }
}

/// Returns `true` if an error means that a file system lacks a call, not that the call failed.
pub(crate) fn is_unsupported(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    errno.is_some_and(|errno| {
        [Errno::PERM, Errno::INVAL, Errno::NOSYS, Errno::OPNOTSUPP, Errno::NOTTY, Errno::XDEV, Errno::NOENT]
            .contains(&errno)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn files_pipes_and_devices_are_checked() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"some bytes").unwrap();
        check_written(&file).unwrap();
        file.write_all(b"and more").unwrap();
        assert_eq!(file.metadata().unwrap().len(), 18, "the file stays open");
        let (_reader, writer) = io::pipe().unwrap();
        check_written(&File::from(std::os::fd::OwnedFd::from(writer))).unwrap();
        check_written(&File::options().write(true).open("/dev/null").unwrap()).unwrap();
    }
}
