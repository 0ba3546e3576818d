//! Threads of a stand-in process that change memory at the same time. Races may or may not come about; what is right does not
//! depend on it.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use trueno_test_pages::generate::Generator;
use trueno_test_restore::system::{fork, give_back, is_free, move_memory, unmap_memory, wait};

use crate::memory::{Memory, PAGE, Page, has_zeros};

/// The first page that is moved. Some before it are a mapping of their own.
const FIRST: usize = 64;
/// Pages that are moved at once.
const SLOT: usize = 4;
/// The number of times that memory is moved to addresses that were just left.
const CHASES: usize = 150;
/// Moves beside one fork, and forks.
const MOVES: usize = 10;
const FORKS: usize = 16;

/// The way in which a thread leaves addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    Move,
    Unmap,
}

/// The target that memory is moved onto.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Pages that were saved.
    Saved,
    /// Pages that were not saved, and never touched.
    Missing,
    /// Pages that were not saved, and are zeros since they were touched.
    Zeros,
}

/// A page that is moved onto another one.
struct Over {
    page: usize,
    from: u64,
    to: u64,
    /// The page that is there before, if it was saved.
    before: Option<usize>,
}

impl Memory {
    /// One thread leaves addresses. Another one moves memory there as soon as they are free, and two more read other pages.
    pub(crate) fn chase(&mut self, leave: Leave) -> String {
        let slots: Vec<usize> = (0..CHASES).map(|slot| FIRST + slot * 2 * SLOT).collect();
        let stable = FIRST + CHASES * 2 * SLOT;
        let places: Vec<(u64, u64, u64)> = slots
            .iter()
            .map(|page| (self.address(*page), self.address(page + SLOT), self.take_addresses(SLOT)))
            .collect();
        let (len, before) = (SLOT * PAGE, &self.clone());
        let read = |seed| {
            let rest = before.pages.len() - stable;
            move || before.verify(Generator::new(seed).numbers_below(rest).map(|page| stable + page).take(rest))
        };
        let answers = thread::scope(|threads| {
            let readers = [threads.spawn(read(1)), threads.spawn(read(2))];
            let chaser = threads.spawn(|| {
                for (left, chasing, _) in &places {
                    while !is_free(*left) {
                        thread::yield_now();
                    }
                    move_memory(*chasing, len, len, *left);
                }
            });
            for (left, _, fresh) in &places {
                match leave {
                    Leave::Move => move_memory(*left, len, len, *fresh),
                    Leave::Unmap => unmap_memory(*left, len),
                }
            }
            chaser.join().expect("no panic");
            readers.map(|reader| reader.join().expect("no panic"))
        });
        for (slot, (left, _, fresh)) in slots.into_iter().zip(places) {
            for page in 0..SLOT {
                let at = (page * PAGE) as u64;
                self.pages[slot + page] = if leave == Leave::Move { Page::Saved(fresh + at) } else { Page::Unmapped };
                self.pages[slot + SLOT + page] = Page::Saved(left + at);
            }
        }
        answers.into_iter().find(|answer| answer != "ok").unwrap_or_else(|| self.verify(0..self.pages.len()))
    }

    /// Gives two pages of four back, moves all four, and forks, again and again. Another thread moves memory to and fro, gives
    /// pages of the second half back one by one and unmaps them, and reads others.
    pub(crate) fn give_back_and_fork(&mut self, rounds: usize) -> String {
        let (here, there, stop) = (self.address(FIRST), self.take_addresses(1), AtomicBool::new(false));
        let (before, half) = (self.clone(), self.pages.len() / 2);
        let others = FIRST + (rounds + 2) * SLOT..half;
        // Pages of the second half that were given back.
        let given = AtomicUsize::new(0);
        let is_gone = |page: usize| is_free(before.address(page)) || has_zeros(before.address(page));
        let first_wrong = thread::scope(|threads| {
            let busy = threads.spawn(|| {
                let pages = (half..before.pages.len()).zip(others.cycle());
                for (page, other) in pages.take_while(|_| !stop.load(Ordering::Relaxed)) {
                    move_memory(here, PAGE, PAGE, there);
                    move_memory(there, PAGE, PAGE, here);
                    give_back(before.address(page), PAGE);
                    given.fetch_add(1, Ordering::SeqCst);
                    unmap_memory(before.address(page), PAGE);
                    assert!(before.is_right(other), "page {other}");
                }
            });
            let first_wrong = (1..=rounds).find_map(|round| {
                let first = FIRST + round * SLOT;
                self.remove(first + 1, 2);
                let moved = self.relocate(first, SLOT);
                // So is the memory beside it, which no thread changes.
                let checked = first..first + 2 * SLOT;
                let child = wait(fork(|| {
                    let given = given.load(Ordering::SeqCst);
                    (half..half + given).rev().all(is_gone) && checked.clone().all(|page| self.is_right(page))
                }));
                let parent = self.verify(checked);
                (moved != "ok" || child != 0 || parent != "ok")
                    .then(|| format!("round {round}: moved: {moved}, child: {child:#x}, parent: {parent}"))
            });
            stop.store(true, Ordering::Relaxed);
            busy.join().expect("no panic");
            first_wrong
        });
        self.pages[half..half + given.into_inner()].fill(Page::Unmapped);
        first_wrong.unwrap_or_else(|| self.verify(0..self.pages.len()))
    }

    /// Moves pages onto other memory while another thread forks. A child has the memory before or after each of the moves, or it
    /// is ended by SIGBUS or SIGKILL, but it never sees anything else.
    pub(crate) fn fork_over(&mut self, target: Target) -> String {
        let moves: Vec<Over> = (0..MOVES * FORKS)
            .map(|number| {
                let page = FIRST + number * 2;
                let (to, before) = match target {
                    Target::Saved => (self.address(page + 1), Some(page + 1)),
                    Target::Missing | Target::Zeros => (self.gap_address(number), None),
                };
                Over { page, from: self.address(page), to, before }
            })
            .collect();
        if target == Target::Zeros {
            assert_eq!(self.verify_gap(), "ok");
        }
        let (memory, start) = (&*self, Barrier::new(2));
        let is_right = |over: &Over| {
            if is_free(over.from) {
                return memory.has_saved(over.to, over.page);
            }
            let is_before = over.before.map_or_else(|| has_zeros(over.to), |page| memory.has_saved(over.to, page));
            is_before && memory.has_saved(over.from, over.page)
        };
        let statuses: Vec<i32> = thread::scope(|threads| {
            let forks = threads.spawn(|| {
                let fork_one = |_| {
                    start.wait();
                    // The memory that is moved last is read first: it may be under way.
                    fork(|| moves.iter().rev().all(is_right))
                };
                let children: Vec<i32> = (0..FORKS).map(fork_one).collect();
                children.into_iter().map(wait).collect()
            });
            for batch in moves.chunks(MOVES) {
                start.wait();
                batch.iter().for_each(|over| move_memory(over.from, PAGE, PAGE, over.to));
            }
            forks.join().expect("no panic")
        });
        for over in &moves {
            self.pages[over.page] = Page::Saved(over.to);
            if let Some(page) = over.before {
                self.pages[page] = Page::Unmapped;
            }
        }
        let wrong = statuses.iter().find(|status| ![0, libc::SIGBUS, libc::SIGKILL].contains(*status));
        match wrong {
            Some(status) => format!("a child ended with status {status:#x}"),
            None => self.verify(0..self.pages.len()),
        }
    }
}
