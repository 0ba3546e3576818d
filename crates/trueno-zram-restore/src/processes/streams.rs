//! Detects threads that read memory in order, so that the pages that follow a fault are restored with it.

use std::collections::VecDeque;

/// Threads that are remembered.
const STREAMS: usize = 8;
/// Units that are restored after the first fault, and at most.
const FIRST_UNITS: usize = 16;
const MAX_UNITS: usize = 256;

#[derive(Clone, Copy, Debug)]
struct Stream {
    /// The unit of the next fault, if it is in order.
    next: usize,
    units: usize,
}

/// The latest faults of a process.
#[derive(Debug, Default)]
pub(super) struct Streams {
    recent: VecDeque<Stream>,
}

impl Streams {
    /// Records a fault. Returns how many units to restore, from this one on; 1 if it continues no other.
    pub(super) fn record_fault(&mut self, unit: usize) -> usize {
        let continued = self.recent.iter_mut().find(|stream| (stream.next..stream.next + stream.units).contains(&unit));
        if let Some(stream) = continued {
            stream.units = (stream.units * 2).min(MAX_UNITS);
            stream.next = unit + stream.units;
            return stream.units;
        }
        if self.recent.len() == STREAMS {
            self.recent.pop_front();
        }
        self.recent.push_back(Stream { next: unit + 1, units: FIRST_UNITS });
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_grow_while_faults_are_in_order() {
        let mut streams = Streams::default();
        assert_eq!([100, 101, 133, 9000, 197, 325].map(|unit| streams.record_fault(unit)), [1, 32, 64, 1, 128, 256]);
        assert_eq!(streams.record_fault(325 + 256), 256);
        assert_eq!(streams.record_fault(9001), 32);
        for unit in 0..100 {
            assert_eq!(streams.record_fault(unit * 1000 + 50_000), 1);
        }
        assert_eq!(streams.record_fault(325 + 512), 1, "forgotten");
    }
}
