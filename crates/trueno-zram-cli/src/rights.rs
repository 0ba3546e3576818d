//! Who may do what with a new file: the same as with the file that it is made from, or that it replaces.

use std::fs::{File, FileTimes, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};

/// Owner, group and mode of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rights {
    uid: u32,
    gid: u32,
    mode: u32,
}

impl Rights {
    /// The rights of a regular file; others have none that would suit a file.
    pub(crate) fn of(file: &Metadata) -> Option<Self> {
        let mode = file.mode() & 0o777;
        file.is_file().then(|| Self { uid: file.uid(), gid: file.gid(), mode })
    }

    /// Gives `file` these rights as far as that is allowed, never more; and the times of `times`, if it is a file.
    pub(crate) fn give(self, file: &File, times: Option<&Metadata>) -> io::Result<()> {
        let mut mode = self.mode;
        // First, so that no other group has the group's bits for a moment.
        if fchown(file, None, Some(self.gid)).is_err() && file.metadata()?.gid() != self.gid {
            mode = without_group(mode);
        }
        file.set_permissions(Permissions::from_mode(mode))?;
        if let Some(times) = times.filter(|times| times.is_file()) {
            file.set_times(FileTimes::new().set_accessed(times.accessed()?).set_modified(times.modified()?))?;
        }
        // Last, since one's own file alone can be changed. Only root may give files away; for others it is theirs.
        let _ = fchown(file, Some(self.uid), None);
        Ok(())
    }
}

/// A mode for a file that has another group: its members may do what others may.
fn without_group(mode: u32) -> u32 {
    mode & (0o707 | (mode & 0o007) << 3)
}

#[cfg(test)]
mod tests {
    use super::without_group;

    #[test]
    fn another_group_has_no_more_rights_than_others() {
        assert_eq!(without_group(0o640), 0o600);
        assert_eq!(without_group(0o664), 0o644);
        assert_eq!(without_group(0o604), 0o604, "a group that may do less than others");
        assert_eq!(without_group(0o777), 0o777);
    }
}
