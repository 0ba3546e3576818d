//! The lock in a table entry: bit 0 of the word itself.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::atomic_word::AtomicWord;
use crate::table::entry::{EntryMark, TableEntry};

/// The right to use a page's slot and to change its entry. Dropping it leaves the entry as it was.
pub(crate) struct EntryGuard<'a, W: AtomicWord = AtomicU64> {
    word: &'a W,
    entry: TableEntry,
}

impl<'a> EntryGuard<'a> {
    /// Waits for the lock.
    pub(crate) fn lock(word: &'a AtomicU64) -> Self {
        let mut attempt = 0;
        loop {
            if let Some(guard) = Self::try_lock(word) {
                return guard;
            }
            wait(attempt);
            attempt = attempt.saturating_add(1);
        }
    }
}

/// Waits before the next attempt. The lock is mostly held while less than a page is copied. A preempted holder gets time to run.
fn wait(attempt: u32) {
    match attempt {
        0..64 => std::hint::spin_loop(),
        64..128 => std::thread::yield_now(),
        _ => std::thread::sleep(Duration::from_micros(50)),
    }
}

impl<'a, W: AtomicWord> EntryGuard<'a, W> {
    /// Takes the lock if it is free.
    pub(crate) fn try_lock(word: &'a W) -> Option<Self> {
        let entry = TableEntry::from_bits(word.load(Ordering::Acquire));
        let locked = entry.with(EntryMark::Locked);
        let free = !entry.has(EntryMark::Locked) && word.replace(entry.bits(), locked.bits(), Ordering::Acquire);
        // Not `then_some`: a guard that is created and dropped would unlock the entry of another thread.
        free.then(|| Self { word, entry })
    }

    /// The entry, without the lock bit.
    pub(crate) fn entry(&self) -> TableEntry {
        self.entry
    }

    /// Replaces the entry and unlocks it. Everything written to its slot before is visible with it.
    pub(crate) fn publish(mut self, entry: TableEntry) {
        self.entry = entry.without(EntryMark::Locked);
    }
}

impl<W: AtomicWord> Drop for EntryGuard<'_, W> {
    fn drop(&mut self) {
        self.word.store(self.entry.bits(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64 as LoomU64;
    use loom::thread;

    use super::*;
    use crate::table::entry::{PageForm, StoredPage};
    use trueno_zram_core::PageKind;

    fn lock(word: &LoomU64) -> EntryGuard<'_, LoomU64> {
        loop {
            match EntryGuard::try_lock(word) {
                Some(guard) => return guard,
                None => thread::yield_now(),
            }
        }
    }

    fn stored(place: u64) -> TableEntry {
        TableEntry::new(PageForm::Stored(StoredPage { kind: PageKind::Lz4, len_bytes: 64, place }))
    }

    fn place_of(entry: TableEntry) -> usize {
        usize::try_from(entry.form().unwrap().stored().unwrap().place).unwrap()
    }

    /// Three slots and the entry that names one of them. loom reports any access to a slot that races with another.
    struct Model {
        word: LoomU64,
        slots: [UnsafeCell<u64>; 3],
    }

    impl Model {
        fn new() -> Arc<Self> {
            let slots = [UnsafeCell::new(100), UnsafeCell::new(0), UnsafeCell::new(0)];
            Arc::new(Self { word: LoomU64::new(stored(0).bits()), slots })
        }

        #[allow(unsafe_code, reason = "loom checks these accesses")]
        fn read(&self) -> u64 {
            let guard = lock(&self.word);
            let place = place_of(guard.entry());
            // SAFETY: the lock of the entry that names the slot is held; loom checks that this is enough.
            self.slots[place].with(|slot| unsafe { *slot })
        }

        /// Fills a slot that nothing names yet, publishes it, and scribbles over the old one, as its next user will.
        #[allow(unsafe_code, reason = "loom checks these accesses")]
        fn write(&self, place: u64, value: u64) {
            // SAFETY: the slot is this writer's until it is published; loom checks it.
            self.slots[usize::try_from(place).unwrap()].with_mut(|slot| unsafe { *slot = value });
            let guard = lock(&self.word);
            let old = place_of(guard.entry());
            guard.publish(stored(place));
            // SAFETY: no entry names the slot any more, and no thread holds the lock of the one that did; loom checks it.
            self.slots[old].with_mut(|slot| unsafe { *slot = 0xdead });
        }
    }

    fn explore(model: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(model);
    }

    #[test]
    fn a_reader_never_sees_a_slot_that_was_freed() {
        explore(|| {
            let model = Model::new();
            let writer = thread::spawn({
                let model = Arc::clone(&model);
                move || model.write(1, 200)
            });
            assert!([100, 200].contains(&model.read()));
            writer.join().unwrap();
            assert_eq!(model.read(), 200);
        });
    }

    #[test]
    fn of_two_writers_the_last_to_publish_stands_whole() {
        explore(|| {
            let model = Model::new();
            let writer = thread::spawn({
                let model = Arc::clone(&model);
                move || model.write(1, 200)
            });
            model.write(2, 300);
            writer.join().unwrap();
            assert!([200, 300].contains(&model.read()));
        });
    }

    #[test]
    fn a_mover_skips_a_page_that_is_in_use_and_loses_no_write() {
        explore(|| {
            let model = Model::new();
            let mover = thread::spawn({
                let model = Arc::clone(&model);
                #[allow(unsafe_code, reason = "loom checks these accesses")]
                move || {
                    let Some(guard) = EntryGuard::try_lock(&model.word) else { return };
                    let old = place_of(guard.entry());
                    if old != 0 {
                        return;
                    }
                    // SAFETY: the lock of the page is held, and slot 2 is the mover's; loom checks it.
                    let value = model.slots[old].with(|slot| unsafe { *slot });
                    // SAFETY: as above.
                    model.slots[2].with_mut(|slot| unsafe { *slot = value });
                    guard.publish(stored(2));
                }
            });
            model.write(1, 200);
            mover.join().unwrap();
            assert_eq!(model.read(), 200);
        });
    }

    #[test]
    fn dropping_a_guard_leaves_the_entry_as_it_was() {
        let word = AtomicU64::new(stored(7).bits());
        drop(EntryGuard::lock(&word));
        assert_eq!(word.load(Ordering::Relaxed), stored(7).bits());
        let held = EntryGuard::lock(&word);
        assert!(EntryGuard::try_lock(&word).is_none());
        held.publish(stored(8));
        assert_eq!(word.load(Ordering::Relaxed), stored(8).bits());
    }
}
