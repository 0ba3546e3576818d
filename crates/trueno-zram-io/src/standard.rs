//! Standard streams as the process found them: open or closed.

use std::os::fd::AsFd;

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, major, minor};

/// Device numbers of `/dev/null` on Linux.
const NULL_DEVICE: (u32, u32) = (1, 3);

/// Whether a standard stream was closed when the process started.
///
/// Rust's runtime opens `/dev/null` for reading and writing in place of descriptors 0 to 2 that are closed. Data would
/// be lost, or an empty input found, silently. A shell's redirection opens it for one of the two.
pub fn is_closed(stream: impl AsFd) -> bool {
    let is_null = |stat: &rustix::fs::Stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
            && (major(stat.st_rdev), minor(stat.st_rdev)) == NULL_DEVICE
    };
    fstat(&stream).is_ok_and(|stat| is_null(&stat))
        && fcntl_getfl(&stream).is_ok_and(|flags| flags & OFlags::RWMODE == OFlags::RDWR)
}
