//! A stand-in for a process that CRIU restores: it has memory under a userfaultfd, hands it over, and obeys commands.
//!
//! The test binary runs itself again; [`obey`] is the body of the test `stand_in_process`, which does nothing unless it is asked to.

use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::support::{OTHER_PID, PID};

const PAGE: usize = 4096;
/// Where the memory of a stand-in begins. It has two parts with content, and zeros between them.
pub(crate) const ADDRESS: u64 = 0x6100_0000_0000;
pub(crate) const GAP_PAGES: usize = 40;
/// Where memory is moved to.
const ELSEWHERE: u64 = 0x6200_0000_0000;

const SOCKET: &str = "TRUENO_PROCESS_SOCKET";
const IMAGE: &str = "TRUENO_PROCESS_IMAGE";
/// The features of the userfaultfd; whether a second process is handed over; the number to hand over.
pub(crate) const FEATURES: &str = "TRUENO_PROCESS_FEATURES";
pub(crate) const SECOND: &str = "TRUENO_PROCESS_SECOND";
pub(crate) const NUMBER: &str = "TRUENO_PROCESS_NUMBER";
/// Starts the lines of answers, since the test harness prints lines of its own.
const ANSWER: &str = "PROCESS: ";

/// "RSTF".
pub(crate) const FINISHED: i32 = 0x5253_5446;
/// Events for fork, remap, remove and unmap.
const EVENTS: u64 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6;

/// Returns how many pages are in the first part.
pub(crate) fn split(pages: usize) -> usize {
    pages * 3 / 4
}

/// `struct uffdio_api`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;

pub(crate) fn userfaultfd(features: u64) -> io::Result<OwnedFd> {
    // SAFETY: the call takes flags and returns a new descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new.
    let fd = unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).expect("a descriptor")) };
    let mut api = Api { api: 0xaa, features, ioctls: 0 };
    // SAFETY: UFFDIO_API takes a `uffdio_api`.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API as _, &raw mut api) };
    if result == 0 { Ok(fd) } else { Err(io::Error::last_os_error()) }
}

/// Whether the kernel lets this user follow the memory of processes. If not, says so.
pub(crate) fn is_allowed() -> bool {
    match userfaultfd(EVENTS) {
        Ok(_) => true,
        Err(error) => {
            println!("skipped: this kernel refuses userfaultfd with events to this user: {error}");
            false
        }
    }
}

/// Sends bytes with file descriptors.
pub(crate) fn send(socket: &UnixStream, bytes: &[u8], fds: &[&OwnedFd]) {
    let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(&fds)));
    let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).expect("a connected socket");
    assert_eq!(sent, bytes.len());
}

/// A second process that obeys this one.
pub(crate) struct StandIn {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl StandIn {
    /// Starts a process whose memory is to become the image at `image`, and hands it over at `socket`.
    pub(crate) fn start(socket: &Path, image: &Path, environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env::current_exe().expect("the test binary"));
        command.args(["--ignored", "--exact", "stand_in_process", "--nocapture", "--test-threads=1"]);
        command.env(SOCKET, socket).env(IMAGE, image).envs(environment.iter().copied());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the test binary runs");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, input, output }
    }

    /// Sends a command, and returns its answer; `None` if the process ended instead.
    pub(crate) fn ask(&mut self, command: &str) -> Option<String> {
        writeln!(self.input, "{command}").ok()?;
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if let Some((_, answer)) = line.split_once(ANSWER) {
                return Some(answer.trim_end().to_owned());
            }
        }
    }

    /// Sends a command that must succeed.
    pub(crate) fn must(&mut self, command: &str) {
        assert_eq!(self.ask(command).as_deref(), Some("ok"), "{command}");
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("a child");
    }

    /// Ends the process in an orderly way.
    pub(crate) fn end(mut self) {
        drop(self.input);
        io::copy(&mut self.output, &mut io::sink()).expect("a pipe");
        assert!(self.child.wait().expect("a child").success());
    }

    /// Waits until the process has ended, and returns the signal that ended it.
    pub(crate) fn signal(mut self) -> Option<i32> {
        self.child.wait().expect("a child").signal()
    }
}

/// What a page has to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Page {
    /// As it was saved, at this address.
    Saved(u64),
    /// Zeros, at this address.
    Zeros(u64),
    Unmapped,
}

/// The memory of the process.
#[derive(Clone)]
struct Memory {
    image: Vec<u8>,
    pages: Vec<Page>,
    /// Where memory is moved to next.
    elsewhere: u64,
}

