//! Opens archives by path, and the bases that deltas need.

use std::collections::HashSet;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use trueno_zram_archive::{ArchiveIdentity, BaseRecord, Delta, DeltaFile, Error, PageArchive, ReadAt, Result, Verify};

use crate::archives::unchanged_file::{FileStamp, UnchangedFile};
use crate::error::os_text;
use crate::files::regular_file::{FileId, open_regular_file};

/// Opens archives and deltas by their path, and finds the bases of deltas.
///
/// A base is looked for among the files that the caller names, then at the path that the delta records, then in the folder of
/// the delta. If the delta is opened by a symbolic link, its own folder comes first, then that of the link. Only a regular file
/// with the identity that the delta records is accepted.
///
/// If a file is changed in place while it is open, all reads of it fail from then on, with [`FileChanged`] as the
/// source of [`Error::Read`]. Changes are seen by the file's length and the time of its last change. Replacing the file by
/// renaming another one, or removing it, does no harm.
///
/// [`FileChanged`]: crate::FileChanged
///
/// ```no_run
/// use trueno_zram_archive::Pages;
/// use trueno_zram_io::ArchiveOpener;
/// let archive = ArchiveOpener::new().open("tuesday.tzd".as_ref())?.expect("an archive or a delta");
/// archive.read(0, &mut [[0; 4096]])?;
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ArchiveOpener {
    bases: Vec<PathBuf>,
    in_memory: bool,
    read_with: Option<fn(File) -> Arc<dyn ReadAt>>,
    verify: Verify,
}

impl ArchiveOpener {
    /// Creates an opener that looks for bases at the paths that deltas record.
    ///
    /// ```
    /// let opener = trueno_zram_io::ArchiveOpener::new();
    /// # drop(opener);
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Names files that may be bases, in any order.
    ///
    /// ```
    /// let opener = trueno_zram_io::ArchiveOpener::new().with_bases(["/moved/monday.lz4"]);
    /// # drop(opener);
    /// ```
    #[must_use]
    pub fn with_bases(mut self, paths: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        self.bases.extend(paths.into_iter().map(Into::into));
        self
    }

    /// Reads all files into memory when they are opened.
    ///
    /// ```
    /// let opener = trueno_zram_io::ArchiveOpener::new().with_files_in_memory(true);
    /// # drop(opener);
    /// ```
    #[must_use]
    pub fn with_files_in_memory(mut self, in_memory: bool) -> Self {
        self.in_memory = in_memory;
        self
    }

    /// Sets the reader of files that are not loaded into memory. The default is positional reads of the file.
    ///
    /// ```
    /// use std::sync::Arc;
    /// let opener = trueno_zram_io::ArchiveOpener::new().with_file_reader(|file| Arc::new(file));
    /// # drop(opener);
    /// ```
    #[must_use]
    pub fn with_file_reader(mut self, read_with: fn(File) -> Arc<dyn ReadAt>) -> Self {
        self.read_with = Some(read_with);
        self
    }

    /// Sets how much of an archive is proven before a page is returned: [`Verify::Group`] by default.
    ///
    /// ```
    /// use trueno_zram_archive::Verify;
    /// let opener = trueno_zram_io::ArchiveOpener::new().with_verify(Verify::Touched);
    /// # drop(opener);
    /// ```
    #[must_use]
    pub fn with_verify(mut self, verify: Verify) -> Self {
        self.verify = verify;
        self
    }

    /// Opens a file; `None` if it is neither an archive with an index nor a delta.
    ///
    /// # Errors
    /// [`Error::Read`] and [`Error::NotRegular`] if it cannot be opened; [`Error::Base`] if a base is missing or is another
    /// archive; [`Error::ChainTooLong`]; those of [`Archive::read_from`](trueno_zram_archive::Archive::read_from) and [`Delta::open`].
    pub fn open(&self, path: &Path) -> Result<Option<PageArchive>> {
        Ok(self.open_chain(path)?.map(|chain| chain.archive))
    }

    /// Opens a file like [`open`](Self::open), and returns all files that it is read from.
    ///
    /// ```no_run
    /// use trueno_zram_io::ArchiveOpener;
    /// let chain = ArchiveOpener::new().open_chain("tuesday.tzd".as_ref())?.expect("an archive or a delta");
    /// for base in chain.bases() {
    ///     println!("needs {}", base.path.display());
    /// }
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn open_chain(&self, path: &Path) -> Result<Option<ArchiveChain>> {
        self.open_file(open_regular_file(path)?, path)
    }

