//! Why a process's memory cannot be read.

use std::fs;
use std::io;
use std::time::Duration;

use rustix::io::Errno;

/// Why a process's memory cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProcessError {
    #[error("there is no process {pid}")]
    NotThere { pid: u32 },
    #[error("process {pid} has ended, and its parent has not asked for its result yet: there is no memory left")]
    Ended { pid: u32 },
    #[error("process {pid} is a thread of the kernel: it has no memory of its own")]
    NoMemory { pid: u32 },
    #[error("process {pid} went away while its memory was read: it ended, or became another program")]
    Gone { pid: u32 },
    #[error("no right to read the memory of process {pid}: {hint}")]
    NoRight { pid: u32, hint: String },
    #[error("no right to stop process {pid}: it belongs to another user")]
    NoRightToStop { pid: u32 },
    #[error("process {pid} did not stop within {} s", waited.as_secs())]
    DidNotStop { pid: u32, waited: Duration },
    #[error("process {pid} is this one: it cannot stop itself and go on reading")]
    Itself { pid: u32 },
    #[error("pages of {bytes} bytes: snapshots are for systems with pages of 4096")]
    PageSize { bytes: usize },
    #[error("/proc/{pid}/{file}: {error}")]
    Io { pid: u32, file: &'static str, error: io::Error },
}

impl ProcessError {
    /// What an error of a file in `/proc/PID` means.
    pub(super) fn io(pid: u32, file: &'static str, error: io::Error) -> Self {
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::ACCESS | Errno::PERM) => {
                let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok();
                Self::NoRight { pid, hint: hint(scope.as_deref().map(str::trim)) }
            }
            Some(Errno::SRCH | Errno::NOENT) => Self::Gone { pid },
            _ => Self::Io { pid, file, error },
        }
    }
}

/// What would give the right, with Yama's setting if this kernel has it.
fn hint(ptrace_scope: Option<&str>) -> String {
    match ptrace_scope {
        None | Some("0") => "run as its user, or with CAP_SYS_PTRACE (as root)".into(),
        Some("3") => "kernel.yama.ptrace_scope is 3, which forbids it to everyone until the next boot".into(),
        Some(scope) => format!("run with CAP_SYS_PTRACE (as root); kernel.yama.ptrace_scope is {scope}, 0 would do"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_proc_say_what_they_mean() {
        let of = |errno: Errno| ProcessError::io(7, "mem", errno.into());
        assert!(matches!(of(Errno::ACCESS), ProcessError::NoRight { pid: 7, .. }));
        assert!(matches!(of(Errno::SRCH), ProcessError::Gone { pid: 7 }));
        assert_eq!(of(Errno::MFILE).to_string(), "/proc/7/mem: Too many open files (os error 24)");
    }

    #[test]
    fn the_hint_names_yamas_setting_where_it_is_in_the_way() {
        assert!(hint(Some("1")).contains("kernel.yama.ptrace_scope is 1"));
        assert!(!hint(Some("0")).contains("yama") && !hint(None).contains("yama"));
        assert!(hint(Some("3")).contains("everyone"));
    }
}
