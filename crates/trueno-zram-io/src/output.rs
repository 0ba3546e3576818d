//! Outputs: standard output, a device in place, or a new file that gets its name once it is complete.

pub(crate) mod existing_file;
pub(crate) mod mapped_output;
pub(crate) mod owner_and_mode;
pub(crate) mod positional_file;
pub(crate) mod spool;
pub(crate) mod temp_output;
pub(crate) mod write_errors;

use std::fs::{self, File, Metadata};
use std::io::{self, IsTerminal, Write};
use std::iter;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use trueno_zram_archive::ContentSpan;
use trueno_zram_core::{PAGE_SIZE, is_zero};

use crate::error::{Error, Operation, Refusal, Result, STANDARD_OUTPUT};
use crate::files::regular_file::FileId;
use crate::files::{is_inherited, standard_streams};
use crate::output::owner_and_mode::{MetadataWarning, OwnerAndMode};
use crate::output::positional_file::PositionalFile;
use crate::output::temp_output::{Durability, IfExists, TempOutput};
use crate::output::write_errors::{check_written, sync};
use crate::restore::{Sink, WriteMode};

/// Zeros, for outputs without holes.
static ZEROS: [u8; 1 << 20] = [0; 1 << 20];

/// The destination of an output. [`Output`] has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputTarget {
    /// Standard output.
    Stdout,
    /// A path.
    Path(PathBuf),
}

/// Options of an output. All are off by default.
///
/// ```
/// use trueno_zram_io::OutputOptions;
/// let options = OutputOptions::default().with_force(true).with_sparse(true);
/// assert!(options.force && options.sparse && !options.durable);
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct OutputOptions {
    /// Replaces an existing file, and writes binary data to a terminal.
    pub force: bool,
    /// The bytes are not text, and of no use on a terminal.
    pub binary: bool,
    /// Leaves holes in place of zeros, if the output is a new file.
    pub sparse: bool,
    /// Syncs the content and the name to disk at the end, since the input will be removed.
    pub durable: bool,
    /// Makes the output readable by its owner alone, even if others may read the file that it replaces. The output must be a
    /// new regular file, standard output, or a descriptor that the process was started with.
    pub private: bool,
}

impl OutputOptions {
    /// Sets [`force`](Self::force).
    #[must_use]
    pub fn with_force(self, force: bool) -> Self {
        Self { force, ..self }
    }

    /// Sets [`binary`](Self::binary).
    #[must_use]
    pub fn with_binary(self, binary: bool) -> Self {
        Self { binary, ..self }
    }

    /// Sets [`sparse`](Self::sparse).
    #[must_use]
    pub fn with_sparse(self, sparse: bool) -> Self {
        Self { sparse, ..self }
    }

    /// Sets [`durable`](Self::durable).
    #[must_use]
    pub fn with_durable(self, durable: bool) -> Self {
        Self { durable, ..self }
    }

    /// Sets [`private`](Self::private).
    #[must_use]
    pub fn with_private(self, private: bool) -> Self {
        Self { private, ..self }
    }
}

/// An output that is being written. Dropped before [`Output::finish`], a new file leaves nothing behind.
///
/// ```
/// use std::io::Write;
/// use trueno_zram_io::{Output, OutputOptions, OutputTarget};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("image");
/// let mut output = Output::create(&OutputTarget::Path(path.clone()), None, OutputOptions::default())?;
/// output.write_all(b"some bytes")?;
/// assert!(!path.exists(), "it is not complete");
/// output.finish(None)?;
/// assert_eq!(std::fs::read(&path)?, b"some bytes");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Output {
    /// Shared with the threads that write it, and never duplicated: see [`check_written`].
    file: Arc<File>,
    /// The name that messages use.
    pub name: String,
    /// Zeros become holes: only in a new file.
    sparse: bool,
    /// The offset of the next bytes. A new file may be longer while other threads write at positions of their own, and
    /// shorter if it ends with a hole.
    position: u64,
    durable: bool,
    /// A new file, which is written by position; `None` for other outputs, which are written in order.
    new: Option<NewFile>,
}

