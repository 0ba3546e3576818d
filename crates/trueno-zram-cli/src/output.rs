//! Where bytes go: standard output, a device in place, or a file written beside and renamed when it is whole.

use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, IsTerminal, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::TempPath;
use trueno_zram_core::PAGE_SIZE;

use crate::failure::Failure;
use crate::rights::Rights;
use crate::signals::{self, ActionId};
use crate::standard;

/// Zeros, for outputs that cannot have holes.
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// Where an output is to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Standard output.
    Stdout,
    /// A path.
    Path(PathBuf),
}

/// How an output is made.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OutputOptions {
    /// Replace what is there, and write binary data to a terminal.
    pub(crate) force: bool,
    /// The bytes are for machines alone: not for a terminal.
    pub(crate) binary: bool,
    /// Leave holes where there are zeros, if the output is a new file.
    pub(crate) sparse: bool,
    /// Have the bytes on the disk before the file gets its name, and then its name: what they are made from will be removed.
    pub(crate) durable: bool,
    /// For nobody but its owner, whoever might read what it replaces.
    pub(crate) private: bool,
}

/// An output that is being written. Dropped before [`Output::finish`], a new file is as if it had never been.
#[derive(Debug)]
pub(crate) struct Output {
    file: File,
    /// What messages call it.
    pub(crate) name: String,
    sparse: bool,
    /// Whether the last bytes were left out as a hole.
    ends_in_hole: bool,
    bytes: u64,
    durable: bool,
    /// None: there is nothing to rename.
    beside: Option<Beside>,
}

/// A file that is written beside its final place.
#[derive(Debug)]
struct Beside {
    /// None once it has its name.
    temporary: Option<TempPath>,
    place: PathBuf,
    replace: bool,
    /// Those it gets once it is whole; until then its owner alone has any. None: as any new file.
    rights: Option<Rights>,
    on_signal: ActionId,
}

impl Output {
    /// Opens an output that is made from `source`.
    pub(crate) fn create(target: &Target, source: Option<&Metadata>, options: OutputOptions) -> Result<Self, Failure> {
        match target {
            Target::Stdout => Self::stdout(options),
            Target::Path(path) => Self::at_path(path, source, options),
        }
    }

    fn stdout(options: OutputOptions) -> Result<Self, Failure> {
        let name = "standard output".to_owned();
        if options.binary && !options.force && io::stdout().is_terminal() {
            return Err(Failure::usage(
                "compressed data is not written to a terminal; give -o FILE, or -f to do it all the same",
            ));
        }
        if standard::is_closed(io::stdout()) {
            return Err(Failure::Failed("standard output is closed; -o /dev/null discards the data".to_owned()));
        }
        // Not through Rust's own buffer, which looks for line ends.
        let file = io::stdout().as_fd().try_clone_to_owned().map_err(|error| Failure::io(&name, &error))?;
        Ok(Self::new(file.into(), name, None, OutputOptions { sparse: false, ..options }))
    }

    fn new(file: File, name: String, beside: Option<Beside>, options: OutputOptions) -> Self {
        let OutputOptions { sparse, durable, .. } = options;
        Self { file, name, sparse, ends_in_hole: false, bytes: 0, durable, beside }
    }

