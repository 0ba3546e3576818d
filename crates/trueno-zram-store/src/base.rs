//! The pages beneath a store: what is read where nothing was written.

use trueno_zram_archive::Pages;
use trueno_zram_core::Page;

use crate::entry::Form;
use crate::error::{Error, Result};
use crate::store::Store;

impl Store {
    /// Puts the store on top of other pages, such as those of an archive or a delta. Pages that were never written are read from
    /// there, and nothing is changed there. [`save`](Self::save) writes both as one.
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

    /// Returns the base, unless it ends before this page: what lies behind its end is zero.
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

    /// Returns whether a page that was never written is known to be zero. A page of a damaged group is not: reading it reports
    /// the damage.
    pub(crate) fn hole_is_zero(&self, page: u64) -> bool {
        self.base_of(page).is_none_or(|base| base.is_zero(page).unwrap_or(false))
    }

    /// The form of a page that was discarded. Over an archive that would show through, it is a page of zeros.
    pub(crate) fn discarded(&self, page: u64) -> Form {
        if self.hole_is_zero(page) { Form::Empty } else { Form::Fill([0; 4]) }
    }

    /// The number of holes from `page` on, of `pages`, that are all zero or all not; and which.
    pub(crate) fn holes_alike(&self, page: u64, pages: u64) -> (u64, bool) {
        if self.base.is_none() {
            return (pages, true);
        }
        let zero = self.hole_is_zero(page);
        let alike = (page + 1..page + pages).take_while(|page| self.hole_is_zero(*page) == zero).count();
        (1 + alike as u64, zero)
    }
}
