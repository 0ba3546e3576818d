//! Counts the slots of a GPU's stream: those that nobody has, and those that were not made yet.

/// The slots of a stream that lanes may take.
#[derive(Debug)]
pub(crate) struct SlotCounts {
    /// Slots that nobody has.
    pub(crate) idle: usize,
    /// Slots that were not made yet. Making one takes milliseconds: page-locked memory.
    unmade: usize,
    /// Whether a lane makes a slot. One at a time does: the others would only wait for it.
    pub(crate) is_making: bool,
    /// Lanes that fill a slot.
    pub(crate) filling: usize,
}

/// Whether a lane takes an idle slot or makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotToFill {
    Idle,
    Made,
}

impl SlotCounts {
    /// Counts for a stream of `slots`, none of which is made yet.
    pub(crate) fn new(slots: usize) -> Self {
        Self { idle: 0, unmade: slots, is_making: false, filling: 0 }
    }

    /// Takes a slot that is idle or may be made. The lane fills it.
    pub(crate) fn take(&mut self) -> Option<SlotToFill> {
        let slot = if self.idle > 0 {
            self.idle -= 1;
            SlotToFill::Idle
        } else if self.unmade > 0 && !self.is_making {
            self.unmade -= 1;
            self.is_making = true;
            SlotToFill::Made
        } else {
            return None;
        };
        self.filling += 1;
        Some(slot)
    }
}
