//! Where bytes go: standard output, a device in place, or a file written beside and renamed when it is whole.

use std::fs::{self, File, FileTimes, Metadata, Permissions};
use std::io::{self, IsTerminal, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use tempfile::TempPath;
use trueno_zram_core::PAGE_SIZE;

use crate::failure::Failure;
use crate::signals::{self, ActionId};

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
    /// Have the bytes on the disk before the file gets its name: what they are made from will be removed.
    pub(crate) durable: bool,
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
    durable: bool,
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
        // Not through Rust's own buffer, which looks for line ends.
        let file = io::stdout().as_fd().try_clone_to_owned().map_err(|error| Failure::io(&name, &error))?;
        Ok(Self::in_place(file.into(), name))
    }

    fn in_place(file: File, name: String) -> Self {
        Self { file, name, sparse: false, ends_in_hole: false, bytes: 0, beside: None }
    }

    fn at_path(path: &Path, source: Option<&Metadata>, options: OutputOptions) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let failed = |error: io::Error| Failure::io(&name, &error);
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
            if !there.is_file() {
                let file = File::options().write(true).open(&place).map_err(failed)?;
                return Ok(Self::in_place(file, name));
            }
        }
        let mode = source.filter(|source| source.is_file()).map_or(0o666, |source| source.mode() & 0o777 | 0o200);
        let replace = there.is_some();
        let (file, beside) = Beside::create(place, mode, replace, options.durable || replace).map_err(failed)?;
        Ok(Self { file, name, sparse: options.sparse, ends_in_hole: false, bytes: 0, beside: Some(beside) })
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

    /// Gives a whole output its name, and the times and rights of what it was made from. The bytes written.
    pub(crate) fn finish(mut self, source: Option<&Metadata>) -> Result<u64, Failure> {
        let finish = |output: &mut Self| {
            if output.ends_in_hole {
                output.file.set_len(output.bytes)?;
            }
            match &mut output.beside {
                Some(beside) => beside.finish(&output.file, source),
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
    fn create(place: PathBuf, mode: u32, replace: bool, durable: bool) -> io::Result<(File, Self)> {
        let folder = match place.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
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
        Ok((file, Self { temporary: Some(temporary), place, replace, durable, on_signal }))
    }

    fn finish(&mut self, file: &File, source: Option<&Metadata>) -> io::Result<()> {
        if let Some(source) = source.filter(|source| source.is_file()) {
            // Only root may give files away; for others the file is theirs, as any file they make.
            let _ = fchown(file, Some(source.uid()), Some(source.gid()));
            file.set_permissions(Permissions::from_mode(source.mode() & 0o777))?;
            let times = FileTimes::new().set_accessed(source.accessed()?).set_modified(source.modified()?);
            file.set_times(times)?;
        }
        if self.durable {
            file.sync_all()?;
        }
        let mut pending = signals::hold_off();
        let temporary = self.temporary.take().expect("an output is finished once");
        let renamed =
            if self.replace { temporary.persist(&self.place) } else { temporary.persist_noclobber(&self.place) };
        pending.remove(&self.on_signal);
        renamed.map_err(|error| error.error)
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let mut pending = signals::hold_off();
        drop(self.temporary.take());
        pending.remove(&self.on_signal);
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
