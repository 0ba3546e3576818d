//! Consecutive pages of a delta, prepared away from the writer: on any thread, in any order.

use trueno_zram_core::{Page, PageData};

use crate::error::Result;
use crate::page_blocks::{BlockShape, PageBlocks};
use crate::page_hash::PageHash;

/// A page, or several zero pages, of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartPage {
    Zeros(u64),
    Base {
        page: u64,
        hash: PageHash,
    },
    /// The next page of the part's blocks.
    New {
        hash: PageHash,
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
    pages: Vec<PartPage>,
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
    pub fn start(&mut self, shape: BlockShape) {
        self.pages.clear();
        self.page_count = 0;
        self.blocks.start(0, shape);
    }

    /// Returns the number of pages so far.
    ///
    /// ```
    /// assert_eq!(trueno_zram_archive::DeltaPart::new().page_count(), 0);
    /// ```
    #[must_use]
    pub fn page_count(&self) -> u64 {
        self.page_count
    }

    /// Adds zero pages.
    ///
    /// ```
    /// trueno_zram_archive::DeltaPart::new().push_zeros(5);
    /// ```
    pub fn push_zeros(&mut self, pages: u64) {
        self.page_count += pages;
        match self.pages.last_mut() {
            Some(PartPage::Zeros(before)) => *before += pages,
            _ => self.pages.push(PartPage::Zeros(pages)),
        }
    }

    /// Adds a page that the base has under this number.
    ///
    /// ```
    /// use trueno_zram_archive::{DeltaPart, PageHash};
    /// DeltaPart::new().push_base(7, PageHash::of(&[1; 4096]));
    /// ```
    pub fn push_base(&mut self, page: u64, hash: PageHash) {
        self.push_one(PartPage::Base { page, hash });
    }

    /// Adds a page that the base does not have. It is not zero.
    ///
    /// # Errors
    /// Those of [`PageBlocks::push_of`].
    pub fn push_page(&mut self, compressed: PageData<'_>, plain: &Page, hash: PageHash) -> Result<()> {
        self.blocks.push_of(compressed, plain)?;
        self.push_one(PartPage::New { hash });
        Ok(())
    }

    fn push_one(&mut self, page: PartPage) {
        self.page_count += 1;
        self.pages.push(page);
    }

    pub(crate) fn pages(&self) -> &[PartPage] {
        &self.pages
    }

    pub(crate) fn blocks_mut(&mut self) -> &mut PageBlocks {
        &mut self.blocks
    }
}
