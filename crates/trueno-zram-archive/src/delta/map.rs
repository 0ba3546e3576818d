//! The map of a delta: the origin and the hash of every page of a group, in memory and in the file.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::hashes::page_hash::{PAGE_HASH_LEN, PageHash};
use crate::index::layout::GROUP_PAGES;
use crate::varint;

use super::layout::{MAX_GROUP_LEN, MapRecord, Version};

/// The kinds of runs, as the file has them.
const ZERO: u64 = 0;
const BASE: u64 = 1;
const STORED: u64 = 2;

/// The origin of a page of a delta.
///
/// ```
/// use trueno_zram_archive::PageOrigin;
/// assert_ne!(PageOrigin::Base(7), PageOrigin::Stored(7));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageOrigin {
    /// It is zero.
    Zero,
    /// It is the page of this number in the base.
    Base(u64),
    /// It is the page of this number among those that the delta stores.
    Stored(u64),
}

impl PageOrigin {
    /// Returns the origin of the page this many pages further on.
    fn after(self, pages: u16) -> Self {
        match self {
            Self::Zero => Self::Zero,
            Self::Base(page) => Self::Base(page + u64::from(pages)),
            Self::Stored(page) => Self::Stored(page + u64::from(pages)),
        }
    }
}

/// Consecutive pages whose origins are consecutive pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OriginRun {
    /// The first page, counted from the group's first.
    first: u16,
    /// The origin of that page.
    origin: PageOrigin,
    /// The number of pages before it in the group that have a hash.
    hashed: u16,
}

/// The number of pages that origins may refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) base_pages: u64,
    pub(crate) stored_pages: u64,
    /// The stored pages that the group names first. In version 2, they have the hashes of the group.
    pub(crate) new_pages: Option<NewPages>,
}

/// Stored pages that a group names first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NewPages {
    pub(crate) first: u64,
    pub(crate) count: u32,
}

/// The pages of a group.
#[derive(Debug)]
pub(crate) struct MapGroup {
    runs: Box<[OriginRun]>,
    hashes: Box<[PageHash]>,
    pages: u16,
    /// The hashes are those of stored pages, from `first_new` on, and not those of all pages that are not zero.
    is_of_stored: bool,
    first_new: u32,
}

impl MapGroup {
    /// Decodes the pages of a group, which starts with page `first_page` and has `pages`. A group of zeros has no bytes.
    pub(crate) fn decode(bytes: &[u8], first_page: u64, pages: u16, bounds: Bounds) -> Result<Self> {
        let bad = |what: &str| Error::delta(format!("the map of pages {first_page} and on {what}"));
        let first_new = bounds.new_pages.map(|new| new.first);
        let (mut rest, mut next, mut hashed, mut runs) = (bytes, 0u16, 0u16, Vec::new());
        let mut next_new = first_new.unwrap_or(bounds.stored_pages);
        if bytes.is_empty() {
            next = pages;
        }
        while next < pages {
            let head = varint::take(&mut rest).map_err(|_| bad("is cut short"))?;
            let count = u16::try_from(head >> 2).ok().filter(|count| (1..=pages - next).contains(count));
            let count = count.ok_or_else(|| bad("has a run of a wrong length"))?;
            let own_page = first_page + u64::from(next);
            let mut operand = || varint::take(&mut rest).map_err(|_| bad("is cut short"));
            let origin = match head & 3 {
                ZERO => PageOrigin::Zero,
                BASE => {
                    let page = own_page.checked_add_signed(varint::unzigzag(operand()?));
                    let page = page.filter(|page| within(*page, count, bounds.base_pages));
                    PageOrigin::Base(page.ok_or_else(|| bad("names pages that the base does not have"))?)
                }
                STORED => {
                    let page = Some(operand()?).filter(|page| within(*page, count, bounds.stored_pages));
                    let page = page.ok_or_else(|| bad("names pages that are not stored"))?;
                    if page > next_new {
                        return Err(bad("names stored pages out of their order"));
                    }
                    next_new = next_new.max(page + u64::from(count));
                    PageOrigin::Stored(page)
                }
                _ => return Err(bad("has a run of an unknown kind")),
            };
            runs.push(OriginRun { first: next, origin, hashed });
            next += count;
            hashed += if origin == PageOrigin::Zero { 0 } else { count };
        }
        let (hashes, after) = rest.as_chunks::<PAGE_HASH_LEN>();
        let expected = match bounds.new_pages {
            None => u64::from(hashed),
            Some(new) if next_new == new.first + u64::from(new.count) => u64::from(new.count),
            Some(_) => return Err(bad("names another number of new pages than the table")),
        };
        if hashes.len() as u64 != expected || !after.is_empty() {
            return Err(bad("does not have a hash for every page"));
        }
        let hashes = hashes.iter().map(|hash| PageHash::from_bytes(*hash)).collect();
        let is_of_stored = first_new.is_some();
        let first_new = u32::try_from(first_new.unwrap_or(0)).map_err(|_| bad("names too many pages"))?;
        Ok(Self { runs: runs.into(), hashes, pages, is_of_stored, first_new })
    }

