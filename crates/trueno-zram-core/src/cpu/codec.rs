//! One page at a time: a reusable context that compresses and decompresses without allocating.

use zstd::bulk;
use zstd::zstd_safe::CParameter;

use crate::algorithm::Algorithm;
use crate::cpu::Backend;
use crate::error::{Error, Result};
use crate::lz4;
use crate::page::{FILL_WORD_BYTES, PAGE_SIZE, Page, PageData, PageKind};
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
    engine: Engine,
    /// Made when the first Zstandard page comes: few users of LZ4 ever meet one.
    zstd_decompressor: Option<bulk::Decompressor<'static>>,
}

/// What compresses, with the state that it needs beside the LZ4 codec.
enum Engine {
    None,
    Lz4,
    Zstd(bulk::Compressor<'static>),
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
    /// [`Error::ZstdLevel`] for a level that Zstandard does not have.
    pub fn new(algorithm: Algorithm) -> Result<Self> {
        Self::with_backend(algorithm, Backend::detect())
    }

    /// A codec for `algorithm` on a back end of the caller's choice.
    ///
    /// ```
    /// use trueno_zram_core::{Algorithm, PageCodec, cpu::Backend};
    /// let codec = PageCodec::with_backend(Algorithm::Lz4, Backend::Scalar)?;
    /// assert_eq!(codec.backend(), Backend::Scalar);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] if this CPU cannot run it, [`Error::ZstdLevel`] for a level that Zstandard does
    /// not have.
    pub fn with_backend(algorithm: Algorithm, backend: Backend) -> Result<Self> {
        let engine = match algorithm {
            Algorithm::None => Engine::None,
            Algorithm::Lz4 => Engine::Lz4,
            Algorithm::Zstd { level } => Engine::Zstd(zstd_compressor(level)?),
        };
        Ok(Self { algorithm, lz4: lz4::Codec::new(backend)?, engine, zstd_decompressor: None })
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
    /// use trueno_zram_core::{PageCodec, cpu::Backend};
    /// assert_eq!(PageCodec::default().backend(), Backend::detect());
    /// ```
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.lz4.backend()
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
    /// [`Error::ZstdFailed`] if Zstandard runs out of memory. LZ4 does not fail.
    pub fn compress<'a>(&mut self, page: &'a Page, out: &'a mut Page) -> Result<PageData<'a>> {
        if let Some(word) = same_filled(page) {
            let (held, _) = out.split_at_mut(FILL_WORD_BYTES);
            held.copy_from_slice(&word);
            return Ok(PageData::trusted(PageKind::SameFilled, held));
        }
        let (kind, len_bytes) = match &mut self.engine {
            Engine::None => (PageKind::Raw, None),
            Engine::Lz4 => (PageKind::Lz4, self.lz4.encode(page, out)),
            Engine::Zstd(compressor) => (PageKind::Zstd, zstd_encode(compressor, page, out)?),
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
    /// [`Error::CorruptLz4`], [`Error::CorruptZstd`] or [`Error::ZstdFrameLength`] for data that is no page; what
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
                let decompressor = match &mut self.zstd_decompressor {
                    Some(decompressor) => decompressor,
                    empty => empty.insert(zstd_decompressor()?),
                };
                zstd_decode(decompressor, data.bytes(), page)?;
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
        f.debug_struct("PageCodec").field("algorithm", &self.algorithm).field("backend", &self.backend()).finish()
    }
}

fn zstd_compressor(level: i32) -> Result<bulk::Compressor<'static>> {
    let levels = zstd::compression_level_range();
    if !levels.contains(&level) {
        return Err(Error::ZstdLevel { level, min: *levels.start(), max: *levels.end() });
    }
    let mut compressor = bulk::Compressor::new(level).map_err(zstd_failed)?;
    // Every frame holds one page: its length need not be said.
    compressor.set_parameter(CParameter::ContentSizeFlag(false)).map_err(zstd_failed)?;
    Ok(compressor)
}

fn zstd_decompressor() -> Result<bulk::Decompressor<'static>> {
    bulk::Decompressor::new().map_err(zstd_failed)
}

/// The frame's length, or `None` if it would not be shorter than the page.
fn zstd_encode(compressor: &mut bulk::Compressor<'_>, page: &Page, out: &mut Page) -> Result<Option<usize>> {
    match compressor.compress_to_buffer(page, &mut out[..PAGE_SIZE - 1]) {
        Ok(len_bytes) => Ok(Some(len_bytes)),
        Err(e) if is_destination_too_small(&e) => Ok(None),
        Err(e) => Err(zstd_failed(e)),
    }
}

fn zstd_decode(decompressor: &mut bulk::Decompressor<'_>, frame: &[u8], page: &mut Page) -> Result<()> {
    match decompressor.decompress_to_buffer(frame, &mut page[..]) {
        Ok(PAGE_SIZE) => Ok(()),
        Ok(len_bytes) => Err(Error::ZstdFrameLength { len_bytes }),
        Err(e) => Err(Error::CorruptZstd { reason: e.to_string() }),
    }
}

fn zstd_failed(error: std::io::Error) -> Error {
    Error::ZstdFailed { reason: error.to_string() }
}

/// The zstd crate hands its library's errors on as text alone.
fn is_destination_too_small(error: &std::io::Error) -> bool {
    error.to_string().contains("Destination buffer is too small")
}
