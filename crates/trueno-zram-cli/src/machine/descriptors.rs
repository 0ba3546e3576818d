//! The limit of file descriptors of this process.

use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Allows as many file descriptors as the system lets this user have.
pub(crate) fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    // It stays as it is if the system refuses.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Returns how many more file descriptors this process may open.
pub(crate) fn left() -> usize {
    let limit = getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok());
    // One of those that are counted lists the others. Where they cannot be listed, there are the standard ones.
    let open = fs::read_dir("/proc/self/fd").map_or(3, |open| open.count() - 1);
    limit.unwrap_or(usize::MAX).saturating_sub(open)
}
