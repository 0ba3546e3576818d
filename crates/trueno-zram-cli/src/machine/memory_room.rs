//! Memory that this process may take and lock: of the machine, and of the control groups that it is in.

use std::fs;
use std::path::{Path, PathBuf};

use super::SystemMemory;

impl SystemMemory {
    /// Returns the memory that this process can have, if that is known: that of the machine, below the limits of all its
    /// control groups.
    pub(crate) fn room() -> Option<Self> {
        Self::room_in(Path::new("/proc"))
    }

    /// Like [`room`](Self::room), from the files of another mount of `/proc`.
    pub(crate) fn room_in(proc: &Path) -> Option<Self> {
        let machine = Self::parse(&fs::read_to_string(proc.join("meminfo")).ok()?)?;
        Some(in_control_groups(&proc.join("self")).into_iter().fold(machine, Self::least))
    }

    fn least(self, other: Self) -> Self {
        Self {
            total_bytes: self.total_bytes.min(other.total_bytes),
            available_bytes: self.available_bytes.min(other.available_bytes),
        }
    }
}

/// Returns the bytes that this process may still lock in memory; `None` if there is no limit, or it is not known.
pub(crate) fn lockable_bytes() -> Option<u64> {
    lockable_bytes_in(Path::new("/proc"))
}

/// Like [`lockable_bytes`], from the files of another mount of `/proc`.
fn lockable_bytes_in(proc: &Path) -> Option<u64> {
    /// The number of the capability that lifts the limit.
    const CAP_IPC_LOCK: u32 = 14;
    let status = fs::read_to_string(proc.join("self/status")).ok()?;
    let field = |name| status.lines().find_map(|line: &str| line.strip_prefix(name)).map(str::trim);
    let capabilities = field("CapEff:").and_then(|set| u64::from_str_radix(set, 16).ok());
    if capabilities.is_some_and(|set| set >> CAP_IPC_LOCK & 1 == 1) {
        return None;
    }
    let limits = fs::read_to_string(proc.join("self/limits")).ok()?;
    // The soft limit, or the word `unlimited`.
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?.split_whitespace().next()?;
    let locked_kib = field("VmLck:").and_then(|locked| locked.strip_suffix("kB")?.trim().parse::<u64>().ok());
    Some(limit.parse::<u64>().ok()?.saturating_sub(locked_kib.unwrap_or(0).saturating_mul(1024)))
}

/// A version of control groups, with the names of its files.
struct Version {
    /// The file system that it is mounted as.
    file_system: &'static str,
    /// The option of the mount that has the memory controller, if not all controllers are in one mount.
    mount_option: Option<&'static str>,
    /// Files with limits: one that kills processes of the group, one that throttles them.
    limits: &'static [&'static str],
    usage: &'static str,
    /// The line of `memory.stat` with pages of files that the kernel takes back first.
    reclaimable: &'static str,
}

const VERSION_2: Version = Version {
    file_system: "cgroup2",
    mount_option: None,
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    reclaimable: "inactive_file",
};

const VERSION_1: Version = Version {
    file_system: "cgroup",
    mount_option: Some("memory"),
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file",
};

/// The memory of the control groups of a process and of their parents, of those that have a limit.
fn in_control_groups(process: &Path) -> Vec<SystemMemory> {
    let groups = fs::read_to_string(process.join("cgroup")).unwrap_or_default();
    let mounts = fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
    let in_line = |line: &str| {
        // `0::/path` in version 2, `5:memory:/path` in version 1.
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let version = match controllers {
            "" => VERSION_2,
            _ if controllers.split(',').any(|controller| controller == "memory") => VERSION_1,
            _ => return None,
        };
        Some(up_to_mount(&Mount::find(&mounts, &version)?, path, &version))
    };
    groups.lines().filter_map(in_line).flatten().collect()
}

/// The folder in which control groups are mounted.
struct Mount {
    /// The group that is mounted.
    root: PathBuf,
    point: PathBuf,
}

impl Mount {
    /// Finds the mount that has the memory controller in `/proc/PID/mountinfo`.
    fn find(mounts: &str, version: &Version) -> Option<Self> {
        mounts.lines().find_map(|line| {
            // Optional fields end in a dash; see proc_pid_mountinfo(5).
            let (first, last) = line.split_once(" - ")?;
            let mut last = last.split(' ');
            let (file_system, options) = (last.next()?, last.nth(1)?);
            let has_option = |wanted| options.split(',').any(|option| option == wanted);
            let is_wanted = file_system == version.file_system && version.mount_option.is_none_or(has_option);
            let mut first = first.split(' ').skip(3);
            let (root, point) = (first.next()?, first.next()?);
            is_wanted.then(|| Self { root: root.into(), point: point.into() })
        })
    }
}

/// The memory of a group and its parents, up to the one that is mounted.
fn up_to_mount(mount: &Mount, path: &str, version: &Version) -> Vec<SystemMemory> {
    // A group that is not below the mount cannot be seen from here; what is mounted then contains it.
    let below = Path::new(path).strip_prefix(&mount.root).unwrap_or(Path::new(""));
    below.ancestors().filter_map(|below| group_memory(&mount.point.join(below), version)).collect()
}

