//! Builds an index block by block: for the writer, and for the reader that compares an index with its frame.

use trueno_zram_core::PageStats;

use crate::constant::RUN_PAGES;
use crate::entry::PageEntry;
use crate::hash::xxh32;
use crate::header::Header;
use crate::index::{ENTRY_LEN, Footer, GROUP_PAGES, Group, INDEX_FRAME_MAGIC, INDEX_MAGIC};

/// An index under construction.
#[derive(Debug)]
pub(crate) struct IndexBuilder {
    block_overhead: u64,
    /// Offset of the next block from the start of the frame.
    at: u64,
    counts: PageStats,
    groups: Vec<Group>,
    /// Entries of the finished groups, if they are kept.
    kept: Option<Vec<u8>>,
    stored_groups: u64,
    /// Entries of the current group.
    entries: Vec<u8>,
    group_at: u64,
    group_all_zeros: bool,
}

/// The index of a whole frame.
#[derive(Debug)]
pub(crate) struct BuiltIndex {
    pub(crate) groups: Vec<Group>,
    pub(crate) kept: Option<Vec<u8>>,
    pub(crate) counts: PageStats,
    /// Length of all entries in bytes, kept or not.
    pub(crate) entries_len: u64,
}

impl IndexBuilder {
    /// Starts the index of a frame whose header has `header_len` bytes.
    pub(crate) fn new(header: &Header, header_len: u64, keeps: Keeps) -> Self {
        Self {
            block_overhead: 4 + header.block_checksum_len() as u64,
            at: header_len,
            counts: PageStats::default(),
            groups: Vec::new(),
            kept: (keeps == Keeps::Entries).then(Vec::new),
            stored_groups: 0,
            entries: Vec::new(),
            group_at: header_len,
            group_all_zeros: true,
        }
    }

    pub(crate) fn counts(&self) -> PageStats {
        self.counts
    }

    /// Number of the next page.
    pub(crate) fn next_page(&self) -> u64 {
        self.counts.pages()
    }

    /// Pages up to the next page number at which a run of zeros must end.
    pub(crate) fn run_room(&self) -> u64 {
        RUN_PAGES as u64 - self.next_page() % RUN_PAGES as u64
    }

    /// Adds a block. Returns `false` if an archive cannot have it here: a run of zeros across a boundary.
    #[must_use]
    pub(crate) fn push(&mut self, entry: PageEntry) -> bool {
        if entry.pages() > self.run_room() {
            return false;
        }
        match entry {
            PageEntry::Zeros(pages) => {
                self.group_all_zeros &= self.run_room() == RUN_PAGES as u64;
                self.counts.zero += u64::from(pages);
                self.counts.same_filled += u64::from(pages);
            }
            PageEntry::Word => self.counts.same_filled += 1,
            PageEntry::Lz4(_) => self.counts.lz4 += 1,
            PageEntry::Raw(_) => self.counts.raw += 1,
            PageEntry::Continues => {}
        }
        self.group_all_zeros &= matches!(entry, PageEntry::Zeros(_));
        self.entries.extend(entry.encode());
        for _ in 1..entry.pages() {
            self.entries.extend(PageEntry::Continues.encode());
        }
        let len = self.block_overhead + entry.block_len().map_or(0, |len| len as u64);
        self.at += len;
        self.counts.bytes_out += len;
        if self.entries.len() == GROUP_PAGES * ENTRY_LEN {
            self.close_group();
        }
        true
    }

    fn close_group(&mut self) {
        let all_zeros = self.group_all_zeros;
        let stored = if all_zeros { &[] } else { &self.entries[..] };
        self.groups.push(Group { offset: self.group_at, all_zeros, checksum: xxh32(stored) });
        if let Some(kept) = &mut self.kept {
            kept.extend_from_slice(stored);
        }
        self.stored_groups += u64::from(!all_zeros);
        self.entries.clear();
        self.group_at = self.at;
        self.group_all_zeros = true;
    }

    pub(crate) fn finish(mut self) -> BuiltIndex {
        let mut entries_len = self.stored_groups * (GROUP_PAGES * ENTRY_LEN) as u64;
        if !self.entries.is_empty() {
            entries_len += if self.group_all_zeros { 0 } else { self.entries.len() as u64 };
            self.close_group();
        }
        BuiltIndex { groups: self.groups, kept: self.kept, counts: self.counts, entries_len }
    }
}

/// Whether a builder keeps the entries or only their checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeps {
    Entries,
    Checksums,
}

impl BuiltIndex {
    /// Returns the table as it is stored.
    pub(crate) fn table(&self) -> Vec<u8> {
        self.groups.iter().flat_map(|group| group.encode()).collect()
    }

    /// Returns the skippable frame, or `None` if it would be longer than such a frame can be.
    pub(crate) fn encode(&self, content_len: u64, frame_len: u64, sections: &[u8]) -> Option<Vec<u8>> {
        let table = self.table();
        let footer = Footer {
            content_len,
            frame_len,
            pages: self.counts,
            entries_len: u32::try_from(self.entries_len).ok()?,
            sections_len: u32::try_from(sections.len()).ok()?,
            table_checksum: xxh32(&table),
            sections_checksum: xxh32(sections),
        };
        let payload_len = u32::try_from(footer.index_len() - 8).ok()?;
        let mut bytes = Vec::with_capacity(payload_len as usize + 8);
        bytes.extend(INDEX_FRAME_MAGIC.to_le_bytes());
        bytes.extend(payload_len.to_le_bytes());
        bytes.extend(INDEX_MAGIC);
        bytes.extend_from_slice(self.kept.as_deref().unwrap_or_default());
        bytes.extend_from_slice(sections);
        bytes.extend_from_slice(&table);
        bytes.extend(footer.encode());
        Some(bytes)
    }
}

/// Returns the entries of a group of zeros: runs of 16 pages, and a shorter last one.
pub(crate) fn zero_entries(pages: u64) -> impl Iterator<Item = PageEntry> {
    (0..pages).map(move |page| match page % RUN_PAGES as u64 {
        0 => PageEntry::Zeros(u16::try_from((pages - page).min(RUN_PAGES as u64)).expect("a run is short")),
        _ => PageEntry::Continues,
    })
}
