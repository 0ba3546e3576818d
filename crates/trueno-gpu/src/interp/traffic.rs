//! The cost of memory instructions on a device: shared-memory wavefronts and global sectors.

use super::narrow::lane_u32;
use super::warp::LANE_BIT;

/// Returns the wavefronts of one shared access. There are 32 banks of 4 bytes, and one wavefront serves one word of
/// each bank to any number of lanes. Accesses of 8 bytes are served in half warps, of 16 bytes in quarter warps.
pub(super) fn wavefronts(addresses: &[u32; 32], lanes: u32, bytes: u32) -> u32 {
    match bytes {
        8 => (0..2).map(|group| group_wavefronts(addresses, lanes & 0xffff << (group * 16), 2)).sum(),
        16 => (0..4).map(|group| group_wavefronts(addresses, lanes & 0xff << (group * 8), 4)).sum(),
        _ => group_wavefronts(addresses, lanes, 1),
    }
}

fn group_wavefronts(addresses: &[u32; 32], lanes: u32, words: u32) -> u32 {
    if words == 1 && lanes != 0 && span_bytes(addresses, lanes) < 128 {
        return 1;
    }
    let mut banks = Banks::default();
    for lane in bits(lanes) {
        let word = addresses[lane] >> 2;
        (word..word + words).for_each(|word| banks.add(word));
    }
    banks.most
}

/// Returns the distance from the first word accessed to the last. If it is less than a row of all banks, no bank has
/// two words. Most accesses end here, since the loop vectorises.
fn span_bytes(addresses: &[u32; 32], lanes: u32) -> u32 {
    let first = addresses[lanes.trailing_zeros() as usize & 31];
    let (mut low, mut high) = (first, first);
    for (lane, &address) in addresses.iter().enumerate() {
        let address = if lanes & LANE_BIT[lane] != 0 { address } else { first };
        low = low.min(address);
        high = high.max(address);
    }
    (high & !3) - (low & !3)
}

/// Distinct words, by bank.
#[derive(Default)]
struct Banks {
    /// One bit per bank.
    used: u32,
    /// The first word of each used bank, and how many it has.
    first: [u32; 32],
    count: [u8; 32],
    /// Additional words: at most 31, whatever the width of the access.
    further: [u32; 32],
    furthers: usize,
    /// Largest value in `count`.
    most: u32,
}

impl Banks {
    #[inline]
    fn add(&mut self, word: u32) {
        let bank = (word & 31) as usize;
        if self.used >> bank & 1 == 0 {
            self.used |= 1 << bank;
            self.first[bank] = word;
            self.count[bank] = 1;
            self.most = self.most.max(1);
        } else if self.first[bank] != word && (self.count[bank] == 1 || !self.further[..self.furthers].contains(&word))
        {
            self.further[self.furthers] = word;
            self.furthers += 1;
            self.count[bank] += 1;
            self.most = self.most.max(u32::from(self.count[bank]));
        }
    }
}

/// Returns the wavefronts of one shared atomic, with each lane of a bank in its own pass. This is an upper bound, since
/// a device can merge the lanes of some operations.
pub(super) fn atomic_wavefronts(addresses: &[u32; 32], lanes: u32) -> u32 {
    let mut in_bank = [0u32; 32];
    for lane in bits(lanes) {
        in_bank[(addresses[lane] >> 2 & 31) as usize] += 1;
    }
    in_bank.into_iter().fold(0, u32::max)
}

/// Returns the number of distinct 32-byte sectors of one global access. Each lane's part lies in one sector.
pub(super) fn sectors(addresses: &[u64; 32], lanes: u32) -> u32 {
    let mut seen = [0u64; 32];
    let mut count = 0;
    for lane in bits(lanes) {
        let sector = addresses[lane] >> 5;
        // Neighbours are most likely to share, so compare with the newest first.
        if !seen[..count].iter().rev().any(|&s| s == sector) {
            seen[count] = sector;
            count += 1;
        }
    }
    lane_u32(count)
}

/// Returns the lanes of a mask, in ascending order.
#[inline]
pub(super) fn bits(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros();
        mask &= mask.wrapping_sub(1);
        (lane < 32).then_some(lane as usize & 31)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn at(f: impl Fn(u32) -> u32) -> [u32; 32] {
        std::array::from_fn(|lane| f(u32::try_from(lane).unwrap()))
    }

    #[test]
    fn banks() {
        assert_eq!(wavefronts(&at(|l| l * 4), u32::MAX, 4), 1);
        assert_eq!(wavefronts(&at(|_| 64), u32::MAX, 4), 1, "broadcast");
        assert_eq!(wavefronts(&at(|l| l * 8), u32::MAX, 4), 2);
        assert_eq!(wavefronts(&at(|l| l * 128), u32::MAX, 4), 32);
        assert_eq!(wavefronts(&at(|l| l * 132), u32::MAX, 4), 1);
        assert_eq!(wavefronts(&at(|l| l), u32::MAX, 1), 1, "bytes of one word");
        assert_eq!(wavefronts(&at(|l| l % 2 * 128), u32::MAX, 4), 2);
        assert_eq!(wavefronts(&at(|l| l * 128), 0b101, 4), 2);
        assert_eq!(wavefronts(&at(|l| l * 128), 0, 4), 0);
    }

    #[test]
    fn wide_accesses_go_in_parts() {
        assert_eq!(wavefronts(&at(|l| l * 8), u32::MAX, 8), 2);
        assert_eq!(wavefronts(&at(|l| l * 8), 0xffff, 8), 1);
        assert_eq!(wavefronts(&at(|l| l * 16), u32::MAX, 16), 4);
        assert_eq!(wavefronts(&at(|l| l * 32), u32::MAX, 16), 8);
        assert_eq!(wavefronts(&at(|l| l * 128), u32::MAX, 16), 32);
    }

    #[test]
    fn atomics_take_turns() {
        assert_eq!(atomic_wavefronts(&at(|_| 0), u32::MAX), 32);
        assert_eq!(atomic_wavefronts(&at(|l| l * 4), u32::MAX), 1);
    }

    #[test]
    fn sector_counts() {
        let at = |f: fn(u64) -> u64| std::array::from_fn::<u64, 32, _>(|lane| f(u64::try_from(lane).unwrap()));
        assert_eq!(sectors(&at(|l| l * 4), u32::MAX), 4);
        assert_eq!(sectors(&at(|l| l * 16), u32::MAX), 16);
        assert_eq!(sectors(&at(|l| l * 32), u32::MAX), 32);
        assert_eq!(sectors(&at(|_| 96), u32::MAX), 1);
        assert_eq!(sectors(&at(|l| l * 32), 0), 0);
    }
}
