//! A stand-in VMM that repeats the first touches of a guest: in memory that a handler restores, or in a mapping of the image.
//!
//! [`obey`] is the body of the second process; [`Replay::start`] starts it.
//!
//! The list of touches is text: the line `timed touches 1`, then a line for each page that the guest touched, in order: the
//! microseconds that the guest ran since the touch before was answered, the number of the page, and `r`, or `w` if the guest
//! changed the page.

use std::env;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::stand_in::{self, StandIn, send};
use crate::userfaultfd::{self, EVENT_REMOVE, map_missing};

const PAGE: usize = trueno_zram_core::PAGE_SIZE;
const FORMAT: &str = "timed touches 1";
const IMAGE: &str = "TRUENO_REPLAY_IMAGE";
const TOUCHES: &str = "TRUENO_REPLAY_TOUCHES";
const SOCKET: &str = "TRUENO_REPLAY_SOCKET";

/// The kind of an access to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// One byte is read.
    Read,
    /// One byte is written; its value stays the same.
    Write,
}

/// The first touch of a page by a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedTouch {
    /// The time that the guest ran since the touch before was answered.
    pub pause: Duration,
    /// The number of the page.
    pub page: usize,
    /// The kind of access.
    pub access: Access,
}

/// Reads a list of touches of a guest with `pages` pages.
///
/// # Errors
/// A message with the number of the line that is malformed.
pub fn parse_touches(text: &str, pages: usize) -> Result<Vec<TimedTouch>, String> {
    let mut lines = text.lines();
    if lines.next() != Some(FORMAT) {
        return Err(format!("line 1 is not {FORMAT:?}"));
    }
    let parse = |(number, line): (usize, &str)| {
        let words: Vec<&str> = line.split(' ').collect();
        let access = match words.get(2) {
            Some(&"r") => Some(Access::Read),
            Some(&"w") => Some(Access::Write),
            _ => None,
        };
        let numbers = (words.len() == 3).then(|| (words[0].parse().ok(), words[1].parse().ok(), access));
        match numbers {
            Some((Some(us), Some(page), Some(access))) if page < pages => {
                Ok(TimedTouch { pause: Duration::from_micros(us), page, access })
            }
            _ => Err(format!("line {}: not a touch of one of {pages} pages: {line:?}", number + 2)),
        }
    };
    lines.enumerate().map(parse).collect()
}

/// The treatment of the time between touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pauses {
    /// The VMM computes for as long as the guest did. The time in which it has no core does not count.
    Kept,
    /// Each touch follows the one before at once.
    Removed,
}

/// The times of a replay, as the VMM saw them. Those of single touches are measured only if the pauses are kept.
#[derive(Clone, Copy, Debug)]
pub struct ReplayTimes {
    /// From the command to the end of the last touch.
    pub total: Duration,
    /// The median of all touches.
    pub median: Duration,
    /// The 99th of 100.
    pub p99: Duration,
    /// The longest.
    pub longest: Duration,
}

/// A VMM that waits for its memory.
#[derive(Debug)]
pub struct Replay(StandIn);

impl Replay {
    /// Starts a process that calls [`obey`]: it reads the list of touches, and waits. The socket is that of a handler which
    /// may start later.
    #[must_use]
    pub fn start(mut command: Command, image: &Path, touches: &Path, socket: &Path) -> Self {
        command.env(IMAGE, image).env(TOUCHES, touches).env(SOCKET, socket);
        let mut vmm = StandIn::start(command);
        vmm.must("ready");
        Self(vmm)
    }

    /// Touches pages of a private mapping of the image. Returns `None` if the process has ended.
    #[must_use]
    pub fn from_mapping(&mut self, pauses: Pauses) -> Option<ReplayTimes> {
        self.replay("mapping", pauses)
    }

    /// Touches pages of memory that a handler restores. Returns `None` if the process has ended.
    #[must_use]
    pub fn from_handler(&mut self, pauses: Pauses) -> Option<ReplayTimes> {
        self.replay("handler", pauses)
    }

    fn replay(&mut self, command: &str, pauses: Pauses) -> Option<ReplayTimes> {
        let answer = self.0.ask(&format!("{command} {}", u8::from(pauses == Pauses::Kept)))?;
        let mut times = answer.split(' ').map(|ns| ns.parse().map(Duration::from_nanos).ok());
        let mut next = || times.next().flatten();
        Some(ReplayTimes { total: next()?, median: next()?, p99: next()?, longest: next()? })
    }

    /// Compares all memory with the image, and ends the process.
    ///
    /// # Panics
    /// If a page is wrong, or the process fails.
    pub fn compare_and_end(mut self) {
        self.0.must("compare");
        self.0.end();
    }
}

/// Memory of the VMM, mapped until the process ends.
struct Memory {
    base: *mut u8,
    len: usize,
}

