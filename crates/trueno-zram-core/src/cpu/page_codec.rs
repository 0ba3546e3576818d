//! Single pages: a reusable context that compresses and decompresses without allocating.

use crate::algorithm::Algorithm;
use crate::cpu::{InstructionSet, zstd};
use crate::error::{Error, Result};
use crate::lz4;
use crate::page::{FILL_WORD_BYTES, Page, PageData, PageKind};
use crate::{fill_page, same_filled};

/// Compresses and decompresses single pages.
///
/// A codec owns its working memory. LZ4 allocates nothing after [`new`](Self::new); Zstandard allocates nothing after
/// its first page in each direction. Earlier pages never affect later results: the same page always gives the same
/// bytes, with every instruction set.
///
/// ```
/// use trueno_zram_core::{Algorithm, PAGE_SIZE, PageCodec, PageKind};
///
/// let mut page = [0u8; PAGE_SIZE];
/// page[..20].copy_from_slice(b"a page, nearly empty");
///
/// let mut codec = PageCodec::new(Algorithm::Lz4)?;
/// let mut out = [0u8; PAGE_SIZE];
/// let compressed = codec.compress(&page, &mut out)?;
/// assert_eq!(compressed.kind(), PageKind::Lz4);
/// assert!(compressed.bytes().len() < 50);
///
/// let mut back = [0xffu8; PAGE_SIZE];
/// codec.decompress(compressed, &mut back)?;
/// assert_eq!(back, page);
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
pub struct PageCodec {
    algorithm: Algorithm,
    lz4: lz4::Codec,
    encoder: PageEncoder,
    /// Created for the first Zstandard page, which few users of LZ4 ever see.
    zstd_decoder: Option<zstd::ZstdDecoder>,
}

/// The encoder in use, with any state beyond that of the LZ4 codec.
enum PageEncoder {
    None,
    Lz4,
    Zstd(zstd::ZstdEncoder),
}

impl PageCodec {
    /// Creates a codec for `algorithm` with the fastest instruction set of this CPU.
    ///
    /// ```
    /// use trueno_zram_core::{Algorithm, Error, PageCodec};
    /// let codec = PageCodec::new(Algorithm::Zstd { level: 3 })?;
    /// assert!(matches!(PageCodec::new(Algorithm::Zstd { level: 99 }), Err(Error::ZstdLevel { level: 99, .. })));
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ZstdLevel`](crate::Error::ZstdLevel) if the level is outside Zstandard's range.
    pub fn new(algorithm: Algorithm) -> Result<Self> {
        Self::with_instruction_set(algorithm, InstructionSet::detect())
    }

    /// Creates a codec for `algorithm` with the given instruction set.
    ///
    /// ```
    /// use trueno_zram_core::{Algorithm, PageCodec, cpu::InstructionSet};
    /// let codec = PageCodec::with_instruction_set(Algorithm::Lz4, InstructionSet::Scalar)?;
    /// assert_eq!(codec.instruction_set(), InstructionSet::Scalar);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InstructionSetUnavailable`](crate::Error::InstructionSetUnavailable) if this CPU lacks the instruction
    /// set; [`Error::ZstdLevel`](crate::Error::ZstdLevel) if the level is outside Zstandard's range.
    pub fn with_instruction_set(algorithm: Algorithm, instruction_set: InstructionSet) -> Result<Self> {
        let encoder = match algorithm {
            Algorithm::None => PageEncoder::None,
            Algorithm::Lz4 => PageEncoder::Lz4,
            Algorithm::Zstd { level } => PageEncoder::Zstd(zstd::ZstdEncoder::new(level)?),
        };
        Ok(Self { algorithm, lz4: lz4::Codec::new(instruction_set)?, encoder, zstd_decoder: None })
    }

    /// Returns the algorithm that pages are compressed with. Decompression accepts pages of every kind.
    ///
    /// ```
    /// use trueno_zram_core::{Algorithm, PAGE_SIZE, PageCodec, PageData, PageKind};
    /// let mut codec = PageCodec::new(Algorithm::None)?;
    /// assert_eq!(codec.algorithm(), Algorithm::None);
    /// // An LZ4 block: one zero, a match that repeats it, and five zeros. The codec still decodes it.
    /// let zeros = [&[0x1f, 0, 1, 0][..], &[255; 15], &[246, 0x50, 0, 0, 0, 0, 0]].concat();
    /// codec.decompress(PageData::new(PageKind::Lz4, &zeros)?, &mut [1; PAGE_SIZE])?;
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the instruction set that LZ4 uses.
    ///
    /// ```
    /// use trueno_zram_core::{PageCodec, cpu::InstructionSet};
    /// assert_eq!(PageCodec::default().instruction_set(), InstructionSet::detect());
    /// ```
    #[must_use]
    pub fn instruction_set(&self) -> InstructionSet {
        self.lz4.instruction_set()
    }

