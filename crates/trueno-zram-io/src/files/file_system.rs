//! Kinds of file systems, from `linux/magic.h`.

use std::fs::File;

/// Files of huge pages.
pub(crate) const HUGETLBFS: u64 = 0x9584_58f6;
pub(crate) const TMPFS: u64 = 0x0102_1994;
/// ext2, ext3 and ext4.
pub(crate) const EXT: u64 = 0xef53;
pub(crate) const XFS: u64 = 0x5846_5342;
pub(crate) const BTRFS: u64 = 0x9123_683e;
pub(crate) const F2FS: u64 = 0xf2f5_2010;
pub(crate) const SYSFS: u64 = 0x6265_6572;
pub(crate) const PROC: u64 = 0x9fa0;
pub(crate) const DEBUGFS: u64 = 0x6462_6720;
pub(crate) const TRACEFS: u64 = 0x7472_6163;
pub(crate) const CONFIGFS: u64 = 0x6265_6570;
pub(crate) const SECURITYFS: u64 = 0x7363_6673;
pub(crate) const CGROUP: u64 = 0x0027_e0eb;
pub(crate) const CGROUP2: u64 = 0x6367_7270;
pub(crate) const EFIVARFS: u64 = 0xde5e_81e4;
pub(crate) const PSTORE: u64 = 0x6165_676c;

/// Returns the kind of a file's file system; `None` if it is unknown.
pub(crate) fn kind_of(file: &File) -> Option<u64> {
    u64::try_from(rustix::fs::fstatfs(file).ok()?.f_type).ok()
}

/// Returns the size of the pages that a file is mapped with: larger ones on hugetlbfs.
///
/// ```
/// let file = std::fs::File::open("/proc/self/exe")?;
/// assert_eq!(trueno_zram_io::mapping_page_bytes(&file), rustix::param::page_size() as u64);
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use]
pub fn mapping_page_bytes(file: &File) -> u64 {
    let huge = rustix::fs::fstatfs(file).ok().filter(|there| u64::try_from(there.f_type) == Ok(HUGETLBFS));
    let huge = huge.and_then(|there| u64::try_from(there.f_bsize).ok());
    huge.unwrap_or(rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    #[test]
    fn files_in_memory_and_of_the_kernel_have_their_kinds() {
        let in_memory = memfd_create("file", MemfdFlags::CLOEXEC).unwrap();
        assert_eq!(kind_of(&File::from(in_memory)), Some(TMPFS));
        assert_eq!(kind_of(&File::open("/proc/self/status").unwrap()), Some(PROC));
        let small = File::from(memfd_create("small", MemfdFlags::CLOEXEC).unwrap());
        assert_eq!(mapping_page_bytes(&small), rustix::param::page_size() as u64);
        // A kernel may have no huge pages.
        if let Ok(huge) = memfd_create("huge", MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB) {
            assert_eq!(mapping_page_bytes(&File::from(huge)), 2 << 20);
        }
    }
}
