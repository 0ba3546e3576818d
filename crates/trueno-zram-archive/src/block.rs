//! A block that was read: its checksum, its form as a page, and the general decoders.

use trueno_zram_core::{PAGE_SIZE, PageData, PageKind};

use crate::error::{Error, Result};
use crate::format::{Format, Layout};
use crate::hashes::content_hash::xxh32;
use crate::index::blocks::BlockPlace;
use crate::index::entry::PageEntry;
use crate::index::layout::page_len;
use crate::lz4::constant_pages::{WORD_BLOCK_LEN, word_of, zero_block, zero_pages_of};
use crate::lz4::header::RAW_BLOCK_FLAG;
use crate::lz4::sequences::ends_in_literals;
use crate::zstd::constant_pages::word_of as zstd_word_of;
use crate::zstd::frame::{FramePeek, PageFrame, content_checksum, peek_frame};
use crate::zstd::frame_check::check_frame;
use crate::zstd::libzstd::FrameDecoder;

/// The agreement of a block with its description in an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// It is what the index says.
    Matches,
    /// Its header is another one: the block may have another length.
    HeaderDiffers,
    /// Its header is the one described, but it holds a page of another form.
    FormDiffers,
}

/// A block, by its position in the window on the input. A Zstandard frame of one page or of zeros counts as a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) format: Format,
    /// Position in the stream: of its size word, or of the frame.
    pub(crate) at: u64,
    /// Position in the window: of the bytes after its size word, or of the frame.
    pub(crate) start: usize,
    pub(crate) len: usize,
    pub(crate) raw: bool,
    /// Zero pages, if it is a block of these; else 0.
    pub(crate) zero_pages: usize,
    /// Number of its first page, if the frame consists of pages so far.
    pub(crate) page: Option<u64>,
    /// A Zstandard frame that holds less than a page.
    pub(crate) part_of_page: bool,
}

impl Block {
    /// Returns an LZ4 block.
    pub(crate) fn lz4(at: u64, start: usize, len: usize, raw: bool) -> Self {
        Self { format: Format::Lz4, at, start, len, raw, zero_pages: 0, page: None, part_of_page: false }
    }

    /// Returns the block that an index describes, and how far it agrees with the description. The window starts at
    /// `window_at` in the file, and has the whole block. The length that an LZ4 block decodes to is not compared.
    pub(crate) fn described(
        place: &BlockPlace,
        layout: &Layout,
        window_at: u64,
        window: &[u8],
        content_len: u64,
    ) -> (Self, Fit) {
        if let Layout::Zstd { checksums } = layout {
            let (block, fits) = check_frame(place, window_at, window, content_len, *checksums);
            return (block, if fits { Fit::Matches } else { Fit::HeaderDiffers });
        }
        let size_at = usize::try_from(place.offset - window_at).expect("within the window");
        let (start, len, raw) = (size_at + 4, place.len_bytes as usize, place.kind == PageKind::Raw);
        let mut block = Self { page: Some(place.first_page), ..Self::lz4(place.offset, start, len, raw) };
        let bytes = block.bytes(window);
        if !raw {
            block.zero_pages = zero_pages_of(bytes).unwrap_or(0);
        }
        let size = place.len_bytes | if raw { RAW_BLOCK_FLAG } else { 0 };
        let same_form = match place.kind {
            PageKind::SameFilled if place.zero => {
                block.zero_pages as u64 == place.pages
                    && (place.first_page + place.pages) * PAGE_SIZE as u64 <= content_len
            }
            PageKind::SameFilled => word_of(bytes).is_some() && page_len(content_len, place.first_page) == PAGE_SIZE,
            PageKind::Raw => page_len(content_len, place.first_page) == len,
            PageKind::Lz4 | PageKind::Zstd => true,
        };
        let fit = match window[size_at..start] == size.to_le_bytes() {
            false => Fit::HeaderDiffers,
            true if !same_form => Fit::FormDiffers,
            true => Fit::Matches,
        };
        (block, fit)
    }

