//! Pages, and the forms in which a compressed page is held.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::storage::Storage;

pub use trueno_page::{FILL_WORD_BYTES, PAGE_SIZE, Page, PageKind, fill_page, is_zero, same_filled};

/// A compressed page that borrows its bytes: what codecs produce and accept.
///
/// The length always fits the kind: a value of this type is either the 8-byte word of a same-filled page, a block
/// or frame of 1 to 4095 bytes, or 4096 raw bytes. Whether a block decodes is only known by decoding it.
///
/// ```
/// use trueno_zram_core::{PageData, PageKind};
/// let zero = PageData::new(PageKind::SameFilled, &[0; 8])?;
/// assert_eq!(zero.ratio(), 512.0);
/// assert!(PageData::new(PageKind::Raw, &[0; 100]).is_err());
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PageData<'a> {
    kind: PageKind,
    bytes: &'a [u8],
}

impl<'a> PageData<'a> {
    /// Wraps bytes that are held as `kind`.
    ///
    /// ```
    /// use trueno_zram_core::{PageData, PageKind};
    /// let stored = b"as read from a file";
    /// assert!(PageData::new(PageKind::Lz4, stored).is_ok());
    /// assert!(PageData::new(PageKind::SameFilled, stored).is_err(), "that takes 8 bytes");
    /// ```
    ///
    /// # Errors
    /// [`Error::HeldLength`] if a page of that kind cannot have that many bytes.
    pub fn new(kind: PageKind, bytes: &'a [u8]) -> Result<Self> {
        if kind.held_len_bytes().contains(&bytes.len()) {
            Ok(Self { kind, bytes })
        } else {
            Err(Error::HeldLength { kind, len_bytes: bytes.len() })
        }
    }

    /// Wraps bytes whose length is known to fit the kind.
    pub(crate) fn trusted(kind: PageKind, bytes: &'a [u8]) -> Self {
        debug_assert!(kind.held_len_bytes().contains(&bytes.len()));
        Self { kind, bytes }
    }

    /// Returns the form in which the page is held.
    ///
    /// ```
    /// use trueno_zram_core::{PAGE_SIZE, PageCodec, PageKind};
    /// let mut codec = PageCodec::default();
    /// assert_eq!(codec.compress(&[0; PAGE_SIZE], &mut [0; PAGE_SIZE])?.kind(), PageKind::SameFilled);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn kind(self) -> PageKind {
        self.kind
    }

    /// Returns the bytes that hold the page.
    ///
    /// ```
    /// use trueno_zram_core::{PAGE_SIZE, PageCodec};
    /// let mut file = Vec::new();
    /// file.extend_from_slice(PageCodec::default().compress(&[5; PAGE_SIZE], &mut [0; PAGE_SIZE])?.bytes());
    /// assert_eq!(file, [5; 8]);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// Returns [`PAGE_SIZE`] over the number of bytes held: 1 for a raw page, 512 for a same-filled one.
    ///
    /// ```
    /// use trueno_zram_core::{PageData, PageKind};
    /// assert_eq!(PageData::new(PageKind::Lz4, &[0; 1024])?.ratio(), 4.0);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn ratio(self) -> f64 {
        ratio_of(self.bytes.len())
    }
}

impl fmt::Debug for PageData<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageData({}, {} bytes)", self.kind, self.bytes.len())
    }
}

/// A compressed page that owns its bytes, or shares them with the batch it came from.
///
/// It takes 24 bytes. The pages of a batch have no allocation of their own: they share one arena, which lives as long as
/// any of them. [`detached`](Self::detached) copies a page out of its arena, for one that should outlive the rest.
///
/// ```
/// use trueno_zram_core::{CompressedPage, PAGE_SIZE, PageCodec, PageKind};
/// let mut codec = PageCodec::default();
/// let page: CompressedPage = codec.compress(&[7; PAGE_SIZE], &mut [0; PAGE_SIZE])?.into();
/// assert_eq!(page.kind(), PageKind::SameFilled);
/// assert_eq!(page.bytes(), [7; 8]);
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
#[derive(Clone)]
pub struct CompressedPage {
    repr: Repr,
}

#[derive(Clone)]
enum Repr {
    /// Kept inline, so that zero pages pin no arena.
    SameFilled([u8; FILL_WORD_BYTES]),
    Stored {
        arena: Arc<Storage>,
        offset: usize,
        len_bytes: u16,
        kind: PageKind,
    },
}

const _: () = assert!(size_of::<CompressedPage>() <= 24);

