//! Where the pages of a process are: from the addresses of the dump, through every change since.
//!
//! A **unit** is a page of the dump that is restored lazily, by its number. It has an address until it is unmapped.
//!
//! A thread that changes mappings queues the event of it after the change, and waits until the event is read. The events of two
//! threads can therefore be read in another order than that of the changes:
//!
//! - Memory is moved to addresses that, by the events so far, are still in use. The event that frees them is on its way. Until
//!   then, what was there is **displaced**, and the next event about these addresses concerns it first.
//! - Memory is moved to addresses that another thread has just left. The event that these were unmapped comes after that of the
//!   move (`mremap` sends it second). So addresses that were moved to since no change was under way are not taken as unmapped. If they
//!   were, after all, the kernel refuses to fill them.
//! - A process forks while another thread moves or unmaps memory. Which of both came first cannot be told, so a child has the
//!   memory at its new address or at its old one: the other is an **alternative**, where the same content is right. If an address
//!   may have one of two units in the child, the layout is **ambiguous**, and the child cannot be restored.

use std::collections::BTreeMap;
use std::ops::Range;

use trueno_zram_core::PAGE_SIZE;

const PAGE: u64 = PAGE_SIZE as u64;

/// Units that lie in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) start: u64,
    pub(super) first_unit: usize,
    pub(super) units: usize,
}

impl Piece {
    fn end(&self) -> u64 {
        self.start + self.units as u64 * PAGE
    }

    pub(super) fn unit_range(&self) -> Range<usize> {
        self.first_unit..self.first_unit + self.units
    }

    fn unit_at(&self, address: u64) -> Option<usize> {
        (self.start..self.end()).contains(&address).then(|| self.first_unit + count(address - self.start))
    }

    fn address_of(&self, unit: usize) -> Option<u64> {
        self.unit_range().contains(&unit).then(|| self.start + (unit - self.first_unit) as u64 * PAGE)
    }

    /// Returns the part in a range of addresses.
    fn part_in(&self, range: &Range<u64>) -> Option<Self> {
        let (start, end) = (self.start.max(range.start), self.end().min(range.end));
        (start < end).then(|| Self {
            start,
            first_unit: self.first_unit + count(start - self.start),
            units: count(end - start),
        })
    }

    /// Returns the parts before and behind a range of addresses.
    fn parts_beside(&self, range: &Range<u64>) -> impl Iterator<Item = Self> + use<> {
        let sides = [self.start..range.start, range.end..u64::MAX];
        sides.map(|side| self.part_in(&side)).into_iter().flatten()
    }
}

/// A number of pages in the address space of a process.
fn count(bytes: u64) -> usize {
    usize::try_from(bytes / PAGE).expect("addresses of a process")
}

/// The addresses of all units.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout {
    by_address: BTreeMap<u64, Piece>,
    /// Start addresses by first unit.
    by_unit: BTreeMap<usize, u64>,
    displaced: Vec<Piece>,
    /// Pieces that were moved or unmapped since no change was under way.
    former: Vec<Piece>,
    /// Units among them that were lost by being unmapped.
    unmapped: Vec<Range<usize>>,
    /// Addresses that were moved to since no change was under way.
    moved_to: Vec<Range<u64>>,
    alternatives: Vec<Piece>,
}

impl Layout {
    /// Takes pieces that do not overlap.
    pub(super) fn new(pieces: impl IntoIterator<Item = Piece>) -> Self {
        let mut layout = Self::default();
        pieces.into_iter().for_each(|piece| layout.insert(piece));
        layout
    }

    fn insert(&mut self, piece: Piece) {
        self.by_unit.insert(piece.first_unit, piece.start);
        self.by_address.insert(piece.start, piece);
    }

    /// Returns the unit at an address.
    pub(super) fn find(&self, address: u64) -> Option<usize> {
        let piece = self.by_address.range(..=address).next_back().and_then(|(_, piece)| piece.unit_at(address));
        piece.or_else(|| self.alternatives.iter().find_map(|piece| piece.unit_at(address)))
    }