#[derive(Debug)]
struct NewFile {
    temp: TempOutput,
    /// Set once the file is complete, until when it is its owner's alone; `None` if it keeps those that it was created with.
    permissions: Option<OwnerAndMode>,
}

impl Output {
    /// Opens an output. A new file gets the permissions and times of `source`, the input that it is made from.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Refused`], [`Error::Closed`].
    pub fn create(target: &OutputTarget, source: Option<&Metadata>, options: OutputOptions) -> Result<Self> {
        match target {
            OutputTarget::Stdout => Self::stdout(source, options),
            OutputTarget::Path(path) => Self::at_path(path, source, options),
        }
    }

    fn stdout(source: Option<&Metadata>, options: OutputOptions) -> Result<Self> {
        if options.binary && !options.force && io::stdout().is_terminal() {
            return Err(Error::refused(STANDARD_OUTPUT, Refusal::Terminal));
        }
        if standard_streams::was_closed_at_start(io::stdout()) {
            return Err(Error::Closed { name: STANDARD_OUTPUT });
        }
        if let (Some(there), Some(source)) = (standard_streams::stdout_file_metadata(), source)
            && FileId::of(&there) == FileId::of(source)
        {
            return Err(Error::refused(STANDARD_OUTPUT, Refusal::Input));
        }
        // Not through Rust's own buffer, which looks for line ends.
        let file = io::stdout().as_fd().try_clone_to_owned();
        let file = file.map_err(Operation::Open.failed(STANDARD_OUTPUT))?;
        Ok(Self::new(file.into(), STANDARD_OUTPUT.to_owned(), None, OutputOptions { sparse: false, ..options }))
    }

    fn new(file: File, name: String, new: Option<NewFile>, options: OutputOptions) -> Self {
        let OutputOptions { sparse, durable, .. } = options;
        Self { file: Arc::new(file), name, sparse, position: 0, durable, new }
    }

    fn at_path(path: &Path, source: Option<&Metadata>, options: OutputOptions) -> Result<Self> {
        let name = path.display().to_string();
        let failed = |error: io::Error| Error::io(&name, Operation::Open, error);
        let refused = |refusal| Err(Error::refused(&name, refusal));
        let is_link = fs::symlink_metadata(path).is_ok_and(|there| there.is_symlink());
        let there = match fs::metadata(path) {
            Ok(there) => Some(there),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            Err(_) if is_link => return refused(Refusal::Dangling),
            Err(_) => None,
        };
        if is_link && options.private && !is_inherited(path) {
            return refused(Refusal::Link);
        }
        if let Some(there) = &there {
            let same = |source: &Metadata| FileId::of(source) == FileId::of(there);
            if there.is_dir() {
                return refused(Refusal::Directory);
            }
            if !there.file_type().is_char_device() && source.is_some_and(same) {
                return refused(Refusal::Input);
            }
            let keeps_data = there.is_file() || there.file_type().is_block_device();
            if options.private && !there.is_file() && !is_inherited(path) && !is_memory_device(there) {
                return refused(Refusal::NotPrivate);
            }
            if keeps_data && !options.force {
                return refused(Refusal::Exists);
            }
            if options.durable && !keeps_data {
                return refused(Refusal::DiscardsData);
            }
            if !there.is_file() {
                let file = File::options().write(true).open(path).map_err(failed)?;
                return Ok(Self::new(file, name, None, OutputOptions { sparse: false, ..options }));
            }
        }
        let permissions = source.and_then(OwnerAndMode::of).or_else(|| there.as_ref().and_then(OwnerAndMode::of));
        let permissions = permissions.filter(|_| !options.private);
        let mode = if permissions.is_some() || options.private { 0o600 } else { 0o666 };
        let existing = if there.is_some() { IfExists::Replace } else { IfExists::Fail };
        // The target of a link is written; the link stays.
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let (file, temp) = TempOutput::create(target, mode, existing).map_err(failed)?;
        Ok(Self::new(file, name, Some(NewFile { temp, permissions }), options))
    }

    /// Returns `true` if a slow reader can block writes: for anything but regular files.
    #[must_use]
    pub fn can_block(&self) -> bool {
        !self.file.metadata().is_ok_and(|metadata| metadata.is_file())
    }

