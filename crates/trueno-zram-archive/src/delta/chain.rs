//! Opens archives by path, and the bases that deltas need.

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::read_at::{Positioned, ReadAt};
use crate::seek::ArchiveReader;

use super::archive::PageArchive;
use super::identity::ArchiveIdentity;
use super::layout::BaseRecord;
use super::reader::DeltaReader;

/// Opens archives and deltas by their path, and finds the bases of deltas.
///
/// A base is looked for among the files that the caller names, then where it was when the delta was made, then beside the
/// delta. Only a regular file with the identity that the delta states will do.
///
/// ```no_run
/// use trueno_zram_archive::ArchiveOpener;
/// let archive = ArchiveOpener::new().open("tuesday.tzd".as_ref())?.expect("an archive or a delta");
/// archive.read_page_at(0, &mut [0; 4096])?;
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ArchiveOpener {
    bases: Vec<PathBuf>,
    in_memory: bool,
}

impl ArchiveOpener {
    /// The longest chain of deltas. A page of the lowest archive is looked up in all of them.
    ///
    /// ```
    /// assert_eq!(trueno_zram_archive::ArchiveOpener::MAX_DEPTH, 32);
    /// ```
    pub const MAX_DEPTH: usize = 32;

    /// Creates an opener that looks for bases where deltas say.
    ///
    /// ```
    /// let opener = trueno_zram_archive::ArchiveOpener::new();
    /// # drop(opener);
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Names files that may be bases, in any order.
    ///
    /// ```
    /// let opener = trueno_zram_archive::ArchiveOpener::new().bases(["/moved/monday.lz4"]);
    /// # drop(opener);
    /// ```
    #[must_use]
    pub fn bases(mut self, paths: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        self.bases.extend(paths.into_iter().map(Into::into));
        self
    }

    /// Reads all files into memory when they are opened.
    ///
    /// ```
    /// let opener = trueno_zram_archive::ArchiveOpener::new().in_memory(true);
    /// # drop(opener);
    /// ```
    #[must_use]
    pub fn in_memory(mut self, in_memory: bool) -> Self {
        self.in_memory = in_memory;
        self
    }

    /// Opens a file; `None` if it is neither an archive with an index nor a delta.
    ///
    /// # Errors
    /// [`Error::Read`] if it cannot be opened; [`Error::Base`] if a base is missing or is another archive; those of
    /// [`SharedReader::open`](crate::SharedReader::open) and [`DeltaReader::open`].
    pub fn open(&self, path: &Path) -> Result<Option<PageArchive>> {
        let file = self.load(path).map_err(|source| Error::Read { at: 0, source })?;
        self.open_file(file, path, 0)
    }

    fn open_file(&self, file: Arc<dyn ReadAt>, path: &Path, depth: usize) -> Result<Option<PageArchive>> {
        let delta = DeltaReader::open(Arc::clone(&file), |base| self.open_base(base, path, depth + 1))?;
        match delta {
            Some(delta) => Ok(Some(PageArchive::Delta(Box::new(delta)))),
            None => PageArchive::standard(file),
        }
    }

    fn open_base(&self, base: &BaseRecord, delta: &Path, depth: usize) -> Result<PageArchive> {
        let failed = |reason: String| Error::Base { base: base.to_string(), reason };
        if depth > ArchiveOpener::MAX_DEPTH {
            return Err(failed(format!("a chain of more than {} deltas", ArchiveOpener::MAX_DEPTH)));
        }
        let mut found = Vec::new();
        for path in self.places(base, delta) {
            match self.candidate(&path, base) {
                Ok(file) => {
                    let archive = self.open_file(file, &path, depth).map_err(|error| match error {
                        error @ Error::Base { .. } => error,
                        error => Error::Base { base: path.display().to_string(), reason: error.to_string() },
                    })?;
                    return archive.ok_or_else(|| failed("it is not an archive any more".to_owned()));
                }
                Err(why) => found.push(format!("{}: {why}", path.display())),
            }
        }
        Err(failed(format!("not found ({})", found.join("; "))))
    }

    /// The places where a base may be, without repetition.
    fn places(&self, base: &BaseRecord, delta: &Path) -> Vec<PathBuf> {
        let path = Path::new(std::ffi::OsStr::from_bytes(&base.path));
        let beside = delta.parent().unwrap_or(Path::new(""));
        let mut places = self.bases.clone();
        places.push(beside.join(path));
        places.extend(path.file_name().map(|name| beside.join(name)));
        let mut seen = Vec::new();
        places.retain(|place| {
            !seen.contains(place) && {
                seen.push(place.clone());
                true
            }
        });
        places
    }

    /// Opens a file if it is the archive that a delta needs; or says why not.
    fn candidate(&self, path: &Path, base: &BaseRecord) -> std::result::Result<Arc<dyn ReadAt>, String> {
        // A pipe would block, and a device might do anything.
        let metadata = fs::metadata(path).map_err(|error| text(&error))?;
        if !metadata.is_file() {
            return Err("not a regular file".to_owned());
        }
        let file: Arc<dyn ReadAt> = Arc::new(File::open(path).map_err(|error| text(&error))?);
        match identity_of(&*file) {
            Ok(Some(identity)) if identity == base.identity => {}
            Ok(Some(_)) => return Err("another archive than the one that the delta was made from".to_owned()),
            Ok(None) => return Err("not a page archive with an index".to_owned()),
            Err(error) => return Err(error.to_string()),
        }
        if self.in_memory { self.load(path).map_err(|error| text(&error)) } else { Ok(file) }
    }

    fn load(&self, path: &Path) -> io::Result<Arc<dyn ReadAt>> {
        Ok(if self.in_memory { Arc::new(fs::read(path)?) } else { Arc::new(File::open(path)?) })
    }
}

/// The system's words, without the number that Rust adds.
fn text(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such file".to_owned(),
        _ => error.to_string(),
    }
}

/// Returns the identity of an archive or a delta, without its bases; `None` if the file is neither.
fn identity_of(file: &dyn ReadAt) -> Result<Option<ArchiveIdentity>> {
    if let Some(identity) = DeltaReader::identity_of(file)? {
        return Ok(Some(identity));
    }
    let file_len = file.len_bytes().map_err(|source| Error::Read { at: 0, source })?;
    let archive = ArchiveReader::open(Positioned::new(file, file_len))?;
    Ok(archive.map(|archive| ArchiveIdentity::of_archive(file_len, &archive.footer)))
}
