//! The files in folders, for `-r`.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::args::Global;
use crate::failure::Failure;
use crate::files::has_suffix;
use crate::print::messages;

/// The folders below one another that are followed. Links are not, so that only file systems that are damaged have more.
const MAX_DEPTH: usize = 1000;

/// The option `-r`, and `-m`, which users of lz4 give for several files.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct FolderArgs {
    /// Take the files in directories, and in those below. Links are not followed. Files that end in .lz4, .zst or .tzd are not
    /// compressed again, and only these are decompressed, tested and listed.
    #[arg(short, long)]
    recursive: bool,
    /// Every FILE is an input, also the second of two: so it is anyway, but lz4 needs this.
    #[arg(short, long, hide = true)]
    pub(crate) multiple: bool,
}

/// The files of a folder that a command takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileFilter {
    /// Those that are not compressed yet, by their names.
    Plain,
    /// Those that are compressed, by their names.
    Compressed,
    /// All.
    All,
}

impl FileFilter {
    fn takes(self, path: &Path) -> bool {
        match self {
            Self::Plain => !has_suffix(path.as_os_str().as_bytes()),
            Self::Compressed => has_suffix(path.as_os_str().as_bytes()),
            Self::All => true,
        }
    }
}

impl FolderArgs {
    /// Returns the files, with those in folders in place of the folders if `-r` was given; `None` if there are none in them.
    pub(crate) fn expand(
        self,
        files: &[PathBuf],
        filter: FileFilter,
        global: &Global,
    ) -> Result<Option<Vec<PathBuf>>, Failure> {
        if !self.recursive {
            return Ok(Some(files.to_vec()));
        }
        if files.is_empty() {
            return Err(Failure::usage("-r takes the files in directories: name one"));
        }
        let mut found = Vec::new();
        for file in files {
            if fs::metadata(file).is_ok_and(|metadata| metadata.is_dir()) {
                add_folder(file, filter, 0, &mut found)?;
            } else {
                found.push(file.clone());
            }
        }
        if found.is_empty() && !global.quiet {
            messages::problem("nothing to do: there is no such file in these directories");
        }
        Ok((!found.is_empty()).then_some(found))
    }
}

/// Adds the files in a folder and below, in the order of their names.
fn add_folder(folder: &Path, filter: FileFilter, depth: usize, found: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::io(folder.display(), &error);
    if depth > MAX_DEPTH {
        return Err(Failure::refused(folder.display(), format!("is more than {MAX_DEPTH} directories deep")));
    }
    let mut entries = fs::read_dir(folder).map_err(failed)?.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (kind, path) = (entry.file_type().map_err(failed)?, entry.path());
        if kind.is_dir() {
            add_folder(&path, filter, depth + 1, found)?;
        } else if kind.is_file() && filter.takes(&path) {
            found.push(path);
        }
    }
    Ok(())
}
