//! Opens `pages-N.img`, or an archive of it.

use std::path::Path;
use std::sync::Arc;

use trueno_zram_archive::{Error as ArchiveError, PageArchive, Pages, PlainPages};
use trueno_zram_io::ArchiveOpener;

use crate::error::Error;
use crate::image_dir::COMPRESSED_SUFFIXES;

/// Opens a pages file by the kind that its name states: an archive, a delta with its bases, or plain pages.
///
/// ```
/// use trueno_zram_io::ArchiveOpener;
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("pages-1.img");
/// # std::fs::write(&path, [7; 8192])?;
/// let pages = trueno_zram_criu::open_pages(&path, &ArchiveOpener::new())?;
/// let mut page = [[0; 4096]];
/// pages.read(1, &mut page)?;
/// assert_eq!((page, pages.len_bytes()), ([[7; 4096]], 8192));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::Io`], [`Error::Archive`], [`Error::NoIndex`], and [`Error::NoChecksums`].
pub fn open_pages(path: &Path, opener: &ArchiveOpener) -> Result<Arc<dyn Pages>, Error> {
    if !is_archive_name(path) {
        let file = Error::open(path)?;
        return Ok(Arc::new(PlainPages::new(Arc::new(file)).map_err(Error::archive(path))?));
    }
    let archive = opener.open(path).map_err(|error| match error {
        ArchiveError::Read { source, .. } => Error::io(path)(source),
        error => Error::archive(path)(error),
    })?;
    let archive = archive.ok_or_else(|| Error::NoIndex { path: path.into() })?;
    if !archive.notices_damage() {
        return Err(Error::NoChecksums { path: path.into() });
    }
    Ok(match archive {
        PageArchive::Standard(archive) => Arc::new(*archive),
        PageArchive::Delta(delta) => Arc::new(*delta),
    })
}

fn is_archive_name(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| COMPRESSED_SUFFIXES.iter().any(|suffix| name.ends_with(suffix)))
}