impl Memory {
    /// Maps and registers the memory.
    fn map(image: Vec<u8>, uffd: &OwnedFd) -> Self {
        let count = image.len() / PAGE;
        let len = (count + GAP_PAGES) * PAGE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, which replaces none.
        let base = unsafe { libc::mmap(ADDRESS as *mut _, len, access, flags, -1, 0) };
        assert_eq!(base as u64, ADDRESS, "{}", io::Error::last_os_error());
        let mut register = Register { start: ADDRESS, len: len as u64, mode: 1, ioctls: 0 };
        // SAFETY: UFFDIO_REGISTER takes a `uffdio_register`.
        let result = unsafe { libc::ioctl(uffd.as_raw_fd(), UFFDIO_REGISTER as _, &raw mut register) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        // Some pages are a mapping of their own, in the midst of a range that is restored as a whole.
        // SAFETY: only access rights change.
        let result = unsafe { libc::mprotect((ADDRESS + 10 * 4096) as *mut _, 3 * PAGE, libc::PROT_READ) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        let address = |page: usize| {
            let gap = if page < split(count) { 0 } else { GAP_PAGES };
            ADDRESS + ((page + gap) * PAGE) as u64
        };
        Self { image, pages: (0..count).map(|page| Page::Saved(address(page))).collect(), elsewhere: ELSEWHERE }
    }

    /// Whether a page has the content that it must have.
    fn is_right(&self, page: usize) -> bool {
        let read = |address: u64| {
            // SAFETY: the page is mapped and readable.
            unsafe { (address as *const [u8; PAGE]).read_volatile() }
        };
        match self.pages[page] {
            Page::Saved(address) => read(address)[..] == self.image[page * PAGE..][..PAGE],
            Page::Zeros(address) => read(address) == [0; PAGE],
            Page::Unmapped => true,
        }
    }

    fn verify(&self, mut pages: impl Iterator<Item = usize>) -> String {
        let wrong = pages.find(|page| !self.is_right(*page));
        wrong.map_or("ok".into(), |page| format!("page {page} is wrong"))
    }

    /// Whether the pages between both parts are zeros.
    fn verify_gap(&self) -> String {
        let start = ADDRESS + (split(self.pages.len()) * PAGE) as u64;
        // SAFETY: the gap is mapped, and never moved.
        let is_zero =
            |page: usize| unsafe { ((start + (page * PAGE) as u64) as *const [u8; PAGE]).read_volatile() } == [0; PAGE];
        if (0..GAP_PAGES).all(is_zero) { "ok".into() } else { "the gap is not zeros".into() }
    }

    /// Returns the ranges of addresses that pages have.
    fn ranges(&self, first: usize, count: usize) -> Vec<(u64, usize)> {
        let mut ranges: Vec<(u64, usize)> = Vec::new();
        for page in &self.pages[first..first + count] {
            let (Page::Saved(address) | Page::Zeros(address)) = page else { continue };
            match ranges.last_mut() {
                Some((start, len)) if *start + *len as u64 == *address => *len += PAGE,
                _ => ranges.push((*address, PAGE)),
            }
        }
        ranges
    }

    fn remove(&mut self, first: usize, count: usize) {
        for (start, len) in self.ranges(first, count) {
            // SAFETY: the pages are mapped, and nothing refers to them.
            let result = unsafe { libc::madvise(start as *mut _, len, libc::MADV_DONTNEED) };
            assert_eq!(result, 0, "{}", io::Error::last_os_error());
        }
        for page in &mut self.pages[first..first + count] {
            if let Page::Saved(address) = *page {
                *page = Page::Zeros(address);
            }
        }
    }

    fn unmap(&mut self, first: usize, count: usize) {
        for (start, len) in self.ranges(first, count) {
            // SAFETY: the pages are mapped, and nothing refers to them.
            let result = unsafe { libc::munmap(start as *mut _, len) };
            assert_eq!(result, 0, "{}", io::Error::last_os_error());
        }
        self.pages[first..first + count].fill(Page::Unmapped);
    }

    /// Moves pages to other addresses, in mappings of one page more, whose last page is zeros.
    fn relocate(&mut self, first: usize, count: usize) -> String {
        for (start, len) in self.ranges(first, count) {
            let to = self.elsewhere;
            self.elsewhere += (len + 2 * PAGE) as u64;
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            // SAFETY: the pages are mapped, nothing refers to them, and nothing is at the new addresses.
            let moved = unsafe { libc::mremap(start as *mut _, len, len + PAGE, flags, to as *mut libc::c_void) };
            assert_eq!(moved as u64, to, "{}", io::Error::last_os_error());
            for page in &mut self.pages[first..first + count] {
                match page {
                    Page::Saved(address) | Page::Zeros(address) if (start..start + len as u64).contains(address) => {
                        *address = *address - start + to;
                    }
                    _ => {}
                }
            }
            // SAFETY: the mapping has one page more.
            if unsafe { ((to + len as u64) as *const u8).read_volatile() } != 0 {
                return "the grown page is not zero".into();
            }
        }
        "ok".into()
    }

    /// Forks a child that checks all its memory, `depth` generations of them.
    fn fork(&self, depth: usize) -> String {
        match wait(self.start_child(depth)) {
            0 => "ok".into(),
            status => format!("the child ended with status {status:#x}"),
        }
    }

    fn start_child(&self, depth: usize) -> i32 {
        // SAFETY: the child uses only its own memory, and ends without returning.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_right = (0..self.pages.len()).rev().all(|page| self.is_right(page));
            let is_deep = depth <= 1 || wait(self.start_child(depth - 1)) == 0;
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(!(is_right && is_deep))) }
        }
        assert!(child > 0, "{}", io::Error::last_os_error());
        child
    }

    /// Changes memory and forks, while two threads read pages that are not changed.
    fn storm(&mut self, seed: u64) -> String {
        let (stable, changing) = (self.pages.len() / 2, self.clone());
        let answers = std::thread::scope(|threads| {
            let verify = |seed| {
                let memory = &changing;
                move || memory.verify(random(stable, seed).take(stable * 2))
            };
            let workers = [threads.spawn(verify(seed)), threads.spawn(verify(seed + 1))];
            let rest = self.pages.len() - stable;
            for (turn, page) in random(rest, seed + 2).take(24).enumerate() {
                let (first, count) = (stable + page, 1 + turn % 7);
                let count = count.min(self.pages.len() - first);
                match turn % 4 {
                    0 => self.remove(first, count),
                    1 => self.unmap(first, count),
                    2 => assert_eq!(self.relocate(first, count), "ok"),
                    _ => assert_eq!(self.fork(1), "ok"),
                }
            }
            workers.map(|worker| worker.join().expect("no panic"))
        });
        answers.into_iter().find(|answer| answer != "ok").unwrap_or("ok".into())
    }
}

