//! Stops a process and always resumes it.

use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use trueno_zram_io::interrupt::Cleanup;

use super::{Process, ProcessError, read_text};
use crate::signals;

/// A process that waits for a disk stops once the disk has answered.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// A process that is stopped until this is dropped, or a signal ends us.
#[derive(Debug)]
pub(crate) struct Stopped {
    /// `None` if it was already stopped: then it is left stopped.
    _resume: Option<Cleanup>,
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
            return Ok(Self { _resume: None });
        }
        let stopped = {
            let mut pending = signals::hold_off();
            pidfd_send_signal(&pidfd, Signal::STOP).map_err(|error| match error {
                Errno::PERM => ProcessError::NoRightToStop { pid },
                error => ProcessError::io(pid, "", error.into()),
            })?;
            let resume = pending.add_cleanup(move || {
                // It fails only if the process has exited.
                let _ = pidfd_send_signal(&pidfd, Signal::CONT);
            });
            Self { _resume: Some(resume) }
        };
        let begun = Instant::now();
        while !all_stand_still(process)? {
            if begun.elapsed() > PATIENCE {
                return Err(ProcessError::DidNotStop { pid, waited: PATIENCE });
            }
            sleep(LOOK_AGAIN);
        }
        Ok(stopped)
    }
}

/// Returns `true` if no thread of the process runs. The signal is sent to the process; its threads stop one by one.
fn all_stand_still(process: &Process) -> Result<bool, ProcessError> {
    let stands_still = |thread: &u32| {
        // A thread that has exited does not run.
        let stat = read_text(&process.dir, &format!("task/{thread}/stat")).unwrap_or_default();
        // Stopped, held by a debugger, ended.
        state_of(&stat).is_none_or(|state| ['T', 't', 'Z', 'X'].contains(&state))
    };
    Ok(process.threads()?.iter().all(stands_still))
}

/// Returns the state, which follows the command. The command is in brackets and may hold any character.
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