    /// Compresses a page. The result borrows `out`, or the page itself if it would not shrink.
    ///
    /// ```
    /// use trueno_zram_core::{Algorithm, PAGE_SIZE, PageCodec, PageKind};
    /// let (page, mut out) = (std::array::from_fn(|i| (i / 8) as u8), [0; PAGE_SIZE]);
    /// let mut codec = PageCodec::new(Algorithm::Zstd { level: 3 })?;
    /// let compressed = codec.compress(&page, &mut out)?;
    /// assert_eq!(compressed.kind(), PageKind::Zstd);
    /// assert!(compressed.ratio() > 4.0);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ZstdFailed`](crate::Error::ZstdFailed) if Zstandard runs out of memory. LZ4 does not fail.
    pub fn compress<'a>(&mut self, page: &'a Page, out: &'a mut Page) -> Result<PageData<'a>> {
        if let Some(word) = same_filled(page) {
            let (held, _) = out.split_at_mut(FILL_WORD_BYTES);
            held.copy_from_slice(&word);
            return Ok(PageData::trusted(PageKind::SameFilled, held));
        }
        let (kind, len_bytes) = match &mut self.encoder {
            PageEncoder::None => (PageKind::Raw, None),
            PageEncoder::Lz4 => (PageKind::Lz4, self.lz4.encode(page, out)),
            PageEncoder::Zstd(encoder) => (PageKind::Zstd, encoder.encode(page, out)?),
        };
        Ok(match len_bytes {
            Some(len_bytes) => PageData::trusted(kind, &out[..len_bytes]),
            None => PageData::trusted(PageKind::Raw, page),
        })
    }

    /// Restores a page of any kind. Zstandard data may consist of several frames, as the format allows.
    ///
    /// ```
    /// use trueno_zram_core::{PAGE_SIZE, PageCodec, PageData, PageKind};
    /// let mut page = [0; PAGE_SIZE];
    /// PageCodec::default().decompress(PageData::new(PageKind::SameFilled, b"deadbeef")?, &mut page)?;
    /// assert_eq!(&page[4088..], b"deadbeef");
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::CorruptLz4`](crate::Error::CorruptLz4), [`Error::CorruptZstd`](crate::Error::CorruptZstd) or
    /// [`Error::ZstdFrameLength`](crate::Error::ZstdFrameLength) if the data does not decode to exactly one page. After
    /// Zstandard data, `page` then holds zeros; after an LZ4 block, a mix of the block's bytes and its previous contents.
    pub fn decompress(&mut self, data: PageData<'_>, page: &mut Page) -> Result<()> {
        if data.kind() != PageKind::Zstd {
            return restore_page(&self.lz4, data, page);
        }
        let decoder = match &mut self.zstd_decoder {
            Some(decoder) => decoder,
            empty => empty.insert(zstd::ZstdDecoder::new()?),
        };
        decoder.decode(data.bytes(), page)
    }
}

/// Restores a page of any kind but Zstandard, with a decoder that threads may share.
///
/// ```
/// use trueno_zram_core::cpu::{InstructionSet, restore_page};
/// use trueno_zram_core::{PAGE_SIZE, PageData, PageKind, lz4};
/// let (decoder, mut page) = (lz4::Codec::new(InstructionSet::detect())?, [0; PAGE_SIZE]);
/// restore_page(&decoder, PageData::new(PageKind::SameFilled, b"deadbeef")?, &mut page)?;
/// assert_eq!(&page[4088..], b"deadbeef");
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::CorruptLz4`] if an LZ4 block does not decode to exactly one page; the contents of `page` are then unspecified.
/// [`Error::Unsupported`] for a Zstandard frame, which needs a [`PageCodec`].
pub fn restore_page(lz4: &lz4::Codec, data: PageData<'_>, page: &mut Page) -> Result<()> {
    match data.kind() {
        PageKind::SameFilled => {
            let word = data.bytes().try_into().expect("PageData holds a same-filled page as one word");
            fill_page(page, word);
        }
        PageKind::Raw => page.copy_from_slice(data.bytes()),
        PageKind::Lz4 => lz4.decode(data.bytes(), page)?,
        PageKind::Zstd => {
            return Err(Error::Unsupported { what: "a Zstandard frame".to_owned(), by: "the LZ4 decoder" });
        }
    }
    Ok(())
}

impl Default for PageCodec {
    /// Creates an LZ4 codec with the fastest instruction set of this CPU.
    fn default() -> Self {
        Self::new(Algorithm::Lz4).expect("LZ4 supports every detected instruction set")
    }
}

impl std::fmt::Debug for PageCodec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageCodec")
            .field("algorithm", &self.algorithm)
            .field("instruction_set", &self.instruction_set())
            .finish()
    }
}
