//! SIGBUS in a mapped file as an error.
//!
//! The kernel sends SIGBUS for a page of a mapping that it cannot provide: the file system is full, the file has become
//! shorter, or a disk or memory is broken. The handler here notes the failure if the page lies in a guarded range, and
//! puts an empty page in its place. The thread goes on, and finds the note. Everywhere else SIGBUS does what it did
//! before.
#![allow(unsafe_code, reason = "a signal handler")]

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, OnceLock};
use std::{io, mem, ptr};

use libc::{sigaction, siginfo_t};

use crate::ordered::lock;

/// The most ranges at a time.
const MAX_RANGES: usize = 1 << 14;

/// A range of memory that the handler knows. All of it is atomic: the handler may run at any moment.
struct GuardedRange {
    /// Its first byte; 0 for none.
    start: AtomicUsize,
    end: AtomicUsize,
    /// The signal's code of the first failure; 0 for none.
    failure: AtomicI32,
}

static RANGES: [GuardedRange; MAX_RANGES] =
    [const { GuardedRange { start: AtomicUsize::new(0), end: AtomicUsize::new(0), failure: AtomicI32::new(0) } };
        MAX_RANGES];

/// Ranges from the first that are or were in use.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Numbers of ranges below [`USED`] that are free.
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// What the handler needs, from before it was installed.
static BEFORE: OnceLock<Before> = OnceLock::new();

struct Before {
    page_bytes: usize,
    action: sigaction,
}

/// A range of memory that is guarded until this is dropped.
#[derive(Debug)]
pub(crate) struct Guard {
    number: usize,
}

impl Guard {
    /// Guards mapped memory. None: too many ranges are guarded, or the handler cannot be installed.
    pub(crate) fn new(start: usize, len_bytes: usize) -> Option<Self> {
        install()?;
        let mut free = lock(&FREE);
        let number = match free.pop() {
            Some(number) => number,
            None => {
                let number = USED.load(Ordering::Relaxed);
                if number == MAX_RANGES {
                    return None;
                }
                USED.store(number + 1, Ordering::Release);
                number
            }
        };
        let range = &RANGES[number];
        range.failure.store(0, Ordering::Relaxed);
        range.end.store(start + len_bytes, Ordering::Relaxed);
        range.start.store(start, Ordering::Release);
        Some(Self { number })
    }

    /// Tells whether all pages that were accessed so far were there.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`] if the file system had no room for one, or else that it could not be read or written.
    pub(crate) fn check(&self) -> io::Result<()> {
        match RANGES[self.number].failure.load(Ordering::Acquire) {
            0 => Ok(()),
            libc::BUS_ADRERR => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
            _ => Err(io::Error::from_raw_os_error(libc::EIO)),
        }
    }

    /// Returns whether any page accessed so far, by any thread, could not be provided. Bytes that were read from the
    /// range before this call are the file's content only if this returns `false`.
    pub(crate) fn has_failed(&self) -> bool {
        // Keeps earlier reads of the range before this load. The handler stores the failure before it maps the empty
        // page.
        fence(Ordering::Acquire);
        RANGES[self.number].failure.load(Ordering::Acquire) != 0
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        RANGES[self.number].start.store(0, Ordering::Release);
        lock(&FREE).push(self.number);
    }
}

/// Installs the handler, once.
fn install() -> Option<()> {
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    let mut installed = lock(&INSTALLED);
    if *installed {
        return Some(());
    }
    // SAFETY: an all-zero `sigaction` is a valid value: the default action and an empty mask.
    let (mut before, mut action): (sigaction, sigaction) = unsafe { mem::zeroed() };
    // SAFETY: only reads the current action.
    if unsafe { sigaction(libc::SIGBUS, ptr::null(), &raw mut before) } != 0 {
        return None;
    }
    BEFORE.set(Before { page_bytes: rustix::param::page_size(), action: before }).ok()?;
    action.sa_sigaction = on_bus_error as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler has the type that SA_SIGINFO asks for, and calls nothing but mmap, sigaction and raise, which signal
    // handlers may call.
    *installed = unsafe { sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) } == 0;
    installed.then_some(())
}

extern "C" fn on_bus_error(signal: c_int, info: *mut siginfo_t, _context: *mut c_void) {
    let Some(before) = BEFORE.get() else { return };
    // SAFETY: the kernel passes a valid `siginfo_t`, and SIGBUS has an address.
    let info = unsafe { &*info };
    // SAFETY: as above.
    let (code, address) = (info.si_code, unsafe { info.si_addr() } as usize);
    // A code of 0 or less means that a process sent the signal: its address means nothing.
    if code > 0 && put_empty_page(before.page_bytes, code, address) {
        return;
    }
    // SAFETY: the action is what the kernel reported before.
    unsafe { sigaction(signal, &raw const before.action, ptr::null_mut()) };
    if code <= 0 {
        // SAFETY: it is delivered when this handler returns. A fault comes again by itself.
        unsafe { libc::raise(signal) };
    }
}