impl CompressedPage {
    /// A place for a page, which holds one of zeros until then.
    #[cfg(feature = "gpu")]
    pub(crate) const EMPTY: Self = Self { repr: Repr::SameFilled([0; FILL_WORD_BYTES]) };

    /// Creates a page at `offset` of a shared arena.
    pub(crate) fn in_arena(arena: &Arc<Storage>, offset: usize, data: PageData<'_>) -> Self {
        debug_assert_eq!(&arena[offset..offset + data.bytes.len()], data.bytes);
        Self::same_filled(data).unwrap_or_else(|| {
            let len_bytes = u16::try_from(data.bytes.len()).expect("PageData holds at most 4096 bytes");
            Self { repr: Repr::Stored { arena: Arc::clone(arena), offset, len_bytes, kind: data.kind } }
        })
    }

    /// Creates a page without an arena, if it is same-filled.
    fn same_filled(data: PageData<'_>) -> Option<Self> {
        let word = data.bytes.try_into().ok().filter(|_| data.kind == PageKind::SameFilled)?;
        Some(Self { repr: Repr::SameFilled(word) })
    }

    /// Returns the page as borrowed data, to decompress or to store.
    ///
    /// ```
    /// use trueno_zram_core::{CompressedPage, PAGE_SIZE, PageCodec, PageData, PageKind};
    /// let page = CompressedPage::from(PageData::new(PageKind::SameFilled, &[9; 8])?);
    /// let mut restored = [0; PAGE_SIZE];
    /// PageCodec::default().decompress(page.data(), &mut restored)?;
    /// assert_eq!(restored, [9; PAGE_SIZE]);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn data(&self) -> PageData<'_> {
        match &self.repr {
            Repr::SameFilled(word) => PageData::trusted(PageKind::SameFilled, word),
            Repr::Stored { arena, offset, len_bytes, kind } => {
                PageData::trusted(*kind, &arena[*offset..*offset + usize::from(*len_bytes)])
            }
        }
    }

    /// Returns the form in which the page is held.
    ///
    /// ```
    /// use trueno_zram_core::{CpuBatchCompressor, PAGE_SIZE, PageKind};
    /// let pages = CpuBatchCompressor::default().compress(&[[0; PAGE_SIZE], [9; PAGE_SIZE]])?.into_pages();
    /// assert!(pages.iter().all(|page| page.kind() == PageKind::SameFilled));
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn kind(&self) -> PageKind {
        self.data().kind()
    }

    /// Returns the bytes that hold the page.
    ///
    /// ```
    /// use trueno_zram_core::{CpuBatchCompressor, PAGE_SIZE};
    /// let pages = CpuBatchCompressor::default().compress(&[[0; PAGE_SIZE], [9; PAGE_SIZE]])?.into_pages();
    /// assert_eq!(pages[1].bytes(), [9; 8]);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.data().bytes()
    }

    /// Returns [`PAGE_SIZE`] over the number of bytes held.
    ///
    /// ```
    /// use trueno_zram_core::{CpuBatchCompressor, PAGE_SIZE};
    /// let pages = CpuBatchCompressor::default().compress(&[[0; PAGE_SIZE], [9; PAGE_SIZE]])?.into_pages();
    /// assert!(pages.iter().all(|page| page.ratio() > 500.0));
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.data().ratio()
    }

    /// Returns a copy that shares no arena with other pages.
    ///
    /// ```
    /// use trueno_zram_core::{CpuBatchCompressor, PAGE_SIZE};
    /// let pages: Vec<[u8; PAGE_SIZE]> = (0..50).map(|n| std::array::from_fn(|i| (i / 64 * n) as u8)).collect();
    /// let mut batch = CpuBatchCompressor::default().compress(&pages)?.into_pages();
    /// let kept = batch.swap_remove(7).detached();
    /// drop(batch); // and with it the arena; `kept` has bytes of its own
    /// assert!(kept.ratio() > 10.0);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn detached(&self) -> Self {
        self.data().into()
    }
}

impl From<PageData<'_>> for CompressedPage {
    fn from(data: PageData<'_>) -> Self {
        Self::same_filled(data).unwrap_or_else(|| Self::in_arena(&Arc::new(data.bytes.to_vec().into()), 0, data))
    }
}

impl PartialEq for CompressedPage {
    fn eq(&self, other: &Self) -> bool {
        self.data() == other.data()
    }
}

impl Eq for CompressedPage {}

impl fmt::Debug for CompressedPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompressedPage({}, {} bytes)", self.kind(), self.bytes().len())
    }
}

fn ratio_of(len_bytes: usize) -> f64 {
    // Both are at most 4096: exact in f64.
    PAGE_SIZE as f64 / len_bytes as f64
}
