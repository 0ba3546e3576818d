//! The order in which lanes act where it makes a difference: conflicting stores and atomics.

use super::narrow::low32;

/// The order in which the lanes of a warp act within one instruction.
///
/// It makes a difference where several lanes store to the same bytes on purpose (the last one wins), and for the
/// results of atomics. A kernel whose output must not depend on the device gives the same bytes in every order.
///
/// ```
/// use trueno_gpu::interp::LaneOrder;
/// assert_eq!(LaneOrder::default(), LaneOrder::Ascending);
/// let orders = [LaneOrder::Ascending, LaneOrder::Descending, LaneOrder::Shuffled { seed: 1 }];
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum LaneOrder {
    /// Lane 0 first: the highest lane wins a conflicting store.
    #[default]
    Ascending,
    /// Lane 31 first: the lowest lane wins a conflicting store.
    Descending,
    /// A new random order for each instruction, the same in each run with this seed.
    Shuffled {
        /// The seed.
        seed: u64,
    },
}

impl LaneOrder {
    /// Returns a seed for the random choices of a warp.
    pub(super) fn seed(self, block: u32, warp: u32) -> u64 {
        let own = match self {
            Self::Ascending => 1,
            Self::Descending => 2,
            Self::Shuffled { seed } => mix(seed.wrapping_add(3)),
        };
        mix(own ^ mix(u64::from(block) << 32 | u64::from(warp)))
    }

    /// Returns the lanes of a mask in order: the first `lanes.count_ones()` entries.
    pub(super) fn turns(self, lanes: u32, random: &mut SplitMix64) -> [u8; 32] {
        let mut turns = [0; 32];
        let members = (0..32u8).filter(|lane| lanes >> lane & 1 == 1);
        let count = lanes.count_ones() as usize;
        turns.iter_mut().zip(members).for_each(|(turn, lane)| *turn = lane);
        match self {
            Self::Ascending => {}
            Self::Descending => turns[..count].reverse(),
            Self::Shuffled { .. } => {
                for left in (2..=count).rev() {
                    turns.swap(left - 1, random.next_u32() as usize % left);
                }
            }
        }
        turns
    }
}

/// The finishing function of SplitMix64.
fn mix(mut z: u64) -> u64 {
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// SplitMix64: a small generator, good enough for orders and noise.
#[derive(Debug)]
pub(super) struct SplitMix64(u64);

impl SplitMix64 {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub(super) fn next_u32(&mut self) -> u32 {
        low32(self.next() >> 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_permutations() {
        let mut random = SplitMix64::new(7);
        for lanes in [u32::MAX, 0b1011, 1 << 31] {
            for order in [LaneOrder::Ascending, LaneOrder::Descending, LaneOrder::Shuffled { seed: 9 }] {
                let turns = order.turns(lanes, &mut random);
                let count = lanes.count_ones() as usize;
                assert_eq!(turns[..count].iter().fold(0, |mask, lane| mask | 1u32 << lane), lanes);
            }
        }
        assert_eq!(LaneOrder::Descending.turns(0b1011, &mut random)[..3], [3, 1, 0]);
    }
}
