//! SIGBUS in a mapped file as an error.
//!
//! The kernel sends SIGBUS for a page of a mapping that it cannot provide: the file system is full, the file has become
//! shorter, or a disk or memory is broken. The handler here notes the failure if the page lies in a guarded range, and
//! maps a zero page in its place, or zeros in place of the whole range. The thread goes on, and finds the note.
//! Everywhere else SIGBUS does what it did before.
#![allow(unsafe_code, reason = "a signal handler")]

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, OnceLock};
use std::{io, mem, ptr};

use libc::{sigaction, siginfo_t};

use crate::lock::lock;

/// The most ranges at a time.
const MAX_RANGES: usize = 1 << 14;

/// A range of memory that the handler knows. All of it is atomic: the handler may run at any moment.
struct GuardedRange {
    /// Its first byte; 0 for none.
    start: AtomicUsize,
    end: AtomicUsize,
    /// The first failure replaces all of it.
    is_whole: AtomicBool,
    /// The signal's code of the first failure; 0 for none.
    failure: AtomicI32,
}

impl GuardedRange {
    /// A range that is not in use.
    const fn unused() -> Self {
        let (start, end) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { start, end, is_whole: AtomicBool::new(false), failure: AtomicI32::new(0) }
    }

    /// Returns the bounds if an address lies between them.
    fn bounds_of(&self, address: usize) -> Option<(usize, usize)> {
        let start = self.start.load(Ordering::Acquire);
        let end = self.end.load(Ordering::Acquire);
        // The start is 0 while another thread changes the end: both belong together if it is still the same.
        let is_one_range = start != 0 && self.start.load(Ordering::Acquire) == start;
        (is_one_range && (start..end).contains(&address)).then_some((start, end))
    }
}

static RANGES: [GuardedRange; MAX_RANGES] = [const { GuardedRange::unused() }; MAX_RANGES];

/// Ranges from the first that are or were in use.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Numbers of ranges below [`USED`] that are free.
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// The action for SIGBUS before the handler was installed, and the page size.
static PREVIOUS: OnceLock<PreviousAction> = OnceLock::new();

struct PreviousAction {
    page_bytes: usize,
    action: sigaction,
}

/// A range of mapped memory that is guarded until this is dropped: a page that the kernel cannot provide is noted, and does
/// not end the process.
#[derive(Debug)]
pub struct MappingGuard {
    number: usize,
}

impl MappingGuard {
    /// Guards mapped memory, page by page; `None` if too many ranges are guarded, or the handler cannot be installed.
    pub(crate) fn new(start: usize, len_bytes: usize) -> Option<Self> {
        Self::register(start, len_bytes, false)
    }

    /// Guards a whole mapping: at the first missing page, all of it is replaced by zeros. So a process that removes pages one by
    /// one causes one failure, and the memory stays one mapping. Returns `None` if too many ranges are guarded, or if the handler
    /// cannot be installed.
    ///
    /// ```
    /// use rustix::mm::{MapFlags, ProtFlags, mmap};
    /// use trueno_zram_io::MappingGuard;
    ///
    /// let (file, len_bytes) = (tempfile::tempfile()?, 1 << 20);
    /// file.set_len(len_bytes as u64)?;
    /// // SAFETY: a new mapping, at addresses that the system chooses.
    /// let start = unsafe { mmap(std::ptr::null_mut(), len_bytes, ProtFlags::READ, MapFlags::SHARED, &file, 0)? };
    /// // SAFETY: the mapping exists until the process ends, and is only read byte by byte.
    /// let guard = unsafe { MappingGuard::of_mapping(start as usize, len_bytes) }.expect("few mappings are guarded");
    /// file.set_len(0)?;
    /// // SAFETY: within the mapping.
    /// assert_eq!(unsafe { start.cast::<u8>().read_volatile() }, 0);
    /// assert!(guard.has_failed(), "the page is not part of the file any more");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Safety
    /// The range is a mapping of the caller, whole pages of the size that it is mapped with. Until the guard is dropped, it
    /// stays mapped, and is accessed only as bytes that others may change at any moment.
    pub unsafe fn of_mapping(start: usize, len_bytes: usize) -> Option<Self> {
        Self::register(start, len_bytes, true)
    }