    /// Returns the address of a unit, and how many units, with this one, follow each other there.
    pub(super) fn locate(&self, unit: usize) -> Option<(u64, usize)> {
        let (_, start) = self.by_unit.range(..=unit).next_back()?;
        let piece = self.by_address.get(start)?;
        Some((piece.address_of(unit)?, piece.unit_range().end - unit))
    }

    /// Returns another address where the unit may be.
    pub(super) fn alternative(&self, unit: usize) -> Option<u64> {
        self.alternatives.iter().find_map(|piece| piece.address_of(unit))
    }

    /// Returns the pieces that have units in a range of addresses, cut to it.
    pub(super) fn parts_in(&self, range: &Range<u64>) -> Vec<Piece> {
        let first = self.by_address.range(..=range.start).next_back().map_or(0, |(start, _)| *start);
        let pieces = self.by_address.range(first..range.end.max(first)).map(|(_, piece)| piece);
        pieces.chain(&self.alternatives).filter_map(|piece| piece.part_in(range)).collect()
    }

    /// Returns all pieces, by address.
    pub(super) fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.by_address.values().chain(&self.alternatives)
    }

    /// Notes that addresses were unmapped. Returns what was there.
    pub(super) fn unmap(&mut self, range: &Range<u64>) -> Vec<Piece> {
        let moved_to = std::mem::take(&mut self.moved_to);
        let taken = self.take(range, &moved_to);
        self.moved_to = moved_to;
        self.former.extend_from_slice(&taken);
        taken
    }

    /// Notes that a unit is lost since it was unmapped, and was not given back before.
    pub(super) fn note_unmapped(&mut self, unit: usize) {
        match self.unmapped.last_mut() {
            Some(units) if units.end == unit => units.end += 1,
            _ => self.unmapped.push(unit..unit + 1),
        }
    }

    /// Notes that memory was moved. Returns what was moved, at its new addresses.
    pub(super) fn remap(&mut self, from: u64, to: u64, len: u64) -> Vec<Piece> {
        let taken = self.take(&(from..from.saturating_add(len)), &[]);
        self.former.extend_from_slice(&taken);
        let target = to..to.saturating_add(len);
        let displaced = self.cut(&target);
        self.displaced.extend(displaced);
        self.moved_to.push(target);
        let moved = taken.into_iter().map(|piece| Piece { start: piece.start - from + to, ..piece });
        let moved: Vec<Piece> = moved.collect();
        moved.iter().for_each(|piece| self.insert(*piece));
        moved
    }

    /// Notes that no change is under way: all events were read.
    pub(super) fn settle(&mut self) {
        self.former.clear();
        self.unmapped.clear();
        self.moved_to.clear();
    }

    /// Returns the layout of a child that was forked now, and the units that it may have, but this process no longer has.
    pub(super) fn fork(&self) -> (Self, Vec<Range<usize>>) {
        let alternatives = [&self.alternatives[..], &self.former, &self.displaced].concat();
        let by_address = self.by_address.clone();
        let child = Self { by_address, by_unit: self.by_unit.clone(), alternatives, ..Self::default() };
        (child, self.unmapped.clone())
    }

    /// Returns whether an address may have one of two units.
    pub(super) fn is_ambiguous(&self) -> bool {
        let differ = |one: &Piece, other: &Piece| {
            let (start, end) = (one.start.max(other.start), one.end().min(other.end()));
            start < end && one.unit_at(start) != other.unit_at(start)
        };
        self.alternatives.iter().enumerate().any(|(at, one)| {
            let first = self.by_address.range(..=one.start).next_back().map_or(one.start, |(start, _)| *start);
            let placed = self.by_address.range(first..one.end()).map(|(_, piece)| piece);
            placed.chain(&self.alternatives[..at]).any(|other| differ(one, other))
        })
    }

    /// Notes that units may also be at other addresses.
    pub(super) fn add_alternatives(&mut self, pieces: &[Piece]) {
        self.alternatives.extend_from_slice(pieces);
    }

    /// Removes what an event about a range of addresses concerns: first what is displaced there, then everything that is not
    /// in one of the ranges to keep.
    fn take(&mut self, range: &Range<u64>, keep: &[Range<u64>]) -> Vec<Piece> {
        let (mut taken, mut left) = (Vec::new(), vec![range.clone()]);
        for piece in std::mem::take(&mut self.displaced) {
            let Some(part) = piece.part_in(range) else {
                self.displaced.push(piece);
                continue;
            };
            self.displaced.extend(piece.parts_beside(range));
            let covered = part.start..part.end();
            left = left.into_iter().flat_map(|range| without(range, &covered)).collect();
            taken.push(part);
        }
        for kept in keep {
            left = left.into_iter().flat_map(|range| without(range, kept)).collect();
        }
        for range in left {
            taken.extend(self.cut(&range));
        }
        taken
    }

    /// Removes all units in a range of addresses.
    fn cut(&mut self, range: &Range<u64>) -> Vec<Piece> {
        let first = self.by_address.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
        let pieces: Vec<Piece> = self.by_address.range(first..range.end.max(first)).map(|(_, piece)| *piece).collect();
        let mut cut = Vec::new();
        for piece in pieces {
            let Some(part) = piece.part_in(range) else { continue };
            self.by_address.remove(&piece.start);
            self.by_unit.remove(&piece.first_unit);
            piece.parts_beside(range).for_each(|piece| self.insert(piece));
            cut.push(part);
        }
        cut
    }
}

