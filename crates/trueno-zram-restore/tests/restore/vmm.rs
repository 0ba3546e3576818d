//! A stand-in VMM for tests: a second process with memory under a userfaultfd, which obeys commands on its standard input.
//!
//! The test binary runs itself again; [`obey`] is the body of the test `stand_in_vmm`, which does nothing unless it is asked to.

use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

const PAGE: usize = 4096;
const SOCKET: &str = "TRUENO_VMM_SOCKET";
const IMAGE: &str = "TRUENO_VMM_IMAGE";
const HUGE: &str = "TRUENO_VMM_HUGE";
/// A message to send instead of the right one, and features to create the userfaultfd with.
pub(crate) const MESSAGE: &str = "TRUENO_VMM_MESSAGE";
pub(crate) const FEATURES: &str = "TRUENO_VMM_FEATURES";
/// Starts the lines of answers, since the test harness prints lines of its own.
const ANSWER: &str = "VMM: ";

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
const EVENT_REMOVE: u64 = 1 << 3;

/// Creates a userfaultfd: for faults of the kernel as well if that is allowed.
pub(crate) fn userfaultfd(features: u64) -> io::Result<OwnedFd> {
    const USER_MODE_ONLY: i32 = 1;
    let open = |flags: i32| {
        // SAFETY: the call takes flags and returns a new descriptor.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags | libc::O_CLOEXEC | libc::O_NONBLOCK) };
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(i32::try_from(fd).expect("a descriptor")) }
    };
    let fd = open(0).or_else(|_| open(USER_MODE_ONLY))?;
    // SAFETY: nothing else owns the new descriptor.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut api = Api { api: 0xaa, features, ioctls: 0 };
    // SAFETY: UFFDIO_API takes a `uffdio_api`.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API as _, &raw mut api) };
    if result == 0 { Ok(fd) } else { Err(io::Error::last_os_error()) }
}

/// Whether the kernel lets this user create a userfaultfd. If not, says so.
pub(crate) fn is_allowed() -> bool {
    match userfaultfd(EVENT_REMOVE) {
        Ok(_) => true,
        Err(error) => {
            println!("skipped: this kernel refuses userfaultfd to this user: {error}");
            false
        }
    }
}

/// Sends a message with file descriptors, as Firecracker does.
pub(crate) fn send(socket: &UnixStream, message: &[u8], fds: &[&OwnedFd]) {
    let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(&fds)));
    let sent = sendmsg(socket, &[IoSlice::new(message)], &mut control, SendFlags::empty()).expect("a connected socket");
    assert_eq!(sent, message.len());
}

/// Starts a VMM whose memory is to become the image at `image`, and connects it to `socket`.
pub(crate) struct StandIn {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// The memory of a stand-in VMM.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    Small,
    Huge,
}

impl StandIn {
    pub(crate) fn start(socket: &Path, image: &Path, memory: Memory) -> Self {
        Self::start_with(socket, image, memory, &[])
    }

    pub(crate) fn start_with(socket: &Path, image: &Path, memory: Memory, environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env::current_exe().expect("the test binary"));
        command.args(["--ignored", "--exact", "stand_in_vmm", "--nocapture", "--test-threads=1"]);
        command.env(SOCKET, socket).env(IMAGE, image).envs(environment.iter().copied());
        if memory == Memory::Huge {
            command.env(HUGE, "1");
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the test binary runs");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, input, output }
    }

    /// Sends a command, and returns its answer; `None` if the VMM ended instead.
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

    /// Ends the VMM in an orderly way.
    pub(crate) fn end(mut self) {
        drop(self.input);
        io::copy(&mut self.output, &mut io::sink()).expect("a pipe");
        assert!(self.child.wait().expect("a child").success());
    }

    /// Waits until the VMM has ended, and returns the signal that ended it.
    pub(crate) fn signal(mut self) -> Option<i32> {
        self.child.wait().expect("a child").signal()
    }
}