    fn register(start: usize, len_bytes: usize, is_whole: bool) -> Option<Self> {
        let end = start.checked_add(len_bytes)?;
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
        range.is_whole.store(is_whole, Ordering::Relaxed);
        range.end.store(end, Ordering::Release);
        range.start.store(start, Ordering::Release);
        Some(Self { number })
    }

    /// Checks that all pages that were accessed so far could be provided.
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

    /// Returns `true` if any page accessed so far, by any thread, could not be provided. Bytes that were read from the
    /// range before this call are the file's content only if this returns `false`.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        // Keeps earlier reads of the range before this load. The handler stores the failure before it maps the empty
        // page.
        fence(Ordering::Acquire);
        RANGES[self.number].failure.load(Ordering::Acquire) != 0
    }
}

impl Drop for MappingGuard {
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
    PREVIOUS.set(PreviousAction { page_bytes: rustix::param::page_size(), action: before }).ok()?;
    action.sa_sigaction = on_bus_error as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler has the type that SA_SIGINFO asks for, and calls nothing but mmap, sigaction and raise, which signal
    // handlers may call.
    *installed = unsafe { sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) } == 0;
    installed.then_some(())
}

extern "C" fn on_bus_error(signal: c_int, info: *mut siginfo_t, _context: *mut c_void) {
    let Some(before) = PREVIOUS.get() else { return };
    // SAFETY: the kernel passes a valid `siginfo_t`, and SIGBUS has an address.
    let info = unsafe { &*info };
    // SAFETY: as above.
    let (code, address) = (info.si_code, unsafe { info.si_addr() } as usize);
    // A code of 0 or less means that a process sent the signal: its address means nothing.
    let is_fault = code > 0;
    if is_fault && replace_missing_page(before.page_bytes, code, address) {
        return;
    }
    // SAFETY: the action is what the kernel reported before.
    unsafe { sigaction(signal, &raw const before.action, ptr::null_mut()) };
    if !is_fault {
        // SAFETY: it is delivered when this handler returns. A fault comes again by itself.
        unsafe { libc::raise(signal) };
    }
}

/// Maps zeros where the fault was, if it is in a guarded range.
fn replace_missing_page(page_bytes: usize, code: i32, address: usize) -> bool {
    let used = USED.load(Ordering::Acquire);
    let page = (address - address % page_bytes, page_bytes);
    let mut replaced = None;
    // A mapping may be guarded twice, while a list of them is replaced by another.
    for range in &RANGES[..used] {
        let Some((start, end)) = range.bounds_of(address) else { continue };
        // Before the memory is there: a thread that reads it must find the note.
        range.failure.store(code, Ordering::SeqCst);
        let is_whole = range.is_whole.load(Ordering::Relaxed);
        replaced = Some(if is_whole { (start, end - start) } else { page });
    }
    let Some((start, len_bytes)) = replaced else { return false };
    // SAFETY: this thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let errno_before = unsafe { *errno };
    // The system may refuse to promise as much memory as a range has (`vm.overcommit_memory=2`), but not a page.
    let is_mapped = map_zeros(start, len_bytes) || map_zeros(page.0, page.1);
    // SAFETY: as above. The code that was interrupted may be about to read it.
    unsafe { *errno = errno_before };
    is_mapped
}

