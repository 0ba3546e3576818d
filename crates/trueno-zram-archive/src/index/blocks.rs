//! The blocks of an archive as its index describes them, one group in memory at a time.

use std::ops::Range;

use trueno_zram_core::PageKind;

use crate::error::{Error, Result};
use crate::format::Layout;
use crate::hashes::content_hash::xxh32;
use crate::index::builder::zero_entries;
use crate::index::entry::PageEntry;
use crate::index::layout::{ENTRY_LEN, GROUP_PAGES, GroupRecord, HEAD_LEN, IndexFooter, pages_of};
use crate::index::resident::ResidentGroup;
use crate::index::table::GroupTable;
use crate::read_at::{ReadAt, read_at};

/// A block as the index describes it.
///
/// ```
/// use trueno_zram_archive::{BlockPlace, PageKind};
/// let kind = PageKind::SameFilled;
/// let place = BlockPlace { first_page: 32, pages: 16, kind, zero: true, offset: 15, len_bytes: 266 };
/// assert_eq!(place.first_page + place.pages, 48);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPlace {
    /// Number of its first page.
    pub first_page: u64,
    /// Pages in it: 1, or a run of zero pages.
    pub pages: u64,
    /// The kind of its pages.
    pub kind: PageKind,
    /// The pages are zero; `kind` is [`PageKind::SameFilled`].
    pub zero: bool,
    /// Position in the file: of its size word, or of the Zstandard frame.
    pub offset: u64,
    /// Length of the block: an LZ4 block without size word and checksum, a Zstandard frame as a whole.
    pub len_bytes: u32,
}

impl BlockPlace {
    /// Returns the block of an entry; `None` if it has none, because its page belongs to the run before it.
    pub(crate) fn of_entry(entry: PageEntry, first_page: u64, offset: u64, layout: &Layout) -> Option<Self> {
        let len_bytes = u32::try_from(layout.block_len(entry)?).expect("a block is short");
        let kind = match entry {
            PageEntry::Zeros(_) | PageEntry::Continues | PageEntry::Word => PageKind::SameFilled,
            PageEntry::Packed(_) => layout.format().packed_kind(),
            PageEntry::Raw(_) => PageKind::Raw,
        };
        let zero = matches!(entry, PageEntry::Zeros(_));
        Some(Self { first_page, pages: entry.pages(), kind, zero, offset, len_bytes })
    }
}

/// The blocks of a range of pages. See [`Archive::blocks`](crate::Archive::blocks).
///
/// ```
/// # use trueno_zram_archive::{Archive, WriteOptions, compress};
/// # let mut bytes = Vec::new();
/// # compress(&[7; 40 * 4096][..], &mut bytes, &WriteOptions::default())?;
/// # let archive = Archive::read_from(std::sync::Arc::new(bytes))?.expect("it has an index"); // of 40 pages
/// let pages: u64 = archive.blocks(0..40)?.map(|block| block.map_or(0, |block| block.pages)).sum();
/// assert_eq!(pages, 40);
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
pub struct Blocks<'a> {
    index: GroupIndex<'a>,
    /// Pages not returned yet.
    pages: Range<u64>,
    /// Blocks of the current group not returned yet.
    group: std::vec::IntoIter<BlockPlace>,
}

impl<'a> Blocks<'a> {
    pub(crate) fn new(index: GroupIndex<'a>, pages: Range<u64>) -> Self {
        Self { index, pages, group: Vec::new().into_iter() }
    }
}

