//! A second process that obeys commands on its standard input.

use std::env;
use std::io::{self, BufRead, BufReader, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// The result of [`StandIn::signal`] for a process that touched a page that is poisoned.
pub const SIGBUS: Option<i32> = Some(libc::SIGBUS);
/// The result of [`StandIn::signal`] for a process that was ended.
pub const SIGKILL: Option<i32> = Some(libc::SIGKILL);

/// The start of lines that are answers. The test harness prints lines of its own.
pub const ANSWER: &str = "STAND-IN: ";

/// Returns the command that runs an ignored test of this binary in a process of its own.
///
/// # Panics
/// If the system does not say which binary this is.
#[must_use]
pub fn command(test: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("the test binary"));
    command.args(["--ignored", "--exact", test, "--nocapture", "--test-threads=1"]);
    command
}

/// A second process that obeys this one.
#[derive(Debug)]
pub struct StandIn {
    child: Child,
    /// Standard input of the process; `None` if it is closed.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl StandIn {
    /// Starts a process that calls [`obey`].
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the test binary runs");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, input, output }
    }

    /// Sends a command, and returns its answer; `None` if the process ended instead.
    pub fn ask(&mut self, command: &str) -> Option<String> {
        writeln!(self.input.as_mut()?, "{command}").ok()?;
        self.answer()
    }

    /// Returns the next answer: of the process, or of one that it has started. `None` if all of them have ended.
    pub fn answer(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if let Some((_, answer)) = line.split_once(ANSWER) {
                return Some(answer.trim_end().to_owned());
            }
        }
    }

    /// Sends a command that must succeed.
    ///
    /// # Panics
    /// If the answer is not `ok`.
    pub fn must(&mut self, command: &str) {
        assert_eq!(self.ask(command).as_deref(), Some("ok"), "{command}");
    }

    /// Kills the process.
    ///
    /// # Panics
    /// If the system does not allow it.
    pub fn kill(&mut self) {
        self.child.kill().expect("a child");
    }

    /// Ends the process in an orderly way.
    ///
    /// # Panics
    /// If it fails.
    pub fn end(mut self) {
        drop(self.input.take());
        io::copy(&mut self.output, &mut io::sink()).expect("a pipe");
        assert!(self.child.wait().expect("a child").success());
    }

    /// Waits until the process has ended, and returns the signal that ended it.
    ///
    /// # Panics
    /// If it cannot be waited for.
    #[must_use]
    pub fn signal(mut self) -> Option<i32> {
        self.child.wait().expect("a child").signal()
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        // It may wait for a page that nobody fills any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Obeys the lines on standard input, each a word and numbers, until there are no more.
///
/// # Panics
/// If `answer` returns `None`, since it does not know the command.
pub fn obey(mut answer: impl FnMut(&str, &[usize]) -> Option<String>) {
    for line in io::stdin().lock().lines() {
        let line = line.expect("text");
        let mut words = line.split_whitespace();
        let command = words.next().unwrap_or_default();
        let numbers: Vec<usize> = words.map(|word| word.parse().expect("a number")).collect();
        let found = answer(command, &numbers);
        say(&found.unwrap_or_else(|| panic!("unknown command {line:?}")));
    }
}

/// Prints an answer.
pub fn say(answer: &str) {
    println!("\n{ANSWER}{answer}");
}

/// Sends bytes with file descriptors.
///
/// # Panics
/// If the other end does not take them.
pub fn send(socket: &UnixStream, bytes: &[u8], fds: &[&OwnedFd]) {
    let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(&fds)));
    let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).expect("a connected socket");
    assert_eq!(sent, bytes.len());
}
