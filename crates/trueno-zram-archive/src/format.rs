//! The two formats of archives, and their differences: the lengths of blocks, runs and ends.

use trueno_zram_core::PageKind;

use crate::error::{Error, Result};
use crate::index::entry::PageEntry;
use crate::index::layout::GROUP_PAGES;
use crate::lz4::constant_pages::{self, RUN_PAGES, WORD_BLOCK_LEN};
use crate::lz4::header::{FRAME_MAGIC, LEGACY_MAGIC, Lz4Header, SKIPPABLE_MAGIC};
use crate::zstd::frame::ZSTD_MAGIC;
use crate::zstd::{constant_pages as zstd_constant_pages, frame};

/// The standard format that an archive is a file of.
///
/// ```
/// use trueno_zram_archive::Format;
/// assert_eq!(Format::default(), Format::Lz4);
/// assert_eq!(Format::Zstd.extension(), "zst");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Format {
    /// One LZ4 frame, with a block per page.
    #[default]
    Lz4,
    /// Zstandard frames, one per page, with the seek table of Zstandard's seekable format.
    Zstd,
}

impl Format {
    /// Returns the usual ending of file names, without the dot.
    ///
    /// ```
    /// assert_eq!(trueno_zram_archive::Format::Lz4.extension(), "lz4");
    /// ```
    #[must_use]
    pub fn extension(self) -> &'static str {
        match self {
            Self::Lz4 => "lz4",
            Self::Zstd => "zst",
        }
    }

    /// Returns the format of a file that starts with these bytes; `None` if it is neither. Skippable frames start files of both
    /// formats: they count as LZ4 here.
    ///
    /// ```
    /// use trueno_zram_archive::Format;
    /// assert_eq!(Format::of_magic([0x28, 0xb5, 0x2f, 0xfd]), Some(Format::Zstd));
    /// assert_eq!(Format::of_magic(*b"PK\x03\x04"), None);
    /// ```
    #[must_use]
    pub fn of_magic(magic: [u8; 4]) -> Option<Self> {
        match u32::from_le_bytes(magic) {
            FRAME_MAGIC | LEGACY_MAGIC => Some(Self::Lz4),
            magic if magic & !15 == SKIPPABLE_MAGIC => Some(Self::Lz4),
            ZSTD_MAGIC => Some(Self::Zstd),
            _ => None,
        }
    }

    /// Fails if this build cannot compress and restore pages of the format.
    pub(crate) fn check_supported(self) -> Result<()> {
        match self {
            Self::Zstd if !cfg!(feature = "zstd") => Err(Error::MissingFeature { feature: "zstd" }),
            Self::Lz4 | Self::Zstd => Ok(()),
        }
    }

    /// Returns the kind of a page that was compressed.
    pub(crate) fn packed_kind(self) -> PageKind {
        match self {
            Self::Lz4 => PageKind::Lz4,
            Self::Zstd => PageKind::Zstd,
        }
    }

    /// Returns the most zero pages in one block. Runs end at page numbers that are multiples of this.
    pub(crate) fn run_pages(self) -> usize {
        match self {
            Self::Lz4 => RUN_PAGES,
            // A whole group: 138 bytes for 4 MiB, and readers find every group at the start of a frame.
            Self::Zstd => GROUP_PAGES,
        }
    }

    /// Returns the version of the index, which tells the formats apart.
    pub(crate) fn index_version(self) -> u32 {
        match self {
            Self::Lz4 => 1,
            Self::Zstd => 2,
        }
    }
}

/// The layout of an archive's pages. In Zstandard archives, a *block* is a whole frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Blocks of one frame with this header.
    Lz4(Lz4Header),
    /// A frame per page or run of zeros.
    Zstd {
        /// All frames have the checksum of their content.
        checksums: bool,
    },
}

impl Layout {
    pub(crate) fn format(&self) -> Format {
        match self {
            Self::Lz4(_) => Format::Lz4,
            Self::Zstd { .. } => Format::Zstd,
        }
    }

    /// Returns `true` if every block has a checksum.
    pub(crate) fn block_checksums(&self) -> bool {
        match self {
            Self::Lz4(header) => header.block_checksums,
            Self::Zstd { checksums } => *checksums,
        }
    }

