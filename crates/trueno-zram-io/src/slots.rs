//! Slots between lanes, which fill and empty them, and the thread that drives the GPU.
//!
//! Lanes never touch the stream itself: calls of the driver take tens of microseconds under its lock, for which all of them
//! would queue. They leave filled slots here, and find results and free slots.

use std::collections::VecDeque;

/// Slots of a stream, wherever they are. `Tag` says what a slot holds.
#[derive(Debug)]
pub(crate) struct Slots<Slot, Tag, Done> {
    /// Slots that nobody has.
    ready: Vec<Slot>,
    /// Slots that were not made yet. Making one takes a millisecond or more: page-locked memory.
    unmade: usize,
    /// Slots there are.
    made: usize,
    /// Slots that lanes fill.
    filling: usize,
    /// Slots that were filled, and have not been submitted.
    filled: VecDeque<(Slot, Tag)>,
    /// Slots that are submitted.
    submitted: usize,
    /// Results that no lane has taken.
    results: VecDeque<(Tag, Done)>,
}

impl<Slot, Tag, Done> Slots<Slot, Tag, Done> {
    /// At most `most` slots, none of which is made yet.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            ready: Vec::new(),
            unmade: most,
            made: 0,
            filling: 0,
            filled: VecDeque::new(),
            submitted: 0,
            results: VecDeque::new(),
        }
    }

    /// Reserves a slot for the caller to make, if none is ready and fewer than `wanted` exist.
    pub(crate) fn begin_making(&mut self, wanted: usize) -> bool {
        let begins = self.unmade > 0 && self.ready.is_empty() && self.made < wanted;
        if begins {
            self.unmade -= 1;
            self.made += 1;
        }
        begins
    }

    /// Whether all slots are made.
    pub(crate) fn are_all_made(&self) -> bool {
        self.unmade == 0
    }

    /// Adds a slot that was made. Without memory for it, there are no more from now on.
    pub(crate) fn end_making(&mut self, slot: Option<Slot>) {
        if slot.is_none() {
            self.made -= 1;
            self.unmade = 0;
        }
        self.ready.extend(slot);
    }

    /// Takes a slot to fill, if fewer than `most` are in use.
    pub(crate) fn take(&mut self, most: usize) -> Option<Slot> {
        if self.made - self.ready.len() >= most {
            return None;
        }
        let slot = self.ready.pop()?;
        self.filling += 1;
        Some(slot)
    }

    /// Ends the filling of a slot that turned out to be of no use.
    pub(crate) fn put_back(&mut self, slot: Slot) {
        self.filling -= 1;
        self.ready.push(slot);
    }

    /// Ends the filling of a slot.
    pub(crate) fn put_filled(&mut self, slot: Slot, tag: Tag) {
        self.filling -= 1;
        self.filled.push_back((slot, tag));
    }

    /// Ends the filling of a slot that is lost to an error.
    pub(crate) fn put_nothing(&mut self) {
        self.filling -= 1;
        self.made -= 1;
    }

    /// Takes the filled slots, to submit them.
    pub(crate) fn take_filled(&mut self) -> VecDeque<(Slot, Tag)> {
        self.submitted += self.filled.len();
        std::mem::take(&mut self.filled)
    }

    /// Adds the result of a slot that was submitted.
    pub(crate) fn put_result(&mut self, tag: Tag, done: Done) {
        self.submitted -= 1;
        self.results.push_back((tag, done));
    }

    /// Takes the oldest result.
    pub(crate) fn take_result(&mut self) -> Option<(Tag, Done)> {
        self.results.pop_front()
    }

    /// Adds a slot whose result was taken.
    pub(crate) fn put_free(&mut self, slot: Slot) {
        self.ready.push(slot);
    }

    /// Whether no slot is being filled or on its way, and no result waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.filling == 0 && self.filled.is_empty() && self.submitted == 0 && self.results.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_made_when_all_are_in_use_and_never_too_many() {
        let mut slots = Slots::<u32, (), ()>::new(2);
        assert_eq!(slots.take(usize::MAX), None, "none is made");
        assert!(slots.begin_making(usize::MAX) && slots.begin_making(usize::MAX) && !slots.begin_making(usize::MAX));
        slots.end_making(Some(1));
        assert!(slots.are_all_made());
        assert_eq!((slots.take(1), slots.take(usize::MAX)), (None, Some(1)), "the one being made is in use");
        slots.end_making(None);
        slots.put_filled(1, ());
        assert_eq!(slots.take_filled(), [(1, ())]);
        assert!(!slots.is_empty());
        slots.put_result((), ());
        assert_eq!(slots.take_result(), Some(((), ())));
        slots.put_free(1);
        assert!(slots.is_empty() && slots.take(1) == Some(1));
    }

    #[test]
    fn no_slot_is_made_while_one_is_free_or_enough_are_there() {
        let mut slots = Slots::<u32, (), ()>::new(5);
        assert!(!slots.begin_making(0));
        assert!(slots.begin_making(1) && !slots.begin_making(1));
        slots.end_making(Some(1));
        assert!(!slots.begin_making(9), "one is free");
        assert_eq!(slots.take(9), Some(1));
        assert!(slots.begin_making(9));
    }
}
