//! Errors of reading a process's memory.

use std::fs;
use std::io;
use std::time::Duration;

use rustix::io::Errno;

/// An error of reading a process's memory.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProcessError {
    #[error("there is no process {pid}")]
    NotThere { pid: u32 },
    #[error("process {pid} has ended and has no memory left; its parent has not collected its exit status yet")]
    Ended { pid: u32 },
    #[error("process {pid} is a kernel thread and has no memory of its own")]
    NoMemory { pid: u32 },
    #[error("process {pid} went away while its memory was read: it ended or executed another program")]
    Gone { pid: u32 },
    #[error("no permission to read the memory of process {pid}; {hint}")]
    NoRight { pid: u32, hint: String },
    #[error("no permission to stop process {pid}; it belongs to another user")]
    NoRightToStop { pid: u32 },
    #[error("process {pid} did not stop within {} s", waited.as_secs())]
    DidNotStop { pid: u32, waited: Duration },
    #[error("process {pid} is this one; it cannot stop itself and keep reading")]
    Itself { pid: u32 },
    #[error("this system has pages of {bytes} bytes; snapshots need pages of 4096")]
    PageSize { bytes: usize },
    #[error("/proc/{pid}/{file}: {}", trueno_zram_io::os_text(error))]
    Io { pid: u32, file: &'static str, error: io::Error },
}

impl ProcessError {
    /// The meaning of an error of a file in `/proc/PID`.
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

/// Describes how to get the permission, with Yama's setting if this kernel has it.
fn hint(ptrace_scope: Option<&str>) -> String {
    match ptrace_scope {
        None | Some("0") => "run as its user, or with CAP_SYS_PTRACE (as root)".into(),
        Some("3") => "kernel.yama.ptrace_scope is 3, which forbids it to everyone until the next boot".into(),
        Some(scope) => {
            format!("run with CAP_SYS_PTRACE (as root), or set kernel.yama.ptrace_scope, which is {scope}, to 0")
        }
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
        assert_eq!(of(Errno::MFILE).to_string(), "/proc/7/mem: Too many open files");
    }

    #[test]
    fn the_hint_names_yamas_setting_where_it_is_in_the_way() {
        assert!(hint(Some("1")).contains("kernel.yama.ptrace_scope, which is 1"));
        assert!(!hint(Some("0")).contains("yama") && !hint(None).contains("yama"));
        assert!(hint(Some("3")).contains("everyone"));
    }
}
