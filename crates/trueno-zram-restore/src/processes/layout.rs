//! The addresses of a process's pages: those of the dump, and every change since.
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
//! - A process forks while another thread moves or unmaps memory. The order of the two is unknown, so a child has the
//!   memory at its new address or at its old one: the other is an **alternative**. The kernel says where nothing is. Places are
//!   tried from the oldest to the newest: what a unit has left is free, whereas it may have been moved onto other memory. If an address
//!   may have one of two units in the child, or memory that came from elsewhere, the layout is **ambiguous**, and the child
//!   cannot be restored.

use std::collections::BTreeMap;
use std::ops::Range;

use trueno_zram_core::PAGE_SIZE;

const PAGE: u64 = PAGE_SIZE as u64;

/// Units that lie in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnitSpan {
    pub(super) start: u64,
    pub(super) first_unit: usize,
    pub(super) units: usize,
}

impl UnitSpan {
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

    /// Returns `true` if an address has one unit by this span, and another by the other one.
    fn differs_from(&self, other: &Self) -> bool {
        let (start, end) = (self.start.max(other.start), self.end().min(other.end()));
        start < end && self.unit_at(start) != other.unit_at(start)
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

/// Memory that was moved or unmapped.
#[derive(Clone, Debug, Default)]
struct Change {
    /// Its units, at their old addresses.
    former: Vec<UnitSpan>,
    /// Those among them that were lost by being unmapped.
    unmapped: Vec<Range<usize>>,
    /// The addresses that it was moved to.
    moved_to: Option<Range<u64>>,
    /// Those among them that got foreign memory: memory without units.
    foreign: Vec<Range<u64>>,
}

/// The addresses of all units.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout {
    by_address: BTreeMap<u64, UnitSpan>,
    /// Start addresses by first unit.
    by_unit: BTreeMap<usize, u64>,
    displaced: Vec<UnitSpan>,
    /// The changes since none was under way.
    changes: Vec<Change>,
    /// The number of changes at the last [`forget_old`](Self::forget_old).
    old_changes: usize,
    /// Places where units may still be, by changes that were under way when this process was forked, the oldest first.
    earlier: Vec<UnitSpan>,
    /// Places where they may already be.
    later: Vec<UnitSpan>,
    /// Addresses that may have got foreign memory by these changes.
    inherited_foreign: Vec<Range<u64>>,
}

impl Layout {
    /// Takes spans that do not overlap.
    pub(super) fn new(spans: impl IntoIterator<Item = UnitSpan>) -> Self {
        let mut layout = Self::default();
        spans.into_iter().for_each(|span| layout.insert(span));
        layout
    }

    fn insert(&mut self, span: UnitSpan) {
        self.by_unit.insert(span.first_unit, span.start);
        self.by_address.insert(span.start, span);
    }

    /// Returns the unit at an address.
    pub(super) fn find(&self, address: u64) -> Option<usize> {
        let span = self.by_address.range(..=address).next_back().and_then(|(_, span)| span.unit_at(address));
        span.or_else(|| self.alternatives().find_map(|span| span.unit_at(address)))
    }

    /// Returns the address of a unit, and how many units, with this one, follow each other there.
    pub(super) fn locate(&self, unit: usize) -> Option<(u64, usize)> {
        let (_, start) = self.by_unit.range(..=unit).next_back()?;
        let span = self.by_address.get(start)?;
        Some((span.address_of(unit)?, span.unit_range().end - unit))
    }

    fn alternatives(&self) -> impl Iterator<Item = &UnitSpan> {
        self.earlier.iter().chain(&self.later)
    }

    /// Returns `true` if a unit has more than one address where it may be, or none but such.
    pub(super) fn is_uncertain(&self, unit: usize) -> bool {
        self.alternatives().any(|span| span.unit_range().contains(&unit))
    }

