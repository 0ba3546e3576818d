//! The base of a store: the pages that are read where nothing was written.

use std::ops::Range;

use trueno_zram_archive::Pages;
use trueno_zram_core::Page;

use crate::error::{Error, Result};
use crate::store::Store;
use crate::table::entry::PageForm;

/// A number of consecutive holes that are read alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoleRun {
    Zeros(u64),
    Base(u64),
}

impl Store {
    /// Puts the store on top of other pages, such as those of an archive or a delta. Pages that were never written are read from
    /// there, and never changed there. [`save`](Self::save) writes both as one archive.
    ///
    /// ```no_run
    /// use trueno_zram_archive::{Archive, Pages};
    /// use trueno_zram_store::{Store, StoreOptions};
    /// let archive = Archive::open("before-upgrade.lz4")?;
    /// let options = StoreOptions::new(archive.page_count() * 4096);
    /// let store = Store::create(&options)?.with_base(archive)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Options`] if the base is longer than the store.
    pub fn with_base(mut self, base: impl Pages + 'static) -> Result<Self> {
        if base.page_count() > self.page_count() {
            let (content, size) = (base.len_bytes(), self.size_bytes());
            return Err(Error::Options(format!("an archive of {content} bytes does not fit a store of {size}")));
        }
        self.base = Some(Box::new(base));
        Ok(self)
    }

    /// Returns the base, unless it ends before this page: pages beyond its end are zero.
    fn base_of(&self, page: u64) -> Option<&dyn Pages> {
        self.base.as_deref().filter(|base| page < base.page_count())
    }

    /// Reads a page that was never written.
    pub(crate) fn read_hole(&self, page: u64, out: &mut Page) -> Result<()> {
        match self.base_of(page) {
            None => {
                out.fill(0);
                Ok(())
            }
            Some(base) => base.read(page, std::slice::from_mut(out)).map_err(|source| Error::Base { page, source }),
        }
    }

    /// Returns `true` if a page that was never written is known to be zero. A page of a damaged group is not: reading it reports
    /// the damage.
    pub(crate) fn hole_is_zero(&self, page: u64) -> bool {
        self.base_of(page).is_none_or(|base| base.is_zero(page).unwrap_or(false))
    }

    /// Returns the form of a discarded page: a page of zeros where the base would otherwise be read, else a hole.
    pub(crate) fn discarded(&self, page: u64) -> PageForm {
        if self.hole_is_zero(page) { PageForm::Empty } else { PageForm::Fill([0; 4]) }
    }

    /// Returns the first holes of a range that is not empty which are all zero, or all read from the base.
    pub(crate) fn hole_run(&self, holes: Range<u64>) -> HoleRun {
        if self.base.is_none() {
            return HoleRun::Zeros(holes.end - holes.start);
        }
        let zero = self.hole_is_zero(holes.start);
        let pages = holes.take_while(|page| self.hole_is_zero(*page) == zero).count() as u64;
        if zero { HoleRun::Zeros(pages) } else { HoleRun::Base(pages) }
    }
}
