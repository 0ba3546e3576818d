//! The index of one group in memory: two bytes per page, and a sum every 32 pages.

use std::ops::Range;

use crate::blocks::BlockPlace;
use crate::entry::PageEntry;
use crate::format::Layout;
use crate::index::{ENTRY_LEN, GROUP_PAGES};

use trueno_zram_core::{PAGE_SIZE, PageKind};

/// Pages between two sums.
const SUM_PAGES: usize = 32;

/// The pages of a group whose blocks were all compared with the index.
#[derive(Debug)]
pub(crate) struct ResidentGroup {
    /// Entries as in the file. None for a group of zeros.
    entries: Box<[[u8; ENTRY_LEN]]>,
    /// Offset of the first block at or behind every 32nd page, from the group's first block.
    sums: [u32; GROUP_PAGES / SUM_PAGES],
}

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Located {
    Zero,
    /// In a block of its own, this far from the group's first block.
    Block {
        offset: u64,
        entry: PageEntry,
    },
}

impl ResidentGroup {
    /// Keeps what is known of a group: its blocks in order.
    pub(crate) fn new(places: &[BlockPlace], layout: &Layout, content_len: u64) -> Self {
        if places.iter().all(|place| place.zero) {
            return Self { entries: Box::default(), sums: [0; GROUP_PAGES / SUM_PAGES] };
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
        Self { entries: entries.into(), sums }
    }

    /// Finds a page by its number in the group.
    pub(crate) fn locate(&self, page: usize, layout: &Layout) -> Located {
        match self.entry(page, layout) {
            PageEntry::Continues | PageEntry::Zeros(_) => Located::Zero,
            entry => Located::Block { offset: self.offset_of(page, layout), entry },
        }
    }

    /// Finds pages that follow each other, by their numbers in the group.
    pub(crate) fn locate_run(&self, pages: Range<usize>, layout: &Layout) -> impl Iterator<Item = Located> {
        let mut at = self.offset_of(pages.start, layout);
        pages.map(move |page| {
            let (own, offset) = (self.entry(page, layout), at);
            at += self.stored_len(page, layout, layout.overhead()) as u64;
            match own {
                PageEntry::Continues | PageEntry::Zeros(_) => Located::Zero,
                entry => Located::Block { offset, entry },
            }
        })
    }

    fn entry(&self, page: usize, layout: &Layout) -> PageEntry {
        let entry = self.entries.get(page).and_then(|entry| PageEntry::decode(*entry, layout.format()));
        entry.unwrap_or(PageEntry::Continues)
    }

    /// Returns where the first block at or behind a page starts.
    fn offset_of(&self, page: usize, layout: &Layout) -> u64 {
        let (sum, overhead) = (page / SUM_PAGES, layout.overhead());
        let before: usize = (sum * SUM_PAGES..page).map(|page| self.stored_len(page, layout, overhead)).sum();
        self.sums.get(sum).map_or(0, |sum| u64::from(*sum)) + before as u64
    }

    /// Returns the bytes of the block that starts with this page, if one does.
    fn stored_len(&self, page: usize, layout: &Layout, overhead: usize) -> usize {
        // A fault waits for the sum of some of these, and most pages are packed.
        if let Some(len) = self.entries.get(page).and_then(|entry| PageEntry::packed_len(*entry)) {
            return overhead + len;
        }
        layout.block_len(self.entry(page, layout)).map_or(0, |len| overhead + len)
    }

    /// Returns the memory that the group takes, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.entries.len() * ENTRY_LEN
    }
}

/// Returns the entry of a block that is what the index says.
fn entry_of(place: &BlockPlace, content_len: u64) -> PageEntry {
    let short = |len: u64| u16::try_from(len).expect("a place was made of an entry");
    match place.kind {
        PageKind::SameFilled if place.zero => PageEntry::Zeros(short(place.pages)),
        PageKind::SameFilled => PageEntry::Word,
        PageKind::Lz4 | PageKind::Zstd => PageEntry::Packed(short(u64::from(place.len_bytes))),
        PageKind::Raw => {
            PageEntry::Raw(short((content_len - place.first_page * PAGE_SIZE as u64).min(PAGE_SIZE as u64)))
        }
    }
}