/// Replaces whole pages of a guarded range by zeros.
fn map_zeros(start: usize, len_bytes: usize) -> bool {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: the mapping is guarded, and so is neither unmapped nor used as anything but bytes while this thread accesses
    // it. Bytes that are read from the new one are dropped, because of the note.
    let mapped = unsafe { libc::mmap(start as *mut c_void, len_bytes, protection, flags, -1, 0) };
    mapped != libc::MAP_FAILED
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::fs::File;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::time::{Duration, Instant};

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
    fn a_missing_page_is_an_error_and_does_not_end_the_process() {
        let (file, page_bytes) = (tempfile::tempfile().unwrap(), rustix::param::page_size());
        let start = mapped(&file, 3);
        let guard = MappingGuard::new(start as usize, 3 * page_bytes).unwrap();
        let other = MappingGuard::new(start as usize + 10 * page_bytes, page_bytes).unwrap();
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
        let again = MappingGuard::new(start as usize, page_bytes).unwrap();
        assert!(again.check().is_ok(), "a range that is used again has no failure");
        // SAFETY: nothing refers to the mapping any more.
        unsafe { munmap(start.cast(), 3 * page_bytes) }.unwrap();
    }

    #[test]
    fn a_mapping_that_is_guarded_as_a_whole_fails_once_for_all_its_guards() {
        let (file, page_bytes) = (tempfile::tempfile().unwrap(), rustix::param::page_size());
        let start = mapped(&file, 3);
        // SAFETY: the mapping is unmapped after the guards are dropped, and accessed with volatile reads and writes.
        let guards = [(); 2].map(|()| unsafe { MappingGuard::of_mapping(start as usize, 3 * page_bytes) }.unwrap());
        // SAFETY: within the mapping.
        unsafe { start.write_volatile(1) };
        assert!(guards.iter().all(|guard| !guard.has_failed()));
        file.set_len(page_bytes as u64).unwrap();
        // SAFETY: within the mapping.
        let gone = unsafe { start.add(2 * page_bytes) };
        // SAFETY: as above; the file's page is gone.
        assert_eq!(unsafe { gone.read_volatile() }, 0);
        assert!(guards.iter().all(MappingGuard::has_failed));
        // SAFETY: as above.
        assert_eq!(unsafe { start.read_volatile() }, 0, "the first page was replaced as well");
        drop(guards);
        // SAFETY: nothing refers to the mapping any more.
        unsafe { munmap(start.cast(), 3 * page_bytes) }.unwrap();
    }

    fn current_handler() -> usize {
        // SAFETY: as in `install`.
        let mut action: sigaction = unsafe { mem::zeroed() };
        // SAFETY: only reads the current action.
        assert_eq!(unsafe { sigaction(libc::SIGBUS, ptr::null(), &raw mut action) }, 0);
        action.sa_sigaction
    }

    /// Ends the process of a test by SIGBUS, if the variable asks for it.
    #[test]
    fn a_bus_error_elsewhere_ends_the_process_as_before() {
        const VARIABLE: &str = "TRUENO_TEST_BUS_ERROR";
        if let Ok(kind) = env::var(VARIABLE) {
            let file = tempfile::tempfile().unwrap();
            let start = mapped(&file, 2);
            let _guard = MappingGuard::new(start as usize, rustix::param::page_size()).unwrap();
            if kind == "fault" {
                file.set_len(0).unwrap();
                // SAFETY: within the mapping.
                let unguarded = unsafe { start.add(rustix::param::page_size()) };
                // SAFETY: as above.
                unsafe { unguarded.write_volatile(1) };
            } else {
                // By `kill`, whose signals have the code 0. Any thread may take them.
                let pid = std::process::id().cast_signed();
                // SAFETY: sends a signal to this process.
                let send = || unsafe { libc::kill(pid, libc::SIGBUS) };
                send();
                // The handler of Rust's runtime, which was there before, takes the first one and removes itself.
                let deadline = Instant::now() + Duration::from_secs(60);
                while current_handler() != libc::SIG_DFL && Instant::now() < deadline {
                    std::thread::yield_now();
                }
                send();
                std::thread::park_timeout(Duration::from_secs(60));
            }
            return;
        }
        for kind in ["fault", "sent"] {
            let mut test = Command::new(env::current_exe().unwrap());
            let name = "mapping::bus_error::tests::a_bus_error_elsewhere_ends_the_process_as_before";
            let ended = test.args(["--exact", name]).env(VARIABLE, kind).output().unwrap();
            assert_eq!(ended.status.signal(), Some(libc::SIGBUS), "{kind}: {ended:?}");
        }
    }
}