    fn at_path(path: &Path, source: Option<&Metadata>, options: OutputOptions) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let failed = |error: io::Error| Failure::io(&name, &error);
        let is_missing = fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        if is_missing && fs::symlink_metadata(path).is_ok_and(|there| there.is_symlink()) {
            return Err(Failure::at(name, "is a link to nothing that is there"));
        }
        // What a link points to is written, not the link replaced.
        let place = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let there = match fs::metadata(&place) {
            Ok(there) => Some(there),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(error)),
        };
        if let Some(there) = &there {
            let same = |source: &Metadata| (source.dev(), source.ino()) == (there.dev(), there.ino());
            if there.is_dir() {
                return Err(Failure::at(name, "is a directory"));
            }
            if !there.file_type().is_char_device() && source.is_some_and(same) {
                return Err(Failure::at(name, "is the input; it cannot be the output too"));
            }
            let keeps_data = there.is_file() || there.file_type().is_block_device();
            if keeps_data && !options.force {
                return Err(Failure::at(name, "exists already; -f overwrites it"));
            }
            if options.durable && !keeps_data {
                return Err(Failure::at(name, "keeps no data; --rm would remove the input and leave nothing"));
            }
            if !there.is_file() {
                let file = File::options().write(true).open(&place).map_err(failed)?;
                return Ok(Self::new(file, name, None, OutputOptions { sparse: false, ..options }));
            }
        }
        let rights = source.and_then(Rights::of).or_else(|| there.as_ref().and_then(Rights::of));
        let rights = rights.filter(|_| !options.private);
        let mode = if rights.is_some() || options.private { 0o600 } else { 0o666 };
        let (file, beside) = Beside::create(place, mode, there.is_some(), rights).map_err(failed)?;
        Ok(Self::new(file, name, Some(beside), options))
    }

    /// Adds `bytes`; pages of zeros among them become holes where that may be.
    pub(crate) fn write_data(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !self.sparse {
            return self.write_all(bytes);
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let data_bytes = run_bytes(rest, |page| !is_zero(page));
            if data_bytes > 0 {
                self.write_all(&rest[..data_bytes])?;
            }
            rest = &rest[data_bytes..];
            let zero_bytes = run_bytes(rest, is_zero);
            self.write_zeros(zero_bytes as u64)?;
            rest = &rest[zero_bytes..];
        }
        Ok(())
    }

    /// Adds `count` bytes of zeros: a hole where that may be.
    pub(crate) fn write_zeros(&mut self, count: u64) -> io::Result<()> {
        if count == 0 {
            return Ok(());
        }
        if self.sparse {
            let step = i64::try_from(count).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
            self.file.seek(SeekFrom::Current(step))?;
            self.bytes += count;
            self.ends_in_hole = true;
            return Ok(());
        }
        let mut left = count;
        while left > 0 {
            let now = usize::try_from(left).map_or(ZEROS.len(), |left| left.min(ZEROS.len()));
            self.write_all(&ZEROS[..now])?;
            left -= now as u64;
        }
        Ok(())
    }

    /// Gives a whole output its name and its rights, and the times of `source`. The bytes written.
    pub(crate) fn finish(mut self, source: Option<&Metadata>) -> Result<u64, Failure> {
        let finish = |output: &mut Self| {
            if output.ends_in_hole {
                output.file.set_len(output.bytes)?;
            }
            match &mut output.beside {
                Some(beside) => beside.finish(&output.file, source, output.durable),
                None if output.durable => output.file.sync_all(),
                None => Ok(()),
            }
        };
        finish(&mut self).map_err(|error| Failure::io(&self.name, &error))?;
        Ok(self.bytes)
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.bytes += written as u64;
        self.ends_in_hole &= written == 0;
        Ok(written)
    }

    fn write_vectored(&mut self, bytes: &[io::IoSlice<'_>]) -> io::Result<usize> {
        let written = self.file.write_vectored(bytes)?;
        self.bytes += written as u64;
        self.ends_in_hole &= written == 0;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Beside {
    fn create(place: PathBuf, mode: u32, replace: bool, rights: Option<Rights>) -> io::Result<(File, Self)> {
        let folder = folder(&place);
        // Said in the system's words, which tempfile keeps to itself.
        fs::metadata(folder)?;
        let mut pending = signals::hold_off();
        let file = tempfile::Builder::new()
            .prefix(".trueno-zram-")
            .suffix(".part")
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(folder)
            // The path in tempfile's message is none that the user named.
            .map_err(|error| io::Error::from(error.kind()))?;
        let (file, temporary) = file.into_parts();
        let path = temporary.to_path_buf();
        let on_signal = pending.add(move || {
            let _ = fs::remove_file(path);
        });
        Ok((file, Self { temporary: Some(temporary), place, replace, rights, on_signal }))
    }

    fn finish(&mut self, file: &File, source: Option<&Metadata>, durable: bool) -> io::Result<()> {
        if let Some(rights) = self.rights {
            rights.give(file, source)?;
        }
        if durable || self.replace {
            file.sync_all()?;
        }
        let mut pending = signals::hold_off();
        let temporary = self.temporary.take().expect("an output is finished once");
        let renamed =
            if self.replace { temporary.persist(&self.place) } else { temporary.persist_noclobber(&self.place) };
        pending.remove(&self.on_signal);
        drop(pending);
        renamed.map_err(|error| error.error)?;
        if durable { sync_folder(folder(&self.place)) } else { Ok(()) }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let mut pending = signals::hold_off();
        drop(self.temporary.take());
        pending.remove(&self.on_signal);
    }
}

/// The folder that a path is in.
fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Has the names in a folder on the disk.
fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder)?.sync_all() {
        // This file system has its own ways, and no call for it.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

/// Bytes of the pages from the front of which `holds` is true; the last page may be a short one.
fn run_bytes(bytes: &[u8], holds: impl Fn(&[u8]) -> bool) -> usize {
    bytes.chunks(PAGE_SIZE).take_while(|page| holds(page)).map(<[u8]>::len).sum()
}

fn is_zero(page: &[u8]) -> bool {
    // Most pages that are not zero show it in their first bytes.
    let (first, rest) = page.split_at(page.len().min(64));
    first.iter().all(|byte| *byte == 0) && rest.chunks(256).all(|part| part.iter().fold(0, |all, byte| all | byte) == 0)
}