/// A mapped region of guest memory.
struct Mapped {
    base: *mut u8,
    /// First page of the image in it, and their number.
    first: usize,
    pages: usize,
}

/// The memory of the VMM.
struct Guest {
    regions: Vec<Mapped>,
    image: Vec<u8>,
    unit: usize,
    /// Per page: 0 never removed, 1 being removed, 2 removed.
    removed: Vec<AtomicU8>,
}

// SAFETY: the mappings live until the process ends, and pages are only read, or removed by `madvise`.
unsafe impl Sync for Guest {}

impl Guest {
    /// Maps two regions of the image, the second at the higher offset, and registers them.
    fn map(image: Vec<u8>, uffd: &OwnedFd, unit: usize) -> io::Result<Self> {
        let pages = image.len() / PAGE;
        let split = (pages * 3 / 4).next_multiple_of(unit / PAGE).min(pages - unit / PAGE);
        let mut regions = Vec::new();
        for (first, pages) in [(0, split), (split, pages - split)] {
            let huge = if unit > PAGE { libc::MAP_HUGETLB } else { 0 };
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | huge;
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a new mapping at an address that the kernel chooses.
            let base = unsafe { libc::mmap(std::ptr::null_mut(), pages * PAGE, access, flags, -1, 0) };
            if base == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let mut register = Register { start: base as u64, len: (pages * PAGE) as u64, mode: 1, ioctls: 0 };
            // SAFETY: UFFDIO_REGISTER takes a `uffdio_register`.
            let result = unsafe { libc::ioctl(uffd.as_raw_fd(), UFFDIO_REGISTER as _, &raw mut register) };
            if result != 0 {
                return Err(io::Error::last_os_error());
            }
            regions.push(Mapped { base: base.cast(), first, pages });
        }
        let removed = (0..pages).map(|_| AtomicU8::new(0)).collect();
        Ok(Self { regions, image, unit, removed })
    }

    fn message(&self) -> String {
        let regions = self.regions.iter().map(|region| {
            let Mapped { base, first, pages } = region;
            let (size, offset, unit) = (pages * PAGE, first * PAGE, self.unit);
            format!(
                r#"{{"base_host_virt_addr":{},"size":{size},"offset":{offset},"page_size":{unit},"page_size_kib":{unit}}}"#,
                *base as u64
            )
        });
        format!("[{}]", regions.collect::<Vec<_>>().join(","))
    }

    fn pages(&self) -> usize {
        self.removed.len()
    }

    fn address(&self, page: usize) -> *mut u8 {
        let region = self.regions.iter().rev().find(|region| region.first <= page).expect("the first starts at 0");
        assert!(page < region.first + region.pages);
        // SAFETY: the page lies in the mapping.
        unsafe { region.base.add((page - region.first) * PAGE) }
    }

    /// Reads a byte of a page, which may fault.
    fn touch(&self, page: usize) -> u8 {
        // SAFETY: the page is mapped and readable.
        unsafe { self.address(page).read_volatile() }
    }

    fn read(&self, page: usize) -> [u8; PAGE] {
        // SAFETY: the page is mapped and readable.
        unsafe { self.address(page).cast::<[u8; PAGE]>().read_volatile() }
    }

    /// Whether the page has the content that it may have.
    fn is_right(&self, page: usize) -> bool {
        let before = self.removed[page].load(Ordering::SeqCst);
        let found = self.read(page);
        let after = self.removed[page].load(Ordering::SeqCst);
        let saved = found[..] == self.image[page * PAGE..][..PAGE];
        match (before, after) {
            (_, 0) => saved,
            (2, _) => found == [0; PAGE],
            // Removed while it was read: its bytes may come from either.
            _ => true,
        }
    }

    fn verify(&self, mut pages: impl Iterator<Item = usize>) -> String {
        let wrong = pages.find(|page| !self.is_right(*page));
        wrong.map_or("ok".into(), |page| format!("page {page} is wrong"))
    }

