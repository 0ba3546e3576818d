//! Consecutive pages of a delta, prepared away from the writer: on any thread, in any order.

use trueno_zram_core::{Page, PageData};

use crate::error::Result;
use crate::hashes::page_hash::{PAGE_HASH_LEN, PageHash};
use crate::write::page_blocks::{BlockShape, PageBlocks};

/// Consecutive pages of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartRun {
    Zeros(u64),
    /// Pages that follow each other in the base. They have the next hashes of the part.
    Base {
        first: u64,
        pages: u64,
    },
    /// Pages that follow each other among those that are stored already. They have the next hashes of the part.
    Stored {
        first: u64,
        pages: u64,
    },
    /// The next pages of the part's blocks, with the next hashes.
    New {
        pages: u64,
    },
}

/// Consecutive pages of a delta: which of them the base has, and the blocks of the others.
///
/// Any thread can prepare one. The writer then takes them in order. Reuse it: its memory is kept.
///
/// ```
/// let mut part = trueno_zram_archive::DeltaPart::new();
/// part.push_zeros(100);
/// part.push_base(7, trueno_zram_archive::PageHash::of(&[1; 4096]));
/// assert_eq!(part.page_count(), 101);
/// ```
#[derive(Debug, Default)]
pub struct DeltaPart {
    runs: Vec<PartRun>,
    /// The hashes of all pages that are not zero.
    hashes: Vec<[u8; PAGE_HASH_LEN]>,
    page_count: u64,
    blocks: PageBlocks,
}

impl DeltaPart {
    /// Creates an empty one.
    ///
    /// ```
    /// assert_eq!(trueno_zram_archive::DeltaPart::new().page_count(), 0);
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts anew, with blocks of the shape that the writer has.
    ///
    /// ```
    /// # use trueno_zram_archive::{DeltaPart, DeltaWriter, PageArchive, WriteOptions, compress};
    /// # let mut bytes = Vec::new();
    /// # compress(&[7; 8 * 4096][..], &mut bytes, &WriteOptions::default())?;
    /// # let base = PageArchive::standard(std::sync::Arc::new(bytes))?.expect("it has an index");
    /// let mut delta = DeltaWriter::new(Vec::new(), base.record(b"monday.lz4")?, WriteOptions::default())?;
    /// let mut part = DeltaPart::new();
    /// for zero_pages in [5, 7] {
    ///     part.start(delta.block_shape());
    ///     part.push_zeros(zero_pages);
    ///     delta.push(&mut part)?;
    /// }
    /// assert_eq!(delta.page_count(), 12);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    pub fn start(&mut self, shape: BlockShape) {
        self.runs.clear();
        self.hashes.clear();
        self.page_count = 0;
        self.blocks.start(0, shape);
    }

    /// Returns the number of pages so far.
    #[must_use]
    pub fn page_count(&self) -> u64 {
        self.page_count
    }

    /// Adds zero pages.
    ///
    /// ```
    /// let mut part = trueno_zram_archive::DeltaPart::new();
    /// part.push_zeros(5);
    /// assert_eq!(part.page_count(), 5);
    /// ```
    pub fn push_zeros(&mut self, pages: u64) {
        self.page_count += pages;
        match self.runs.last_mut() {
            Some(PartRun::Zeros(before)) => *before += pages,
            _ => self.runs.push(PartRun::Zeros(pages)),
        }
    }

    /// Adds a page that the base has under this number.
    ///
    /// ```
    /// use trueno_zram_archive::{DeltaPart, PageHash};
    /// let mut part = DeltaPart::new();
    /// part.push_base(7, PageHash::of(&[1; 4096]));
    /// assert_eq!(part.page_count(), 1);
    /// ```
    pub fn push_base(&mut self, page: u64, hash: PageHash) {
        self.push_hash(hash);
        match self.runs.last_mut() {
            Some(PartRun::Base { first, pages }) if first.checked_add(*pages) == Some(page) => *pages += 1,
            _ => self.runs.push(PartRun::Base { first: page, pages: 1 }),
        }
    }

    /// Adds a copy of a stored page, which [`StoredPages`](crate::StoredPages) has found.
    ///
    /// ```
    /// use trueno_zram_archive::{DeltaPart, PageHash};
    /// let mut part = DeltaPart::new();
    /// part.push_stored(7, PageHash::of(&[1; 4096]));
    /// assert_eq!(part.page_count(), 1);
    /// ```
    pub fn push_stored(&mut self, page: u64, hash: PageHash) {
        self.push_hash(hash);
        match self.runs.last_mut() {
            Some(PartRun::Stored { first, pages }) if first.checked_add(*pages) == Some(page) => *pages += 1,
            _ => self.runs.push(PartRun::Stored { first: page, pages: 1 }),
        }
    }

    /// Adds a page that the base does not have. It is not zero.
    ///
    /// ```
    /// use trueno_zram_archive::{DeltaPart, PageCodec, PageHash};
    /// let (mut part, page, mut out) = (DeltaPart::new(), [7; 4096], [0; 4096]);
    /// part.push_page(PageCodec::default().compress(&page, &mut out)?, &page, PageHash::of(&page))?;
    /// assert_eq!(part.page_count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`PageBlocks::push_of`].
    pub fn push_page(&mut self, compressed: PageData<'_>, plain: &Page, hash: PageHash) -> Result<()> {
        self.blocks.push_of(compressed, plain)?;
        self.push_hash(hash);
        match self.runs.last_mut() {
            Some(PartRun::New { pages }) => *pages += 1,
            _ => self.runs.push(PartRun::New { pages: 1 }),
        }
        Ok(())
    }

    /// Returns the blocks of the pages that are new, as they lie in the file, once the writer has [placed](crate::DeltaWriter::place)
    /// the part.
    #[must_use]
    pub fn block_bytes(&self) -> &[u8] {
        self.blocks.bytes()
    }

    fn push_hash(&mut self, hash: PageHash) {
        self.page_count += 1;
        self.hashes.push(*hash.as_bytes());
    }

    /// Returns the runs of pages, each with the hashes of its pages.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (PartRun, &[[u8; PAGE_HASH_LEN]])> {
        let mut rest = &self.hashes[..];
        self.runs.iter().map(move |run| {
            let hashed = match *run {
                PartRun::Zeros(_) => 0,
                PartRun::Base { pages, .. } | PartRun::Stored { pages, .. } | PartRun::New { pages } => pages,
            };
            let hashed = usize::try_from(hashed).expect("as many as there are hashes");
            (*run, rest.split_off(..hashed).expect("every page that is not zero has a hash"))
        })
    }

    pub(crate) fn blocks_mut(&mut self) -> &mut PageBlocks {
        &mut self.blocks
    }
}
