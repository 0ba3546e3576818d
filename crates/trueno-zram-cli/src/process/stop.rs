//! Stops a process and always resumes it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{Dir, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{Process, ProcessError, read_text};
use crate::signals::{self, ActionId};

/// A process in the midst of a disk's work stops when that is done.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// A process that is stopped until this is dropped, or a signal ends us.
#[derive(Debug)]
pub(crate) struct Stopped {
    /// `None` if it was already stopped: then it is left stopped.
    resume: Option<Resume>,
}

#[derive(Debug)]
struct Resume {
    pidfd: Arc<OwnedFd>,
    on_signal: ActionId,
}

impl Stopped {
    /// Stops a process, all its threads.
    pub(crate) fn stop(process: &Process) -> Result<Self, ProcessError> {
        let pid = process.pid;
        if pid == std::process::id() {
            return Err(ProcessError::Itself { pid });
        }
        let gone = ProcessError::Gone { pid };
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(ProcessError::NotThere { pid })?;
        let pidfd = pidfd_open(number, PidfdFlags::empty()).map_err(|e| ProcessError::io(pid, "", e.into()))?;
        // While this is there, the number is still that process's, and so it was when the descriptor was opened.
        let state = state_of(&read_text(&process.dir, "stat").map_err(|e| ProcessError::io(pid, "stat", e))?);
        if state.ok_or(gone)? == 'T' {
            return Ok(Self { resume: None });
        }
        let pidfd = Arc::new(pidfd);
        let stopped = {
            let mut pending = signals::hold_off();
            pidfd_send_signal(&*pidfd, Signal::STOP).map_err(|error| match error {
                Errno::PERM => ProcessError::NoRightToStop { pid },
                error => ProcessError::io(pid, "", error.into()),
            })?;
            let again = Arc::clone(&pidfd);
            let on_signal = pending.add(move || resume(&again));
            Self { resume: Some(Resume { pidfd, on_signal }) }
        };
        let begun = Instant::now();
        while !all_stand_still(process).map_err(|e| ProcessError::io(pid, "task", e.into()))? {
            if begun.elapsed() > PATIENCE {
                return Err(ProcessError::DidNotStop { pid, waited: PATIENCE });
            }
            sleep(LOOK_AGAIN);
        }
        Ok(stopped)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        if let Some(Resume { pidfd, on_signal }) = &self.resume {
            let mut pending = signals::hold_off();
            resume(pidfd);
            pending.remove(on_signal);
        }
    }
}

fn resume(pidfd: &OwnedFd) {
    // It fails only if the process has exited.
    let _ = pidfd_send_signal(pidfd, Signal::CONT);
}

/// Whether no thread of the process runs. The signal is sent to the process; its threads stop one by one.
fn all_stand_still(process: &Process) -> Result<bool, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let tasks = openat(&process.dir, "task", flags, Mode::empty())?;
    for entry in Dir::read_from(&tasks)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy();
        if name.starts_with('.') {
            continue;
        }
        // A thread that has exited does not run.
        let stat = read_text(&process.dir, &format!("task/{name}/stat")).unwrap_or_default();
        // Stopped, held by a debugger, ended.
        if state_of(&stat).is_some_and(|state| !['T', 't', 'Z', 'X'].contains(&state)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The letter behind the command, which is in brackets and may hold any character.
fn state_of(stat: &str) -> Option<char> {
    stat.rsplit_once(") ")?.1.chars().next()
}

#[cfg(test)]
mod tests {
    use super::state_of;

    #[test]
    fn the_state_is_found_behind_any_name() {
        assert_eq!(state_of("1234 (cat) S 1 1234"), Some('S'));
        assert_eq!(state_of("1234 (a) R (b) T 1 1234"), Some('T'));
        assert_eq!(state_of(""), None);
    }
}