/// Returns what is left of a range without another one.
fn without(range: Range<u64>, other: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let sides = [range.start..range.end.min(other.start), range.start.max(other.end)..range.end];
    sides.into_iter().filter(|side| side.start < side.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use trueno_test_pages::generate::Generator;

    fn piece(start: u64, first_unit: usize, units: usize) -> Piece {
        Piece { start: start * PAGE, first_unit, units }
    }

    fn pages(range: Range<u64>) -> Range<u64> {
        range.start * PAGE..range.end * PAGE
    }

    #[test]
    fn units_follow_their_memory() {
        let mut layout = Layout::new([piece(10, 0, 10), piece(30, 10, 5)]);
        assert_eq!(layout.find(12 * PAGE + 7), Some(2));
        assert_eq!((layout.find(9 * PAGE), layout.find(20 * PAGE)), (None, None));
        assert_eq!(layout.locate(11), Some((31 * PAGE, 4)));
        assert_eq!(layout.unmap(&pages(12..14)), [piece(12, 2, 2)]);
        assert_eq!((layout.find(12 * PAGE), layout.locate(3)), (None, None));
        assert_eq!(layout.remap(11 * PAGE, 100 * PAGE, 5 * PAGE), [piece(100, 1, 1), piece(103, 4, 2)]);
        assert_eq!(layout.locate(4), Some((103 * PAGE, 2)));
        assert_eq!(layout.find(16 * PAGE), Some(6));
        let across = layout.parts_in(&pages(18..32));
        assert_eq!(across, [piece(18, 8, 2), piece(30, 10, 2)]);
    }

    #[test]
    fn events_in_the_wrong_order_concern_what_was_there_first() {
        // One thread moves 10..15 to 50, another then 30..35 to the free addresses; its event is read first.
        let mut layout = Layout::new([piece(10, 0, 5), piece(30, 5, 5)]);
        layout.remap(30 * PAGE, 10 * PAGE, 5 * PAGE);
        assert_eq!((layout.find(12 * PAGE), layout.locate(2)), (Some(7), None));
        layout.remap(10 * PAGE, 50 * PAGE, 5 * PAGE);
        assert_eq!((layout.find(12 * PAGE), layout.find(52 * PAGE)), (Some(7), Some(2)));
        // The same with a thread that unmaps.
        let mut layout = Layout::new([piece(10, 0, 5), piece(30, 5, 3)]);
        layout.remap(30 * PAGE, 11 * PAGE, 3 * PAGE);
        assert_eq!(layout.unmap(&pages(10..15)), [piece(11, 1, 3), piece(10, 0, 1), piece(14, 4, 1)]);
        assert_eq!((layout.find(12 * PAGE), layout.find(10 * PAGE)), (Some(6), None));
        layout.settle();
        assert_eq!(layout.unmap(&pages(10..15)), [piece(11, 5, 3)]);
    }

    #[test]
    fn addresses_that_were_left_and_moved_to_are_not_taken_as_unmapped() {
        // One thread moves 10..15 to 50. Another moves 30..35 to 10 before the first one's second event, that 10..15 was unmapped.
        let mut layout = Layout::new([piece(10, 0, 5), piece(30, 5, 5)]);
        layout.remap(10 * PAGE, 50 * PAGE, 5 * PAGE);
        layout.remap(30 * PAGE, 10 * PAGE, 5 * PAGE);
        assert_eq!(layout.unmap(&pages(10..15)), []);
        assert_eq!(layout.unmap(&pages(30..35)), []);
        assert_eq!((layout.find(12 * PAGE), layout.find(52 * PAGE)), (Some(7), Some(2)));
        layout.settle();
        assert_eq!(layout.unmap(&pages(10..15)), [piece(10, 5, 5)]);
    }

    #[test]
    fn two_units_for_one_address_of_a_child_are_ambiguous() {
        // 30..35 is moved onto 10..15, which is unmapped before, while another thread forks.
        let mut layout = Layout::new([piece(10, 0, 5), piece(30, 5, 5)]);
        layout.unmap(&pages(10..15));
        assert!(!layout.fork().0.is_ambiguous(), "no unit, or the one that was there");
        layout.remap(30 * PAGE, 10 * PAGE, 5 * PAGE);
        assert!(layout.fork().0.is_ambiguous());
        layout.settle();
        let mut child = layout.fork().0;
        assert!(!child.is_ambiguous());
        child.add_alternatives(&[piece(13, 0, 5)]);
        assert!(child.is_ambiguous());
    }

    #[test]
    fn a_child_may_have_its_memory_before_or_after_a_change() {
        let mut layout = Layout::new([piece(10, 0, 5)]);
        layout.remap(10 * PAGE, 50 * PAGE, 2 * PAGE);
        let gone = layout.unmap(&pages(14..15));
        gone[0].unit_range().for_each(|unit| layout.note_unmapped(unit));
        let (child, unmapped) = layout.fork();
        assert_eq!(unmapped, [gone[0].unit_range()]);
        assert_eq!((child.find(51 * PAGE), child.find(11 * PAGE), child.find(14 * PAGE)), (Some(1), Some(1), Some(4)));
        assert_eq!((layout.find(11 * PAGE), child.alternative(1)), (None, Some(11 * PAGE)));
        layout.settle();
        let (child, unmapped) = layout.fork();
        assert_eq!((child.find(11 * PAGE), unmapped.len()), (None, 0));
    }

    #[test]
    fn any_changes_leave_every_unit_at_one_address_or_none() {
        let mut random = Generator::new(5);
        for _ in 0..50 {
            let mut layout = Layout::new((0..8).map(|number| piece(number as u64 * 20, number * 16, 16)));
            // What is at each page, by the plainest means.
            let mut model: Vec<Option<usize>> = vec![None; 600];
            (0..128).for_each(|unit| model[unit / 16 * 20 + unit % 16] = Some(unit));
            for _ in 0..60 {
                let (from, len) = (random.below(200), 1 + random.below(30));
                if random.below(3) == 0 {
                    layout.unmap(&pages(from as u64..(from + len) as u64));
                    model[from..from + len].fill(None);
                } else {
                    let to = 200 + random.below(300);
                    // The kernel unmaps the target first.
                    layout.unmap(&pages(to as u64..(to + len) as u64));
                    layout.remap(from as u64 * PAGE, to as u64 * PAGE, len as u64 * PAGE);
                    layout.settle();
                    let moved = model[from..from + len].to_vec();
                    model[from..from + len].fill(None);
                    model[to..to + len].copy_from_slice(&moved);
                }
            }
            for (page, unit) in model.iter().enumerate() {
                assert_eq!(layout.find(page as u64 * PAGE), *unit);
                if let Some(unit) = unit {
                    assert_eq!(layout.locate(*unit).unwrap().0, page as u64 * PAGE);
                }
            }
            assert_eq!(model.iter().flatten().count(), (0..128).filter(|unit| layout.locate(*unit).is_some()).count());
        }
    }
}
