//! A new file that gets its name once it is complete.
//!
//! Until then, the file has no name (`O_TMPFILE`) if the file system supports that, so that not even SIGKILL leaves anything
//! behind. Elsewhere it has a temporary name in the same folder, which is removed unless the file is completed.
//!
//! A file that must not replace another is given its name by a call that fails if the name is taken. Some network and
//! FUSE file systems have neither hard links nor `RENAME_NOREPLACE`. There the name is looked up and then renamed to: a
//! file that somebody else creates between these two calls is replaced.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, linkat, openat, renameat_with};
use rustix::io::retry_on_intr;

use crate::error::{Error, Operation, Refusal, Result};
use crate::files::folder;
use crate::interrupt::{self, Cleanup};
use crate::output::owner_and_mode::OwnerAndMode;
use crate::output::write_errors::{check_written, is_unsupported, sync};

/// Names to try for a temporary file before giving up.
const ATTEMPTS: u32 = 100;

/// The treatment of a file that has the name already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IfExists {
    /// Giving the name fails.
    Fail,
    /// It is replaced.
    Replace,
}

/// The point at which a complete file survives a power failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// Once the system has written it.
    Later,
    /// As soon as it has its name: its bytes and its name are on the disk.
    OnDisk,
}

/// A file that has no name yet. Dropped before [`TempOutput::commit`], it leaves nothing behind.
#[derive(Debug)]
pub(crate) struct TempOutput {
    /// The temporary name; `None` if the file has no name.
    part: Option<PartFile>,
    target: PathBuf,
    existing: IfExists,
}

/// A file under a temporary name. Removed when dropped, or when a signal ends the process.
#[derive(Debug)]
struct PartFile {
    path: PathBuf,
    removal: Cleanup,
}

impl TempOutput {
    /// Creates a file for `target`, with permissions `mode` less the umask.
    pub(crate) fn create(target: PathBuf, mode: u32, existing: IfExists) -> io::Result<(File, Self)> {
        let folder = folder(&target);
        if let Some(file) = unnamed_file(folder, mode) {
            return Ok((file, Self { part: None, target, existing }));
        }
        let (file, part) = PartFile::create(folder, mode)?;
        Ok((file, Self { part: Some(part), target, existing }))
    }

    /// Gives the complete file its name, once [`check_written`] has found no error. Messages use `name`.
    ///
    /// # Errors
    /// [`Error::Refused`] if the name is taken, and [`Error::Io`].
    pub(crate) fn commit(mut self, file: &File, name: &str, durability: Durability) -> Result<()> {
        // A file that is replaced must not be lost to a power failure.
        let synced = durability == Durability::OnDisk || self.existing == IfExists::Replace;
        if synced {
            sync(file).map_err(Operation::Sync.failed(name))?;
        }
        let named = match &self.part {
            Some(_) => self.rename_part(),
            None => match self.name_unnamed(file) {
                Err(error) if is_unsupported(&error) => {
                    let copy = self.copy_to_part(file).map_err(Operation::Rename.failed(name))?;
                    if synced {
                        sync(&copy).map_err(Operation::Sync.failed(name))?;
                    }
                    copy_metadata(file, &copy);
                    self.rename_part()
                }
                named => named,
            },
        };
        named.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists if self.existing == IfExists::Fail => Error::refused(name, Refusal::Exists),
            _ => Operation::Rename.failed(name)(error),
        })?;
        match durability {
            Durability::Later => Ok(()),
            Durability::OnDisk => sync_folder(folder(&self.target)).map_err(Operation::Sync.failed(name)),
        }
    }

    /// Names a file that has no name. To replace another, it gets a temporary name first, for a moment.
    fn name_unnamed(&self, file: &File) -> io::Result<()> {
        if self.existing == IfExists::Fail {
            return link_descriptor(file, &self.target);
        }
        // Held from the link to the rename: a signal waits.
        let _pending = interrupt::pending_actions();
        let path = at_new_path(folder(&self.target), |path| link_descriptor(file, path))?.1;
        fs::rename(&path, &self.target).inspect_err(|_| remove(&path))
    }

    fn rename_part(&mut self) -> io::Result<()> {
        let mut pending = interrupt::pending_actions();
        let PartFile { path, removal } = self.part.take().expect("the file has a temporary name");
        removal.cancel(&mut pending);
        let renamed = match self.existing {
            IfExists::Replace => fs::rename(&path, &self.target),
            IfExists::Fail => rename_to_new(&path, &self.target),
        };
        renamed.inspect_err(|_| remove(&path))
    }

    /// Copies a file that cannot be given a name into one that has a temporary name.
    fn copy_to_part(&mut self, mut file: &File) -> io::Result<File> {
        let (mut copy, part) = PartFile::create(folder(&self.target), 0o600)?;
        self.part = Some(part);
        file.seek(SeekFrom::Start(0))?;
        io::copy(&mut file, &mut copy)?;
        check_written(&copy)?;
        Ok(copy)
    }
}

impl PartFile {
    fn create(folder: &Path, mode: u32) -> io::Result<(File, Self)> {
        use std::os::unix::fs::OpenOptionsExt;
        // No signal between the creation of the file and that of the action that removes it.
        let mut pending = interrupt::pending_actions();
        let create = |path: &Path| File::options().read(true).write(true).create_new(true).mode(mode).open(path);
        let (file, path) = at_new_path(folder, create)?;
        let removal = pending.add_cleanup({
            let path = path.clone();
            move || remove(&path)
        });
        Ok((file, Self { path, removal }))
    }
}

