//! Facts about files that inputs and outputs share: identity, file systems, standard streams, and socket files.

pub(crate) mod file_system;
pub(crate) mod regular_file;
pub(crate) mod standard_streams;
pub(crate) mod unix_socket;

use std::path::Path;

/// Returns the folder of a path: `.` for a name alone.
pub(crate) fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Returns `true` if a path names a descriptor that the process was started with, as `>(command)` does in a shell.
pub(crate) fn is_inherited(path: &Path) -> bool {
    ["/dev/fd/", "/proc/self/fd/", "/dev/stdin", "/dev/stdout"].iter().any(|start| path.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_a_name_alone_is_the_current_one() {
        assert_eq!(folder(Path::new("name")), Path::new("."));
        assert_eq!(folder(Path::new("/some/name")), Path::new("/some"));
    }
}