    pub(crate) fn bytes<'a>(&self, window: &'a [u8]) -> &'a [u8] {
        &window[self.start..self.start + self.len]
    }

    /// Returns the Zstandard frame that the block is; `None` if it is not one that an archive has.
    pub(crate) fn page_frame(&self, window: &[u8]) -> Option<PageFrame> {
        match peek_frame(self.bytes(window)) {
            FramePeek::Page(frame) if frame.len == self.len => Some(frame),
            _ => None,
        }
    }

    /// Compares the block with its checksum, as far as that takes no decoding: the decoder of Zstandard compares the rest.
    pub(crate) fn verify(&self, window: &[u8]) -> Result<()> {
        let (stored, actual) = match self.format {
            Format::Lz4 => {
                let actual = match self.zero_pages {
                    0 => xxh32(self.bytes(window)),
                    pages => zero_block(pages).checksum,
                };
                (window[self.start + self.len..].first_chunk(), actual)
            }
            Format::Zstd => {
                let frame = self.page_frame(window).filter(|frame| frame.raw && frame.checksum);
                let Some(frame) = frame else { return Ok(()) };
                let bytes = self.bytes(window);
                (bytes.last_chunk(), u32::from_le_bytes(content_checksum(frame.raw_content(bytes))))
            }
        };
        let expected = u32::from_le_bytes(*stored.expect("the checksum is in the window"));
        if actual == expected {
            return Ok(());
        }
        Err(Error::BlockChecksum { at: self.at, page: self.page, expected, actual })
    }

    /// Returns the block as a page if it can be one.
    pub(crate) fn as_page<'a>(&self, window: &'a [u8]) -> Option<PageData<'a>> {
        let bytes = self.bytes(window);
        if self.format == Format::Zstd {
            let frame = self.page_frame(window).filter(PageFrame::is_page)?;
            return if frame.raw {
                PageData::new(PageKind::Raw, frame.raw_content(bytes)).ok()
            } else if let Some(word) = zstd_word_of(bytes) {
                PageData::new(PageKind::SameFilled, word).ok()
            } else {
                PageData::new(PageKind::Zstd, bytes).ok()
            };
        }
        if self.raw {
            return PageData::new(PageKind::Raw, bytes).ok();
        }
        if self.len == WORD_BLOCK_LEN && word_of(bytes).is_some() {
            return PageData::new(PageKind::SameFilled, &bytes[1..9]).ok();
        }
        PageData::new(PageKind::Lz4, bytes).ok()
    }

    /// Returns the entry that an index has for the block.
    pub(crate) fn entry(&self, window: &[u8]) -> PageEntry {
        let len = u16::try_from(self.len).unwrap_or(u16::MAX);
        if self.zero_pages > 0 {
            PageEntry::Zeros(u16::try_from(self.zero_pages).expect("a run is short"))
        } else if self.raw {
            let content_len = match self.format {
                Format::Lz4 => self.len,
                Format::Zstd => self.page_frame(window).map_or(usize::MAX, |frame| frame.content_len),
            };
            PageEntry::Raw(u16::try_from(content_len).unwrap_or(u16::MAX))
        } else if self.as_page(window).is_some_and(|page| page.kind() == PageKind::SameFilled) {
            PageEntry::Word
        } else {
            PageEntry::Packed(len)
        }
    }

    /// Decodes the block, whatever its length, with the content before it in its frame as dictionary. Returns the
    /// length of its content.
    pub(crate) fn decode(&self, window: &[u8], dictionary: &[u8], out: &mut [u8]) -> Result<usize> {
        let bytes = self.bytes(window);
        if self.format == Format::Zstd {
            let mut decoder = FrameDecoder::acquire().map_err(Error::Decoder)?;
            return decoder.decode(bytes, out).map_err(|error| self.corrupt(error));
        }
        if self.raw {
            let target = out.get_mut(..bytes.len());
            let target = target.ok_or_else(|| self.corrupt("it is longer than the frame allows"))?;
            target.copy_from_slice(bytes);
            return Ok(bytes.len());
        }
        if !ends_in_literals(bytes) {
            return Err(self.corrupt("its last bytes are not literals"));
        }
        let decoded = if dictionary.is_empty() {
            lz4_flex::block::decompress_into(bytes, out)
        } else {
            lz4_flex::block::decompress_into_with_dict(bytes, out, dictionary)
        };
        decoded.map_err(|error| self.corrupt(error))
    }

    /// Decodes the last page of an archive, which has `len` bytes. What follows them in `out` is set to zero.
    pub(crate) fn decode_tail(&self, window: &[u8], len: usize, out: &mut [u8]) -> Result<()> {
        let found = self.decode(window, &[], out)?;
        if found != len {
            return Err(self.corrupt(format!("it holds {found} bytes; the last page has {len}")));
        }
        out[len..].fill(0);
        Ok(())
    }

    /// Returns the most bytes that the block can decode to: no byte of an LZ4 block stands for more than 255, and a frame of
    /// a page holds a page at most.
    pub(crate) fn decoded_bound(&self, max_block_len: usize) -> usize {
        if self.format == Format::Zstd {
            PAGE_SIZE
        } else if self.raw {
            self.len
        } else {
            self.len.saturating_mul(255).min(max_block_len)
        }
    }

    /// Reports that the block does not decode.
    pub(crate) fn corrupt(&self, reason: impl ToString) -> Error {
        Error::Block { at: self.at, page: self.page, reason: reason.to_string() }
    }

    /// Reports that the block is not the one that the index describes.
    pub(crate) fn not_described(&self) -> Error {
        let (page, at) = (self.page.unwrap_or_default(), self.at);
        Error::index(format!("page {page} (byte {at}): the block there is not the one that it describes"))
    }

    /// Returns `true` if the block can hold a page, or the last and shorter one, or a run of zero pages.
    pub(crate) fn may_be_page(&self) -> bool {
        if self.raw { self.len <= PAGE_SIZE } else { self.len < PAGE_SIZE }
    }
}
