//! Pages, such as those of an archive, as a read-only device.

use std::path::Path;
use std::sync::Arc;

use trueno_zram_archive::Pages;
use trueno_zram_io::ArchiveOpener;
use trueno_zram_store::{PageState, ZeroPages};

use crate::export::{Export, ExportError, ExportIo, Extent};

/// An archive as a device that cannot be written. Pages are found through an index in memory, and read when they are needed.
///
/// ```no_run
/// use std::sync::Arc;
/// use trueno_zram_serve::{ArchiveExport, nbd::Exports};
/// let exports = Exports::new().with("old", Arc::new(ArchiveExport::from_file("before-upgrade.lz4".as_ref())?));
/// # Ok::<(), trueno_zram_serve::ExportError>(())
/// ```
#[derive(Clone)]
pub struct ArchiveExport {
    pages: Arc<dyn Pages>,
}

impl ArchiveExport {
    /// Serves an open archive or delta, or other pages.
    ///
    /// ```no_run
    /// use trueno_zram_archive::Archive;
    /// use trueno_zram_serve::ArchiveExport;
    /// let export = ArchiveExport::new(Archive::open("before-upgrade.lz4")?);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    #[must_use]
    pub fn new(pages: impl Pages + 'static) -> Self {
        Self { pages: Arc::new(pages) }
    }

    /// Opens an archive, or a delta whose bases are at the paths it names.
    ///
    /// # Errors
    /// [`ExportError::Failed`] if the file cannot be read, is not a page archive, or has a damaged index.
    pub fn from_file(path: &Path) -> Result<Self, ExportError> {
        Self::open(path, &ArchiveOpener::new())
    }

    /// Opens an archive, or a delta with the bases that `opener` finds.
    ///
    /// ```no_run
    /// use trueno_zram_io::ArchiveOpener;
    /// use trueno_zram_serve::ArchiveExport;
    /// let opener = ArchiveOpener::new().with_bases(["/backup/monday.lz4"]);
    /// let export = ArchiveExport::open("tuesday.tzd".as_ref(), &opener)?;
    /// # Ok::<(), trueno_zram_serve::ExportError>(())
    /// ```
    ///
    /// # Errors
    /// Like [`from_file`](Self::from_file).
    pub fn open(path: &Path, opener: &ArchiveOpener) -> Result<Self, ExportError> {
        match opener.open(path).map_err(|error| ExportError::Failed(Box::new(error)))? {
            Some(archive) => Ok(Self::new(archive)),
            None => Err(ExportError::Failed("the file has no index of pages".into())),
        }
    }
}

impl std::fmt::Debug for ArchiveExport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ArchiveExport({} bytes)", self.pages.len_bytes())
    }
}

impl Export for ArchiveExport {
    fn size_bytes(&self) -> u64 {
        self.pages.len_bytes()
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn open(&self) -> Result<Box<dyn ExportIo>, ExportError> {
        Ok(Box::new(self.clone()))
    }
}

impl ExportIo for ArchiveExport {
    fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> Result<(), ExportError> {
        let read = self.pages.read_at(offset, bytes).map_err(|error| ExportError::Failed(Box::new(error)))?;
        // The transport has checked the range, so a shorter read means that the file has changed.
        if read == bytes.len() { Ok(()) } else { Err(ExportError::Failed("the archive has become shorter".into())) }
    }

    fn write_at(&mut self, _: u64, _: &[u8]) -> Result<(), ExportError> {
        Err(ExportError::ReadOnly)
    }

    fn discard(&mut self, _: u64, _: u64) -> Result<(), ExportError> {
        Err(ExportError::ReadOnly)
    }

    fn write_zeroes(&mut self, _: u64, _: u64, _: ZeroPages) -> Result<(), ExportError> {
        Err(ExportError::ReadOnly)
    }

    fn extent(&mut self, offset: u64, len_bytes: u64) -> Extent {
        Extent::first(offset, len_bytes, |page| match self.pages.is_zero(page) {
            Ok(true) => PageState::Hole,
            // A page whose entry is damaged is data: reading it reports the damage.
            Ok(false) | Err(_) => PageState::Data,
        })
    }
}
