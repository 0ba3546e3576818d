//! The blocks of pages as they lie in the file, for both formats.

use trueno_zram_core::{PAGE_SIZE, Page, PageData, PageKind, is_zero};

use crate::error::{Error, Result};
use crate::format::Layout;
use crate::hashes::content_hash::xxh32;
use crate::index::entry::PageEntry;
use crate::lz4::constant_pages::{WORD_BLOCK_LEN, word_block, word_of, zero_block, zero_pages_of};
use crate::lz4::header::RAW_BLOCK_FLAG;
use crate::zstd::constant_pages::{put_word, put_zeros as put_zero_frame, word_of_block};
use crate::zstd::frame::{content_checksum, packed_frame_len, put_packed, put_raw, single_block};
use crate::zstd::libzstd::{self, FrameDecoder};

impl Layout {
    /// Returns the entry of a page that is not zero.
    pub(crate) fn entry_of(&self, page: PageData<'_>) -> Result<PageEntry> {
        let len = u16::try_from(page.bytes().len()).expect("a compressed page is short");
        Ok(match (self, page.kind()) {
            (_, PageKind::SameFilled) => PageEntry::Word,
            (_, PageKind::Raw) => PageEntry::Raw(len),
            // Another encoder may have made the block of a repeated word that this crate makes.
            (Self::Lz4(_), PageKind::Lz4)
                if page.bytes().len() == WORD_BLOCK_LEN && word_of(page.bytes()).is_some() =>
            {
                PageEntry::Word
            }
            (Self::Lz4(_), PageKind::Lz4) => PageEntry::Packed(len),
            (Self::Zstd { checksums }, PageKind::Zstd) => {
                let frame = single_block(page.bytes(), PAGE_SIZE);
                let frame =
                    frame.ok_or_else(|| Error::Misuse("a page is not a Zstandard frame of one block".to_owned()))?;
                let len = packed_frame_len(PAGE_SIZE, frame.block.len(), *checksums);
                let short = |len: usize| u16::try_from(len).expect("a page is short");
                if word_of_block(frame.block).is_some() {
                    PageEntry::Word
                } else if len < PAGE_SIZE {
                    PageEntry::Packed(short(len))
                } else {
                    PageEntry::Raw(short(PAGE_SIZE))
                }
            }
            (Self::Lz4(_), PageKind::Zstd) => {
                return Err(Error::Misuse("an archive of the LZ4 format cannot hold Zstandard pages".to_owned()));
            }
            (Self::Zstd { .. }, PageKind::Lz4) => {
                return Err(Error::Misuse("an archive of the Zstandard format cannot hold LZ4 pages".to_owned()));
            }
        })
    }

    /// Appends the block of a run of zero pages.
    pub(crate) fn put_zeros(&self, pages: u16, out: &mut Vec<u8>) {
        match self {
            Self::Lz4(header) => {
                let zeros = zero_block(usize::from(pages));
                out.extend(u32::try_from(zeros.bytes.len()).expect("a block is short").to_le_bytes());
                out.extend_from_slice(&zeros.bytes);
                if header.block_checksums {
                    out.extend(zeros.checksum.to_le_bytes());
                }
            }
            Self::Zstd { checksums } => put_zero_frame(usize::from(pages), *checksums, out),
        }
    }

    /// Appends the block of the last page, which is shorter; returns its entry.
    pub(crate) fn put_tail(&self, bytes: &[u8], out: &mut Vec<u8>) -> Result<PageEntry> {
        let short = |len: usize| u16::try_from(len).expect("shorter than a page");
        match self {
            Self::Lz4(_) => {
                let compressed = lz4_flex::block::compress(bytes);
                let raw = compressed.len() >= bytes.len();
                let block = if raw { bytes } else { &compressed[..] };
                put_block(if raw { RAW_BLOCK_FLAG } else { 0 }, block, self.block_checksums(), out);
                Ok(if raw { PageEntry::Raw(short(block.len())) } else { PageEntry::Packed(short(block.len())) })
            }
            Self::Zstd { checksums } => {
                let frame = libzstd::compress(bytes).map_err(Error::Decoder)?;
                let checksum = checksums.then(|| content_checksum(bytes));
                let raw = PageEntry::Raw(short(bytes.len()));
                let packed = single_block(&frame, bytes.len())
                    .map(|one| (one.block, packed_frame_len(bytes.len(), one.block.len(), *checksums)))
                    .filter(|(_, len)| *len < self.stored_len(raw));
                Ok(match packed {
                    Some((block, len)) => {
                        put_packed(bytes.len(), block, checksum, out);
                        PageEntry::Packed(short(len))
                    }
                    None => {
                        put_raw(bytes, checksum, out);
                        raw
                    }
                })
            }
        }
    }