    /// Returns the addresses where a unit may be, in the order in which they are to be tried.
    pub(super) fn places(&self, unit: usize) -> Vec<u64> {
        let main = self.locate(unit).map(|(address, _)| address);
        let at = |span: &UnitSpan| span.address_of(unit);
        self.earlier.iter().filter_map(at).chain(main).chain(self.later.iter().filter_map(at)).collect()
    }

    /// Returns the spans that have units in a range of addresses, cut to it.
    pub(super) fn parts_in(&self, range: &Range<u64>) -> Vec<UnitSpan> {
        self.placed_near(range).chain(self.alternatives()).filter_map(|span| span.part_in(range)).collect()
    }

    /// Returns all spans by address, and then the alternatives. A unit may be in more than one.
    pub(super) fn spans(&self) -> impl Iterator<Item = &UnitSpan> {
        self.by_address.values().chain(self.alternatives())
    }

    /// Records that addresses were unmapped. Returns what was there.
    pub(super) fn unmap(&mut self, range: &Range<u64>) -> Vec<UnitSpan> {
        let moved_to: Vec<Range<u64>> = self.changes.iter().filter_map(|change| change.moved_to.clone()).collect();
        let taken = self.take(range, &moved_to);
        if !taken.is_empty() {
            self.changes.push(Change { former: taken.clone(), ..Change::default() });
        }
        taken
    }

    /// Records that a unit of the last change is lost since it was unmapped, and was not given back before.
    pub(super) fn record_unmapped(&mut self, unit: usize) {
        let Some(Change { unmapped, .. }) = self.changes.last_mut() else { return };
        match unmapped.last_mut() {
            Some(units) if units.end == unit => units.end += 1,
            _ => unmapped.push(unit..unit + 1),
        }
    }

    /// Records that memory was moved. Returns what was moved, at its new addresses.
    pub(super) fn remap(&mut self, from: u64, to: u64, len: u64) -> Vec<UnitSpan> {
        let source = from..from.saturating_add(len);
        let shift = |span: UnitSpan| UnitSpan { start: span.start - from + to, ..span };
        for alternatives in [&mut self.earlier, &mut self.later] {
            let moved =
                |span: &UnitSpan| span.part_in(&source).map(shift).into_iter().chain(span.parts_beside(&source));
            *alternatives = alternatives.iter().flat_map(moved).collect();
        }
        let former = self.take(&source, &[]);
        let target = to..to.saturating_add(len);
        let displaced = self.cut(&target);
        self.displaced.extend(displaced);
        let moved: Vec<UnitSpan> = former.iter().copied().map(shift).collect();
        moved.iter().for_each(|span| self.insert(*span));
        let foreign = without_spans(target.clone(), &moved);
        self.changes.push(Change { former, unmapped: Vec::new(), moved_to: Some(target), foreign });
        moved
    }

    /// Records that no change is under way: all events were read.
    pub(super) fn settle(&mut self) {
        self.changes.clear();
        self.old_changes = 0;
    }

    /// Forgets changes that were known when this was called the last time: those that were under way beside them have been
    /// reported since.
    pub(super) fn forget_old(&mut self) {
        self.changes.drain(..self.old_changes);
        self.old_changes = self.changes.len();
    }

    /// Returns the layout of a child that was forked now, and the units that it may have, but this process no longer has.
    pub(super) fn fork(&self) -> (Self, Vec<Range<usize>>) {
        let mut child = Self { displaced: Vec::new(), changes: Vec::new(), old_changes: 0, ..self.clone() };
        let mut unmapped = Vec::new();
        for change in &self.changes {
            child.earlier.extend_from_slice(&change.former);
            child.inherited_foreign.extend_from_slice(&change.foreign);
            unmapped.extend_from_slice(&change.unmapped);
        }
        child.earlier.extend_from_slice(&self.displaced);
        (child, unmapped)
    }

