//! Guest memory regions: from the VMM's message to addresses and pages that are known to be sound.

use std::ops::Range;

use serde::Deserialize;
use trueno_zram_core::PAGE_SIZE;

use crate::error::{Error, RegionProblem};
use crate::lazy_memory::check_region;

const PAGE: u64 = PAGE_SIZE as u64;
/// The largest pages that Firecracker uses. Each thread has a buffer of this size.
const MAX_PAGE_SIZE: u64 = 2 << 20;

/// A region as Firecracker describes it. Other keys are ignored.
#[derive(Clone, Debug, Deserialize)]
struct RegionDescription {
    base_host_virt_addr: u64,
    size: u64,
    offset: u64,
    page_size: Option<u64>,
    /// Despite its name in bytes. The only one before Firecracker 1.12, to be removed in 2.0.
    page_size_kib: Option<u64>,
}

/// A range of the VMM's memory and where its content is.
///
/// A **unit** is what the kernel fills at once: a page of the region's page size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) start: u64,
    pub(crate) len: u64,
    /// The first 4 KiB page of the content.
    pub(crate) first_page: u64,
    pub(crate) unit_len: u64,
    /// Number of the region's first unit, counted over all regions.
    pub(crate) first_unit: usize,
}

impl Region {
    pub(crate) fn units(&self) -> Range<usize> {
        self.first_unit..self.first_unit + index(self.len / self.unit_len)
    }

    pub(crate) fn address_of(&self, unit: usize) -> u64 {
        self.start + (unit - self.first_unit) as u64 * self.unit_len
    }

    /// Returns the first 4 KiB page of a unit.
    pub(crate) fn page_of(&self, unit: usize) -> u64 {
        self.first_page + ((unit - self.first_unit) * self.pages_per_unit()) as u64
    }

    /// Returns the unit of a 4 KiB page.
    pub(crate) fn unit_of(&self, page: u64) -> usize {
        self.first_unit + index(page - self.first_page) / self.pages_per_unit()
    }

    /// Returns the number of 4 KiB pages of a unit.
    pub(crate) fn pages_per_unit(&self) -> usize {
        index(self.unit_len / PAGE)
    }

    pub(crate) fn is_huge(&self) -> bool {
        self.unit_len > PAGE
    }

    fn end(&self) -> u64 {
        self.start + self.len
    }
}

/// All regions of a VM, by address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Regions {
    regions: Vec<Region>,
}

impl Regions {
    /// Parses and checks a message.
    pub(crate) fn parse(message: &[u8], content_len: u64) -> Result<Self, Error> {
        let described: Vec<RegionDescription> = serde_json::from_slice(message).map_err(Error::Message)?;
        if described.is_empty() {
            return Err(Error::NoRegions);
        }
        let checked = described.iter().enumerate().map(|(index, described)| {
            let region = check(described, content_len).map_err(|problem| Error::Region { index, problem })?;
            Ok((index, region))
        });
        let mut regions = checked.collect::<Result<Vec<_>, Error>>()?;
        regions.sort_by_key(|(_, region)| region.first_page);
        no_overlap(&regions, "contents", |region| region.first_page..region.first_page + region.len / PAGE)?;
        regions.sort_by_key(|(_, region)| region.start);
        no_overlap(&regions, "addresses", |region| region.start..region.end())?;
        let mut regions: Vec<Region> = regions.into_iter().map(|(_, region)| region).collect();
        let mut units = 0;
        for region in &mut regions {
            region.first_unit = units;
            units = region.units().end;
        }
        Ok(Self { regions })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Region> {
        self.regions.iter()
    }

    /// Returns the number of units in all regions.
    pub(crate) fn unit_count(&self) -> usize {
        self.regions.last().map_or(0, |region| region.units().end)
    }

    /// Returns the length of all regions in bytes.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.regions.iter().map(|region| region.len).sum()
    }

    /// Finds the region and the unit of an address.
    pub(crate) fn find(&self, address: u64) -> Option<(&Region, usize)> {
        let after = self.regions.partition_point(|region| region.start <= address);
        let region = self.regions[..after].last().filter(|region| address < region.end())?;
        Some((region, region.first_unit + index((address - region.start) / region.unit_len)))
    }

    /// Finds the region of a unit.
    pub(crate) fn of_unit(&self, unit: usize) -> Option<&Region> {
        self.regions.iter().find(|region| region.units().contains(&unit))
    }

    /// Finds the region and the unit of a page of the content.
    pub(crate) fn find_page(&self, page: u64) -> Option<(&Region, usize)> {
        let region = self
            .regions
            .iter()
            .find(|region| (region.first_page..region.first_page + region.len / PAGE).contains(&page))?;
        Some((region, region.unit_of(page)))
    }

