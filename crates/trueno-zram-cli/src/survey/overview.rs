//! An overview of an image from front to back in at most a few thousand cells, whatever its length.

use serde::Serialize;

/// The most cells. Neighbours are merged when there would be more.
const MOST_CELLS: usize = 4096;

/// Cells of the same number of pages, except for the last.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Overview {
    pub(crate) pages_per_cell: u64,
    pub(crate) cells: Vec<OverviewCell>,
}

/// Neighbouring pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct OverviewCell {
    pub(crate) pages: u64,
    pub(crate) held_bytes: u64,
    pub(crate) zero_pages: u64,
}

impl Default for Overview {
    fn default() -> Self {
        Self { pages_per_cell: 1, cells: Vec::new() }
    }
}

impl OverviewCell {
    fn join(self, other: Self) -> Self {
        Self {
            pages: self.pages + other.pages,
            held_bytes: self.held_bytes + other.held_bytes,
            zero_pages: self.zero_pages + other.zero_pages,
        }
    }
}

impl Overview {
    /// Adds pages of the same kind. Together they take `held_bytes`; all or none are zero.
    pub(super) fn add(&mut self, pages: u64, held_bytes: u64, zero_pages: u64) {
        let all = OverviewCell { pages, held_bytes, zero_pages };
        let mut left = all;
        while left.pages > 0 {
            let room = self.cells.last().map_or(0, |cell| self.pages_per_cell - cell.pages);
            if room == 0 {
                if self.cells.len() == MOST_CELLS {
                    self.halve();
                } else {
                    self.cells.push(OverviewCell::default());
                }
                continue;
            }
            let now = room.min(left.pages);
            let part = |value: u64| if now == left.pages { value } else { share(value, now, left.pages) };
            let taken =
                OverviewCell { pages: now, held_bytes: part(left.held_bytes), zero_pages: part(left.zero_pages) };
            let last = self.cells.last_mut().expect("there was room in it");
            *last = last.join(taken);
            left = OverviewCell {
                pages: left.pages - taken.pages,
                held_bytes: left.held_bytes - taken.held_bytes,
                zero_pages: left.zero_pages - taken.zero_pages,
            };
        }
    }

    fn halve(&mut self) {
        self.cells = joined(&self.cells, 2);
        self.pages_per_cell *= 2;
    }

    /// Returns the same overview in at most `most` cells.
    pub(crate) fn at_most(&self, most: usize) -> Self {
        let step = self.cells.len().div_ceil(most.max(1)).max(1);
        Self { pages_per_cell: self.pages_per_cell * step as u64, cells: joined(&self.cells, step) }
    }
}

fn joined(cells: &[OverviewCell], step: usize) -> Vec<OverviewCell> {
    cells.chunks(step).map(|cells| cells.iter().copied().fold(OverviewCell::default(), OverviewCell::join)).collect()
}

/// Returns `value * part / whole` without overflow.
fn share(value: u64, part: u64, whole: u64) -> u64 {
    u64::try_from(u128::from(value) * u128::from(part) / u128::from(whole)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(overview: &Overview) -> OverviewCell {
        overview.cells.iter().copied().fold(OverviewCell::default(), OverviewCell::join)
    }

    #[test]
    fn nothing_is_lost_when_cells_are_joined() {
        let mut overview = Overview::default();
        for n in 0..10_000u64 {
            overview.add(1, n % 4096, n % 2);
        }
        let all = (0..10_000).fold(0, |sum, n| sum + n % 4096);
        assert_eq!(sum(&overview), OverviewCell { pages: 10_000, held_bytes: all, zero_pages: 5000 });
        assert_eq!((overview.pages_per_cell, overview.cells.len()), (4, 2500));
        assert_eq!(overview.cells[0], OverviewCell { pages: 4, held_bytes: 6, zero_pages: 2 });
        let small = overview.at_most(100);
        assert!(small.cells.len() <= 100 && sum(&small) == sum(&overview));
        assert_eq!(small.pages_per_cell, 100);
    }

    #[test]
    fn long_runs_are_spread_over_their_cells() {
        let mut overview = Overview::default();
        overview.add(1, 4096, 0);
        overview.add(1 << 40, 8 << 40, 1 << 40);
        overview.add(3, 3 * 4096, 0);
        assert!(overview.cells.len() <= MOST_CELLS);
        let expected = OverviewCell { pages: (1 << 40) + 4, held_bytes: (8 << 40) + 4 * 4096, zero_pages: 1 << 40 };
        assert_eq!(sum(&overview), expected);
        assert!(overview.cells[1..overview.cells.len() - 1].iter().all(|cell| cell.pages == cell.zero_pages));
    }
}