/// Returns the memory of a group; `None` if it has no limit.
fn group_memory(group: &Path, version: &Version) -> Option<SystemMemory> {
    let number = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    // No limit is the word `max`.
    let total_bytes = version.limits.iter().filter_map(|limit| number(limit)).min()?;
    let usage = number(version.usage)?;
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let reclaimable = stat.lines().find_map(|line| line.strip_prefix(version.reclaimable)?.trim().parse::<u64>().ok());
    let used = usage.saturating_sub(reclaimable.unwrap_or(0));
    Some(SystemMemory { total_bytes, available_bytes: total_bytes.saturating_sub(used) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal: 2000 kB\nMemFree: 5 kB\nMemAvailable:   1000 kB\n";

    /// A folder with groups in it, as they are mounted, and the files of `/proc` for a process in one of them.
    fn proc(cgroup: &str, mount: &str, groups: &[(&str, &[(&str, &str)])]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        fs::create_dir(at.join("self")).unwrap();
        fs::write(at.join("meminfo"), MEMINFO).unwrap();
        fs::write(at.join("self/cgroup"), cgroup).unwrap();
        let mounts = format!("22 1 0:20 / /proc rw - proc proc rw\n{}\n", mount.replace("POINT", at.to_str().unwrap()));
        fs::write(at.join("self/mountinfo"), mounts).unwrap();
        for (group, files) in groups {
            fs::create_dir_all(at.join(group)).unwrap();
            files.iter().for_each(|(name, text)| fs::write(at.join(group).join(name), text).unwrap());
        }
        folder
    }

    fn room(proc: &tempfile::TempDir) -> (u64, u64) {
        let SystemMemory { total_bytes, available_bytes } = SystemMemory::room_in(proc.path()).unwrap();
        (total_bytes, available_bytes)
    }

    #[test]
    fn limits_of_own_and_parent_groups_count_in_version_2() {
        let mount = "30 24 0:27 / POINT rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate";
        let own = [("memory.max", "max\n"), ("memory.current", "5\n")];
        let parent = [
            ("memory.max", "1000000\n"),
            ("memory.current", "700000\n"),
            ("memory.stat", "anon 5\ninactive_file 100000\n"),
        ];
        let limited = proc("0::/slice/unit\n", mount, &[("slice/unit", &own), ("slice", &parent)]);
        assert_eq!(room(&limited), (1_000_000, 400_000));
        let tighter = [("memory.max", "4096\n"), ("memory.current", "9000\n")];
        let limited = proc("0::/slice/unit\n", mount, &[("slice/unit", &tighter), ("slice", &parent)]);
        assert_eq!(room(&limited), (4096, 0));
        let throttled = [("memory.max", "max\n"), ("memory.high", "500000\n"), ("memory.current", "5\n")];
        let limited = proc("0::/slice/unit\n", mount, &[("slice/unit", &throttled), ("slice", &parent)]);
        assert_eq!(room(&limited), (500_000, 400_000), "each is the least of all groups");
    }

    #[test]
    fn without_limits_the_machine_counts() {
        let mount = "30 24 0:27 / POINT rw - cgroup2 cgroup2 rw";
        let none = [("memory.max", "max\n"), ("memory.high", "max\n"), ("memory.current", "5\n")];
        let more = [("memory.max", "9999999999\n"), ("memory.current", "5\n")];
        for group in [none.as_slice(), &more, &[]] {
            assert_eq!(room(&proc("0::/unit\n", mount, &[("unit", group)])), (2000 * 1024, 1000 * 1024));
        }
        assert_eq!(SystemMemory::room_in(Path::new("/does/not/exist")), None);
    }

    #[test]
    fn limits_count_in_version_1_and_in_containers() {
        let mount = "30 24 0:27 /docker/1 POINT rw - cgroup cgroup rw,memory";
        let own = [("memory.limit_in_bytes", "5000\n"), ("memory.usage_in_bytes", "2000\n")];
        let limited = proc("4:cpu:/x\n3:memory,hugetlb:/docker/1/below\n0::/\n", mount, &[("below", &own)]);
        assert_eq!(room(&limited), (5000, 3000));
    }

    #[test]
    fn what_is_locked_already_and_the_privilege_to_lock_count() {
        let folder = proc("", "", &[]);
        let lockable = |capabilities: &str, limit: &str| {
            let status = format!("Name:\tx\nVmLck:\t      16 kB\nCapEff:\t{capabilities}\n");
            fs::write(folder.path().join("self/status"), status).unwrap();
            let limits = format!("Max processes  5  6  processes\nMax locked memory   {limit}   unlimited   bytes\n");
            fs::write(folder.path().join("self/limits"), limits).unwrap();
            lockable_bytes_in(folder.path())
        };
        assert_eq!(lockable("0000000000000000", "65536"), Some(49152));
        assert_eq!(lockable("0000000000000000", "100"), Some(0));
        assert_eq!(lockable("0000000000000000", "unlimited"), None);
        assert_eq!(lockable("000001ffffffffff", "65536"), None);
        assert_eq!(lockable("0000000000003fff", "65536"), Some(49152), "not the 15th");
        assert_eq!(lockable_bytes_in(Path::new("/does/not/exist")), None);
    }
}
