//! The memory of a stand-in process, and what every page of it has to be.

use std::io;
use std::os::fd::OwnedFd;

use trueno_test_pages::generate::Generator;
use trueno_test_restore::system::{fork, give_back, move_memory, unmap_memory, wait};
use trueno_test_restore::userfaultfd::map_missing;

pub(crate) const PAGE: usize = 4096;
/// The address of a stand-in's memory. It has two parts with content, and zeros between them.
pub(crate) const ADDRESS: u64 = 0x6100_0000_0000;
pub(crate) const GAP_PAGES: usize = 160;
/// The first address that memory is moved to.
const ELSEWHERE: u64 = 0x6200_0000_0000;

/// Returns how many pages are in the first part.
pub(crate) fn split(pages: usize) -> usize {
    pages * 3 / 4
}

/// The expected content of a page.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Page {
    /// As it was saved, at this address.
    Saved(u64),
    /// Zeros, at this address.
    Zeros(u64),
    Unmapped,
}

/// The memory of the process.
#[derive(Clone)]
pub(crate) struct Memory {
    image: Vec<u8>,
    pub(crate) pages: Vec<Page>,
    /// The address that memory is moved to next.
    elsewhere: u64,
}

impl Memory {
    /// Maps and registers the memory.
    pub(crate) fn map(image: Vec<u8>, uffd: &OwnedFd) -> Self {
        let count = image.len() / PAGE;
        let len = (count + GAP_PAGES) * PAGE;
        let base = map_missing(uffd, ADDRESS, len, 0).expect("free addresses");
        assert_eq!(base, ADDRESS);
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

    /// Returns `true` if a page has the content that it must have.
    pub(crate) fn is_right(&self, page: usize) -> bool {
        match self.pages[page] {
            Page::Saved(address) => self.has_saved(address, page),
            Page::Zeros(address) => has_zeros(address),
            Page::Unmapped => true,
        }
    }

    /// Returns `true` if the saved content of a page is at an address.
    pub(crate) fn has_saved(&self, address: u64, page: usize) -> bool {
        read(address)[..] == self.image[page * PAGE..][..PAGE]
    }

    /// Returns the address of a page.
    pub(crate) fn address(&self, page: usize) -> u64 {
        let (Page::Saved(address) | Page::Zeros(address)) = self.pages[page] else {
            panic!("page {page} is not mapped")
        };
        address
    }

    /// Returns the address of a page between both parts, where nothing was saved.
    pub(crate) fn gap_address(&self, page: usize) -> u64 {
        assert!(page < GAP_PAGES);
        ADDRESS + ((split(self.pages.len()) + page) * PAGE) as u64
    }

    /// Returns free addresses for memory of `pages` pages.
    pub(crate) fn take_addresses(&mut self, pages: usize) -> u64 {
        let start = self.elsewhere;
        self.elsewhere += ((pages + 1) * PAGE) as u64;
        start
    }

    pub(crate) fn verify(&self, mut pages: impl Iterator<Item = usize>) -> String {
        let wrong = pages.find(|page| !self.is_right(*page));
        wrong.map_or("ok".into(), |page| format!("page {page} is wrong"))
    }

    /// Checks that the pages between both parts are zeros.
    pub(crate) fn verify_gap(&self) -> String {
        let is_right = (0..GAP_PAGES).all(|page| has_zeros(self.gap_address(page)));
        if is_right { "ok".into() } else { "the gap is not zeros".into() }
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

    pub(crate) fn remove(&mut self, first: usize, count: usize) {
        for (start, len) in self.ranges(first, count) {
            give_back(start, len);
        }
        for page in &mut self.pages[first..first + count] {
            if let Page::Saved(address) = *page {
                *page = Page::Zeros(address);
            }
        }
    }

    pub(crate) fn unmap(&mut self, first: usize, count: usize) {
        for (start, len) in self.ranges(first, count) {
            unmap_memory(start, len);
        }
        self.pages[first..first + count].fill(Page::Unmapped);
    }

    /// Moves pages to other addresses, in mappings of one page more, whose last page is zeros.
    pub(crate) fn relocate(&mut self, first: usize, count: usize) -> String {
        for (start, len) in self.ranges(first, count) {
            let to = self.take_addresses(len / PAGE + 1);
            move_memory(start, len, len + PAGE, to);
            for page in &mut self.pages[first..first + count] {
                match page {
                    Page::Saved(address) | Page::Zeros(address) if (start..start + len as u64).contains(address) => {
                        *address = *address - start + to;
                    }
                    _ => {}
                }
            }
            if !has_zeros(to + len as u64) {
                return "the grown page is not zero".into();
            }
        }
        "ok".into()
    }

    /// Forks a child that checks all its memory, `depth` generations of them.
    pub(crate) fn fork(&self, depth: usize) -> String {
        match wait(self.start_child(depth)) {
            0 => "ok".into(),
            status => format!("the child ended with status {status:#x}"),
        }
    }

    pub(crate) fn start_child(&self, depth: usize) -> i32 {
        fork(|| {
            let is_right = (0..self.pages.len()).rev().all(|page| self.is_right(page));
            is_right && (depth <= 1 || wait(self.start_child(depth - 1)) == 0)
        })
    }

    /// Forks a child for every page, which touches it. Returns how many of them a SIGBUS ended, and how many did anything else.
    pub(crate) fn touch_each(&self) -> String {
        let touch = |page| wait(fork(|| self.is_right(page)));
        let failed = (0..self.pages.len()).filter(|page| touch(*page) == libc::SIGBUS).count();
        format!("{failed} failed, {} did not", self.pages.len() - failed)
    }

    /// Changes memory and forks, while two threads read pages that are not changed.
    pub(crate) fn storm(&mut self, seed: u64) -> String {
        let (stable, changing) = (self.pages.len() / 2, self.clone());
        let answers = std::thread::scope(|threads| {
            let verify = |seed| {
                let memory = &changing;
                move || memory.verify(Generator::new(seed).numbers_below(stable).take(stable * 2))
            };
            let workers = [threads.spawn(verify(seed)), threads.spawn(verify(seed + 1))];
            let rest = self.pages.len() - stable;
            for (turn, page) in Generator::new(seed + 2).numbers_below(rest).take(24).enumerate() {
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

/// Reads a page, which must be mapped.
fn read(address: u64) -> [u8; PAGE] {
    // SAFETY: the caller knows that the page is mapped and readable.
    unsafe { (address as *const [u8; PAGE]).read_volatile() }
}

/// Returns `true` if a page, which must be mapped, is zeros.
pub(crate) fn has_zeros(address: u64) -> bool {
    read(address) == [0; PAGE]
}
