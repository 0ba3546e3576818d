//! Standard streams as the process found them: open or closed.
#![allow(unsafe_code, reason = "a function that runs before `main`")]

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, major, minor};
use rustix::io::fcntl_getfd;

use crate::output::write_errors::check_written;

/// Device numbers of `/dev/null` on Linux.
const NULL_DEVICE: (u32, u32) = (1, 3);

/// Descriptors of standard input, output and error.
const STANDARD: std::ops::Range<RawFd> = 0..3;

/// One bit for each standard stream that was closed when the process started.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// Runs [`note_closed`] before `main`, and before Rust's runtime opens `/dev/null` in place of closed streams. After
/// that, such a stream cannot be told from `/dev/null` that the parent process has opened for reading and writing, as
/// Python's `subprocess.DEVNULL` is.
#[used]
// SAFETY: the section holds pointers to functions that the C library calls once, before `main`, with arguments that the C
// calling convention lets a function ignore.
#[unsafe(link_section = ".init_array")]
static NOTE_CLOSED: extern "C" fn() = note_closed;

extern "C" fn note_closed() {
    for fd in STANDARD {
        // SAFETY: the descriptor may be closed, which is what is asked here. It is used for this one call, nothing is read,
        // written or closed through it, and no other thread runs yet that could give its number to something else.
        let stream = unsafe { BorrowedFd::borrow_raw(fd) };
        if fcntl_getfd(stream).is_err() {
            CLOSED.fetch_or(1 << fd, Ordering::Relaxed);
        }
    }
}

/// Returns `true` if a standard stream was closed when the process started, and nothing else was put in its place since.
///
/// Rust's runtime opens `/dev/null` in place of descriptors 0 to 2 that are closed, so that data would be lost, or an empty
/// input be found, silently. If the process was started with `/dev/null`, that was a choice, and the stream is not closed.
///
/// ```
/// if trueno_zram_io::was_closed_at_start(std::io::stdout()) {
///     eprintln!("standard output is closed");
/// }
/// ```
pub fn was_closed_at_start(stream: impl AsFd) -> bool {
    let fd = stream.as_fd().as_raw_fd();
    let was_closed = STANDARD.contains(&fd) && CLOSED.load(Ordering::Relaxed) & 1 << fd != 0;
    // Something else may have been put in its place since.
    was_closed && is_null_of_runtime(stream.as_fd())
}

/// Returns the metadata of the file behind standard output, if that is a regular file or a block device.
///
/// A shell opens such a file by `>>` or `1<>` even if it is also an input of the command. A program compares it with its inputs
/// before it writes.
///
/// ```
/// use trueno_zram_io::{FileId, stdout_file_metadata};
/// let input = std::fs::metadata("/proc/self/exe")?;
/// let is_input = stdout_file_metadata().is_some_and(|output| FileId::of(&output) == FileId::of(&input));
/// assert!(!is_input);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn stdout_file_metadata() -> Option<Metadata> {
    let stdout = io::stdout().as_fd().try_clone_to_owned().ok()?;
    let file = File::from(stdout).metadata().ok()?;
    (file.is_file() || file.file_type().is_block_device()).then_some(file)
}

/// Checks that everything written to standard output was stored, as far as its file system tells: some report only at `close`
/// that they are full.
///
/// ```
/// use std::io::Write;
/// println!("a report");
/// std::io::stdout().flush()?;
/// trueno_zram_io::check_stdout_written()?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// The system's own.
pub fn check_stdout_written() -> io::Result<()> {
    check_written(&File::from(io::stdout().as_fd().try_clone_to_owned()?))
}

/// Returns `true` for `/dev/null` as Rust's runtime opens it: for reading and writing.
fn is_null_of_runtime(stream: BorrowedFd<'_>) -> bool {
    is_null(stream) && fcntl_getfl(stream).is_ok_and(|flags| flags & OFlags::RWMODE == OFlags::RDWR)
}

/// Returns `true` if a descriptor is `/dev/null`.
pub(crate) fn is_null(stream: impl AsFd) -> bool {
    fstat(stream).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
            && (major(stat.st_rdev), minor(stat.st_rdev)) == NULL_DEVICE
    })
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::process::Command;

    use super::*;

    #[test]
    fn only_the_null_device_is_null() {
        assert!(is_null(File::open("/dev/null").unwrap()));
        assert!(!is_null(File::open("/dev/zero").unwrap()));
        assert!(!is_null(File::open("/proc/self/exe").unwrap()));
        let read_and_write = |path| File::options().read(true).write(true).open(path).unwrap();
        assert!(is_null_of_runtime(read_and_write("/dev/null").as_fd()));
        assert!(!is_null_of_runtime(read_and_write("/dev/zero").as_fd()));
        assert!(!is_null_of_runtime(File::open("/dev/null").unwrap().as_fd()));
    }

    /// Closes its standard output, in a process of its own.
    #[test]
    fn a_closed_standard_output_has_not_taken_what_was_written() {
        const VARIABLE: &str = "TRUENO_TEST_CLOSED_STDOUT";
        check_stdout_written().unwrap();
        if env::var_os(VARIABLE).is_some() {
            // SAFETY: nothing writes to the descriptor, or opens another file, before the process exits.
            assert_eq!(unsafe { libc::close(1) }, 0);
            let error = check_stdout_written().unwrap_err();
            std::process::exit(error.raw_os_error().unwrap_or_default());
        }
        let name = "files::standard_streams::tests::a_closed_standard_output_has_not_taken_what_was_written";
        let mut test = Command::new(env::current_exe().unwrap());
        let ended = test.args(["--exact", name]).env(VARIABLE, "1").output().unwrap();
        assert_eq!(ended.status.code(), Some(libc::EBADF), "{ended:?}");
    }
}