    /// Returns the file, to read back what was written, if it is a new file, which nobody else can have changed.
    ///
    /// ```
    /// use std::io::Write;
    /// use trueno_zram_io::{Output, OutputOptions, OutputTarget};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("image");
    /// let mut output = Output::create(&OutputTarget::Path(path), None, OutputOptions::default())?;
    /// output.write_all(b"some bytes")?;
    /// let file = output.new_file()?.expect("a new file");
    /// assert_eq!(std::io::read_to_string(file)?, "some bytes");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn new_file(&self) -> Result<Option<File>> {
        if self.new.is_none() {
            return Ok(None);
        }
        check_written(&self.file).map_err(Operation::Write.failed(&self.name))?;
        self.file.try_clone().map(Some).map_err(Operation::Open.failed(&self.name))
    }

    /// Adds `bytes`. Pages of zeros among them become holes, if the output may have holes. [`Output::write_zeros`] has an
    /// example.
    ///
    /// # Errors
    /// The system's own, without the output's name.
    pub fn write_data(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !self.sparse {
            return self.write_all(bytes);
        }
        for (at, data) in data_runs(bytes) {
            self.file.write_all_at(data, self.position + at as u64)?;
        }
        self.position += bytes.len() as u64;
        Ok(())
    }

    /// Adds `count` zero bytes: a hole, if the output may have holes.
    ///
    /// ```
    /// use trueno_zram_io::{Output, OutputOptions, OutputTarget};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("image");
    /// let options = OutputOptions::default().with_sparse(true);
    /// let mut output = Output::create(&OutputTarget::Path(path), None, options)?;
    /// output.write_data(b"some bytes")?;
    /// output.write_zeros(1 << 30)?;
    /// assert_eq!(output.finish(None)?, (1 << 30) + 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The system's own, without the output's name.
    pub fn write_zeros(&mut self, count: u64) -> io::Result<()> {
        if self.sparse {
            let end = self.position.checked_add(count).filter(|end| i64::try_from(*end).is_ok());
            self.position = end.ok_or(io::ErrorKind::FileTooLarge)?;
            return Ok(());
        }
        zeros(count).try_for_each(|piece| self.write_all(piece))
    }

    /// Gives a complete output its name, its permissions, and the times of `source`. Returns the bytes written.
    /// Permissions that the file system refuses are left as they are; [`Output::finish_with`] reports them.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Refused`] if a file of this name was created in the meantime.
    pub fn finish(self, source: Option<&Metadata>) -> Result<u64> {
        self.finish_with(source, &mut |_| {})
    }

    /// Like [`Output::finish`], and passes permissions and times that the file system refuses to `warn`.
    ///
    /// ```no_run
    /// use trueno_zram_io::{Output, OutputOptions, OutputTarget};
    /// let source = std::fs::metadata("image.lz4")?;
    /// let output = Output::create(&OutputTarget::Path("image".into()), Some(&source), OutputOptions::default())?;
    /// output.finish_with(Some(&source), &mut |warning| eprintln!("image: {warning}"))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Output::finish`].
    pub fn finish_with(mut self, source: Option<&Metadata>, warn: &mut dyn FnMut(MetadataWarning)) -> Result<u64> {
        let new = self.new.take();
        if new.is_some() {
            set_len(&self.file, self.position).map_err(Operation::SetLength.failed(&self.name))?;
        }
        // Before the permissions, which some file systems send together with what was written.
        check_written(&self.file).map_err(Operation::Write.failed(&self.name))?;
        match new {
            Some(NewFile { temp, permissions }) => {
                if let Some(permissions) = permissions {
                    permissions.apply(&self.file, source, warn);
                }
                let durability = if self.durable { Durability::OnDisk } else { Durability::Later };
                temp.commit(&self.file, &self.name, durability)?;
            }
            None if self.durable => sync(&self.file).map_err(Operation::Sync.failed(&self.name))?,
            None => {}
        }
        Ok(self.position)
    }
}