    /// Returns `true` if there is a checksum of the whole content.
    pub(crate) fn content_checksum(&self) -> bool {
        matches!(self, Self::Lz4(Lz4Header { content_checksum: true, .. }))
    }

    /// Returns the length of the content that the data's start announces.
    pub(crate) fn content_size(&self) -> Option<u64> {
        match self {
            Self::Lz4(header) => header.content_size,
            Self::Zstd { .. } => None,
        }
    }

    /// Returns the bytes of a block that its length does not count.
    pub(crate) fn overhead(&self) -> usize {
        match self {
            Self::Lz4(header) => 4 + header.block_checksum_len(),
            Self::Zstd { .. } => 0,
        }
    }

    /// Returns the number of bytes between the last block and the index.
    pub(crate) fn end_len(&self) -> u64 {
        match self {
            Self::Lz4(header) => header.end_len(),
            Self::Zstd { .. } => 0,
        }
    }

    /// Returns the length of the block that starts with this page, without [`overhead`](Self::overhead); `None` if no
    /// block starts there.
    pub(crate) fn block_len(&self, entry: PageEntry) -> Option<usize> {
        match (self, entry) {
            (_, PageEntry::Continues) => None,
            (_, PageEntry::Packed(len)) => Some(usize::from(len)),
            (Self::Lz4(_), PageEntry::Zeros(pages)) => Some(constant_pages::zero_block(usize::from(pages)).bytes.len()),
            (Self::Lz4(_), PageEntry::Word) => Some(WORD_BLOCK_LEN),
            (Self::Lz4(_), PageEntry::Raw(len)) => Some(usize::from(len)),
            (Self::Zstd { checksums }, PageEntry::Zeros(pages)) => {
                Some(zstd_constant_pages::zero_frame_len(usize::from(pages), *checksums))
            }
            (Self::Zstd { checksums }, PageEntry::Word) => Some(zstd_constant_pages::word_frame_len(*checksums)),
            (Self::Zstd { checksums }, PageEntry::Raw(len)) => Some(frame::raw_frame_len(usize::from(len), *checksums)),
        }
    }

    /// Returns the length of a block in the file; 0 if no block starts with this page.
    pub(crate) fn stored_len(&self, entry: PageEntry) -> usize {
        self.block_len(entry).map_or(0, |len| self.overhead() + len)
    }

    /// Returns the least length of a group, the last one excepted.
    pub(crate) fn min_group_len(&self) -> u64 {
        match self {
            // Runs of zeros, without checksums.
            Self::Lz4(_) => (GROUP_PAGES / RUN_PAGES * (4 + constant_pages::zero_block(RUN_PAGES).bytes.len())) as u64,
            Self::Zstd { .. } => zstd_constant_pages::zero_frame_len(GROUP_PAGES, false) as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::builder::zero_entries;

    #[test]
    fn the_shortest_group_is_one_of_zeros_without_checksums() {
        for layout in [Layout::Lz4(Lz4Header::archive(None, false, false)), Layout::Zstd { checksums: false }] {
            let zeros = zero_entries(GROUP_PAGES as u64, layout.format());
            let len: usize = zeros.map(|entry| layout.stored_len(entry)).sum();
            assert_eq!(layout.min_group_len(), len as u64);
        }
    }

    #[test]
    fn extensions_are_those_of_the_tools() {
        assert_eq!([Format::Lz4, Format::Zstd].map(Format::extension), ["lz4", "zst"]);
    }

    #[test]
    fn compressed_files_are_known_by_their_first_bytes() {
        for (magic, known) in [
            ([0x04, 0x22, 0x4d, 0x18], Some(Format::Lz4)),
            ([0x02, 0x21, 0x4c, 0x18], Some(Format::Lz4)),
            ([0x5f, 0x2a, 0x4d, 0x18], Some(Format::Lz4)),
            ([0x60, 0x2a, 0x4d, 0x18], None),
            ([0x28, 0xb5, 0x2f, 0xfd], Some(Format::Zstd)),
            ([0x28, 0xb5, 0x2f, 0xfc], None),
        ] {
            assert_eq!(Format::of_magic(magic), known, "{magic:x?}");
        }
    }
}
