//! A process to take snapshots of: this test binary once more, with known pages in its memory.

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use rustix::process::{PTracer, Pid, Signal, kill_process, set_ptracer};
use trueno_test_pages::PAGE_SIZE;
use trueno_test_pages::generate::Generator;

/// Set in the victim: the number of pages it fills.
const PAGES_VARIABLE: &str = "TRUENO_VICTIM_PAGES";
/// Memory that the victim reserves and does not touch but for one page in the middle.
pub(crate) const RESERVED_BYTES: usize = 256 << 20;

/// A process with known pages, killed when dropped.
pub(crate) struct Victim {
    child: Child,
    pages: usize,
    /// The address of its first page.
    pub(crate) address: u64,
    /// The address of its reserved memory.
    pub(crate) reserved: u64,
}

/// The bytes of the victim's pages: they do not shrink.
pub(crate) fn content(pages: usize) -> Vec<u8> {
    let mut random = Generator::new(99);
    (0..pages * PAGE_SIZE / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect()
}

/// Not a test by itself: what a victim runs.
#[test]
fn victim_process() {
    let Ok(pages) = env::var(PAGES_VARIABLE) else { return };
    // If Yama is strict, only descendants may be traced unless they say so.
    let _ = set_ptracer(PTracer::Any);
    let pages: usize = pages.parse().unwrap();
    let mut memory = vec![0u8; (pages + 1) * PAGE_SIZE];
    let start = memory.as_ptr().align_offset(PAGE_SIZE);
    memory[start..start + pages * PAGE_SIZE].copy_from_slice(&content(pages));
    let mut reserved = vec![0u8; RESERVED_BYTES];
    reserved[RESERVED_BYTES / 2] = 7;
    println!("\nVICTIM {} {}", memory.as_ptr().addr() + start, reserved.as_ptr().addr());
    // Until whoever started this is done.
    let _ = std::io::stdin().read(&mut [0]);
    assert!(memory[start] == content(1)[0] && reserved[RESERVED_BYTES / 2] == 7);
}

impl Victim {
    pub(crate) fn start(pages: usize) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "victim::victim_process", "--nocapture", "--test-threads=1"])
            .env(PAGES_VARIABLE, pages.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
        let line = lines.find_map(|line| line.unwrap().strip_prefix("VICTIM ").map(str::to_owned)).unwrap();
        let (address, reserved) = line.split_once(' ').unwrap();
        let (address, reserved) = (address.parse().unwrap(), reserved.parse().unwrap());
        Self { child, pages, address, reserved }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn content(&self) -> Vec<u8> {
        content(self.pages)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Ends it, and reaps it.
    pub(crate) fn end(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends it, and leaves it a zombie.
    pub(crate) fn end_unseen(&mut self) {
        self.child.kill().unwrap();
        self.wait_for_state(&['Z']);
    }

    /// The letter that `/proc/PID/stat` has for it.
    pub(crate) fn state(&self) -> char {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
    }

    /// Waits until the kernel has done what it was told, and gives up after so long that no machine is that slow.
    pub(crate) fn wait_for_state(&self, wanted: &[char]) {
        let begun = std::time::Instant::now();
        while !wanted.contains(&self.state()) {
            assert!(begun.elapsed().as_secs() < 1200, "its state is {}, not {wanted:?}", self.state());
            std::thread::yield_now();
        }
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