/// An output that an archive is written to: in order, or at preassigned offsets.
///
/// ```
/// use std::io::{self, Write};
/// use trueno_zram_io::ArchiveOutput;
///
/// /// Counts bytes.
/// struct Counter(u64);
///
/// impl Write for Counter {
///     fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
///         self.0 += bytes.len() as u64;
///         Ok(bytes.len())
///     }
///
///     fn flush(&mut self) -> io::Result<()> {
///         Ok(())
///     }
/// }
///
/// impl ArchiveOutput for Counter {}
/// # assert_eq!(Counter(0).name(), "output");
/// ```
pub trait ArchiveOutput: Write + Send {
    /// Returns the name that messages use.
    fn name(&self) -> &str {
        "output"
    }

    /// Returns a file that `threads` threads can write at any position, if the output is a new file that nobody else sees.
    fn positional_file(&self, _threads: usize) -> Option<PositionalFile> {
        None
    }

    /// Counts bytes that are written at their offsets. Bytes written in order follow them.
    fn skip(&mut self, _len_bytes: u64) {}
}

impl ArchiveOutput for Vec<u8> {}

impl ArchiveOutput for Output {
    fn name(&self) -> &str {
        &self.name
    }

    fn positional_file(&self, threads: usize) -> Option<PositionalFile> {
        self.new.as_ref().map(|_| PositionalFile::new(&self.file, threads))
    }

    fn skip(&mut self, len_bytes: u64) {
        self.position += len_bytes;
    }
}

impl Sink for Output {
    fn take(&mut self, span: ContentSpan<'_>) -> Result<()> {
        let written = match span {
            ContentSpan::Data(bytes) => self.write_data(bytes),
            ContentSpan::Zeros(len_bytes) => self.write_zeros(len_bytes),
        };
        written.map_err(Operation::Write.failed(&self.name))
    }

    fn write_mode(&self, threads: usize) -> WriteMode {
        // To `/dev/null`, nothing need be written.
        if standard_streams::is_null(&self.file) {
            return WriteMode::Discard;
        }
        let positional = self.positional_file(threads);
        positional.map_or(WriteMode::InOrder, |file| WriteMode::Positional { file, sparse: self.sparse })
    }

    fn set_written(&mut self, len_bytes: u64) {
        self.skip(len_bytes);
    }

    fn restart(&mut self) -> Result<()> {
        if self.new.is_some() {
            self.file.set_len(0).map_err(Operation::SetLength.failed(&self.name))?;
            self.position = 0;
        }
        Ok(())
    }

    fn name(&self) -> &str {
        &self.name
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match self.new {
            Some(_) => self.file.write_at(bytes, self.position)?,
            None => self.file.write(bytes)?,
        };
        self.position += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns `true` for `/dev/null`, `/dev/full` and the other memory devices of the kernel, which expose no data.
fn is_memory_device(there: &Metadata) -> bool {
    const MEMORY_DEVICES: u32 = 1;
    there.file_type().is_char_device() && rustix::fs::major(there.rdev()) == MEMORY_DEVICES
}

/// Sets the length of a file: cuts off blocks allocated beyond it, or adds a hole at the end.
fn set_len(file: &File, len_bytes: u64) -> io::Result<()> {
    if file.metadata()?.len() == len_bytes { Ok(()) } else { file.set_len(len_bytes) }
}

/// Returns the runs of pages that are not zero, with their offsets. The last page may be shorter.
pub(crate) fn data_runs(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let run_bytes = |from: usize, is_run: fn(&[u8]) -> bool| -> usize {
        bytes[from..].chunks(PAGE_SIZE).take_while(|page| is_run(page)).map(<[u8]>::len).sum()
    };
    let mut end = 0;
    iter::from_fn(move || {
        let start = end + run_bytes(end, is_zero);
        end = start + run_bytes(start, |page| !is_zero(page));
        (start < end).then(|| (start, &bytes[start..end]))
    })
}

/// Returns slices of zeros of this total length.
pub(crate) fn zeros(len_bytes: u64) -> impl Iterator<Item = &'static [u8]> {
    let mut left = len_bytes;
    iter::from_fn(move || {
        let now = usize::try_from(left).map_or(ZEROS.len(), |left| left.min(ZEROS.len()));
        left -= now as u64;
        (now > 0).then(|| &ZEROS[..now])
    })
}

#[cfg(test)]
mod tests;
