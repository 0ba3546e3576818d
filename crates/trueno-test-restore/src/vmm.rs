//! A stand-in VMM: memory under a userfaultfd, which it hands over as Firecracker does.
//!
//! [`obey`] is the body of the ignored test `stand_in_vmm`, which does nothing unless [`start`] has started it.

use std::env;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use trueno_test_pages::generate::Generator;

use crate::scheduling::come_first;
use crate::stand_in::{self, StandIn, send};
use crate::userfaultfd::{self, EVENT_REMOVE, map_missing};

const PAGE: usize = trueno_zram_core::PAGE_SIZE;
/// States of a page.
const PRESENT: u8 = 0;
const BEING_REMOVED: u8 = 1;
const REMOVED: u8 = 2;
const SOCKET: &str = "TRUENO_VMM_SOCKET";
const IMAGE: &str = "TRUENO_VMM_IMAGE";
const HUGE: &str = "TRUENO_VMM_HUGE";
/// The variable with a message to send instead of the right one.
pub const MESSAGE: &str = "TRUENO_VMM_MESSAGE";
/// The variable that lets a child of the VMM connect in its place.
pub const HELPER: &str = "TRUENO_VMM_HELPER";
/// The variable with the features to create the userfaultfd with.
pub const FEATURES: &str = "TRUENO_VMM_FEATURES";

/// Returns `true` if the kernel lets this user create a userfaultfd. Prints the reason if not.
#[must_use]
pub fn is_allowed() -> bool {
    userfaultfd::is_allowed(EVENT_REMOVE)
}

/// The page size of a stand-in VMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestPages {
    /// Pages of 4 KiB.
    Small,
    /// Pages of 2 MiB (hugetlb).
    Huge,
}

