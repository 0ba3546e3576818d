//! The registers of a thread, which only a debugger can read. All unsafe code of the tool is here.
#![allow(unsafe_code, reason = "ptrace takes untyped pointers")]

use std::io;
use std::ptr;

/// The C libraries differ in the type of `ptrace`'s first argument.
#[cfg(target_env = "musl")]
type Request = libc::c_int;
#[cfg(not(target_env = "musl"))]
type Request = libc::c_uint;

/// Number of the set of general registers: `NT_PRSTATUS` of <elf.h>.
const GENERAL_REGISTERS: usize = 1;

/// Room for the registers of any processor; x86-64 has 216 bytes of them, and ARM 272.
const MAX_LEN: usize = 1024;

/// Reads the general registers of a thread that is stopped, in the form that core files have. It stays stopped.
pub(crate) fn registers_of(thread: u32) -> io::Result<Vec<u8>> {
    let thread = libc::pid_t::try_from(thread).map_err(|_| io::ErrorKind::InvalidInput)?;
    let seized = Seized::new(thread)?;
    let mut bytes = vec![0u8; MAX_LEN];
    let mut place = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let set = ptr::without_provenance_mut::<libc::c_void>(GENERAL_REGISTERS);
    // SAFETY: the kernel writes at most `iov_len` bytes to `bytes`, and the new length to `place`; both outlive the call.
    let result = unsafe { libc::ptrace(libc::PTRACE_GETREGSET, seized.thread, set, &raw mut place) };
    check(result)?;
    bytes.truncate(place.iov_len);
    Ok(bytes)
}

/// A thread that is held as by a debugger, until this is dropped.
struct Seized {
    thread: libc::pid_t,
}

impl Seized {
    fn new(thread: libc::pid_t) -> io::Result<Self> {
        request(libc::PTRACE_SEIZE, thread)?;
        let seized = Self { thread };
        request(libc::PTRACE_INTERRUPT, thread)?;
        let mut status = 0;
        // SAFETY: the kernel writes the status, which outlives the call, and nothing else.
        while unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) } != thread {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        if libc::WIFSTOPPED(status) { Ok(seized) } else { Err(io::ErrorKind::NotFound.into()) }
    }
}

impl Drop for Seized {
    fn drop(&mut self) {
        // It fails only if the thread has ended.
        let _ = request(libc::PTRACE_DETACH, self.thread);
    }
}

/// Makes a request that has no arguments.
fn request(request: Request, thread: libc::pid_t) -> io::Result<()> {
    let none = ptr::null_mut::<libc::c_void>();
    // SAFETY: these requests read and write no memory of this process.
    check(unsafe { libc::ptrace(request, thread, none, none) })
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
