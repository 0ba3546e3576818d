//! How much memory this process may still take: of the machine, and of the control groups that it is in.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the bytes that are available, if that is known: on the machine, and below the limits of all control groups.
pub(super) fn available_bytes() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let machine = available_kib(&meminfo)?.saturating_mul(1024);
    Some(in_control_groups(Path::new("/proc/self")).map_or(machine, |room| room.min(machine)))
}

fn available_kib(meminfo: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    value.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// A version of control groups, with the names of its files.
struct Version {
    /// The file system that it is mounted as.
    file_system: &'static str,
    /// The option of the mount that has the memory controller, if not all controllers are in one mount.
    mount_option: Option<&'static str>,
    limit: &'static str,
    usage: &'static str,
    /// The line of `memory.stat` with pages of files that the kernel takes back first.
    reclaimable: &'static str,
}

const VERSION_2: Version = Version {
    file_system: "cgroup2",
    mount_option: None,
    limit: "memory.max",
    usage: "memory.current",
    reclaimable: "inactive_file",
};

const VERSION_1: Version = Version {
    file_system: "cgroup",
    mount_option: Some("memory"),
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file",
};

/// The least room in the memory control groups of a process and their parents; none if there is no limit.
fn in_control_groups(process: &Path) -> Option<u64> {
    let groups = fs::read_to_string(process.join("cgroup")).ok()?;
    let mounts = fs::read_to_string(process.join("mountinfo")).ok()?;
    let rooms = groups.lines().filter_map(|line| {
        // `0::/path` in version 2, `5:memory:/path` in version 1.
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let version = match controllers {
            "" => VERSION_2,
            _ if controllers.split(',').any(|controller| controller == "memory") => VERSION_1,
            _ => return None,
        };
        least_room(&Mount::find(&mounts, &version)?, path, &version)
    });
    rooms.min()
}

/// Where control groups are mounted.
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

/// The least room in a group and its parents, up to the one that is mounted.
fn least_room(mount: &Mount, path: &str, version: &Version) -> Option<u64> {
    // A group that is not below the mount cannot be seen from here; what is mounted then contains it.
    let below = Path::new(path).strip_prefix(&mount.root).unwrap_or(Path::new(""));
    let groups = below.ancestors().map(|below| mount.point.join(below));
    groups.filter_map(|group| room(&group, version)).min()
}

/// The bytes that a group may still take; none if it has no limit.
fn room(group: &Path, version: &Version) -> Option<u64> {
    let number = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    let (limit, usage) = (number(version.limit)?, number(version.usage)?);
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let reclaimable = stat.lines().find_map(|line| line.strip_prefix(version.reclaimable)?.trim().parse::<u64>().ok());
    Some(limit.saturating_sub(usage.saturating_sub(reclaimable.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_from_meminfo() {
        assert_eq!(available_kib("MemTotal: 9 kB\nMemAvailable:   18324772 kB\n"), Some(18_324_772));
        assert_eq!(available_kib("MemTotal: 9 kB\n"), None);
    }

    /// A folder with groups in it, as they are mounted, and the files of a process in one of them.
    fn process(cgroup: &str, mount: &str, groups: &[(&str, &[(&str, &str)])]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        fs::write(at.join("cgroup"), cgroup).unwrap();
        let mounts = format!("22 1 0:20 / /proc rw - proc proc rw\n{}\n", mount.replace("POINT", at.to_str().unwrap()));
        fs::write(at.join("mountinfo"), mounts).unwrap();
        for (group, files) in groups {
            fs::create_dir_all(at.join(group)).unwrap();
            files.iter().for_each(|(name, text)| fs::write(at.join(group).join(name), text).unwrap());
        }
        folder
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
        let limited = process("0::/slice/unit\n", mount, &[("slice/unit", &own), ("slice", &parent)]);
        assert_eq!(in_control_groups(limited.path()), Some(400_000));
        let tighter = [("memory.max", "4096\n"), ("memory.current", "9000\n")];
        let limited = process("0::/slice/unit\n", mount, &[("slice/unit", &tighter), ("slice", &parent)]);
        assert_eq!(in_control_groups(limited.path()), Some(0));
        let free = process("0::/slice/unit\n", mount, &[("slice/unit", &own)]);
        assert_eq!(in_control_groups(free.path()), None);
    }

    #[test]
    fn limits_count_in_version_1_and_in_containers() {
        let mount = "30 24 0:27 /docker/1 POINT rw - cgroup cgroup rw,memory";
        let own = [("memory.limit_in_bytes", "5000\n"), ("memory.usage_in_bytes", "2000\n")];
        let limited = process("4:cpu:/x\n3:memory,hugetlb:/docker/1/below\n0::/\n", mount, &[("below", &own)]);
        assert_eq!(in_control_groups(limited.path()), Some(3000));
    }
}