/// Starts a VMM whose memory is to become the image at `image`, and connects it to `socket`. The environment may have more variables.
#[must_use]
pub fn start(socket: &Path, image: &Path, pages: GuestPages, environment: &[(&str, &str)]) -> StandIn {
    let mut command = stand_in::command("stand_in_vmm");
    command.env(SOCKET, socket).env(IMAGE, image).envs(environment.iter().copied());
    if pages == GuestPages::Huge {
        command.env(HUGE, "1");
    }
    StandIn::start(command)
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
    /// The state of each page.
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
            let base = map_missing(uffd, 0, pages * PAGE, huge)? as *mut u8;
            regions.push(Mapped { base, first, pages });
        }
        let removed = (0..pages).map(|_| AtomicU8::new(PRESENT)).collect();
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

    /// Returns `true` if the page has the content that it may have.
    fn is_right(&self, page: usize) -> bool {
        let before = self.removed[page].load(Ordering::SeqCst);
        let found = self.read(page);
        let after = self.removed[page].load(Ordering::SeqCst);
        let saved = found[..] == self.image[page * PAGE..][..PAGE];
        match (before, after) {
            (_, PRESENT) => saved,
            (REMOVED, _) => found == [0; PAGE],
            // Removed while it was read: its bytes may come from either.
            _ => true,
        }
    }

    fn verify(&self, mut pages: impl Iterator<Item = usize>) -> String {
        let wrong = pages.find(|page| !self.is_right(*page));
        wrong.map_or("ok".into(), |page| format!("page {page} is wrong"))
    }

    fn remove(&self, first: usize, count: usize) {
        self.removed[first..first + count].iter().for_each(|page| page.store(BEING_REMOVED, Ordering::SeqCst));
        // SAFETY: the pages are mapped, and nothing refers to them.
        let result = unsafe { libc::madvise(self.address(first).cast(), count * PAGE, libc::MADV_DONTNEED) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        self.removed[first..first + count].iter().for_each(|page| page.store(REMOVED, Ordering::SeqCst));
    }

    /// Touches pages from two threads while a third removes some.
    fn storm(&self, count: usize, seed: u64) -> String {
        std::thread::scope(|threads| {
            let verify = |seed| move || self.verify(Generator::new(seed).numbers_below(self.pages()).take(count));
            let workers = [threads.spawn(verify(seed)), threads.spawn(verify(seed + 1))];
            let unit = self.unit / PAGE;
            for page in Generator::new(seed + 2).numbers_below(self.pages() / unit).take(count / 50) {
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
        for page in Generator::new(seed).numbers_below(self.pages()) {
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

    /// Measures faults of one page in each part of this many pages but the first, in random order: nanoseconds. Compares all bytes.
    fn spread(&self, part: usize, seed: u64) -> String {
        let mut random = Generator::new(seed);
        let mut order: Vec<usize> = (1..self.pages().div_ceil(part)).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, random.below(at + 1));
        }
        let pages = order.into_iter().map(|number| {
            let first = number * part;
            first + random.below(self.pages().min(first + part) - first)
        });
        self.times(&pages.collect::<Vec<_>>())
    }

    /// Measures touches of pages: nanoseconds. Compares all bytes.
    fn times(&self, pages: &[usize]) -> String {
        let mut times = Vec::new();
        for page in pages {
            let start = Instant::now();
            self.touch(*page);
            times.push(start.elapsed().as_nanos().to_string());
            if !self.is_right(*page) {
                return format!("page {page} is wrong");
            }
        }
        times.join(" ")
    }

    /// Returns random pages, each once.
    fn distinct(&self, count: usize, seed: u64) -> Vec<usize> {
        let mut seen = vec![false; self.pages()];
        let new = |page: &usize| !std::mem::replace(&mut seen[*page], true);
        Generator::new(seed).numbers_below(self.pages()).take(4 * count).filter(new).take(count).collect()
    }

    /// Answers a command; `None` if it is not known.
    fn answer(&self, command: &str, numbers: &[usize]) -> Option<String> {
        let random = |seed: usize| Generator::new(seed as u64).numbers_below(self.pages());
        Some(match (command, numbers) {
            ("verify", [first, end]) => self.verify(*first..*end),
            ("all", []) => self.verify(0..self.pages()),
            ("backwards", []) => self.verify((0..self.pages()).rev()),
            ("random", [count, seed]) => self.verify(random(*seed).take(*count)),
            ("remove", [first, count]) => {
                self.remove(*first, *count);
                "ok".into()
            }
            ("storm", [count, seed]) => self.storm(*count, *seed as u64),
            ("touch", [page]) => {
                self.touch(*page);
                "ok".into()
            }
            ("come_first", []) => {
                if !come_first() {
                    eprintln!("not ordered: this user may not use SCHED_FIFO");
                }
                "ok".into()
            }
            ("spread", [part, seed]) => self.spread(*part, *seed as u64),
            ("times", [count, seed]) => self.times(&self.distinct(*count, *seed as u64)),
            ("latencies", [count, seed]) => self.latencies(*count, *seed as u64),
            _ => return None,
        })
    }
}

/// A child of the VMM that runs until this is dropped.
struct Helper(libc::pid_t);

impl Helper {
    /// Starts a child that calls `hand_over`.
    fn start<T>(hand_over: impl FnOnce() -> T) -> Self {
        // SAFETY: the child has this thread alone, and the allocator is made for that.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "{}", io::Error::last_os_error());
        if pid == 0 {
            let _connection = hand_over();
            loop {
                // SAFETY: waits for a signal.
                unsafe { libc::pause() };
            }
        }
        Self(pid)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // SAFETY: a child that has not been waited for, so that its number is its own.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        // SAFETY: no status is asked for.
        unsafe { libc::waitpid(self.0, std::ptr::null_mut(), 0) };
    }
}

/// The VMM itself: maps, connects, and obeys. Does nothing and returns `false` in a process that was not started for it.
///
/// # Panics
/// If it cannot have the memory, or nobody listens.
#[must_use]
pub fn obey() -> bool {
    let (Some(socket), Some(image)) = (env::var_os(SOCKET), env::var_os(IMAGE)) else { return false };
    let unit = if env::var_os(HUGE).is_some() { 2 << 20 } else { PAGE };
    let image = fs::read(PathBuf::from(image)).expect("the image");
    let features = env::var(FEATURES).map_or(EVENT_REMOVE, |features| features.parse().expect("a number"));
    let uffd = userfaultfd::create(features).expect("a userfaultfd");
    let guest = Guest::map(image, &uffd, unit).expect("memory");
    let message = env::var(MESSAGE).unwrap_or_else(|_| guest.message());
    let hand_over = || {
        let connection = UnixStream::connect(PathBuf::from(socket)).expect("a handler that listens");
        send(&connection, message.as_bytes(), &[&uffd]);
        connection
    };
    let (mut helper, _connection) = match env::var_os(HELPER) {
        Some(_) => (Some(Helper::start(hand_over)), None),
        None => (None, Some(hand_over())),
    };
    // As long as it is open here, nothing becomes zeros when the handler closes its own.
    let mut uffd = Some(uffd);
    stand_in::obey(|command, numbers| match command {
        "close" => uffd.take().map(|_| "ok".into()),
        "end_helper" => helper.take().map(|_| "ok".into()),
        _ => guest.answer(command, numbers),
    });
    true
}
