//! One page at a time: a reusable context that compresses and decompresses without allocating.

use crate::algorithm::Algorithm;
use crate::cpu::{InstructionSet, zstd};
use crate::error::Result;
use crate::lz4;
use crate::page::{FILL_WORD_BYTES, Page, PageData, PageKind};
use crate::{fill_page, same_filled};

/// Compresses and decompresses single pages.
///
/// A codec owns its working memory: LZ4 allocates nothing after [`new`](Self::new), Zstandard nothing after its first page
/// each way. What a codec did before never shows in what it does next: the same page gives the same bytes, always and
/// on every back end.
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
    encoder: Encoder,
    /// Made when the first Zstandard page comes: few users of LZ4 ever meet one.
    zstd_decoder: Option<zstd::Decoder>,
}

/// What compresses, with the state that it needs beside the LZ4 codec.
enum Encoder {
    None,
    Lz4,
    Zstd(zstd::Encoder),
}

impl PageCodec {
    /// A codec for `algorithm` on the best back end of this CPU.
    ///
    /// ```
    /// use trueno_zram_core::{Algorithm, Error, PageCodec};
    /// let codec = PageCodec::new(Algorithm::Zstd { level: 3 })?;
    /// assert!(matches!(PageCodec::new(Algorithm::Zstd { level: 99 }), Err(Error::ZstdLevel { level: 99, .. })));
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ZstdLevel`](crate::Error::ZstdLevel) for a level that Zstandard does not have.
    pub fn new(algorithm: Algorithm) -> Result<Self> {
        Self::with_instruction_set(algorithm, InstructionSet::detect())
    }

    /// A codec for `algorithm` on a back end of the caller's choice.
    ///
    /// ```
    /// use trueno_zram_core::{Algorithm, PageCodec, cpu::InstructionSet};
    /// let codec = PageCodec::with_instruction_set(Algorithm::Lz4, InstructionSet::Scalar)?;
    /// assert_eq!(codec.instruction_set(), InstructionSet::Scalar);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InstructionSetUnavailable`](crate::Error::InstructionSetUnavailable) if this CPU cannot run it, [`Error::ZstdLevel`](crate::Error::ZstdLevel) for a level that Zstandard does
    /// not have.
    pub fn with_instruction_set(algorithm: Algorithm, backend: InstructionSet) -> Result<Self> {
        let encoder = match algorithm {
            Algorithm::None => Encoder::None,
            Algorithm::Lz4 => Encoder::Lz4,
            Algorithm::Zstd { level } => Encoder::Zstd(zstd::Encoder::new(level)?),
        };
        Ok(Self { algorithm, lz4: lz4::Codec::new(backend)?, encoder, zstd_decoder: None })
    }

    /// The algorithm pages are compressed with. Decompression takes pages of every kind.
    ///
    /// ```
    /// use trueno_zram_core::{Algorithm, PAGE_SIZE, PageCodec, PageData, PageKind};
    /// let mut codec = PageCodec::new(Algorithm::None)?;
    /// assert_eq!(codec.algorithm(), Algorithm::None);
    /// // A block of 15 and 4072 zeros, copied from the first, and five more: LZ4 is read all the same.
    /// let zeros = [&[0x1f, 0, 1, 0][..], &[255; 15], &[246, 0x50, 0, 0, 0, 0, 0]].concat();
    /// codec.decompress(PageData::new(PageKind::Lz4, &zeros)?, &mut [1; PAGE_SIZE])?;
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The back end that LZ4 runs on.
    ///
    /// ```
    /// use trueno_zram_core::{PageCodec, cpu::InstructionSet};
    /// assert_eq!(PageCodec::default().instruction_set(), InstructionSet::detect());
    /// ```
    #[must_use]
    pub fn instruction_set(&self) -> InstructionSet {
        self.lz4.instruction_set()
    }

    /// Compresses a page; the result borrows `out`, or the page itself if it would not shrink.
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
            Encoder::None => (PageKind::Raw, None),
            Encoder::Lz4 => (PageKind::Lz4, self.lz4.encode(page, out)),
            Encoder::Zstd(encoder) => (PageKind::Zstd, encoder.encode(page, out)?),
        };
        Ok(match len_bytes {
            Some(len_bytes) => PageData::trusted(kind, &out[..len_bytes]),
            None => PageData::trusted(PageKind::Raw, page),
        })
    }

    /// Restores a page, whatever it was compressed with. Zstandard data may be several frames, as that format allows.
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
    /// [`Error::CorruptLz4`](crate::Error::CorruptLz4), [`Error::CorruptZstd`](crate::Error::CorruptZstd) or [`Error::ZstdFrameLength`](crate::Error::ZstdFrameLength) for data that is no page; what
    /// `page` holds afterwards is then of no use.
    pub fn decompress(&mut self, data: PageData<'_>, page: &mut Page) -> Result<()> {
        match data.kind() {
            PageKind::SameFilled => {
                let word = data.bytes().try_into().expect("PageData holds same-filled pages as one word");
                fill_page(page, word);
            }
            PageKind::Raw => page.copy_from_slice(data.bytes()),
            PageKind::Lz4 => self.lz4.decode(data.bytes(), page)?,
            PageKind::Zstd => {
                let decoder = match &mut self.zstd_decoder {
                    Some(decoder) => decoder,
                    empty => empty.insert(zstd::Decoder::new()?),
                };
                decoder.decode(data.bytes(), page)?;
            }
        }
        Ok(())
    }
}

impl Default for PageCodec {
    /// LZ4 on the best back end of this CPU.
    fn default() -> Self {
        Self::new(Algorithm::Lz4).expect("LZ4 on a detected back end is always there")
    }
}

impl std::fmt::Debug for PageCodec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageCodec")
            .field("algorithm", &self.algorithm)
            .field("backend", &self.instruction_set())
            .finish()
    }
}
