//! Opens regular files without blocking, and identifies files.

use std::fs::{File, Metadata};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use trueno_zram_archive::{Error, Result};

/// Opens a regular file for reading.
///
/// Opening a named pipe would wait for its other end, and reading a device might have side effects. So the path is opened
/// without blocking, and the kind of the open file is checked: nothing can take its place in between.
///
/// ```
/// use trueno_zram_archive::Error;
/// use trueno_zram_io::open_regular_file;
/// let program = open_regular_file(&std::env::current_exe()?)?;
/// assert!(program.metadata()?.is_file());
/// assert!(matches!(open_regular_file("/dev/null".as_ref()), Err(Error::NotRegular)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::Read`] if it cannot be opened; [`Error::NotRegular`].
pub fn open_regular_file(path: &Path) -> Result<File> {
    let failed = |source| Error::Read { at: 0, source };
    // The flag changes nothing for the reads of a regular file.
    let flag = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(flag).open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.is_file() { Ok(file) } else { Err(Error::NotRegular) }
}

/// The identity of a file on this machine. All names of a file have the same one.
///
/// ```
/// use trueno_zram_io::FileId;
/// let (file, link) = (std::fs::metadata("/proc/self/exe")?, std::env::current_exe()?);
/// assert_eq!(FileId::of(&file), FileId::of(&std::fs::metadata(link)?));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    /// The device of its file system.
    pub device: u64,
    /// Its inode number on that device.
    pub inode: u64,
}

impl FileId {
    /// Returns the identity of the file with this metadata. It is unique while the file exists or is open.
    #[must_use]
    pub fn of(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}