    /// Returns the origin of a page by its number in the group, and its hash if the group has it.
    pub(crate) fn find(&self, page: u16) -> (PageOrigin, Option<PageHash>) {
        let after = self.runs.partition_point(|run| run.first <= page);
        let Some(run) = after.checked_sub(1).and_then(|run| self.runs.get(run)) else {
            return (PageOrigin::Zero, None);
        };
        if run.origin == PageOrigin::Zero {
            return (PageOrigin::Zero, None);
        }
        let step = page - run.first;
        let origin = run.origin.after(step);
        let hash = match (self.is_of_stored, origin) {
            (false, _) => self.hashes.get(usize::from(run.hashed + step)).copied(),
            (true, PageOrigin::Stored(page)) => self.new_hash(page),
            (true, _) => None,
        };
        (origin, hash)
    }

    /// Returns the hash of a stored page that the group names first.
    pub(crate) fn new_hash(&self, stored: u64) -> Option<PageHash> {
        let index = stored.checked_sub(self.first_new.into()).filter(|_| self.is_of_stored)?;
        self.hashes.get(usize::try_from(index).ok()?).copied()
    }

    /// Returns the number of zero pages from a page of the group on.
    pub(crate) fn zero_run(&self, page: u16) -> u16 {
        let after = self.runs.partition_point(|run| run.first <= page);
        let is_zero = |run: &OriginRun| run.origin == PageOrigin::Zero;
        if after.checked_sub(1).and_then(|run| self.runs.get(run)).is_some_and(|run| !is_zero(run)) {
            return 0;
        }
        let end = self.runs[after..].iter().find(|run| !is_zero(run)).map_or(self.pages, |run| run.first);
        end - page
    }

    /// Returns all pages of the group in order.
    pub(crate) fn pages(&self) -> impl Iterator<Item = (PageOrigin, Option<PageHash>)> {
        (0..self.pages).map(|page| self.find(page))
    }
}

fn within(first: u64, count: u16, pages: u64) -> bool {
    first.checked_add(u64::from(count)).is_some_and(|end| end <= pages)
}

/// The number of pages of a delta by origin.
///
/// ```
/// # use std::sync::Arc;
/// # use trueno_zram_archive::{Delta, DeltaPart, DeltaWriter, PageArchive, PageHash, Pages, WriteOptions, compress};
/// # let mut bytes = Vec::new();
/// # compress(&[7; 8 * 4096][..], &mut bytes, &WriteOptions::default())?;
/// # let base = PageArchive::standard(Arc::new(bytes))?.expect("it has an index");
/// # let mut writer = DeltaWriter::new(Vec::new(), base.record(b"monday.lz4")?, WriteOptions::default())?;
/// # let mut part = DeltaPart::new();
/// # part.start(writer.block_shape());
/// # part.push_base(3, PageHash::of(&[7; 4096]));
/// # part.push_zeros(1);
/// # writer.push(&mut part)?;
/// # let file = Arc::new(writer.finish(2 * 4096)?.0);
/// let counts = Delta::open(file, |_| Ok(base))?.expect("it is a delta").origin_counts();
/// assert_eq!((counts.zero, counts.base, counts.stored), (1, 1, 0));
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OriginCounts {
    /// Zero pages.
    pub zero: u64,
    /// Pages that the base has.
    pub base: u64,
    /// Pages that are stored, copies included.
    pub stored: u64,
}

