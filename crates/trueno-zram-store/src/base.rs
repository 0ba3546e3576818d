//! The archive beneath a store: what is read where nothing was written.

use trueno_zram_archive::PageArchive;
use trueno_zram_core::Page;

use crate::entry::Form;
use crate::error::{Error, Result};
use crate::store::Store;

/// A page archive or a delta whose pages show through the holes of a store.
#[derive(Debug)]
pub(crate) struct LowerArchive {
    archive: PageArchive,
}

impl LowerArchive {
    /// Reads a page. What lies behind the end of the archive is zero.
    fn read(&self, page: u64, out: &mut Page) -> Result<()> {
        if page >= self.archive.page_count() {
            out.fill(0);
            return Ok(());
        }
        self.archive.read_page_at(page, out).map(drop).map_err(|source| Error::Base { page, source })
    }

    /// Whether a page is known to be zero. A page of a damaged group is not: reading it reports the damage.
    fn is_zero(&self, page: u64) -> bool {
        page >= self.archive.page_count() || self.archive.is_zero_page(page).unwrap_or(false)
    }
}

impl Store {
    /// Puts the store on top of a page archive or a delta. Pages that were never written are read from it, and the archive is not
    /// changed. [`save`](Self::save) writes both as one.
    ///
    /// ```no_run
    /// use trueno_zram_archive::ArchiveOpener;
    /// use trueno_zram_store::{Store, StoreOptions};
    /// let archive = ArchiveOpener::new().open("before-upgrade.lz4".as_ref())?.ok_or("the file has no index")?;
    /// let options = StoreOptions::new(archive.page_count() * 4096);
    /// let store = Store::create(&options)?.with_base(archive)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Options`] if the archive is longer than the store.
    pub fn with_base(mut self, archive: PageArchive) -> Result<Self> {
        let (content, pages) = (archive.content_len(), self.page_count());
        if archive.page_count() > pages {
            let size = self.size_bytes();
            return Err(Error::Options(format!("an archive of {content} bytes does not fit a store of {size}")));
        }
        self.base = Some(LowerArchive { archive });
        Ok(self)
    }

    /// Reads a page that was never written.
    pub(crate) fn read_hole(&self, page: u64, out: &mut Page) -> Result<()> {
        match &self.base {
            None => out.fill(0),
            Some(base) => base.read(page, out)?,
        }
        Ok(())
    }

    /// Whether a page that was never written reads as zeros.
    pub(crate) fn hole_is_zero(&self, page: u64) -> bool {
        self.base.as_ref().is_none_or(|base| base.is_zero(page))
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