/// Calls `create` with temporary names in `folder` until it finds one that is not taken. Returns its result and the
/// path.
fn at_new_path<T>(folder: &Path, create: impl Fn(&Path) -> io::Result<T>) -> io::Result<(T, PathBuf)> {
    let mut attempt = 0;
    loop {
        let path = part_path(folder);
        match create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < ATTEMPTS => attempt += 1,
            created => return Ok((created?, path)),
        }
    }
}

/// Creates a file without a name in `folder`, if the file system supports that and it can be named later.
pub(crate) fn unnamed_file(folder: &Path, mode: u32) -> Option<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = retry_on_intr(|| openat(CWD, folder, flags, Mode::from_raw_mode(mode))).ok()?;
    // Without /proc there is no way to name it.
    fs::symlink_metadata(descriptor_path(&file)).ok()?;
    Some(file.into())
}

fn descriptor_path(file: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

fn link_descriptor(file: &File, path: &Path) -> io::Result<()> {
    let descriptor = descriptor_path(file);
    Ok(retry_on_intr(|| linkat(CWD, &*descriptor, CWD, path, AtFlags::SYMLINK_FOLLOW))?)
}

/// Renames to a name that must not be taken.
fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    match retry_on_intr(|| renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)).map_err(io::Error::from) {
        Err(error) if is_unsupported(&error) => {}
        renamed => return renamed,
    }
    match retry_on_intr(|| linkat(CWD, from, CWD, to, AtFlags::empty())).map_err(io::Error::from) {
        Err(error) if is_unsupported(&error) => {}
        linked => return linked.map(|()| remove(from)),
    }
    // The file system offers no better: see the top of this file.
    match fs::symlink_metadata(to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => fs::rename(from, to),
        Err(error) => Err(error),
        Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
    }
}

/// Removes a temporary file. There is nothing left to do if that fails.
fn remove(path: &Path) {
    while fs::remove_file(path).is_err_and(|error| error.kind() == io::ErrorKind::Interrupted) {}
}

/// Returns a temporary path in `folder` that nobody else uses.
fn part_path(folder: &Path) -> PathBuf {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    let now_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.subsec_nanos());
    folder.join(format!(".trueno-zram-{:x}-{count:x}-{now_ns:x}.part", std::process::id()))
}

/// Syncs a directory to disk.
fn sync_folder(folder: &Path) -> io::Result<()> {
    sync(&File::open(folder)?)
}

/// Copies permissions and times. Refusals are ignored here: they were reported for the original file.
fn copy_metadata(from: &File, to: &File) {
    let Ok(metadata) = from.metadata() else { return };
    if let Some(permissions) = OwnerAndMode::of(&metadata) {
        permissions.apply(to, Some(&metadata), &mut |_| {});
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// The names in a folder.
    fn names(folder: &Path) -> Vec<String> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_file_under_a_temporary_name_is_renamed_or_removed() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        let part = |content: &[u8], existing| {
            let (mut file, part) = PartFile::create(folder.path(), 0o600).unwrap();
            file.write_all(content).unwrap();
            (file, TempOutput { part: Some(part), target: target.clone(), existing })
        };
        drop(part(b"dropped", IfExists::Fail));
        assert_eq!(names(folder.path()), [""; 0]);
        let commit = |content, existing| {
            let (file, temp) = part(content, existing);
            assert_ne!(names(folder.path()), ["target"]);
            let named = temp.commit(&file, "target", Durability::OnDisk);
            assert_eq!(names(folder.path()), ["target"]);
            (named, fs::read(&target).unwrap())
        };
        assert!(matches!(commit(b"first", IfExists::Fail), (Ok(()), content) if content == b"first"));
        let (refused, content) = commit(b"second", IfExists::Fail);
        assert!(matches!(refused, Err(Error::Refused { refusal: Refusal::Exists, .. })));
        assert_eq!(content, b"first");
        assert!(matches!(commit(b"third", IfExists::Replace), (Ok(()), content) if content == b"third"));
    }

    /// As on file systems without hard links: a file that was removed cannot be given a name.
    #[test]
    fn a_file_that_cannot_be_given_a_name_is_copied_to_one_that_has_one() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        let removed = folder.path().join("removed");
        let mut file = File::options().read(true).write(true).create_new(true).open(&removed).unwrap();
        fs::remove_file(&removed).unwrap();
        file.write_all(b"content").unwrap();
        file.set_permissions(fs::Permissions::from_mode(0o640)).unwrap();
        let temp = TempOutput { part: None, target: target.clone(), existing: IfExists::Fail };
        temp.commit(&file, "target", Durability::OnDisk).unwrap();
        assert_eq!(names(folder.path()), ["target"]);
        assert_eq!(fs::read(&target).unwrap(), b"content");
        assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o640);
    }

    #[test]
    fn a_temporary_name_that_is_taken_is_tried_again_a_few_times() {
        let attempts = AtomicU32::new(0);
        let taken = at_new_path(Path::new("."), |_| -> io::Result<()> {
            attempts.fetch_add(1, Ordering::Relaxed);
            Err(io::ErrorKind::AlreadyExists.into())
        });
        assert_eq!(taken.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(attempts.into_inner(), ATTEMPTS + 1);
    }
}