impl OriginCounts {
    pub(crate) fn add(&mut self, origin: PageOrigin, pages: u64) {
        *match origin {
            PageOrigin::Zero => &mut self.zero,
            PageOrigin::Base(_) => &mut self.base,
            PageOrigin::Stored(_) => &mut self.stored,
        } += pages;
    }

    /// Returns the number of pages; `None` if that is more than a number can hold.
    pub(crate) fn pages(&self) -> Option<u64> {
        self.zero.checked_add(self.base)?.checked_add(self.stored)
    }
}

/// The maps of all groups, as they are stored in the file. In version 2, hashes are added when they are written.
#[derive(Debug)]
pub(crate) struct MapBuilder {
    version: Version,
    bytes: Vec<u8>,
    /// The lengths of complete groups, and the numbers of stored pages that they name first.
    groups: Vec<(u32, u32)>,
    counts: OriginCounts,
    /// Runs of the group that is not complete, and its hashes.
    runs: Vec<(PageOrigin, u16)>,
    hashes: Vec<u8>,
    in_group: u16,
    pages: u64,
    /// Stored pages that were named, and those before the group that is not complete.
    named: u64,
    named_before: u64,
}

impl MapBuilder {
    pub(crate) fn new(version: Version) -> Self {
        Self {
            version,
            bytes: Vec::new(),
            groups: Vec::new(),
            counts: OriginCounts::default(),
            runs: Vec::new(),
            hashes: Vec::new(),
            in_group: 0,
            pages: 0,
            named: 0,
            named_before: 0,
        }
    }

    pub(crate) fn counts(&self) -> OriginCounts {
        self.counts
    }

    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// Adds zero pages.
    pub(crate) fn push_zeros(&mut self, pages: u64) {
        let mut left = pages;
        while left > 0 {
            let room = u64::from(group_pages() - self.in_group);
            let now = u16::try_from(left.min(room)).expect("at most a group");
            self.push_run(PageOrigin::Zero, now);
            left -= u64::from(now);
        }
    }

    /// Adds pages that are not zero, by their hashes. The first one comes from `origin`, and the others follow it there.
    pub(crate) fn push_pages(&mut self, origin: PageOrigin, hashes: &[[u8; PAGE_HASH_LEN]]) {
        let (mut origin, mut rest) = (origin, hashes);
        while !rest.is_empty() {
            let room = usize::from(group_pages() - self.in_group);
            let (now, after) = rest.split_at(rest.len().min(room));
            if self.version == Version::One {
                self.hashes.extend_from_slice(now.as_flattened());
            }
            let pages = u16::try_from(now.len()).expect("at most a group");
            self.push_run(origin, pages);
            (origin, rest) = (origin.after(pages), after);
        }
    }

    fn push_run(&mut self, origin: PageOrigin, pages: u16) {
        match self.runs.last_mut() {
            Some((first, count)) if first.after(*count) == origin => *count += pages,
            _ => self.runs.push((origin, pages)),
        }
        if let PageOrigin::Stored(first) = origin {
            self.named = self.named.max(first + u64::from(pages));
        }
        self.counts.add(origin, u64::from(pages));
        self.in_group += pages;
        self.pages += u64::from(pages);
        if self.in_group == group_pages() {
            self.end_group();
        }
    }

    fn end_group(&mut self) {
        let start = self.bytes.len();
        // A group of zeros takes no bytes.
        if self.runs.iter().any(|(origin, _)| *origin != PageOrigin::Zero) {
            let mut own_page = self.pages - u64::from(self.in_group);
            for (origin, count) in self.runs.drain(..) {
                let count = u64::from(count);
                match origin {
                    PageOrigin::Zero => varint::put(count << 2 | ZERO, &mut self.bytes),
                    PageOrigin::Base(page) => {
                        varint::put(count << 2 | BASE, &mut self.bytes);
                        let step = page.wrapping_sub(own_page).cast_signed();
                        varint::put(varint::zigzag(step), &mut self.bytes);
                    }
                    PageOrigin::Stored(page) => {
                        varint::put(count << 2 | STORED, &mut self.bytes);
                        varint::put(page, &mut self.bytes);
                    }
                }
                own_page += count;
            }
            self.bytes.append(&mut self.hashes);
        }
        self.runs.clear();
        self.in_group = 0;
        let short = |len: u64| u32::try_from(len).expect("a group is short");
        self.groups.push((short((self.bytes.len() - start) as u64), short(self.named - self.named_before)));
        self.named_before = self.named;
    }