impl Memory {
    fn map_image(image: &File, len: usize) -> Self {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, which replaces none.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, image.as_raw_fd(), 0) };
        assert_ne!(base, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        Self { base: base.cast(), len }
    }

    /// Maps memory, and hands it over to a handler. The connection must stay open.
    fn of_handler(len: usize, socket: &Path) -> (Self, UnixStream) {
        let uffd = userfaultfd::create(EVENT_REMOVE).expect("a userfaultfd");
        let base = map_missing(&uffd, 0, len, 0).expect("memory");
        let connection = UnixStream::connect(socket).expect("a handler that listens");
        let message = format!(r#"[{{"base_host_virt_addr":{base},"size":{len},"offset":0,"page_size":4096}}]"#);
        send(&connection, message.as_bytes(), &[&uffd]);
        // The handler has it now. Nothing becomes zeros as long as either is open.
        std::mem::forget(uffd);
        (Self { base: base as *mut u8, len }, connection)
    }

    fn touch(&self, page: usize, access: Access) {
        assert!(page < self.len / PAGE);
        // SAFETY: the page lies in the mapping.
        let byte = unsafe { self.base.add(page * PAGE) };
        match access {
            // SAFETY: the page is mapped and readable.
            Access::Read => drop(unsafe { byte.read_volatile() }),
            Access::Write => {
                // SAFETY: the page is mapped, and nothing else accesses it.
                let byte = unsafe { AtomicU8::from_ptr(byte) };
                // The processor writes the byte whatever is in it, so this is one access, and a write.
                let _ = byte.compare_exchange(0, 0, Ordering::SeqCst, Ordering::SeqCst);
            }
        }
    }

    /// Compares all pages with the image.
    fn compare(&self, image: &Path) -> String {
        let mut image = File::open(image).expect("the image");
        let mut expected = vec![0; 256 * PAGE];
        for at in (0..self.len).step_by(expected.len()) {
            let expected_bytes = &mut expected[..(self.len - at).min(256 * PAGE)];
            image.read_exact(expected_bytes).expect("the image");
            // SAFETY: `at` is less than the length of the mapping.
            let start = unsafe { self.base.add(at) };
            // SAFETY: the bytes lie in the mapping, and nothing changes them any more.
            let found = unsafe { std::slice::from_raw_parts(start, expected_bytes.len()) };
            let mut pages = found.chunks(PAGE).zip(expected_bytes.chunks(PAGE));
            if let Some(page) = pages.position(|(found, expected)| found != expected) {
                return format!("page {} is wrong", at / PAGE + page);
            }
        }
        "ok".into()
    }
}

fn thread_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("it is not negative")
}

/// Computes for a time, in which this thread has a core.
fn compute(time: Duration) {
    let end = thread_time() + time;
    while thread_time() < end {
        std::hint::spin_loop();
    }
}

/// Touches pages, and returns how long each touch took if the pauses are kept.
fn replay(memory: &Memory, touches: &[TimedTouch], pauses: Pauses) -> Vec<Duration> {
    let mut times = Vec::with_capacity(touches.len());
    for TimedTouch { pause, page, access } in touches {
        match pauses {
            // A clock that is read for each touch takes longer than touching a page that is mapped.
            Pauses::Removed => memory.touch(*page, *access),
            Pauses::Kept => {
                compute(*pause);
                let start = Instant::now();
                memory.touch(*page, *access);
                times.push(start.elapsed());
            }
        }
    }
    times
}

/// The VMM itself. Does nothing and returns `false` in a process that was not started for it.
///
/// # Panics
/// If a file cannot be read, it cannot have the memory, or nobody listens.
#[must_use]
pub fn obey() -> bool {
    let variable = |name| env::var_os(name);
    let (Some(image), Some(touches), Some(socket)) = (variable(IMAGE), variable(TOUCHES), variable(SOCKET)) else {
        return false;
    };
    let image = Path::new(&image);
    let len = usize::try_from(fs::metadata(image).expect("the image").len()).expect("an address") / PAGE * PAGE;
    let touches = parse_touches(&fs::read_to_string(touches).expect("touches"), len / PAGE).expect("touches");
    let (mut memory, mut connection) = (None, None);
    stand_in::obey(|command, numbers| {
        let start = Instant::now();
        match (command, numbers) {
            ("ready", []) => return Some("ok".into()),
            ("compare", []) => return memory.as_ref().map(|memory: &Memory| memory.compare(image)),
            ("mapping", [_]) => memory = Some(Memory::map_image(&File::open(image).expect("the image"), len)),
            ("handler", [_]) => {
                let (restored, handler) = Memory::of_handler(len, Path::new(&socket));
                (memory, connection) = (Some(restored), Some(handler));
            }
            _ => return None,
        }
        let pauses = if numbers == [0] { Pauses::Removed } else { Pauses::Kept };
        let mut times = replay(memory.as_ref()?, &touches, pauses);
        let total = start.elapsed().as_nanos();
        times.sort_unstable();
        let at = |share: usize| times.get(times.len().saturating_sub(1) * share / 100).map_or(0, Duration::as_nanos);
        Some(format!("{total} {} {} {}", at(50), at(99), at(100)))
    });
    drop(connection);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touches_are_read_and_malformed_lines_refused() {
        let touches = parse_touches("timed touches 1\n12 0 r\n0 7 w\n", 8).unwrap();
        let expected = [(12, 0, Access::Read), (0, 7, Access::Write)];
        let touch = |(us, page, access)| TimedTouch { pause: Duration::from_micros(us), page, access };
        assert_eq!(touches, expected.map(touch));
        for (text, line) in [
            ("", 1),
            ("touches\n", 1),
            ("timed touches 1\n1 8 r\n", 2),
            ("timed touches 1\n1 1 r\n1 1 x\n", 3),
            ("timed touches 1\n1 1\n", 2),
            ("timed touches 1\n-1 1 r\n", 2),
            ("timed touches 1\n1 1 r 1\n", 2),
        ] {
            let error = parse_touches(text, 8).unwrap_err();
            assert!(error.contains(&format!("line {line}")), "{text:?}: {error}");
        }
    }
}
