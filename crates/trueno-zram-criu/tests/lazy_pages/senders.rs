//! Processes that are handed over by somebody whom the daemon cannot end: what is missing fails when it is touched.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use trueno_test_pages::corpus::numbered_pages;
use trueno_test_restore::stand_in::{self, StandIn, say};
use trueno_zram_criu::{Error, LAZY_PAGES_SOCKET};
use trueno_zram_restore::RestoreOptions;

use crate::process::{self, CHILD, ITSELF, SENDER, SENT, is_allowed};
use crate::support::{IMAGE, Idle, archived};

const PAGES: usize = 16;
/// Set for the daemon in a namespace.
const NAMESPACE: &str = "TRUENO_DAEMON_NAMESPACE";

fn idle_daemon() -> Idle {
    let pages = numbered_pages(PAGES);
    Idle::with(&pages, [archived(&pages)], RestoreOptions::default())
}

/// Asserts that every page fails when it is touched.
fn assert_all_fail(mut process: StandIn) {
    assert_eq!(process.ask("touch_each"), Some(format!("{PAGES} failed, 0 did not")));
    process.end();
}

#[test]
fn memory_whose_sender_has_ended_fails() {
    if !is_allowed() {
        return;
    }
    let idle = idle_daemon();
    let mut process = idle.process(&[(SENDER, CHILD)]);
    assert_eq!(process.answer().as_deref(), Some(SENT));
    let error = idle.serve().served().unwrap_err();
    assert!(matches!(error, Error::Restore(trueno_zram_restore::Error::Process(_))), "{error}");
    assert_all_fail(process);
}

/// Forks, and goes on as the first process of a new PID namespace, in which the parent does not exist. The parent waits for it.
fn enter_namespace() -> io::Result<()> {
    // SAFETY: changes the namespace of later children only.
    if unsafe { libc::unshare(libc::CLONE_NEWPID) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: called between fork and exec, where there is one thread.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(()),
        child => {
            // Its copies of the pipes would keep readers from seeing their end.
            // SAFETY: nothing uses the descriptors any more.
            unsafe { libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0) };
            let mut status = 0;
            // SAFETY: writes the status of a child.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(status != 0)) }
        }
    }
}

fn in_namespace(mut command: Command) -> Command {
    // SAFETY: only system calls, which are allowed between fork and exec.
    unsafe { command.pre_exec(enter_namespace) };
    command
}

#[test]
fn memory_whose_sender_is_in_another_pid_namespace_fails() {
    if !is_allowed() {
        return;
    }
    if let Err(error) = in_namespace(Command::new("true")).status() {
        println!("skipped: this system refuses PID namespaces to this user: {error}");
        return;
    }
    let mut command = in_namespace(stand_in::command("daemon_in_a_namespace"));
    command.env(NAMESPACE, "1");
    let mut daemon = StandIn::start(command);
    let dir = daemon.answer().unwrap();
    let dir = dir.as_ref() as &std::path::Path;
    let mut process = process::start(&dir.join(LAZY_PAGES_SOCKET), &dir.join(IMAGE), &[(SENDER, ITSELF)]);
    assert_eq!(process.answer().as_deref(), Some(SENT));
    daemon.must("serve");
    daemon.end();
    assert_all_fail(process);
}

/// The daemon in a namespace: says where it listens, and serves when it is told to. Does nothing in a process that was not started
/// for it.
pub(crate) fn obey() {
    if std::env::var_os(NAMESPACE).is_none() {
        return;
    }
    let mut idle = Some(idle_daemon());
    say(idle.as_ref().unwrap().dir.path().to_str().unwrap());
    stand_in::obey(|command, _| {
        let idle = idle.take().filter(|_| command == "serve")?;
        Some(match idle.serve().served() {
            Err(Error::NoSender { .. }) => "ok".into(),
            other => format!("{other:?}"),
        })
    });
}