    /// Ends the last group, and hands the map of each group to `write`. Returns the table, and the length of all maps.
    /// `put_hashes` appends the hashes of a range of stored pages, for version 2.
    pub(crate) fn finish(
        mut self,
        put_hashes: impl Fn(Range<u64>, &mut Vec<u8>),
        mut write: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<(Vec<u8>, u64)> {
        if self.in_group > 0 {
            self.end_group();
        }
        let (mut rest, mut named, mut len_bytes) = (&self.bytes[..], 0, 0);
        let (mut table, mut with_hashes) = (Vec::new(), Vec::new());
        for (len, new_pages) in self.groups {
            let runs = rest.split_off(..len as usize).expect("as long as all groups");
            let group = match self.version {
                Version::One => runs,
                Version::Two => {
                    with_hashes.clear();
                    with_hashes.extend_from_slice(runs);
                    let end = named + u64::from(new_pages);
                    put_hashes(named..end, &mut with_hashes);
                    named = end;
                    &with_hashes[..]
                }
            };
            debug_assert!(group.len() <= MAX_GROUP_LEN);
            write(group)?;
            MapRecord::of(group, new_pages, self.version).encode(&mut table);
            len_bytes += group.len() as u64;
        }
        Ok((table, len_bytes))
    }
}

fn group_pages() -> u16 {
    u16::try_from(GROUP_PAGES).expect("1,024")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delta::layout::MapSeal;
    use trueno_test_pages::generate::Generator;

    const BOUNDS: Bounds = Bounds { base_pages: 3000, stored_pages: 500, new_pages: None };

    /// A map in version 1: the bytes of all groups, and their records.
    fn finish(map: MapBuilder) -> (Vec<u8>, Vec<MapRecord>) {
        let (version, mut bytes) = (map.version, Vec::new());
        let put_hashes = |pages: Range<u64>, out: &mut Vec<u8>| {
            pages.for_each(|page| out.extend(PageHash::of(&stored_page(page)).as_bytes()));
        };
        let written = map.finish(put_hashes, |group| {
            bytes.extend_from_slice(group);
            Ok(())
        });
        let (table, len_bytes) = written.unwrap();
        assert_eq!(len_bytes, bytes.len() as u64);
        let records = table.chunks_exact(version.record_len());
        (bytes, records.map(|record| MapRecord::decode(record, version)).collect())
    }

    fn stored_page(number: u64) -> [u8; 4096] {
        let mut page = [7; 4096];
        page[..8].copy_from_slice(&number.to_le_bytes());
        page
    }

    fn some_pages(random: &mut Generator, count: usize) -> Vec<(PageOrigin, Option<PageHash>)> {
        let mut pages: Vec<(PageOrigin, Option<PageHash>)> = Vec::new();
        for _ in 0..count {
            let hash = PageHash::of(&[random.byte(); 4096]);
            let origin = match (random.below(6), pages.last()) {
                (0, _) => PageOrigin::Zero,
                (1, _) => PageOrigin::Base(random.below(3000) as u64),
                (2, _) => PageOrigin::Stored(random.below(500) as u64),
                (_, Some((PageOrigin::Base(page), _))) if page + 1 < 3000 => PageOrigin::Base(page + 1),
                (_, Some((PageOrigin::Stored(page), _))) if page + 1 < 500 => PageOrigin::Stored(page + 1),
                _ => PageOrigin::Zero,
            };
            pages.push((origin, (origin != PageOrigin::Zero).then_some(hash)));
        }
        pages
    }

    #[test]
    fn groups_read_back_and_every_cut_is_an_error() {
        let mut random = Generator::new(11);
        for count in [1, 5, 1023, 1024, 1025, 3000] {
            let pages = some_pages(&mut random, count);
            let (mut map, mut by_runs) = (MapBuilder::new(Version::One), MapBuilder::new(Version::One));
            for (origin, hash) in &pages {
                match hash {
                    Some(hash) => map.push_pages(*origin, &[*hash.as_bytes()]),
                    None => map.push_zeros(1),
                }
            }
            for run in pages.chunk_by(|(one, _), (next, _)| one.after(1) == *next) {
                let hashes: Vec<_> = run.iter().filter_map(|(_, hash)| hash.map(|hash| *hash.as_bytes())).collect();
                match run[0].0 {
                    PageOrigin::Zero => by_runs.push_zeros(run.len() as u64),
                    origin => by_runs.push_pages(origin, &hashes),
                }
            }
            assert_eq!((by_runs.pages(), by_runs.counts()), (map.pages(), map.counts()));
            let (bytes, records) = finish(map);
            assert_eq!(finish(by_runs), (bytes.clone(), records.clone()));
            let (mut at, mut found) = (0, Vec::new());
            for (number, record) in records.iter().enumerate() {
                let first_page = number * GROUP_PAGES;
                let in_group = u16::try_from((count - first_page).min(GROUP_PAGES)).unwrap();
                let group = &bytes[at..][..record.len_bytes as usize];
                assert!(record.seal.is_of(group));
                let decode = |bytes: &[u8]| MapGroup::decode(bytes, first_page as u64, in_group, BOUNDS);
                found.extend(decode(group).unwrap().pages());
                for len in 1..group.len().min(300) {
                    assert!(decode(&group[..len]).is_err(), "{len} bytes");
                }
                at += group.len();
            }
            assert_eq!(found, pages);
        }
    }

    #[test]
    fn groups_of_zeros_take_no_bytes() {
        for version in [Version::One, Version::Two] {
            let mut map = MapBuilder::new(version);
            map.push_zeros(5000);
            let (bytes, records) = finish(map);
            assert_eq!((bytes.len(), records.len()), (0, 5));
        }
    }

    /// Pages of version 2: zeros, those of the base, new ones, and copies of those before.
    fn pages_of_version_2(random: &mut Generator, count: usize) -> Vec<PageOrigin> {
        let (mut pages, mut named) = (Vec::new(), 0);
        for _ in 0..count {
            let origin = match (random.below(8), pages.last()) {
                (0, _) => PageOrigin::Zero,
                (1, _) => PageOrigin::Base(random.below(3000) as u64),
                (2, _) if named > 0 => PageOrigin::Stored(random.below(usize::try_from(named).unwrap()) as u64),
                // Copies that follow each other, and then perhaps new pages.
                (3 | 4, Some(PageOrigin::Stored(page))) => PageOrigin::Stored(page + 1),
                _ => PageOrigin::Stored(named),
            };
            if let PageOrigin::Stored(page) = origin {
                named = named.max(page + 1);
            }
            pages.push(origin);
        }
        pages
    }

    #[test]
    fn groups_of_version_2_have_the_hashes_of_new_pages_only() {
        let mut random = Generator::new(12);
        for count in [1, 5, 1023, 1024, 1025, 5000] {
            let pages = pages_of_version_2(&mut random, count);
            let mut map = MapBuilder::new(Version::Two);
            for origin in &pages {
                match origin {
                    PageOrigin::Zero => map.push_zeros(1),
                    origin => map.push_pages(*origin, &[[0xee; PAGE_HASH_LEN]]),
                }
            }
            let (bytes, records) = finish(map);
            let (mut at, mut named, mut found) = (0, 0, Vec::new());
            for (number, record) in records.iter().enumerate() {
                let first_page = number * GROUP_PAGES;
                let in_group = u16::try_from((count - first_page).min(GROUP_PAGES)).unwrap();
                let group = &bytes[at..][..record.len_bytes as usize];
                assert!(record.seal.is_of(group));
                let decode = |bytes: &[u8], first, count| {
                    let bounds = Bounds { new_pages: Some(NewPages { first, count }), stored_pages: 5000, ..BOUNDS };
                    MapGroup::decode(bytes, first_page as u64, in_group, bounds)
                };
                let MapSeal::Hash { new_pages, .. } = record.seal else { panic!("version 2") };
                let decoded = decode(group, named, new_pages).unwrap();
                for (origin, hash) in decoded.pages() {
                    found.push(origin);
                    let of_stored = |page: u64| (page >= named).then(|| PageHash::of(&stored_page(page)));
                    assert_eq!(hash, if let PageOrigin::Stored(page) = origin { of_stored(page) } else { None });
                }
                for len in 1..group.len().min(300) {
                    assert!(decode(&group[..len], named, new_pages).is_err(), "{len} bytes");
                }
                assert!(decode(group, named, new_pages + 1).is_err());
                assert!(new_pages == 0 || decode(group, named, new_pages - 1).is_err());
                assert!(new_pages == 0 || named == 0 || decode(group, named - 1, new_pages).is_err());
                at += group.len();
                named += u64::from(new_pages);
            }
            assert_eq!(found, pages);
        }
    }

    #[test]
    fn version_2_names_stored_pages_in_their_order() {
        let group = |numbers: &[u64], count: u32| {
            let mut bytes = Vec::new();
            numbers.iter().for_each(|number| varint::put(*number, &mut bytes));
            bytes.extend([7; PAGE_HASH_LEN].repeat(count as usize));
            let bounds = Bounds { new_pages: Some(NewPages { first: 100, count }), ..BOUNDS };
            MapGroup::decode(&bytes, 1024, 4, bounds)
        };
        assert!(group(&[4 << 2 | STORED, 100], 4).is_ok());
        assert!(group(&[4 << 2 | STORED, 96], 0).is_ok(), "copies");
        assert!(group(&[4 << 2 | STORED, 98], 2).is_ok(), "copies, then new pages");
        assert!(group(&[4 << 2 | STORED, 101], 4).is_err(), "a gap");
        assert!(group(&[1 << 2 | STORED, 100, 3 << 2 | STORED, 102], 4).is_err(), "a gap");
        assert!(group(&[2 << 2 | STORED, 100, 2 << 2 | STORED, 100], 2).is_ok(), "copies of the same group");
        assert!(group(&[4 << 2 | STORED, 100], 3).is_err());
        assert!(group(&[], 1).is_err(), "new pages without a map");
        assert!(group(&[], 0).is_ok());
    }

    #[test]
    fn references_out_of_range_and_wrong_runs_are_refused() {
        let hash = [7; PAGE_HASH_LEN];
        let group = |numbers: &[u64], hashes: usize| {
            let mut bytes = Vec::new();
            numbers.iter().for_each(|number| varint::put(*number, &mut bytes));
            bytes.extend(hash.repeat(hashes));
            MapGroup::decode(&bytes, 1024, 4, BOUNDS)
        };
        let back = |step: i64| varint::zigzag(step);
        assert!(group(&[4 << 2 | BASE, back(0)], 4).is_ok());
        assert!(group(&[4 << 2 | BASE, back(-1024)], 4).is_ok());
        assert!(group(&[4 << 2 | BASE, back(-1025)], 4).is_err(), "before the base");
        assert!(group(&[4 << 2 | BASE, back(3000 - 1024 - 4)], 4).is_ok());
        assert!(group(&[4 << 2 | BASE, back(3000 - 1024 - 3)], 4).is_err(), "past the base");
        assert!(group(&[4 << 2 | STORED, 496], 4).is_ok());
        assert!(group(&[4 << 2 | STORED, 497], 4).is_err());
        assert!(group(&[4 << 2 | STORED, u64::MAX], 4).is_err());
        assert!(group(&[4 << 2 | 3, 0], 4).is_err(), "a kind that does not exist");
        assert!(group(&[5 << 2 | ZERO], 0).is_err(), "more pages than the group has");
        assert!(group(&[!3], 0).is_err());
        assert!(group(&[ZERO, 4 << 2], 0).is_err(), "an empty run");
        assert!(group(&[4 << 2 | STORED, 0], 3).is_err(), "a hash is missing");
        assert!(group(&[4 << 2 | STORED, 0], 5).is_err(), "a hash too many");
    }
}
