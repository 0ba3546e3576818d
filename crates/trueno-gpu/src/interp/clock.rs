//! Tracks the order that warp barriers give to the accesses of a warp's lanes.

/// Happens-before among the lanes of one warp.
///
/// Time is the step number of the warp. A barrier of all lanes raises the floor: everything before it is ordered. A
/// barrier of some lanes orders only those, which takes a vector clock per lane. It is kept only while such a barrier
/// is the latest.
#[derive(Debug, Default)]
pub(super) struct LaneClock {
    /// Accesses at or before this time are ordered before everything that follows.
    floor: u32,
    /// `known[b][a]`: lane `b` has seen what lane `a` did up to this time.
    known: Option<Box<[[u32; 32]; 32]>>,
}

impl LaneClock {
    #[inline]
    pub(super) fn floor(&self) -> u32 {
        self.floor
    }

    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    /// Records that the member lanes meet at time `now`.
    pub(super) fn barrier(&mut self, members: u32, now: u32) {
        if members == u32::MAX {
            self.floor = now;
            self.known = None;
            return;
        }
        let floor = self.floor;
        let known = self.known.get_or_insert_with(|| Box::new([[floor; 32]; 32]));
        let lanes = || (0..32usize).filter(|lane| members >> lane & 1 == 1);
        let mut joined = [floor; 32];
        for lane in lanes() {
            for (joined, seen) in joined.iter_mut().zip(&known[lane]) {
                *joined = (*joined).max(*seen);
            }
        }
        lanes().for_each(|lane| joined[lane] = now);
        lanes().for_each(|lane| known[lane] = joined);
    }

    /// Returns `true` if the access of `earlier` at time `at` is ordered before what `later` does now.
    pub(super) fn ordered(&self, earlier: usize, at: u32, later: usize) -> bool {
        earlier == later || at <= self.floor || self.known.as_ref().is_some_and(|known| known[later][earlier] >= at)
    }

    /// Returns `true` if the accesses of all lanes at time `at` are ordered before what `later` does now.
    pub(super) fn ordered_all(&self, at: u32, later: usize) -> bool {
        (0..32).all(|earlier| self.ordered(earlier, at, later))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_barrier_orders_all() {
        let mut clock = LaneClock::default();
        assert!(!clock.ordered(0, 1, 1));
        assert!(clock.ordered(1, 1, 1));
        clock.barrier(u32::MAX, 2);
        assert!(clock.ordered_all(2, 31));
        assert!(!clock.ordered(0, 3, 1));
    }

    #[test]
    fn partial_barriers_order_their_members_and_chain() {
        let mut clock = LaneClock::default();
        clock.barrier(0b011, 2);
        assert!(clock.ordered(0, 1, 1));
        assert!(!clock.ordered(0, 1, 2));
        // Lane 1 passes what it saw of lane 0 on to lane 2.
        clock.barrier(0b110, 4);
        assert!(clock.ordered(0, 2, 2));
        assert!(!clock.ordered(0, 3, 2));
        assert!(clock.ordered(1, 4, 2));
    }
}
