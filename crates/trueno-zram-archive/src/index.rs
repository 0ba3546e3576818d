//! The index: how it is laid out, and how it is built block by block.
//!
//! It is a skippable frame behind the LZ4 frame, which readers that do not know it pass over. Little-endian throughout:
//!
//! | part | bytes |
//! | --- | --- |
//! | magic number and length of the skippable frame | 8 |
//! | [`INDEX_MAGIC`] | 8 |
//! | entries: 2 a page, in groups of 1,024 pages; none for groups of zeros | 0 to 2,048 a group |
//! | sections: name length (1), name, length (4), bytes | |
//! | table: for each group where its first block stands in the frame (8; the top bit marks a group of zeros), and the XXH32 of its entries (4) | 12 a group |
//! | [`Footer`] | 80 |
//!
//! To find a page takes the footer, the table (6 KiB for 2 GiB of pages), and its group's entries.

use crate::constant::RUN_PAGES;
use crate::entry::Entry;
use crate::error::{Error, Result};
use crate::hash::xxh32;
use crate::header::{Header, SKIPPABLE_MAGIC};
use crate::summary::PageCounts;

use trueno_zram_core::PAGE_SIZE;

/// The skippable frame's magic number: one of 16 that anybody may use, so the payload has one of its own.
pub(crate) const INDEX_FRAME_MAGIC: u32 = SKIPPABLE_MAGIC + 13;
/// The first bytes of the payload.
pub(crate) const INDEX_MAGIC: [u8; 8] = *b"TZ-INDEX";
/// The last bytes of the file.
const FOOTER_MAGIC: [u8; 8] = *b"TZ-PAGES";
const VERSION: u16 = 1;

pub(crate) const GROUP_PAGES: usize = 1024;
pub(crate) const ENTRY_LEN: usize = 2;
pub(crate) const GROUP_RECORD_LEN: usize = 12;
pub(crate) const FOOTER_LEN: usize = 80;
/// Of the skippable frame's own header and of [`INDEX_MAGIC`].
pub(crate) const HEAD_LEN: usize = 16;
/// The top bit of a group's offset.
const ALL_ZEROS: u64 = 1 << 63;

/// Pages of so many bytes.
pub(crate) fn pages_of(content_len: u64) -> u64 {
    content_len.div_ceil(PAGE_SIZE as u64)
}

/// A group of pages, as the table tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// Where its first block stands, from the start of the frame.
    pub(crate) offset: u64,
    /// Nothing but zeros, in runs as long as can be: no entries are stored.
    pub(crate) all_zeros: bool,
    /// Of the entries stored.
    pub(crate) checksum: u32,
}

impl Group {
    pub(crate) fn encode(self) -> [u8; GROUP_RECORD_LEN] {
        let mut record = [0; GROUP_RECORD_LEN];
        let flag = if self.all_zeros { ALL_ZEROS } else { 0 };
        record[..8].copy_from_slice(&(self.offset | flag).to_le_bytes());
        record[8..].copy_from_slice(&self.checksum.to_le_bytes());
        record
    }

    pub(crate) fn decode(record: [u8; GROUP_RECORD_LEN]) -> Self {
        let mut fields = Fields(&record);
        let offset = fields.u64();
        Self { offset: offset & !ALL_ZEROS, all_zeros: offset & ALL_ZEROS != 0, checksum: fields.u32() }
    }
}

/// The last bytes of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Footer {
    pub(crate) content_len: u64,
    /// Bytes of the LZ4 frame, from its magic number to its last checksum.
    pub(crate) frame_len: u64,
    pub(crate) pages: PageCounts,
    pub(crate) entries_len: u32,
    pub(crate) sections_len: u32,
    pub(crate) table_checksum: u32,
    pub(crate) sections_checksum: u32,
}

impl Footer {
    pub(crate) fn encode(&self) -> [u8; FOOTER_LEN] {
        let mut bytes = Vec::with_capacity(FOOTER_LEN);
        let PageCounts { zero, same_filled, lz4, raw } = self.pages;
        for long in [self.content_len, self.frame_len, zero, same_filled, lz4, raw] {
            bytes.extend(long.to_le_bytes());
        }
        for short in [self.entries_len, self.sections_len, self.table_checksum, self.sections_checksum] {
            bytes.extend(short.to_le_bytes());
        }
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend([0; 2]);
        bytes.extend(xxh32(&bytes).to_le_bytes());
        bytes.extend(FOOTER_MAGIC);
        bytes.try_into().expect("the fields add up to the footer's length")
    }

