//! Permissions and times of a new file, copied from the file that it is made from or that it replaces.

use std::fs::{File, FileTimes, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};

use crate::error::os_text;

/// Owner, group and mode of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnerAndMode {
    uid: u32,
    gid: u32,
    mode: u32,
}

/// An attribute of a complete output that could not be set. Its content is right.
#[derive(Debug, thiserror::Error)]
#[error("{what} not kept: {}", os_text(source))]
pub struct MetadataWarning {
    what: &'static str,
    source: io::Error,
}

impl OwnerAndMode {
    /// Returns owner, group and mode of a regular file. None for other files, whose permissions do not suit a regular one.
    pub(crate) fn of(file: &Metadata) -> Option<Self> {
        let mode = file.mode() & 0o777;
        file.is_file().then(|| Self { uid: file.uid(), gid: file.gid(), mode })
    }

    /// Sets owner, group and mode of `file` as far as the process may, never more, and the times of `times` if that is a
    /// regular file. If the file system refuses, the file stays readable by its owner alone.
    pub(crate) fn apply(self, file: &File, times: Option<&Metadata>, warn: &mut dyn FnMut(MetadataWarning)) {
        let mut mode = self.mode;
        // First, so that no other group has the group's permissions for a moment.
        let has_group = || file.metadata().is_ok_and(|metadata| metadata.gid() == self.gid);
        if fchown(file, None, Some(self.gid)).is_err() && !has_group() {
            mode = without_group(mode);
        }
        if let Err(source) = file.set_permissions(Permissions::from_mode(mode)) {
            warn(MetadataWarning { what: "permissions", source });
        }
        if let Some(times) = times.filter(|times| times.is_file())
            && let Err(source) = set_times(file, times)
        {
            warn(MetadataWarning { what: "times", source });
        }
        // Last, since only one's own file can be changed. Only root may give files away.
        let _ = fchown(file, Some(self.uid), None);
    }
}

fn set_times(file: &File, times: &Metadata) -> io::Result<()> {
    file.set_times(FileTimes::new().set_accessed(times.accessed()?).set_modified(times.modified()?))
}

/// Returns the mode for a file with another group, whose members get the permissions of others.
fn without_group(mode: u32) -> u32 {
    mode & (0o707 | (mode & 0o007) << 3)
}

#[cfg(test)]
mod tests {
    use super::without_group;

    #[test]
    fn another_group_gets_no_more_permissions_than_others() {
        assert_eq!(without_group(0o640), 0o600);
        assert_eq!(without_group(0o664), 0o644);
        assert_eq!(without_group(0o604), 0o604, "a group that may do less than others");
        assert_eq!(without_group(0o777), 0o777);
    }
}
