//! The index of one group in memory: two bytes per page, and a sum every 32 pages.

use std::ops::Range;

use crate::format::Layout;
use crate::index::blocks::BlockPlace;
use crate::index::entry::PageEntry;
use crate::index::layout::{ENTRY_LEN, GROUP_PAGES, page_len};

use trueno_zram_core::{PAGE_SIZE, PageKind};

/// Pages between two sums.
const SUM_PAGES: usize = 32;

/// The positions of a group's blocks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ResidentGroup {
    first_page: u64,
    /// Position of its first block in the file.
    offset: u64,
    /// Entries as in the file. None for a group of zeros.
    entries: Box<[[u8; ENTRY_LEN]]>,
    /// Offset of the first block at or after every 32nd page, from the group's first block.
    sums: [u32; GROUP_PAGES / SUM_PAGES],
}

impl ResidentGroup {
    /// Keeps the blocks of a group, which are in order.
    pub(crate) fn new(places: &[BlockPlace], layout: &Layout, content_len: u64) -> Self {
        let (first_page, offset) = places.first().map_or((0, 0), |first| (first.first_page, first.offset));
        if places.iter().all(|place| place.zero) {
            let sums = [0; GROUP_PAGES / SUM_PAGES];
            return Self { first_page, offset, entries: Box::default(), sums };
        }
        let (mut entries, mut sums, mut at) = (Vec::with_capacity(GROUP_PAGES), [0; GROUP_PAGES / SUM_PAGES], 0u32);
        for place in places {
            let entry = entry_of(place, content_len);
            for page in 0..place.pages {
                if entries.len() % SUM_PAGES == 0 {
                    sums[entries.len() / SUM_PAGES] = at;
                }
                let (entry, len) = match page {
                    0 => (entry, layout.stored_len(entry)),
                    _ => (PageEntry::Continues, 0),
                };
                entries.push(entry.encode());
                at += u32::try_from(len).expect("a group has some 4 MiB");
            }
        }
        Self { first_page, offset, entries: entries.into(), sums }
    }

    /// Keeps the entries of a group as they are in the file. Its first block starts at `offset`. Returns `None` if they are malformed, or
    /// if their blocks do not end at `end`.
    ///
    /// The same as [`new`](Self::new) with the places of these entries, in one pass: the first touch of a group waits for it.
    pub(crate) fn of_entries(
        entries: &[[u8; ENTRY_LEN]],
        first_page: u64,
        Range { start: offset, end }: Range<u64>,
        layout: &Layout,
        content_len: u64,
    ) -> Option<Self> {
        let (format, overhead) = (layout.format(), layout.overhead());
        let (mut sums, mut at, mut run, mut is_zero) = ([0; GROUP_PAGES / SUM_PAGES], 0, 0, true);
        let parts = (first_page..).step_by(SUM_PAGES).zip(entries.chunks(SUM_PAGES));
        for (sum, (first, part)) in sums.iter_mut().zip(parts) {
            *sum = u32::try_from(at).expect("a group has some 4 MiB");
            for (page, entry) in (first..).zip(part) {
                let found = PageEntry::decode(*entry, format)?;
                // A run of zeros goes on exactly as long as its first entry says.
                if (run > 0) != (found == PageEntry::Continues) {
                    return None;
                }
                run = if run > 0 { run - 1 } else { found.pages() - 1 };
                is_zero &= matches!(found, PageEntry::Zeros(_) | PageEntry::Continues);
                at += match found {
                    PageEntry::Packed(len) => overhead + usize::from(len),
                    PageEntry::Raw(len) if usize::from(len) != page_len(content_len, page) => return None,
                    other => layout.stored_len(other),
                };
            }
        }
        let is_whole = run == 0 && offset.checked_add(at as u64)? == end;
        let (entries, sums) =
            if is_zero { (Box::default(), [0; GROUP_PAGES / SUM_PAGES]) } else { (entries.into(), sums) };
        is_whole.then_some(Self { first_page, offset, entries, sums })
    }

    /// Returns the block of a page; `None` if the page is zero.
    pub(crate) fn locate(&self, page: u64, layout: &Layout) -> Option<BlockPlace> {
        let within = self.within(page);
        match self.entry(within, layout) {
            PageEntry::Continues | PageEntry::Zeros(_) => None,
            entry => BlockPlace::of_entry(entry, page, self.offset_of(within, layout), layout),
        }
    }

    /// Returns the blocks of pages that follow each other, from `first` on.
    pub(crate) fn locate_run(&self, first: u64, layout: &Layout) -> impl Iterator<Item = Option<BlockPlace>> {
        let mut at = self.offset_of(self.within(first), layout);
        (first..).map(move |page| {
            let (entry, offset) = (self.entry(self.within(page), layout), at);
            let place = BlockPlace::of_entry(entry, page, offset, layout)?;
            at += layout.stored_len(entry) as u64;
            (!place.zero).then_some(place)
        })
    }

    /// Returns the number of a page in the group.
    fn within(&self, page: u64) -> usize {
        usize::try_from(page - self.first_page).expect("a group is small")
    }

    fn entry(&self, page: usize, layout: &Layout) -> PageEntry {
        let entry = self.entries.get(page).and_then(|entry| PageEntry::decode(*entry, layout.format()));
        entry.unwrap_or(PageEntry::Continues)
    }