    fn remove(&self, first: usize, count: usize) {
        self.removed[first..first + count].iter().for_each(|page| page.store(1, Ordering::SeqCst));
        // SAFETY: the pages are mapped, and nothing refers to them.
        let result = unsafe { libc::madvise(self.address(first).cast(), count * PAGE, libc::MADV_DONTNEED) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        self.removed[first..first + count].iter().for_each(|page| page.store(2, Ordering::SeqCst));
    }

    /// Touches pages from two threads while a third removes some.
    fn storm(&self, count: usize, seed: u64) -> String {
        std::thread::scope(|threads| {
            let verify = |seed| move || self.verify(random(self.pages(), seed).take(count));
            let workers = [threads.spawn(verify(seed)), threads.spawn(verify(seed + 1))];
            let unit = self.unit / PAGE;
            for page in random(self.pages() / unit, seed + 2).take(count / 50) {
                self.remove(page * unit, unit);
            }
            let answers = workers.map(|worker| worker.join().expect("no panic"));
            answers.into_iter().find(|answer| answer != "ok").unwrap_or("ok".into())
        })
    }

    /// Measures faults: nanoseconds, sorted. Only first touches count.
    fn latencies(&self, count: usize, seed: u64) -> String {
        let mut seen = vec![false; self.pages()];
        let mut times = Vec::new();
        for page in random(self.pages(), seed) {
            if times.len() == count.min(self.pages()) {
                break;
            }
            if std::mem::replace(&mut seen[page], true) {
                continue;
            }
            let start = Instant::now();
            self.touch(page);
            times.push(start.elapsed().as_nanos());
        }
        times.sort_unstable();
        let at = |share: usize| times[(times.len() - 1) * share / 1000];
        format!("{} {} {}", at(500), at(900), at(990))
    }
}

/// Numbers below `bound` by a linear congruence: the same on every run.
fn random(bound: usize, seed: u64) -> impl Iterator<Item = usize> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).expect("31 bits") % bound
    })
}

/// The VMM itself: maps, connects, and obeys. Does nothing and returns `false` in a process that was not started for it.
pub(crate) fn obey() -> bool {
    let (Some(socket), Some(image)) = (env::var_os(SOCKET), env::var_os(IMAGE)) else { return false };
    let unit = if env::var_os(HUGE).is_some() { 2 << 20 } else { PAGE };
    let image = fs::read(PathBuf::from(image)).expect("the image");
    let features = env::var(FEATURES).map_or(EVENT_REMOVE, |features| features.parse().expect("a number"));
    let uffd = userfaultfd(features).expect("a userfaultfd");
    let guest = Guest::map(image, &uffd, unit).expect("memory");
    let connection = UnixStream::connect(PathBuf::from(socket)).expect("a handler that listens");
    let message = env::var(MESSAGE).unwrap_or_else(|_| guest.message());
    send(&connection, message.as_bytes(), &[&uffd]);
    for line in io::stdin().lock().lines() {
        let line = line.expect("text");
        let mut words = line.split_whitespace();
        let command = words.next().unwrap_or_default().to_owned();
        let numbers: Vec<usize> = words.map(|word| word.parse().expect("a number")).collect();
        let answer = match (command.as_str(), numbers.as_slice()) {
            ("verify", [first, end]) => guest.verify(*first..*end),
            ("all", []) => guest.verify(0..guest.pages()),
            ("backwards", []) => guest.verify((0..guest.pages()).rev()),
            ("random", [count, seed]) => guest.verify(random(guest.pages(), *seed as u64).take(*count)),
            ("remove", [first, count]) => {
                guest.remove(*first, *count);
                "ok".into()
            }
            ("storm", [count, seed]) => guest.storm(*count, *seed as u64),
            ("touch", [page]) => {
                guest.touch(*page);
                "ok".into()
            }
            ("latencies", [count, seed]) => guest.latencies(*count, *seed as u64),
            _ => panic!("unknown command {line:?}"),
        };
        println!("\n{ANSWER}{answer}");
    }
    true
}