    /// Opens a file that is open already, like [`open_chain`](Self::open_chain). Bases are looked for as if it had this path.
    ///
    /// ```no_run
    /// use trueno_zram_io::ArchiveOpener;
    /// let unfinished = std::fs::File::open(".tuesday.part")?;
    /// let chain = ArchiveOpener::new().open_file(unfinished, "tuesday.tzd".as_ref())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn open_file(&self, file: File, path: &Path) -> Result<Option<ArchiveChain>> {
        let (mut file, mut path) = (file, path.to_owned());
        let (mut files, mut layers) = (Vec::new(), Vec::<DeltaFile>::new());
        let mut archive = loop {
            let opened = self.open_one(file, &path, &mut files).map_err(|error| match layers.is_empty() {
                true => error,
                false => base_error(path.display(), error),
            })?;
            match (opened, layers.last()) {
                (Some(ChainLink::Standard(archive)), _) => break archive,
                (Some(ChainLink::Delta(layer)), _) => {
                    if layers.len() == Delta::MAX_DEPTH {
                        return Err(Error::ChainTooLong { max_deltas: Delta::MAX_DEPTH });
                    }
                    let Some(base) = layer.base_record() else {
                        break PageArchive::Delta(Box::new(layer.without_base()?));
                    };
                    (file, path) = self.find_base(base, &path)?;
                    layers.push(*layer);
                }
                (None, None) => return Ok(None),
                (None, Some(_)) => return Err(base_error(path.display(), "it is not an archive any more")),
            }
        };
        for layer in layers.into_iter().rev() {
            archive = PageArchive::Delta(Box::new(layer.on_base(archive)?));
        }
        Ok(Some(ArchiveChain { archive: archive.with_verify(self.verify), files }))
    }

    /// Opens a file of a chain, without its bases; `None` if it is neither an archive with an index nor a delta.
    fn open_one(&self, file: File, path: &Path, files: &mut Vec<ChainFile>) -> Result<Option<ChainLink>> {
        let failed = |source| Error::Read { at: 0, source };
        let id = FileId::of(&file.metadata().map_err(failed)?);
        files.push(ChainFile { path: path.to_owned(), id });
        let file = self.load(file).map_err(failed)?;
        match DeltaFile::open(Arc::clone(&file))? {
            Some(layer) => Ok(Some(ChainLink::Delta(Box::new(layer)))),
            None => Ok(PageArchive::standard(file)?.map(ChainLink::Standard)),
        }
    }

    /// Opens the file that is the base of a delta. Returns its path as well.
    fn find_base(&self, base: &BaseRecord, delta: &Path) -> Result<(File, PathBuf)> {
        let mut tried = Vec::new();
        for path in self.candidate_paths(base, delta) {
            match open_if_base(&path, base) {
                Ok(file) => return Ok((file, path)),
                Err(why) => tried.push(format!("{}: {why}", path.display())),
            }
        }
        Err(base_error(base, format!("not found ({})", tried.join("; "))))
    }

    /// Returns the paths that a base may have, without repetition.
    fn candidate_paths(&self, base: &BaseRecord, delta: &Path) -> Vec<PathBuf> {
        let path = Path::new(std::ffi::OsStr::from_bytes(&base.path));
        let mut paths = self.bases.clone();
        for folder in folders_of(delta) {
            paths.push(folder.join(path));
            paths.extend(path.file_name().map(|name| folder.join(name)));
        }
        let mut seen = HashSet::new();
        paths.retain(|path| seen.insert(path.clone()));
        paths
    }

    fn load(&self, mut file: File) -> io::Result<Arc<dyn ReadAt>> {
        if !self.in_memory {
            return Ok(Arc::new(UnchangedFile::new(file, self.read_with.unwrap_or(|file| Arc::new(file)))?));
        }
        let (stamp, mut bytes) = (FileStamp::of(&file)?, Vec::new());
        file.read_to_end(&mut bytes)?;
        stamp.check(&file)?;
        Ok(Arc::new(bytes))
    }
}

/// An archive or a delta that was opened by its path, and the files that it is read from.
///
/// ```
/// use trueno_zram_archive::{WriteOptions, compress};
/// use trueno_zram_io::ArchiveOpener;
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("image.lz4");
/// compress(&[7; 4096][..], std::fs::File::create(&path)?, &WriteOptions::default())?;
/// let chain = ArchiveOpener::new().open_chain(&path)?.expect("it has an index");
/// assert_eq!((&chain.files[0].path, chain.bases().len()), (&path, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ArchiveChain {
    /// The archive.
    pub archive: PageArchive,
    /// Its file, its base, the base of that, and so on.
    pub files: Vec<ChainFile>,
}

impl ArchiveChain {
    /// Returns the files of its bases, the nearest one first.
    #[must_use]
    pub fn bases(&self) -> &[ChainFile] {
        self.files.get(1..).unwrap_or_default()
    }
}

/// A file of a chain, without its bases.
enum ChainLink {
    Standard(PageArchive),
    Delta(Box<DeltaFile>),
}

/// A file that an archive is read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainFile {
    /// The path by which it was opened.
    pub path: PathBuf,
    /// Its identity.
    pub id: FileId,
}

/// Returns the folders in which a delta lies: its own, and if it was opened by a symbolic link to it, that of the link.
fn folders_of(delta: &Path) -> Vec<PathBuf> {
    let parent = |path: &Path| path.parent().unwrap_or(Path::new("")).to_owned();
    let is_link = fs::symlink_metadata(delta).is_ok_and(|there| there.is_symlink());
    match fs::canonicalize(delta) {
        Ok(target) if is_link => {
            let (folder, of_link) = (parent(&target), parent(delta));
            let here = if of_link.as_os_str().is_empty() { Path::new(".") } else { &of_link };
            if fs::canonicalize(here).is_ok_and(|here| here == folder) { vec![of_link] } else { vec![folder, of_link] }
        }
        _ => vec![parent(delta)],
    }
}

/// Opens a file if it is the archive that a delta needs.
///
/// # Errors
/// The reason why it is not.
fn open_if_base(path: &Path, base: &BaseRecord) -> std::result::Result<File, String> {
    let file = open_regular_file(path).map_err(|error| match error {
        Error::Read { source, .. } => os_text(&source),
        error => error.to_string(),
    })?;
    let copy = file.try_clone().map_err(|error| os_text(&error))?;
    match ArchiveIdentity::read(Arc::new(copy)) {
        Ok(Some(identity)) if identity == base.identity => Ok(file),
        Ok(Some(_)) => Err("another archive than the one that the delta was made from".to_owned()),
        Ok(None) => Err("not a page archive with an index".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn base_error(base: impl Display, reason: impl Display) -> Error {
    Error::Base { base: base.to_string(), reason: reason.to_string(), page: None }
}