    /// Returns the units of each region that have pages of a range, as a whole or in part.
    pub(crate) fn units_of_pages(&self, pages: &Range<u64>) -> impl Iterator<Item = (&Region, Range<usize>)> + use<'_> {
        let pages = pages.clone();
        self.regions.iter().filter_map(move |region| {
            let (start, end) =
                (pages.start.max(region.first_page), pages.end.min(region.first_page + region.len / PAGE));
            (start < end).then(|| (region, region.unit_of(start)..region.unit_of(end - 1) + 1))
        })
    }

    /// Returns the units of each region that lie in a range of addresses, as a whole or in part.
    pub(crate) fn units_in(&self, addresses: Range<u64>) -> impl Iterator<Item = (&Region, Range<usize>)> {
        self.regions.iter().filter_map(move |region| {
            let (start, end) = (addresses.start.max(region.start), addresses.end.min(region.end()));
            (start < end).then(|| {
                let unit = |bytes: u64| region.first_unit + index(bytes);
                let first = unit((start - region.start) / region.unit_len);
                (region, first..unit((end - region.start).div_ceil(region.unit_len)))
            })
        })
    }
}

/// A count of units or pages in memory that is mapped.
fn index(count: u64) -> usize {
    usize::try_from(count).expect("regions are in the address space")
}

fn check(described: &RegionDescription, content_len: u64) -> Result<Region, RegionProblem> {
    let RegionDescription { base_host_virt_addr: start, size: len, offset, .. } = *described;
    let unit_len = page_size(described)?;
    for (what, value, of) in
        [("base_host_virt_addr", start, unit_len), ("size", len, unit_len), ("offset", offset, PAGE)]
    {
        if !value.is_multiple_of(of) {
            return Err(RegionProblem::Alignment { what, value, of });
        }
    }
    check_region(start, len, offset, content_len)?;
    Ok(Region { start, len, first_page: offset / PAGE, unit_len, first_unit: 0 })
}

/// Returns the page size in bytes: 4 KiB if the VMM states none, as Firecracker before 1.7.
fn page_size(described: &RegionDescription) -> Result<u64, RegionProblem> {
    // Below a page it can only be what the name says.
    let kib = |value: u64| if value < PAGE { value * 1024 } else { value };
    let size = match (described.page_size, described.page_size_kib) {
        (Some(page_size), Some(page_size_kib)) if page_size != kib(page_size_kib) => {
            return Err(RegionProblem::PageSizes { page_size, page_size_kib });
        }
        (Some(size), _) => size,
        (None, Some(size)) => kib(size),
        (None, None) => PAGE,
    };
    if size.is_power_of_two() && (PAGE..=MAX_PAGE_SIZE).contains(&size) {
        Ok(size)
    } else {
        Err(RegionProblem::PageSize(size))
    }
}