    /// Records a change of the process that this one was forked from: its units may already be at other addresses, and other memory
    /// may be at theirs. Returns `true` if that makes the layout ambiguous.
    pub(super) fn record_parent_move(&mut self, moved: &[UnitSpan], target: Range<u64>) -> bool {
        let foreign = without_spans(target, moved);
        let is_ambiguous = moved.iter().any(|span| self.has_other_unit(span))
            || foreign.iter().any(|range| !self.parts_in(range).is_empty())
            || moved.iter().any(|span| self.inherited_foreign.iter().any(|range| span.part_in(range).is_some()));
        self.later.extend_from_slice(moved);
        self.inherited_foreign.extend(foreign);
        is_ambiguous
    }

    /// Returns `true` if other units may be where a span is.
    fn has_other_unit(&self, span: &UnitSpan) -> bool {
        self.has_other_unit_placed(span) || self.alternatives().any(|other| other.differs_from(span))
    }

    fn has_other_unit_placed(&self, span: &UnitSpan) -> bool {
        self.placed_near(&(span.start..span.end())).any(|other| other.differs_from(span))
    }

    /// Returns the spans with an address that may reach into a range of addresses.
    fn placed_near(&self, range: &Range<u64>) -> impl Iterator<Item = &UnitSpan> {
        let first = self.by_address.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
        self.by_address.range(first..range.end.max(first)).map(|(_, span)| span)
    }

    /// Forgets alternatives of units that are not wanted any more: wherever they are, their content is there. What is missing at
    /// the other addresses is not theirs.
    pub(super) fn drop_alternatives(&mut self, is_wanted: impl Fn(usize) -> bool) {
        for alternatives in [&mut self.earlier, &mut self.later] {
            alternatives.retain(|span| span.unit_range().any(&is_wanted));
        }
    }

    /// Records that no change of the process that this one was forked from is under way.
    pub(super) fn drop_inherited(&mut self, is_wanted: impl Fn(usize) -> bool) {
        self.inherited_foreign.clear();
        self.drop_alternatives(is_wanted);
    }

    /// Returns `true` if an address may have one of two units, or a unit or other memory that was moved there.
    pub(super) fn is_ambiguous(&self) -> bool {
        let mut alternatives: Vec<&UnitSpan> = self.alternatives().collect();
        alternatives.sort_unstable_by_key(|span| span.start);
        // All that reach beyond the next one's start agree with the last of them, or there would be two units already.
        let mut last: Option<&UnitSpan> = None;
        let has_two_units = alternatives.into_iter().any(|span| {
            let is_other = last.is_some_and(|last| last.differs_from(span)) || self.has_other_unit_placed(span);
            if last.is_none_or(|last| last.end() < span.end()) {
                last = Some(span);
            }
            is_other
        });
        has_two_units || self.inherited_foreign.iter().any(|range| !self.parts_in(range).is_empty())
    }

    /// Removes what an event about a range of addresses concerns: first what is displaced there, then everything that is not
    /// in one of the ranges to keep.
    fn take(&mut self, range: &Range<u64>, keep: &[Range<u64>]) -> Vec<UnitSpan> {
        let (mut taken, mut left) = (Vec::new(), vec![range.clone()]);
        for span in std::mem::take(&mut self.displaced) {
            let Some(part) = span.part_in(range) else {
                self.displaced.push(span);
                continue;
            };
            self.displaced.extend(span.parts_beside(range));
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
    fn cut(&mut self, range: &Range<u64>) -> Vec<UnitSpan> {
        let spans: Vec<UnitSpan> = self.placed_near(range).copied().collect();
        let mut cut = Vec::new();
        for span in spans {
            let Some(part) = span.part_in(range) else { continue };
            self.by_address.remove(&span.start);
            self.by_unit.remove(&span.first_unit);
            span.parts_beside(range).for_each(|span| self.insert(span));
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

/// Returns what is left of a range without the addresses of spans.
fn without_spans(range: Range<u64>, spans: &[UnitSpan]) -> Vec<Range<u64>> {
    spans.iter().fold(vec![range], |left, span| {
        left.into_iter().flat_map(|range| without(range, &(span.start..span.end()))).collect()
    })
}

#[cfg(test)]
mod tests;
