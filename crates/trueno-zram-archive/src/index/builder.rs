//! Builds an index block by block: for the writer, and for the reader that compares an index with its frame.

use trueno_zram_core::{PAGE_SIZE, PageStats};

use crate::format::{Format, Layout};
use crate::hashes::content_hash::xxh32;
use crate::index::entry::PageEntry;
use crate::index::layout::{ENTRY_LEN, GROUP_PAGES, GroupRecord, INDEX_FRAME_MAGIC, INDEX_MAGIC, IndexFooter};
use crate::lz4::header::SKIPPABLE_HEAD_LEN;
use crate::zstd::seek_table::{ExpectedTable, SeekEntry};

/// An index under construction.
pub(crate) struct IndexBuilder {
    layout: Layout,
    /// Offset of the next block from the start of the archive.
    at: u64,
    counts: PageStats,
    groups: Vec<GroupRecord>,
    /// Entries of the finished groups, if they are kept.
    kept: Option<Vec<u8>>,
    stored_groups: u64,
    /// Entries of the current group.
    entries: Vec<u8>,
    group_at: u64,
    group_all_zeros: bool,
    /// The seek table, if the format has one.
    seek_table: Option<ExpectedTable>,
}

/// The index of a whole archive.
pub(crate) struct BuiltIndex {
    pub(crate) layout: Layout,
    pub(crate) groups: Vec<GroupRecord>,
    pub(crate) kept: Option<Vec<u8>>,
    pub(crate) counts: PageStats,
    /// Length of all entries in bytes, kept or not.
    pub(crate) entries_len: u64,
    pub(crate) seek_table: Option<ExpectedTable>,
}

impl IndexBuilder {
    /// Starts the index of data whose first block is at `start`.
    pub(crate) fn new(layout: Layout, start: u64, retention: Retention) -> Self {
        Self {
            layout,
            at: start,
            counts: PageStats::default(),
            groups: Vec::new(),
            kept: (retention == Retention::Entries).then(Vec::new),
            stored_groups: 0,
            entries: Vec::new(),
            group_at: start,
            group_all_zeros: true,
            seek_table: matches!(layout, Layout::Zstd { .. }).then(ExpectedTable::new),
        }
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    pub(crate) fn counts(&self) -> PageStats {
        self.counts
    }

    /// Returns the offset of the next block from the start of the archive.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// Returns the number of the next page.
    pub(crate) fn next_page(&self) -> u64 {
        self.counts.pages()
    }

    /// Returns the number of pages up to the next page at which a run of zeros must end.
    pub(crate) fn run_room(&self) -> u64 {
        let run_pages = self.layout.format().run_pages() as u64;
        run_pages - self.next_page() % run_pages
    }

    /// Adds a block of this much content. Returns `false` if an archive cannot have it here: a run of zeros across a
    /// boundary.
    #[must_use]
    pub(crate) fn push(&mut self, entry: PageEntry, content_len: u64) -> bool {
        if entry.pages() > self.run_room() {
            return false;
        }
        let format = self.layout.format();
        match entry {
            PageEntry::Zeros(pages) => {
                self.group_all_zeros &= self.run_room() == format.run_pages() as u64;
                self.counts.zero += u64::from(pages);
            }
            PageEntry::Word => self.counts.same_filled += 1,
            PageEntry::Packed(_) if format == Format::Lz4 => self.counts.lz4 += 1,
            PageEntry::Packed(_) => self.counts.zstd += 1,
            PageEntry::Raw(_) => self.counts.raw += 1,
            PageEntry::Continues => {}
        }
        self.group_all_zeros &= matches!(entry, PageEntry::Zeros(_));
        self.entries.extend(entry.encode());
        for _ in 1..entry.pages() {
            self.entries.extend(PageEntry::Continues.encode());
        }
        let len = self.layout.stored_len(entry) as u64;
        if let Some(table) = &mut self.seek_table {
            let short = |len: u64| u32::try_from(len).expect("a frame holds at most a group");
            table.push(SeekEntry { compressed_len: short(len), content_len: short(content_len) });
        }
        self.at += len;
        self.counts.bytes_out += len;
        if self.entries.len() == GROUP_PAGES * ENTRY_LEN {
            self.close_group();
        }
        true
    }

    /// Adds a block that was read. Returns `false` if an archive cannot have it here.
    #[must_use]
    pub(crate) fn push_read(&mut self, entry: PageEntry, content_len: u64) -> bool {
        PageEntry::decode(entry.encode(), self.layout.format()) == Some(entry) && self.push(entry, content_len)
    }

    fn close_group(&mut self) {
        let all_zeros = self.group_all_zeros;
        let stored = if all_zeros { &[] } else { &self.entries[..] };
        self.groups.push(GroupRecord { offset: self.group_at, all_zeros, checksum: xxh32(stored) });
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
        BuiltIndex {
            layout: self.layout,
            groups: self.groups,
            kept: self.kept,
            counts: self.counts,
            entries_len,
            seek_table: self.seek_table,
        }
    }
}

/// The data that a builder retains: the entries, or only their checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retention {
    Entries,
    Checksums,
}