/// Checks that ranges in ascending order do not overlap.
fn no_overlap(
    regions: &[(usize, Region)],
    what: &'static str,
    range: impl Fn(&Region) -> Range<u64>,
) -> Result<(), Error> {
    for pair in regions.windows(2) {
        let [(other, before), (index, after)] = pair else { continue };
        if range(after).start < range(before).end {
            return Err(Error::Region { index: *index, problem: RegionProblem::Overlap { what, other: *other } });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTENT: u64 = 64 << 20;

    fn problem(message: &str) -> RegionProblem {
        match Regions::parse(message.as_bytes(), CONTENT) {
            Err(Error::Region { problem, .. }) => problem,
            other => panic!("{message}: {other:?}"),
        }
    }

    fn one(address: u64, size: u64, offset: u64, rest: &str) -> String {
        format!(r#"[{{"base_host_virt_addr":{address},"size":{size},"offset":{offset}{rest}}}]"#)
    }

    #[test]
    fn firecrackers_message_of_two_regions_is_read() {
        let message = br#"[{"base_host_virt_addr":140187164012544,"size":8388608,"offset":0,"page_size":4096,"page_size_kib":4096},
            {"base_host_virt_addr":140185014632448,"size":4194304,"offset":8388608,"page_size":2097152,"page_size_kib":2097152}]"#;
        let regions = Regions::parse(message, CONTENT).unwrap();
        let found: Vec<_> = regions.iter().copied().collect();
        let (low, high) = (140_185_014_632_448, 140_187_164_012_544);
        assert_eq!(
            found,
            [
                Region { start: low, len: 4 << 20, first_page: 2048, unit_len: 2 << 20, first_unit: 0 },
                Region { start: high, len: 8 << 20, first_page: 0, unit_len: 4096, first_unit: 2 },
            ]
        );
        assert_eq!((regions.unit_count(), regions.len_bytes()), (2050, 12 << 20));
        assert_eq!(regions.find(low - 1), None);
        assert_eq!(regions.find(low + (4 << 20)), None);
        assert_eq!(regions.find(low + (2 << 20)).unwrap().1, 1);
        assert_eq!(regions.find(high + 8192 + 7).unwrap().1, 4);
        assert_eq!(regions.find_page(2).unwrap().1, 4);
        assert_eq!(regions.find_page(2048 + 512).unwrap().1, 1);
        assert_eq!(regions.find_page(4096), None);
        let of_pages = |pages| regions.units_of_pages(&pages).map(|(_, units)| units).collect::<Vec<_>>();
        assert_eq!(of_pages(2047..2561), [0..2, 2049..2050]);
        assert_eq!(of_pages(0..4096), [0..2, 2..2050]);
        assert_eq!(of_pages(10..12), vec![12..14]);
        assert!(of_pages(4096..9000).is_empty());
        let across: Vec<_> = regions.units_in(low + 5..high + 4097).map(|(_, units)| units).collect();
        assert_eq!(across, [0..2, 2..4]);
    }

    #[test]
    fn the_page_size_may_have_either_name_or_none() {
        for (rest, unit_len) in [
            ("", 4096),
            (r#","page_size":2097152"#, 2 << 20),
            (r#","page_size_kib":2097152"#, 2 << 20),
            (r#","page_size_kib":2048"#, 2 << 20),
            (r#","page_size_kib":4,"page_size":4096"#, 4096),
            (r#","something_new":{}"#, 4096),
        ] {
            let regions = Regions::parse(one(2 << 20, 4 << 20, 0, rest).as_bytes(), CONTENT).unwrap();
            assert_eq!(regions.iter().next().unwrap().unit_len, unit_len, "{rest}");
        }
    }

    #[test]
    fn every_contradiction_has_its_error() {
        use RegionProblem::*;
        assert_eq!(problem(&one(4097, 4096, 0, "")), Alignment { what: "base_host_virt_addr", value: 4097, of: 4096 });
        assert_eq!(problem(&one(4096, 4095, 0, "")), Alignment { what: "size", value: 4095, of: 4096 });
        assert_eq!(problem(&one(4096, 4096, 1, "")), Alignment { what: "offset", value: 1, of: 4096 });
        let huge = r#","page_size":2097152"#;
        assert_eq!(problem(&one(2 << 20, 4096, 0, huge)), Alignment { what: "size", value: 4096, of: 2 << 20 });
        assert_eq!(problem(&one(4096, 0, 0, "")), Empty);
        assert_eq!(problem(&one(u64::MAX - 4095, 8192, 0, "")), AddressRange);
        let beyond = BeyondArchive { end: CONTENT + 4096, content_len: CONTENT };
        assert_eq!(problem(&one(4096, 4096, CONTENT, "")), beyond);
        let last = !4095;
        assert_eq!(problem(&one(4096, 4096, last, "")), BeyondArchive { end: u64::MAX, content_len: CONTENT });
        for size in [0, 1, 4095, 12288, 4 << 20, u64::MAX] {
            assert_eq!(problem(&one(4096, 4096, 0, &format!(r#","page_size":{size}"#))), PageSize(size));
        }
        assert_eq!(
            problem(&one(4096, 4096, 0, r#","page_size":4096,"page_size_kib":8"#)),
            PageSizes { page_size: 4096, page_size_kib: 8 }
        );
    }

    #[test]
    fn regions_that_share_addresses_or_content_are_refused() {
        let two = |address: u64, offset: u64| {
            format!(
                r#"[{{"base_host_virt_addr":8192,"size":8192,"offset":8192}},
                   {{"base_host_virt_addr":{address},"size":8192,"offset":{offset}}}]"#
            )
        };
        assert!(Regions::parse(two(16384, 16384).as_bytes(), CONTENT).is_ok());
        assert_eq!(problem(&two(12288, 16384)), RegionProblem::Overlap { what: "addresses", other: 0 });
        assert_eq!(problem(&two(16384, 12288)), RegionProblem::Overlap { what: "contents", other: 0 });
    }

    #[test]
    fn other_messages_are_refused() {
        assert!(matches!(Regions::parse(b"[]", CONTENT), Err(Error::NoRegions)));
        for message in ["", "{}", "[1]", r#"[{"size":1}]"#, "[{}", "\u{0}", &one(4096, 4096, 0, "}"), "[-1]"] {
            assert!(matches!(Regions::parse(message.as_bytes(), CONTENT), Err(Error::Message(_))), "{message}");
        }
    }
}