    /// Returns the position of the first block at or after a page.
    fn offset_of(&self, page: usize, layout: &Layout) -> u64 {
        let (sum, overhead) = (page / SUM_PAGES, layout.overhead());
        let before: usize = (sum * SUM_PAGES..page).map(|page| self.stored_len(page, layout, overhead)).sum();
        self.offset + self.sums.get(sum).map_or(0, |sum| u64::from(*sum)) + before as u64
    }

    /// Returns the bytes of the block that starts with this page, if one does.
    fn stored_len(&self, page: usize, layout: &Layout, overhead: usize) -> usize {
        // A page fault waits for up to 31 of these, and most pages are packed.
        if let Some(len) = self.entries.get(page).and_then(|entry| PageEntry::packed_len(*entry)) {
            return overhead + len;
        }
        layout.stored_len(self.entry(page, layout))
    }

    /// Returns the memory that the group takes, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.entries.len() * ENTRY_LEN
    }
}

/// Returns the entry that describes a block.
fn entry_of(place: &BlockPlace, content_len: u64) -> PageEntry {
    let short = |len: u64| u16::try_from(len).expect("the block was described by an entry");
    match place.kind {
        PageKind::SameFilled if place.zero => PageEntry::Zeros(short(place.pages)),
        PageKind::SameFilled => PageEntry::Word,
        PageKind::Lz4 | PageKind::Zstd => PageEntry::Packed(short(u64::from(place.len_bytes))),
        PageKind::Raw => {
            PageEntry::Raw(short((content_len - place.first_page * PAGE_SIZE as u64).min(PAGE_SIZE as u64)))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::archive::Archive;
    use crate::index::blocks::places_of_entries;
    use crate::write::{compress::compress, options::WriteOptions};

    /// Pages of every kind, with runs of zeros, and a shorter last one.
    fn archive(format: crate::Format) -> Archive {
        let mut content: Vec<u8> =
            (0..2500 * PAGE_SIZE).map(|at| (at / 97 * (at / PAGE_SIZE) + at % 11).to_le_bytes()[0]).collect();
        for (page, bytes) in content.chunks_mut(PAGE_SIZE).enumerate() {
            match page % 100 {
                0..30 => bytes.fill(0),
                30..35 => bytes.fill(7),
                35..40 => bytes.iter_mut().enumerate().for_each(|(at, byte)| {
                    *byte = ((at * at * (at + page)) >> 7).to_le_bytes()[0];
                }),
                _ => {}
            }
        }
        content[1024 * PAGE_SIZE..2048 * PAGE_SIZE].fill(0);
        content.truncate(2499 * PAGE_SIZE + 77);
        let mut bytes = Vec::new();
        compress(&content[..], &mut bytes, &WriteOptions::default().with_format(format)).unwrap();
        Archive::read_from(Arc::new(bytes)).unwrap().unwrap()
    }

    fn formats() -> Vec<crate::Format> {
        if cfg!(feature = "zstd") { vec![crate::Format::Lz4, crate::Format::Zstd] } else { vec![crate::Format::Lz4] }
    }

    #[test]
    fn entries_give_the_same_as_the_places_that_they_describe() {
        for format in formats() {
            let archive = archive(format);
            let index = archive.index();
            for number in 0..3 {
                let places = index.places(number).unwrap();
                let slow = ResidentGroup::new(&places, index.layout, index.footer.content_len);
                assert_eq!(index.resident(number).unwrap(), slow, "{format:?}, group {number}");
            }
        }
    }

    #[test]
    fn entries_that_are_changed_give_the_same_or_nothing() {
        for format in formats() {
            let archive = archive(format);
            let index = archive.index();
            let (layout, content_len) = (index.layout, index.footer.content_len);
            let group = index.resident(0).unwrap();
            let blocks = group.offset..index.end(0);
            let mut differ = 0;
            for page in 0..group.entries.len() {
                for bit in 0..16 {
                    let mut entries = group.entries.clone();
                    entries[page][bit / 8] ^= 1 << (bit % 8);
                    // Wherever the blocks end, as if the table lied as well.
                    let end = places_of_entries(&entries, 0, blocks.start, layout).map(|(_, end)| end);
                    for end in [Some(blocks.end), end].into_iter().flatten() {
                        let fast = ResidentGroup::of_entries(&entries, 0, blocks.start..end, layout, content_len);
                        let places = places_of_entries(&entries, 0, blocks.start, layout);
                        let slow = places.filter(|(_, after)| *after == end).map(|(places, _)| places);
                        match (fast, slow) {
                            (Some(fast), slow) => {
                                assert_eq!(Some(fast), slow.map(|slow| ResidentGroup::new(&slow, layout, content_len)));
                            }
                            // A stored page that is not whole.
                            (None, Some(slow)) => {
                                let is_stored = |place: &BlockPlace| place.kind == PageKind::Raw;
                                assert!(slow.iter().any(is_stored), "{format:?}: page {page}, bit {bit}");
                            }
                            (None, None) => differ += 1,
                        }
                    }
                }
            }
            assert!(differ > 1000, "{format:?}");
        }
    }
}