    /// `None` if these bytes are no footer at all.
    pub(crate) fn decode(bytes: &[u8; FOOTER_LEN]) -> Result<Option<Self>> {
        if !bytes.ends_with(&FOOTER_MAGIC) {
            return Ok(None);
        }
        let mut fields = Fields(bytes);
        let footer = Self {
            content_len: fields.u64(),
            frame_len: fields.u64(),
            pages: PageCounts { zero: fields.u64(), same_filled: fields.u64(), lz4: fields.u64(), raw: fields.u64() },
            entries_len: fields.u32(),
            sections_len: fields.u32(),
            table_checksum: fields.u32(),
            sections_checksum: fields.u32(),
        };
        let version = fields.u32();
        if fields.u32() != xxh32(&bytes[..FOOTER_LEN - 12]) {
            return Err(Error::index("the checksum of its footer is wrong"));
        }
        if version != u32::from(VERSION) {
            return Err(Error::index(format!("it has version {version}, and only {VERSION} is known")));
        }
        let pages = footer.pages;
        let total = [pages.zero, pages.same_filled, pages.lz4, pages.raw].into_iter().try_fold(0, u64::checked_add);
        if total != Some(pages_of(footer.content_len)) {
            return Err(Error::index("its page counts do not add up to its content"));
        }
        Ok(Some(footer))
    }

    pub(crate) fn groups(&self) -> u64 {
        pages_of(self.content_len).div_ceil(GROUP_PAGES as u64)
    }

    /// Bytes of the table.
    pub(crate) fn table_len(&self) -> u64 {
        self.groups() * GROUP_RECORD_LEN as u64
    }

    /// Bytes of the index in the file.
    pub(crate) fn index_len(&self) -> u64 {
        (HEAD_LEN + FOOTER_LEN) as u64 + u64::from(self.entries_len) + u64::from(self.sections_len) + self.table_len()
    }
}

/// Takes fields off the front of a record of fixed length.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk().expect("records have room for all their fields");
        self.0 = rest;
        *field
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }
}

/// Builds the index block by block: for the writer, and for a reader that checks an index against its frame.
#[derive(Debug)]
pub(crate) struct IndexBuilder {
    block_overhead: u64,
    /// Where the next block will stand, from the start of the frame.
    at: u64,
    counts: PageCounts,
    groups: Vec<Group>,
    /// Entries of the groups that are done, if they are to be kept.
    kept: Option<Vec<u8>>,
    stored_groups: u64,
    /// Of the group at work.
    entries: Vec<u8>,
    group_at: u64,
    group_all_zeros: bool,
}

/// What the blocks of a whole frame come to.
#[derive(Debug)]
pub(crate) struct BuiltIndex {
    pub(crate) groups: Vec<Group>,
    pub(crate) kept: Option<Vec<u8>>,
    pub(crate) counts: PageCounts,
    /// Bytes of all entries, kept or not.
    pub(crate) entries_len: u64,
}

impl IndexBuilder {
    /// For a frame with that header, `header_len` bytes long.
    pub(crate) fn new(header: &Header, header_len: u64, keeps: Keeps) -> Self {
        Self {
            block_overhead: 4 + header.block_checksum_len() as u64,
            at: header_len,
            counts: PageCounts::default(),
            groups: Vec::new(),
            kept: (keeps == Keeps::Entries).then(Vec::new),
            stored_groups: 0,
            entries: Vec::with_capacity(GROUP_PAGES * ENTRY_LEN),
            group_at: header_len,
            group_all_zeros: true,
        }
    }

    pub(crate) fn counts(&self) -> PageCounts {
        self.counts
    }

    /// The number of the next page.
    pub(crate) fn next_page(&self) -> u64 {
        self.counts.total()
    }

    /// Pages from here to the next place where a run of zeros must end.
    pub(crate) fn run_room(&self) -> u64 {
        RUN_PAGES as u64 - self.next_page() % RUN_PAGES as u64
    }

    /// Adds a block. `false` if archives have no such block here: a run of zeros across a boundary.
    #[must_use]
    pub(crate) fn push(&mut self, entry: Entry) -> bool {
        if entry.pages() > self.run_room() {
            return false;
        }
        match entry {
            Entry::Zeros(pages) => {
                self.group_all_zeros &= self.run_room() == RUN_PAGES as u64;
                self.counts.zero += u64::from(pages);
            }
            Entry::Word => self.counts.same_filled += 1,
            Entry::Lz4(_) => self.counts.lz4 += 1,
            Entry::Raw(_) => self.counts.raw += 1,
            Entry::Continues => {}
        }
        self.group_all_zeros &= matches!(entry, Entry::Zeros(_));
        self.entries.extend(entry.encode());
        for _ in 1..entry.pages() {
            self.entries.extend(Entry::Continues.encode());
        }
        self.at += self.block_overhead + entry.block_len().map_or(0, |len| len as u64);
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

/// Whether a builder keeps the entries, or their checksums only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeps {
    Entries,
    Checksums,
}

impl BuiltIndex {
    /// The table, as it is stored.
    pub(crate) fn table(&self) -> Vec<u8> {
        self.groups.iter().flat_map(|group| group.encode()).collect()
    }

    /// The skippable frame, ready to be written. `None` if it would be longer than such a frame can be.
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

/// The entries of a group of zeros: runs as long as can be.
pub(crate) fn zero_entries(pages: u64) -> impl Iterator<Item = Entry> {
    (0..pages).map(move |page| match page % RUN_PAGES as u64 {
        0 => Entry::Zeros(u16::try_from((pages - page).min(RUN_PAGES as u64)).expect("a run is short")),
        _ => Entry::Continues,
    })
}