fn wait(child: i32) -> i32 {
    let mut status = 0;
    // SAFETY: writes the status of a child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

/// Numbers below `bound` by a linear congruence: the same on every run.
fn random(bound: usize, seed: u64) -> impl Iterator<Item = usize> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).expect("31 bits") % bound
    })
}

/// Maps memory, and hands it over.
fn hand_over(socket: &UnixStream, number: i32, image: Vec<u8>) -> Memory {
    let features = env::var(FEATURES).map_or(EVENTS, |features| features.parse().expect("a number"));
    let uffd = userfaultfd(features).expect("a userfaultfd");
    // Before it is registered, as CRIU does it, so that faults cannot come first.
    send(socket, &number.to_ne_bytes(), &[]);
    send(socket, &[0], &[&uffd]);
    Memory::map(image, &uffd)
}

/// The process itself: maps, hands over, and obeys. Does nothing in a process that was not started for it.
pub(crate) fn obey() {
    let (Some(socket), Some(image)) = (env::var_os(SOCKET), env::var_os(IMAGE)) else { return };
    let image = fs::read(image).expect("the image");
    let socket = UnixStream::connect(socket).expect("a daemon that listens");
    let mut second = None;
    if env::var_os(SECOND).is_some() {
        let (mut ours, mut theirs) = UnixStream::pair().expect("sockets");
        // SAFETY: the child uses only its own memory, and ends without returning.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let memory = hand_over(&socket, OTHER_PID.cast_signed(), image.clone());
            theirs.write_all(&[0]).expect("a socket");
            // Until the first process has been handed over, too.
            theirs.read_exact(&mut [0]).expect("a socket");
            let is_right = memory.verify(0..memory.pages.len()) == "ok";
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(!is_right)) }
        }
        ours.read_exact(&mut [0]).expect("a socket");
        second = Some((child, ours));
        // A zombie that was dumped.
        send(&socket, &(-9i32).to_ne_bytes(), &[]);
    }
    let number = env::var(NUMBER).map_or(PID.cast_signed(), |number| number.parse().expect("a number"));
    let mut memory = hand_over(&socket, number, image);
    send(&socket, &FINISHED.to_ne_bytes(), &[]);
    drop(socket);
    for line in io::stdin().lock().lines() {
        let line = line.expect("text");
        let mut words = line.split_whitespace();
        let command = words.next().unwrap_or_default().to_owned();
        let numbers: Vec<usize> = words.map(|word| word.parse().expect("a number")).collect();
        let count = memory.pages.len();
        let answer = match (command.as_str(), numbers.as_slice()) {
            ("verify", [first, end]) => memory.verify(*first..*end),
            ("all", []) => memory.verify(0..count),
            ("backwards", []) => memory.verify((0..count).rev()),
            ("random", [turns, seed]) => memory.verify(random(count, *seed as u64).take(*turns)),
            ("gap", []) => memory.verify_gap(),
            ("remove", [first, count]) => {
                memory.remove(*first, *count);
                "ok".into()
            }
            ("unmap", [first, count]) => {
                memory.unmap(*first, *count);
                "ok".into()
            }
            ("move", [first, count]) => memory.relocate(*first, *count),
            ("fork", [depth]) => memory.fork(*depth),
            ("start_child", []) => memory.start_child(1).to_string(),
            ("wait", [child]) => format!("{:#x}", wait(i32::try_from(*child).expect("a process"))),
            ("storm", [seed]) => memory.storm(*seed as u64),
            ("second", []) => {
                let (child, mut ours) = second.take().expect("it was asked for");
                ours.write_all(&[0]).expect("a socket");
                if wait(child) == 0 { "ok".into() } else { "the second process is wrong".into() }
            }
            _ => panic!("unknown command {line:?}"),
        };
        println!("\n{ANSWER}{answer}");
    }
}
