//! The directory that `criu restore --lazy-pages` starts from: everything but the pages that can wait.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use trueno_zram_core::PAGE_SIZE;
use trueno_zram_io::ArchiveOpener;

use crate::error::Error;
use crate::image_dir::{ImageDir, PagemapFile, PagesName, names};
use crate::pagemap::Pagemap;

/// Pages copied at a time.
const COPY_PAGES: usize = 256;
/// Attempts to remove a directory that another thread still writes to.
const REMOVE_TRIES: u32 = 1000;

/// The image directory that `criu restore --lazy-pages` starts from. It is removed when this is dropped.
///
/// ```
/// use trueno_zram_criu::{ImageDir, LazyDir, Pagemap, PagemapEntry};
/// use trueno_zram_io::ArchiveOpener;
/// # let dir = tempfile::tempdir()?;
/// # let (images, path) = (dir.path().join("images"), dir.path().join("lazy"));
/// # std::fs::create_dir(&images)?;
/// # let entries = vec![PagemapEntry { address: 0x7000, pages: 2, parent: false, lazy: true, present: true }];
/// # std::fs::write(images.join("pagemap-42.img"), Pagemap { pages_id: 1, entries }.encode())?;
/// # std::fs::write(images.join("pages-1.img"), [7; 8192])?;
/// let lazy = LazyDir::create(&path)?;
/// lazy.write(&ImageDir::open(&images)?, &ArchiveOpener::new())?;
/// // Both pages can wait, so the directory has neither.
/// assert_eq!(std::fs::metadata(path.join("pages-1.img"))?.len(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct LazyDir {
    path: PathBuf,
}

impl LazyDir {
    /// Creates the directory with access for its owner only, since it holds private memory.
    ///
    /// ```
    /// use trueno_zram_criu::LazyDir;
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("lazy");
    /// let lazy = LazyDir::create(&path)?;
    /// assert!(path.is_dir() && LazyDir::create(&path).is_err());
    /// drop(lazy);
    /// assert!(!path.exists());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Io`] if something is there.
    pub fn create(path: &Path) -> Result<Self, Error> {
        fs::DirBuilder::new().mode(0o700).create(path).map_err(Error::io(path))?;
        Ok(Self { path: path.into() })
    }

    /// Fills the directory as `criu dump --lazy-pages` would: with the pages that a process needs before it runs, and pagemaps
    /// that mark the others as lazy. The example of [`LazyDir`] fills one.
    ///
    /// Other images become symbolic links. The original directory is not changed. The opener finds the bases of deltas.
    ///
    /// # Errors
    /// [`Error::Io`] if a file cannot be written; errors of pagemaps and archives.
    pub fn write(&self, images: &ImageDir, opener: &ArchiveOpener) -> Result<(), Error> {
        let original = fs::canonicalize(&images.path).map_err(Error::io(&images.path))?;
        check_parent(&original)?;
        for name in names(&original)? {
            if !is_rewritten(&name) {
                let link = self.path.join(&name);
                symlink(original.join(&name), &link).map_err(Error::io(&link))?;
            }
        }
        for process in &images.processes {
            self.write_pages(images, opener, process, &without_lazy_pages(&process.pagemap))?;
        }
        for shared in &images.shared {
            self.write_pages(images, opener, shared, &shared.pagemap)?;
        }
        Ok(())
    }

    /// Writes the pages of a pagemap that `kept` still has, and `kept` in its place.
    fn write_pages(
        &self,
        images: &ImageDir,
        opener: &ArchiveOpener,
        file: &PagemapFile,
        kept: &Pagemap,
    ) -> Result<(), Error> {
        let pages = images.open_pages(file, opener)?;
        let pages_path = self.path.join(format!("pages-{}.img", kept.pages_id));
        let mut out = BufWriter::new(create(&pages_path)?);
        let (mut buffer, mut first) = (vec![[0; PAGE_SIZE]; COPY_PAGES], 0);
        for (entry, kept) in file.pagemap.entries.iter().zip(&kept.entries).filter(|(entry, _)| entry.present) {
            let (start, end) = (first, first + entry.pages);
            first = end;
            let mut next = if kept.present { start } else { end };
            while next < end {
                let count = usize::try_from(end - next).unwrap_or(usize::MAX).min(COPY_PAGES);
                let address = entry.address + (next - start) * PAGE_SIZE as u64;
                let damaged = |source| Error::Damaged { pid: file.id, address, page: next, source };
                pages.read(next, &mut buffer[..count]).map_err(damaged)?;
                out.write_all(buffer[..count].as_flattened()).map_err(Error::io(&pages_path))?;
                next += count as u64;
            }
        }
        out.flush().map_err(Error::io(&pages_path))?;
        let pagemap_path = self.path.join(file.path.file_name().unwrap_or_default());
        create(&pagemap_path)?.write_all(&kept.encode()).map_err(Error::io(&pagemap_path))
    }

    /// Removes the directory, even while another thread writes to it: for a process that is about to end.
    ///
    /// ```
    /// use trueno_zram_criu::LazyDir;
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("lazy");
    /// let lazy = LazyDir::create(&path)?;
    /// // As a handler of SIGTERM, say, while another thread has `lazy`.
    /// LazyDir::remove(&path);
    /// assert!(!path.exists());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove(path: &Path) {
        // A file may appear after the others are gone. Without the directory, none can.
        let _ = (0..REMOVE_TRIES).find(|_| {
            fs::remove_dir_all(path).map_or_else(|error| error.kind() != io::ErrorKind::DirectoryNotEmpty, |()| true)
        });
    }
}

impl Drop for LazyDir {
    fn drop(&mut self) {
        Self::remove(&self.path);
    }
}

/// Returns `true` for a file that is rewritten, or that belongs to an earlier run of CRIU.
fn is_rewritten(name: &str) -> bool {
    name.starts_with("pagemap-")
        || PagesName::parse(name).is_some()
        || name.starts_with("stats-")
        || name.ends_with(".log")
}

/// Refuses a directory whose parent's pages are compressed: CRIU reads those itself.
fn check_parent(original: &Path) -> Result<(), Error> {
    let path = original.join("parent");
    if !path.is_dir() {
        return Ok(());
    }
    let files = ImageDir::pages_files(&path)?;
    let plain = |id| files.iter().any(|(name, _)| !name.compressed && name.pages_id == id);
    if files.iter().any(|(name, _)| name.compressed && !plain(name.pages_id)) {
        return Err(Error::CompressedParent { path });
    }
    check_parent(&path)
}

/// Returns a pagemap that marks the pages that can wait as not present.
fn without_lazy_pages(pagemap: &Pagemap) -> Pagemap {
    let mut pagemap = pagemap.clone();
    for entry in &mut pagemap.entries {
        entry.present &= !entry.lazy;
    }
    pagemap
}

fn create(path: &Path) -> Result<File, Error> {
    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(Error::io(path))
}