/// Puts an empty page where the fault was, if it is in a guarded range.
fn put_empty_page(page_bytes: usize, code: i32, address: usize) -> bool {
    let used = USED.load(Ordering::Acquire);
    let hit = RANGES[..used].iter().find(|range| {
        let start = range.start.load(Ordering::Acquire);
        start != 0 && (start..range.end.load(Ordering::Relaxed)).contains(&address)
    });
    let Some(range) = hit else { return false };
    let page = (address - address % page_bytes) as *mut c_void;
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
    // SAFETY: this thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let errno_before = unsafe { *errno };
    // Before the page is there: a thread that reads it must find the note.
    range.failure.store(code, Ordering::SeqCst);
    // SAFETY: replaces one page of a mapping that is guarded, and so is neither unmapped nor used as anything but bytes
    // while this thread accesses it. The page had no content. Bytes that are read from the new one are dropped, because
    // of the note.
    let mapped = unsafe { libc::mmap(page, page_bytes, protection, flags, -1, 0) };
    // SAFETY: as above. The code that was interrupted may be about to read it.
    unsafe { *errno = errno_before };
    mapped != libc::MAP_FAILED
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::fs::File;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

    use super::*;

    /// A mapping of a file of this many pages.
    fn mapped(file: &File, pages: usize) -> *mut u8 {
        let page_bytes = rustix::param::page_size();
        file.set_len((pages * page_bytes) as u64).unwrap();
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping.
        unsafe { mmap(ptr::null_mut(), pages * page_bytes, protection, flags, file, 0) }.unwrap().cast()
    }

    #[test]
    fn a_page_that_is_not_there_is_an_error_and_no_end() {
        let (file, page_bytes) = (tempfile::tempfile().unwrap(), rustix::param::page_size());
        let start = mapped(&file, 3);
        let guard = Guard::new(start as usize, 3 * page_bytes).unwrap();
        let other = Guard::new(start as usize + 10 * page_bytes, page_bytes).unwrap();
        // SAFETY: within the mapping.
        unsafe { start.write_volatile(1) };
        assert!(guard.check().is_ok());
        file.set_len(page_bytes as u64).unwrap();
        // SAFETY: within the mapping.
        let gone = unsafe { start.add(2 * page_bytes + 5) };
        // SAFETY: as above; the file's page is gone.
        unsafe { gone.write_volatile(1) };
        assert_eq!(guard.check().unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert!(other.check().is_ok());
        drop(guard);
        let again = Guard::new(start as usize, page_bytes).unwrap();
        assert!(again.check().is_ok(), "a range that is used again has no failure");
        // SAFETY: nothing refers to the mapping any more.
        unsafe { munmap(start.cast(), 3 * page_bytes) }.unwrap();
    }

    /// Ends the process of a test by SIGBUS, if the variable asks for it.
    #[test]
    fn a_bus_error_elsewhere_ends_the_process_as_before() {
        const VARIABLE: &str = "TRUENO_TEST_BUS_ERROR";
        if let Ok(kind) = env::var(VARIABLE) {
            let file = tempfile::tempfile().unwrap();
            let start = mapped(&file, 2);
            let _guard = Guard::new(start as usize, rustix::param::page_size()).unwrap();
            if kind == "fault" {
                file.set_len(0).unwrap();
                // SAFETY: within the mapping.
                let unguarded = unsafe { start.add(rustix::param::page_size()) };
                // SAFETY: as above.
                unsafe { unguarded.write_volatile(1) };
            } else {
                // The handler of Rust's runtime, which was there before, takes the first one and removes itself.
                for _ in 0..2 {
                    // SAFETY: sends a signal.
                    unsafe { libc::raise(libc::SIGBUS) };
                }
            }
            return;
        }
        for kind in ["fault", "sent"] {
            let mut test = Command::new(env::current_exe().unwrap());
            let name = "bus_error::tests::a_bus_error_elsewhere_ends_the_process_as_before";
            let ended = test.args(["--exact", name]).env(VARIABLE, kind).output().unwrap();
            assert_eq!(ended.status.signal(), Some(libc::SIGBUS), "{kind}: {ended:?}");
        }
    }
}
