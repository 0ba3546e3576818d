//! The index of one group in memory: two bytes per page, and a sum every 32 pages.

use crate::format::Layout;
use crate::index::blocks::BlockPlace;
use crate::index::entry::PageEntry;
use crate::index::layout::{ENTRY_LEN, GROUP_PAGES};

use trueno_zram_core::{PAGE_SIZE, PageKind};

/// Pages between two sums.
const SUM_PAGES: usize = 32;

/// The positions of a group's blocks.
#[derive(Debug)]
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