impl BuiltIndex {
    /// Returns `true` if all Zstandard frames have checksums. If there are none, they do.
    fn frame_checksums(&self) -> bool {
        matches!(self.layout, Layout::Zstd { checksums } if checksums || self.counts.pages() == 0)
    }

    /// Returns the entries of the seek table for all frames of pages. The index entries must have been kept.
    pub(crate) fn seek_entries(&self, content_len: u64) -> impl Iterator<Item = SeekEntry> {
        let format = self.layout.format();
        let (mut stored, _) = self.kept.as_deref().unwrap_or_default().as_chunks::<ENTRY_LEN>();
        let first_pages = (0..).step_by(GROUP_PAGES);
        let entries = self.groups.iter().zip(first_pages).flat_map(move |(group, first_page): (_, u64)| {
            let pages = (self.counts.pages() - first_page).min(GROUP_PAGES as u64);
            let own = if group.all_zeros { 0 } else { usize::try_from(pages).unwrap_or(0).min(stored.len()) };
            let (own, rest) = stored.split_at(own);
            stored = rest;
            let zeros = zero_entries(if group.all_zeros { pages } else { 0 }, format);
            let entries = own.iter().filter_map(move |entry| PageEntry::decode(*entry, format)).chain(zeros);
            entries.zip(first_page..)
        });
        entries.filter_map(move |(entry, page)| {
            let left = content_len - page * PAGE_SIZE as u64;
            Some(SeekEntry {
                compressed_len: u32::try_from(self.layout.block_len(entry)?).ok()?,
                content_len: u32::try_from(left.min(entry.pages() * PAGE_SIZE as u64)).ok()?,
            })
        })
    }

    /// Returns the table as it is stored.
    pub(crate) fn table(&self) -> Vec<u8> {
        self.groups.iter().flat_map(|group| group.encode()).collect()
    }

    /// Returns the footer of an index with these sections, or `None` if the index would be longer than it can be.
    pub(crate) fn footer(
        &self,
        content_len: u64,
        frame_len: u64,
        sections_len: u64,
        sections_checksum: u32,
    ) -> Option<IndexFooter> {
        Some(IndexFooter {
            format: self.layout.format(),
            frame_checksums: self.frame_checksums(),
            content_len,
            frame_len,
            pages: self.counts,
            entries_len: u32::try_from(self.entries_len).ok()?,
            sections_len: u32::try_from(sections_len).ok()?,
            table_checksum: xxh32(&self.table()),
            sections_checksum,
        })
    }

    /// Returns the index as a skippable frame, or `None` if it would be longer than such a frame can be.
    pub(crate) fn encode(&self, content_len: u64, frame_len: u64, sections: &[u8]) -> Option<Vec<u8>> {
        let footer = self.footer(content_len, frame_len, sections.len() as u64, xxh32(sections))?;
        let payload_len = u32::try_from(footer.index_len() - SKIPPABLE_HEAD_LEN).ok()?;
        let mut bytes = Vec::with_capacity(payload_len as usize + 8);
        bytes.extend(INDEX_FRAME_MAGIC.to_le_bytes());
        bytes.extend(payload_len.to_le_bytes());
        bytes.extend(INDEX_MAGIC);
        bytes.extend_from_slice(self.kept.as_deref().unwrap_or_default());
        bytes.extend_from_slice(sections);
        bytes.extend(self.table());
        bytes.extend(footer.encode());
        Some(bytes)
    }
}

/// Returns the entries of a group of zeros: runs as long as the format allows, and a shorter last one.
pub(crate) fn zero_entries(pages: u64, format: Format) -> impl Iterator<Item = PageEntry> {
    let run_pages = format.run_pages() as u64;
    (0..pages).map(move |page| match page % run_pages {
        0 => PageEntry::Zeros(u16::try_from((pages - page).min(run_pages)).expect("a run is short")),
        _ => PageEntry::Continues,
    })
}
