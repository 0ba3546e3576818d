//! Numbers the missing pages of a process, and groups those that follow each other in the source into runs that are restored as
//! a whole.

use std::ops::Range;

use trueno_zram_core::PAGE_SIZE;

use super::layout::{Layout, UnitSpan};
use crate::error::{Error, RegionProblem};
use crate::lazy_memory::check_region;

const PAGE: u64 = PAGE_SIZE as u64;

/// Pages of a run at most: a group of an archive, which is read and checked once.
pub(super) const RUN_PAGES: usize = trueno_zram_archive::GROUP_PAGES;

/// Memory of a process whose content comes from a source, page by page.
///
/// ```
/// use trueno_zram_restore::MemoryExtent;
/// // Three pages, whose content starts with the source's page 7.
/// let extent = MemoryExtent { address: 0x7f00_0000_0000, pages: 3, first_page: 7 };
/// # drop(extent);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryExtent {
    /// Its address, a multiple of 4096.
    pub address: u64,
    /// Its length.
    pub pages: u64,
    /// The source's page with its first content.
    pub first_page: u64,
}

/// Units that follow each other in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SourceRun {
    pub(super) units: Range<usize>,
    pub(super) first_page: u64,
}

impl SourceRun {
    /// Returns the pages of units in the source.
    pub(super) fn pages_of(&self, units: &Range<usize>) -> Range<u64> {
        let page = |unit: usize| self.first_page + (unit - self.units.start) as u64;
        page(units.start)..page(units.end)
    }

    /// Returns the unit of a page.
    pub(super) fn unit_of(&self, page: u64) -> usize {
        self.units.start + usize::try_from(page - self.first_page).expect("units are in memory")
    }
}

/// The runs of a process, in the order of the source.
#[derive(Debug)]
pub(super) struct Contents {
    pub(super) runs: Vec<SourceRun>,
    pub(super) units: usize,
}

impl Contents {
    /// Checks extents, and numbers their pages. Returns the layout of the memory at the beginning as well.
    pub(super) fn new(extents: &[MemoryExtent], content_len: u64) -> Result<(Self, Layout), Error> {
        let mut spans = Vec::with_capacity(extents.len());
        let mut contents = Self { runs: Vec::new(), units: 0 };
        let mut last_end = 0;
        for (index, extent) in extents.iter().enumerate() {
            let refuse = |problem| Error::Region { index, problem };
            let MemoryExtent { address, pages, first_page } = *extent;
            if !address.is_multiple_of(PAGE) {
                return Err(refuse(RegionProblem::Alignment { what: "address", value: address, of: PAGE }));
            }
            let [len, offset] = [pages, first_page].map(|pages| pages.saturating_mul(PAGE));
            let end = check_region(address, len, offset, content_len).map_err(refuse)?;
            if address < last_end {
                let other = index - 1;
                return Err(refuse(RegionProblem::Overlap { what: "addresses", other }));
            }
            last_end = end;
            let units = usize::try_from(pages).expect("addresses of a process");
            spans.push(UnitSpan { start: address, first_unit: contents.units, units });
            contents.push(first_page, units);
        }
        Ok((contents, Layout::new(spans)))
    }

    /// Adds units, which may continue the last run.
    fn push(&mut self, mut first_page: u64, mut units: usize) {
        while units > 0 {
            let room = RUN_PAGES - usize::try_from(first_page % RUN_PAGES as u64).expect("small");
            let part = units.min(room);
            match self.runs.last_mut() {
                Some(run) if room < RUN_PAGES && run.first_page + run.units.len() as u64 == first_page => {
                    run.units.end += part;
                }
                _ => self.runs.push(SourceRun { units: self.units..self.units + part, first_page }),
            }
            self.units += part;
            units -= part;
            first_page += part as u64;
        }
    }

    /// Returns the number of a unit's run.
    pub(super) fn run_of(&self, unit: usize) -> usize {
        self.runs.partition_point(|run| run.units.end <= unit)
    }

    /// Returns the units of pages of the source. A page may belong to several.
    pub(super) fn units_of_pages(&self, pages: &Range<u64>) -> impl Iterator<Item = Range<usize>> + use<'_> {
        let pages = pages.clone();
        self.runs.iter().filter_map(move |run| {
            let of_run = run.pages_of(&run.units);
            let (start, end) = (pages.start.max(of_run.start), pages.end.min(of_run.end));
            (start < end).then(|| run.unit_of(start)..run.unit_of(end))
        })
    }

    /// Returns the page of a unit in the source.
    pub(super) fn page_of(&self, unit: usize) -> u64 {
        self.runs[self.run_of(unit)].pages_of(&(unit..unit)).start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_follow_each_other_make_runs_of_one_group() {
        let extents = [
            MemoryExtent { address: 0x1000, pages: 1000, first_page: 5 },
            MemoryExtent { address: 0x1000_0000, pages: 30, first_page: 1005 },
            MemoryExtent { address: 0x2000_0000, pages: 2, first_page: 1040 },
            MemoryExtent { address: 0x3000_0000, pages: 1500, first_page: 2048 },
        ];
        let (contents, layout) = Contents::new(&extents, 5000 * PAGE).unwrap();
        let runs: Vec<_> = contents.runs.iter().map(|run| (run.units.clone(), run.first_page)).collect();
        let expected = [(0..1019, 5), (1019..1030, 1024), (1030..1032, 1040), (1032..2056, 2048), (2056..2532, 3072)];
        assert_eq!((runs, contents.units), (expected.to_vec(), 2532));
        assert_eq!([0x1000_0000, 0x3000_0000].map(|address| layout.find(address)), [Some(1000), Some(1032)]);
        assert_eq!((contents.runs[1].pages_of(&(1020..1025)), contents.runs[1].unit_of(1030)), (1025..1030, 1025));
        let of_pages = |pages| contents.units_of_pages(&pages).collect::<Vec<_>>();
        assert_eq!(of_pages(1020..1050), [1015..1019, 1019..1030, 1030..1032]);
        assert_eq!([0..6, 3547..3549].map(of_pages).concat(), [0..1, 2531..2532]);
        assert!(of_pages(1036..1040).is_empty());
        assert_eq!([1018, 1019, 1031, 2531].map(|unit| contents.page_of(unit)), [1023, 1024, 1041, 3547]);
    }

    #[test]
    fn extents_that_make_no_sense_are_refused() {
        let problem = |extents: &[MemoryExtent]| match Contents::new(extents, 10 * PAGE) {
            Err(Error::Region { index, problem }) => (index, problem),
            other => panic!("{other:?}"),
        };
        let extent = |address, pages, first_page| MemoryExtent { address, pages, first_page };
        let alignment = RegionProblem::Alignment { what: "address", value: 5, of: PAGE };
        assert_eq!(problem(&[extent(5, 1, 0)]), (0, alignment));
        assert_eq!(problem(&[extent(0, 0, 0)]), (0, RegionProblem::Empty));
        assert_eq!(problem(&[extent(PAGE, u64::MAX, 0)]), (0, RegionProblem::AddressRange));
        assert_eq!(problem(&[extent(!(PAGE - 1), 1, 0)]), (0, RegionProblem::AddressRange));
        let beyond = RegionProblem::BeyondArchive { end: 11 * PAGE, content_len: 10 * PAGE };
        assert_eq!(problem(&[extent(0, 1, 0), extent(PAGE, 2, 9)]), (1, beyond));
        let overlap = RegionProblem::Overlap { what: "addresses", other: 0 };
        assert_eq!(problem(&[extent(0, 2, 0), extent(PAGE, 1, 2)]), (1, overlap));
    }
}
