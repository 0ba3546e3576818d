//! Who turns blocks of pages back into pages.

use rayon::prelude::*;
use trueno_zram_core::cpu::InstructionSet;
use trueno_zram_core::{CompressedBatch, Error, IndexEntry, Page, PageData, PageKind, Result, fill_page, lz4};

/// Pages that one thread takes at a time, and below which no other thread is asked.
const CHUNK_PAGES: usize = 16;

/// Restores pages that are one block each. The readers do all else: checksums, zeros, blocks of other lengths.
///
/// ```
/// use trueno_zram_archive::{PageDecoder, gather};
/// use trueno_zram_core::{CpuBatchCompressor, Page, PageData, Result};
///
/// /// Any engine that takes batches.
/// struct Engine(CpuBatchCompressor);
///
/// impl PageDecoder for Engine {
///     fn decode(&mut self, blocks: &[PageData<'_>], pages: &mut [Page]) -> Result<()> {
///         self.0.decompress_into(&gather(blocks), pages, &())
///     }
/// }
/// ```
pub trait PageDecoder: Send {
    /// Restores `blocks[i]` to `pages[i]`; there are as many of the one as of the other. Calls may come from different
    /// threads of the rayon pool, one at a time.
    ///
    /// # Errors
    /// [`Error::InPage`] for a block that is not exactly one page: it may be a shorter or a longer one, which the reader then
    /// decodes by itself, with all others of the lot. Any other error ends the reading.
    fn decode(&mut self, blocks: &[PageData<'_>], pages: &mut [Page]) -> Result<()>;

    /// The most pages to be given at a time. The content's hash over one lot runs beside the decoding of the next.
    fn lot_pages(&self) -> usize {
        4096
    }
}

/// Restores pages on the threads of the rayon pool that it is called in.
///
/// ```
/// use trueno_zram_archive::{CpuPageDecoder, PageDecoder};
/// use trueno_zram_core::{PAGE_SIZE, PageData, PageKind};
/// let mut page = [[0; PAGE_SIZE]];
/// CpuPageDecoder::new().decode(&[PageData::new(PageKind::SameFilled, b"deadbeef")?], &mut page)?;
/// assert!(page[0].ends_with(b"beef"));
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
#[derive(Debug)]
pub struct CpuPageDecoder {
    codec: lz4::Codec,
}

impl CpuPageDecoder {
    /// A decoder with the best back end of this CPU.
    ///
    /// ```
    /// use trueno_zram_archive::{CpuPageDecoder, FrameReader};
    /// let reader = FrameReader::with_decoder(&b""[..], CpuPageDecoder::new());
    /// # drop(reader);
    /// ```
    #[must_use]
    pub fn new() -> Self {
        let codec = lz4::Codec::new(InstructionSet::detect()).expect("a back end that was detected is there");
        Self { codec }
    }

    /// A decoder with the given codec.
    ///
    /// ```
    /// use trueno_zram_archive::CpuPageDecoder;
    /// use trueno_zram_core::{cpu::InstructionSet, lz4};
    /// let portable = CpuPageDecoder::with_codec(lz4::Codec::new(InstructionSet::Scalar)?);
    /// # drop(portable);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn with_codec(codec: lz4::Codec) -> Self {
        Self { codec }
    }

    /// Which blocks are pages; those are restored.
    pub(crate) fn decode_each(&self, blocks: &[Option<PageData<'_>>], pages: &mut [Page]) -> Vec<bool> {
        let restore = |(block, page): (&Option<PageData<'_>>, &mut Page)| {
            block.is_some_and(|block| decode_one(&self.codec, block, page).is_ok())
        };
        blocks.par_iter().zip(pages).with_min_len(CHUNK_PAGES).map(restore).collect()
    }
}

impl Default for CpuPageDecoder {
    fn default() -> Self {
        Self::new()
    }
}

impl PageDecoder for CpuPageDecoder {
    fn decode(&mut self, blocks: &[PageData<'_>], pages: &mut [Page]) -> Result<()> {
        let codec = &self.codec;
        let chunk = |(number, (blocks, pages)): (usize, (&[PageData<'_>], &mut [Page]))| {
            for (index, (block, page)) in (number * CHUNK_PAGES..).zip(blocks.iter().zip(pages)) {
                let in_page = |error| Error::InPage { index, error: Box::new(error) };
                decode_one(codec, *block, page).map_err(in_page)?;
            }
            Ok(())
        };
        if blocks.len() <= CHUNK_PAGES {
            return chunk((0, (blocks, pages)));
        }
        blocks.par_chunks(CHUNK_PAGES).zip(pages.par_chunks_mut(CHUNK_PAGES)).enumerate().try_for_each(chunk)
    }

    /// 1 MiB: what was decoded is still in the cache when it is hashed.
    fn lot_pages(&self) -> usize {
        256
    }
}

fn decode_one(codec: &lz4::Codec, block: PageData<'_>, page: &mut Page) -> Result<()> {
    match block.kind() {
        PageKind::SameFilled => {
            fill_page(page, block.bytes().try_into().expect("a word is what such a page is held in"));
        }
        PageKind::Raw => page.copy_from_slice(block.bytes()),
        PageKind::Lz4 => codec.decode(block.bytes(), page)?,
        PageKind::Zstd => {
            return Err(Error::Unsupported { what: "a Zstandard page".to_owned(), by: "the page archive" });
        }
    }
    Ok(())
}

/// Copies blocks into a batch, for engines that take batches.
///
/// ```
/// use trueno_zram_core::{PageData, PageKind};
/// let word = PageData::new(PageKind::SameFilled, b"deadbeef")?;
/// assert_eq!(trueno_zram_archive::gather(&[word, word]).arena().len(), 16);
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
#[must_use]
pub fn gather(blocks: &[PageData<'_>]) -> CompressedBatch {
    let mut arena = Vec::with_capacity(blocks.iter().map(|block| block.bytes().len()).sum());
    let mut index = Vec::with_capacity(blocks.len());
    for block in blocks {
        let len_bytes = u16::try_from(block.bytes().len()).expect("a page is held in 4096 bytes at most");
        index.push(IndexEntry { offset: arena.len() as u64, len_bytes, kind: block.kind() });
        arena.extend_from_slice(block.bytes());
    }
    CompressedBatch::from_parts(arena, index).expect("every entry was just made for its bytes")
}
