//! A temporary file for an output that must not be written yet: without a name, or in memory where there is no such file.

use std::env;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

use rustix::fs::{MemfdFlags, memfd_create};

use crate::error::{Error, Operation, Result};
use crate::output::temp_output::unnamed_file;
use crate::output::write_errors::check_written;
use crate::output::{ArchiveOutput, Output};

/// Bytes copied with one call.
const COPY_BYTES: usize = 1 << 20;

/// A temporary file for an output that must not be written yet. Only this process can read it, and it is deleted when the
/// process ends.
///
/// A snapshot of a stopped process is spooled, for example, if the same process reads the output.
///
/// ```
/// use std::io::Write;
/// use trueno_zram_io::{Output, OutputOptions, OutputTarget, Spool};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("archive");
/// let mut output = Output::create(&OutputTarget::Path(path.clone()), None, OutputOptions::default())?;
/// let mut spool = Spool::new()?;
/// spool.write_all(b"an archive")?;
/// spool.copy_to(&mut output)?;
/// output.finish(None)?;
/// assert_eq!(std::fs::read(&path)?, b"an archive");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Spool {
    file: File,
    /// The directory for temporary files.
    name: String,
}

impl Spool {
    /// Creates an empty spool in the directory for temporary files.
    ///
    /// # Errors
    /// [`Error::Io`] if there is neither such a directory nor memory.
    pub fn new() -> Result<Self> {
        let folder = env::temp_dir();
        let name = folder.display().to_string();
        let file = match unnamed_file(&folder, 0o600) {
            Some(file) => file,
            None => {
                memfd_create("trueno-zram-spool", MemfdFlags::CLOEXEC).map_err(Operation::Open.failed(&name))?.into()
            }
        };
        Ok(Self { file, name })
    }

    /// Returns the file, to read back what was written.
    ///
    /// ```
    /// use std::io::Write;
    /// use std::os::unix::fs::FileExt;
    /// let (mut spool, mut bytes) = (trueno_zram_io::Spool::new()?, [0; 10]);
    /// spool.write_all(b"an archive")?;
    /// spool.file()?.read_exact_at(&mut bytes, 0)?;
    /// assert_eq!(&bytes, b"an archive");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn file(&self) -> Result<File> {
        check_written(&self.file).map_err(Operation::Write.failed(&self.name))?;
        self.file.try_clone().map_err(Operation::Open.failed(&self.name))
    }

    /// Writes everything to `output`.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn copy_to(mut self, output: &mut Output) -> Result<()> {
        let spool_failed = |error| Error::io(&self.name, Operation::Read, error);
        check_written(&self.file).map_err(spool_failed)?;
        self.file.seek(SeekFrom::Start(0)).map_err(spool_failed)?;
        let mut buffer = vec![0; COPY_BYTES];
        loop {
            match self.file.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(len_bytes) => {
                    output.write_all(&buffer[..len_bytes]).map_err(Operation::Write.failed(&output.name))?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(spool_failed(error)),
            }
        }
    }
}

impl ArchiveOutput for Spool {
    fn name(&self) -> &str {
        &self.name
    }
}

impl Write for Spool {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