impl Iterator for Blocks<'_> {
    type Item = Result<BlockPlace>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.pages.is_empty() {
            if let Some(block) = self.group.next() {
                let end = block.first_page + block.pages;
                if end <= self.pages.start {
                    continue;
                }
                self.pages.start = end;
                return Some(Ok(block));
            }
            match self.index.places(self.pages.start / GROUP_PAGES as u64) {
                Ok(places) => self.group = places.into_iter(),
                Err(error) => {
                    self.pages = 0..0;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}

/// The groups of an archive, as its index describes them.
#[derive(Clone, Copy)]
pub(crate) struct GroupIndex<'a> {
    pub(crate) file: &'a dyn ReadAt,
    pub(crate) footer: &'a IndexFooter,
    pub(crate) layout: &'a Layout,
    pub(crate) table: &'a GroupTable,
}

impl GroupIndex<'_> {
    /// Reads the entries of a group and returns the blocks that they describe. The blocks fill the space up to the next
    /// group exactly.
    pub(crate) fn places(self, number: u64) -> Result<Vec<BlockPlace>> {
        let first_page = number * GROUP_PAGES as u64;
        let group = self.table.get(number).ok_or_else(|| bad_entries(number, "do not exist"))?;
        let entries = self.entries(number, group)?;
        let end = self.end(number);
        places(&entries, first_page, group.offset, self.layout)
            .filter(|(_, after)| *after == end)
            .map(|(places, _)| places)
            .ok_or_else(|| bad_entries(number, "do not add up to its blocks"))
    }

    /// Reads the entries of a group, and returns where its blocks are.
    pub(crate) fn resident(self, number: u64) -> Result<ResidentGroup> {
        let Self { footer, layout, .. } = self;
        let group = self.table.get(number).ok_or_else(|| bad_entries(number, "do not exist"))?;
        if group.all_zeros {
            return Ok(ResidentGroup::new(&self.places(number)?, layout, footer.content_len));
        }
        let mut bytes = [0; GROUP_PAGES * ENTRY_LEN];
        let (entries, _) = self.read_entries(number, group, &mut bytes)?.as_chunks();
        let (first_page, blocks) = (number * GROUP_PAGES as u64, group.offset..self.end(number));
        ResidentGroup::of_entries(entries, first_page, blocks, layout, footer.content_len)
            .ok_or_else(|| bad_entries(number, "do not add up to its blocks"))
    }

    /// Returns the entries of a group.
    fn entries(self, number: u64, group: GroupRecord) -> Result<Vec<PageEntry>> {
        let Self { footer, .. } = self;
        if group.all_zeros {
            return Ok(zero_entries(self.pages_of_group(number), footer.format).collect());
        }
        let mut bytes = [0; GROUP_PAGES * ENTRY_LEN];
        let (entries, _) = self.read_entries(number, group, &mut bytes)?.as_chunks();
        let known: Option<Vec<_>> = entries.iter().map(|entry| PageEntry::decode(*entry, footer.format)).collect();
        known.ok_or_else(|| bad_entries(number, "have an unknown form"))
    }

    /// Returns the number of pages of a group.
    fn pages_of_group(self, number: u64) -> u64 {
        (pages_of(self.footer.content_len) - number * GROUP_PAGES as u64).min(GROUP_PAGES as u64)
    }

    /// Reads the entries of a group that has any.
    fn read_entries(self, number: u64, group: GroupRecord, room: &mut [u8; GROUP_PAGES * ENTRY_LEN]) -> Result<&[u8]> {
        let Self { file, footer, table, .. } = self;
        let bytes = &mut room[..usize::try_from(self.pages_of_group(number)).expect("a group is small") * ENTRY_LEN];
        let skipped = HEAD_LEN as u64 + table.stored_before(number) * (GROUP_PAGES * ENTRY_LEN) as u64;
        read_at(file, footer.frame_len + skipped, bytes)?;
        if xxh32(bytes) != group.checksum {
            return Err(bad_entries(number, "are damaged"));
        }
        Ok(bytes)
    }

    /// Returns the position after the last block of a group.
    pub(crate) fn end(self, number: u64) -> u64 {
        let Self { footer, layout, table, .. } = self;
        table.get(number + 1).map_or(footer.frame_len - layout.end_len(), |next| next.offset)
    }
}

fn bad_entries(number: u64, what: &str) -> Error {
    Error::index(format!("the entries from page {} on {what}", number * GROUP_PAGES as u64))
}

/// Returns the blocks that entries describe, and the position after the last one. `None` if the entries contradict each
/// other.
fn places(entries: &[PageEntry], first_page: u64, at: u64, layout: &Layout) -> Option<(Vec<BlockPlace>, u64)> {
    let mut places = Vec::with_capacity(entries.len());
    let (mut at, mut run) = (at, 0);
    let overhead = layout.overhead() as u64;
    for (page, entry) in (first_page..).zip(entries) {
        // A run of zeros goes on exactly as long as its first entry says.
        if (run > 0) != (*entry == PageEntry::Continues) {
            return None;
        }
        run = if run > 0 { run - 1 } else { entry.pages() - 1 };
        let Some(place) = BlockPlace::of_entry(*entry, page, at, layout) else { continue };
        at = at.checked_add(overhead + u64::from(place.len_bytes))?;
        places.push(place);
    }
    (run == 0).then_some((places, at))
}

/// Returns the blocks that entries describe, from `at` on, and the position after the last.
#[cfg(test)]
pub(crate) fn places_of_entries(
    entries: &[[u8; ENTRY_LEN]],
    first_page: u64,
    at: u64,
    layout: &Layout,
) -> Option<(Vec<BlockPlace>, u64)> {
    let entries: Option<Vec<_>> = entries.iter().map(|entry| PageEntry::decode(*entry, layout.format())).collect();
    places(&entries?, first_page, at, layout)
}

impl std::fmt::Debug for Blocks<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Blocks({:?} left)", self.pages)
    }
}
