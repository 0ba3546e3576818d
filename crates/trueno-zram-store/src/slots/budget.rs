//! The memory limit: memory that is held, that may be held, and the most that was held.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts memory against a limit. It has a cache line of its own: its neighbours are read with every request.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct MemoryBudget {
    held: AtomicU64,
    peak: AtomicU64,
    limit: u64,
    /// The most that may be held for now, if it is less than the limit.
    growth_limit: AtomicU64,
}

impl MemoryBudget {
    pub(crate) fn new(limit_bytes: u64) -> Self {
        Self {
            held: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            limit: limit_bytes,
            growth_limit: AtomicU64::new(u64::MAX),
        }
    }

    /// Takes `bytes` if both the limit and the growth limit allow it.
    pub(crate) fn charge(&self, bytes: u64) -> bool {
        let limit = self.limit_now();
        let within = |held: u64| held.checked_add(bytes).filter(|held| *held <= limit);
        match self.held.fetch_update(Relaxed, Relaxed, within) {
            Ok(before) => {
                self.peak.fetch_max(before + bytes, Relaxed);
                true
            }
            Err(_) => false,
        }
    }

    /// Takes `bytes` that are in use already, even beyond the limit.
    pub(crate) fn charge_existing(&self, bytes: u64) {
        let held = self.held.fetch_add(bytes, Relaxed) + bytes;
        self.peak.fetch_max(held, Relaxed);
    }

    pub(crate) fn release(&self, bytes: u64) {
        self.held.fetch_sub(bytes, Relaxed);
    }

    pub(crate) fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }

    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Relaxed)
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Allows `room_bytes` more than is held now, until the next call.
    pub(crate) fn limit_growth(&self, room_bytes: u64) {
        self.growth_limit.store(self.held().saturating_add(room_bytes), Relaxed);
    }

    /// Returns the present limit: the growth limit if that is lower.
    pub(crate) fn limit_now(&self) -> u64 {
        self.limit.min(self.growth_limit.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_would_exceed_the_limit_and_then_takes_less() {
        let budget = MemoryBudget::new(10);
        assert!(budget.charge(8) && !budget.charge(3) && budget.charge(2));
        assert!(!budget.charge(1) && !budget.charge(u64::MAX));
        budget.release(5);
        assert_eq!((budget.held(), budget.peak(), budget.limit()), (5, 10, 10));
        budget.charge_existing(20);
        assert_eq!((budget.held(), budget.peak()), (25, 25));
    }

    #[test]
    fn growth_can_be_limited_below_the_limit_and_not_above() {
        let budget = MemoryBudget::new(10);
        assert!(budget.charge(2));
        budget.limit_growth(3);
        assert!(budget.charge(3) && !budget.charge(1));
        assert_eq!((budget.limit_now(), budget.limit()), (5, 10));
        budget.release(2);
        assert!(budget.charge(2) && !budget.charge(1), "what was held can be held again");
        budget.limit_growth(u64::MAX);
        assert!(budget.charge(5) && !budget.charge(1));
    }
}