    /// Appends the block of a page. `plain` is the uncompressed page, if the caller has it.
    pub(crate) fn put_page(
        &self,
        entry: PageEntry,
        page: PageData<'_>,
        plain: Option<&Page>,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        match self {
            Self::Lz4(header) => {
                let word;
                let (flag, bytes) = match page.kind() {
                    PageKind::SameFilled => {
                        word = word_block(page.bytes().try_into().expect("such a page is held as its word"));
                        (0, &word[..])
                    }
                    PageKind::Lz4 => (0, page.bytes()),
                    PageKind::Raw | PageKind::Zstd => (RAW_BLOCK_FLAG, page.bytes()),
                };
                put_block(flag, bytes, header.block_checksums, out);
                Ok(())
            }
            Self::Zstd { checksums } => put_frame(entry, page, *checksums, plain, out),
        }
    }
}

/// Appends an LZ4 block with its size word and, if asked for, its checksum.
fn put_block(flag: u32, bytes: &[u8], checksummed: bool, out: &mut Vec<u8>) {
    let size = u32::try_from(bytes.len()).expect("a block is short") | flag;
    out.extend(size.to_le_bytes());
    out.extend_from_slice(bytes);
    if checksummed {
        out.extend(xxh32(bytes).to_le_bytes());
    }
}

/// Appends the Zstandard frame of a page. Without the plain page, one that has to be hashed or stored is decoded.
fn put_frame(
    entry: PageEntry,
    page: PageData<'_>,
    checksums: bool,
    plain: Option<&Page>,
    out: &mut Vec<u8>,
) -> Result<()> {
    let packed = if page.kind() == PageKind::Zstd { single_block(page.bytes(), PAGE_SIZE) } else { None };
    match (entry, packed) {
        (PageEntry::Word, packed) => {
            let word = packed.and_then(|packed| word_of_block(packed.block)).copied();
            let word = word.or_else(|| page.bytes().try_into().ok()).expect("such a page is held as its word");
            put_word(word, checksums, out);
        }
        (PageEntry::Packed(_), Some(packed)) => {
            let checksum = match packed.checksum {
                _ if !checksums => None,
                Some(stored) => Some(stored),
                None => Some(content_checksum(content_of(page, plain, &mut [0; PAGE_SIZE])?)),
            };
            put_packed(PAGE_SIZE, packed.block, checksum, out);
        }
        (_, Some(_)) => {
            let mut buffer = [0; PAGE_SIZE];
            let content = content_of(page, plain, &mut buffer)?;
            put_raw(content, checksums.then(|| content_checksum(content)), out);
        }
        (_, None) => put_raw(page.bytes(), checksums.then(|| content_checksum(page.bytes())), out),
    }
    Ok(())
}

/// Returns the content of a Zstandard page: the plain page, or the page decoded to `buffer`.
fn content_of<'a>(page: PageData<'_>, plain: Option<&'a Page>, buffer: &'a mut Page) -> Result<&'a Page> {
    if let Some(plain) = plain {
        return Ok(plain);
    }
    let decoded = FrameDecoder::acquire().and_then(|mut decoder| decoder.decode_page(page.bytes(), buffer));
    decoded.map_err(Error::Decoder)?;
    Ok(buffer)
}

/// Returns `true` if a page is zero: as a word, or as the LZ4 block that readers recognise as a zero page.
pub(crate) fn is_zero_page(page: PageData<'_>) -> bool {
    match page.kind() {
        PageKind::SameFilled => is_zero(page.bytes()),
        PageKind::Lz4 => zero_pages_of(page.bytes()) == Some(1),
        PageKind::Raw | PageKind::Zstd => false,
    }
}
