//! The layout of the index: footer, table records, lengths. `docs/FORMAT.md` specifies it.

use crate::error::{Error, Result};
use crate::format::Format;
use crate::hashes::content_hash::xxh32;
use crate::lz4::header::SKIPPABLE_MAGIC;

use trueno_zram_core::{PAGE_SIZE, PageStats};

/// The skippable frame's magic number: one of 16 that anybody may use, so the payload starts with its own.
pub(crate) const INDEX_FRAME_MAGIC: u32 = SKIPPABLE_MAGIC + 13;
/// The first bytes of the payload.
pub(crate) const INDEX_MAGIC: [u8; 8] = *b"TZ-INDEX";
/// The last bytes of the file.
const FOOTER_MAGIC: [u8; 8] = *b"TZ-PAGES";
/// A flag beside the version.
const FRAME_CHECKSUMS: u32 = 1 << 16;

/// Pages of a group: the part of an archive whose blocks are compared with the index together.
pub const GROUP_PAGES: usize = 1024;
pub(crate) const ENTRY_LEN: usize = 2;
pub(crate) const GROUP_RECORD_LEN: usize = 12;
pub(crate) const FOOTER_LEN: usize = 80;
/// Length of the skippable frame's header and of [`INDEX_MAGIC`].
pub(crate) const HEAD_LEN: usize = 16;
/// The top bit of a group's offset.
const ALL_ZEROS: u64 = 1 << 63;

/// Returns the number of pages of this much content, a shorter last one included.
pub(crate) fn pages_of(content_len: u64) -> u64 {
    content_len.div_ceil(PAGE_SIZE as u64)
}

/// Returns the length of a page of this much content: less than 4096 for a shorter last one.
pub(crate) fn page_len(content_len: u64, page: u64) -> usize {
    let left = content_len.saturating_sub(page.saturating_mul(PAGE_SIZE as u64));
    usize::try_from(left).unwrap_or(PAGE_SIZE).min(PAGE_SIZE)
}

/// A group of pages in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupRecord {
    /// Offset of its first block from the start of the archive.
    pub(crate) offset: u64,
    /// The group consists of zero pages, in runs as long as the format allows, and has no entries.
    pub(crate) all_zeros: bool,
    /// XXH32 of its stored entries.
    pub(crate) checksum: u32,
}

impl GroupRecord {
    pub(crate) fn encode(self) -> [u8; GROUP_RECORD_LEN] {
        let mut record = [0; GROUP_RECORD_LEN];
        let flag = if self.all_zeros { ALL_ZEROS } else { 0 };
        record[..8].copy_from_slice(&(self.offset | flag).to_le_bytes());
        record[8..].copy_from_slice(&self.checksum.to_le_bytes());
        record
    }

    pub(crate) fn decode(record: [u8; GROUP_RECORD_LEN]) -> Self {
        let mut fields = LittleEndianFields(&record);
        let offset = fields.u64();
        Self { offset: offset & !ALL_ZEROS, all_zeros: offset & ALL_ZEROS != 0, checksum: fields.u32() }
    }
}

/// The end of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexFooter {
    pub(crate) format: Format,
    /// All frames of the Zstandard format have checksums. LZ4 frames say so themselves.
    pub(crate) frame_checksums: bool,
    pub(crate) content_len: u64,
    /// Length of the data: the LZ4 frame, or all Zstandard frames of pages.
    pub(crate) frame_len: u64,
    pub(crate) pages: PageStats,
    pub(crate) entries_len: u32,
    pub(crate) sections_len: u32,
    pub(crate) table_checksum: u32,
    pub(crate) sections_checksum: u32,
}

impl IndexFooter {
    pub(crate) fn encode(&self) -> [u8; FOOTER_LEN] {
        let mut bytes = Vec::with_capacity(FOOTER_LEN);
        let PageStats { zero, same_filled, lz4, zstd, raw, .. } = self.pages;
        for long in [self.content_len, self.frame_len, zero, same_filled, lz4 + zstd, raw] {
            bytes.extend(long.to_le_bytes());
        }
        let version = self.format.index_version() | if self.frame_checksums { FRAME_CHECKSUMS } else { 0 };
        for short in [self.entries_len, self.sections_len, self.table_checksum, self.sections_checksum, version] {
            bytes.extend(short.to_le_bytes());
        }
        bytes.extend(xxh32(&bytes).to_le_bytes());
        bytes.extend(FOOTER_MAGIC);
        bytes.try_into().expect("the fields add up to the footer's length")
    }

    /// Decodes the footer of an index; `None` if the bytes are not a footer at all.
    pub(crate) fn decode(bytes: &[u8; FOOTER_LEN]) -> Result<Option<Self>> {
        if !bytes.ends_with(&FOOTER_MAGIC) {
            return Ok(None);
        }
        let mut fields = LittleEndianFields(bytes);
        let (content_len, frame_len) = (fields.u64(), fields.u64());
        let [zero, same_filled, packed, raw] = std::array::from_fn(|_| fields.u64());
        let total = [zero, same_filled, packed, raw].into_iter().try_fold(0, u64::checked_add);
        let [entries_len, sections_len, table_checksum, sections_checksum, version] =
            std::array::from_fn(|_| fields.u32());
        if fields.u32() != xxh32(&bytes[..FOOTER_LEN - 12]) {
            return Err(Error::index("the checksum of its footer is wrong"));
        }
        let (format, frame_checksums) = match (version & !FRAME_CHECKSUMS, version & FRAME_CHECKSUMS != 0) {
            (1, false) => (Format::Lz4, false),
            (2, checksums) => (Format::Zstd, checksums),
            _ => return Err(Error::index(format!("unknown version {version}; this reader knows versions 1 and 2"))),
        };
        let (lz4, zstd) = if format == Format::Lz4 { (packed, 0) } else { (0, packed) };
        let pages = PageStats { zero, same_filled, lz4, zstd, raw, bytes_out: 0 };
        let footer = Self {
            format,
            frame_checksums,
            content_len,
            frame_len,
            pages,
            entries_len,
            sections_len,
            table_checksum,
            sections_checksum,
        };
        if total != Some(pages_of(footer.content_len)) {
            return Err(Error::index("its page counts do not add up to its content"));
        }
        Ok(Some(footer))
    }

    pub(crate) fn groups(&self) -> u64 {
        pages_of(self.content_len).div_ceil(GROUP_PAGES as u64)
    }

    /// Length of the table in bytes.
    pub(crate) fn table_len(&self) -> u64 {
        self.groups() * GROUP_RECORD_LEN as u64
    }

    /// Length of the index in the file.
    pub(crate) fn index_len(&self) -> u64 {
        (HEAD_LEN + FOOTER_LEN) as u64 + u64::from(self.entries_len) + u64::from(self.sections_len) + self.table_len()
    }

    /// Position of the sections in the file.
    pub(crate) fn sections_at(&self) -> u64 {
        self.frame_len + HEAD_LEN as u64 + u64::from(self.entries_len)
    }

    /// Position of the table in the file.
    pub(crate) fn table_at(&self) -> u64 {
        self.sections_at() + u64::from(self.sections_len)
    }
}

/// Reads fields from the front of a record of fixed length.
pub(crate) struct LittleEndianFields<'a>(pub(crate) &'a [u8]);

impl LittleEndianFields<'_> {
    pub(crate) fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk().expect("records have room for all their fields");
        self.0 = rest;
        *field
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }
}
