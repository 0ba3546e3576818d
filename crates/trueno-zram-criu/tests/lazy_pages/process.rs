//! A stand-in for a process that CRIU restores: it has memory under a userfaultfd, hands it over, and obeys commands.
//!
//! [`obey`] is the body of the ignored test `stand_in_process`, which does nothing unless [`start`] has started it.

use std::env;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use trueno_test_pages::generate::Generator;
use trueno_test_restore::stand_in::{self, StandIn, say, send};
use trueno_test_restore::system::{fork, wait};
use trueno_test_restore::userfaultfd::{self, PROCESS_EVENTS};

use crate::memory::Memory;
use crate::support::{OTHER_PID, PID};
use crate::tasks;

const SOCKET: &str = "TRUENO_PROCESS_SOCKET";
const IMAGE: &str = "TRUENO_PROCESS_IMAGE";
/// The variable with the features to create the userfaultfd with.
pub(crate) const FEATURES: &str = "TRUENO_PROCESS_FEATURES";
/// The variable with which a second process is handed over.
pub(crate) const SECOND: &str = "TRUENO_PROCESS_SECOND";
/// The variable with the number of the process that is handed over.
pub(crate) const NUMBER: &str = "TRUENO_PROCESS_NUMBER";
/// The variable with which `FINISHED` is only sent when the process is told to finish: until then, nothing is restored in the background.
pub(crate) const LATE: &str = "TRUENO_PROCESS_LATE";
/// The variable with the sender: the memory is handed over once it is there, and the process says `SENT` and obeys without `FINISHED`.
pub(crate) const SENDER: &str = "TRUENO_PROCESS_SENDER";
/// Values of `SENDER`: the process itself, or a child that has ended since.
pub(crate) const ITSELF: &str = "itself";
pub(crate) const CHILD: &str = "child";
/// The answer of a process that was handed over by a sender.
pub(crate) const SENT: &str = "sent";

/// "RSTF".
pub(crate) const FINISHED: i32 = 0x5253_5446;

/// Returns `true` if the kernel lets this user follow the memory of processes. Prints the reason if not.
pub(crate) fn is_allowed() -> bool {
    userfaultfd::is_allowed(PROCESS_EVENTS)
}

/// Starts a process whose memory is to become the image at `image`, and hands it over at `socket`.
pub(crate) fn start(socket: &Path, image: &Path, environment: &[(&str, &str)]) -> StandIn {
    let mut command = stand_in::command("stand_in_process");
    command.env(SOCKET, socket).env(IMAGE, image).envs(environment.iter().copied());
    StandIn::start(command)
}

fn create_userfaultfd() -> OwnedFd {
    let features = env::var(FEATURES).map_or(PROCESS_EVENTS, |features| features.parse().expect("a number"));
    userfaultfd::create(features).expect("a userfaultfd")
}

fn send_userfaultfd(socket: &UnixStream, number: i32, uffd: &OwnedFd) {
    send(socket, &number.to_ne_bytes(), &[]);
    send(socket, &[0], &[uffd]);
}

/// Maps memory, and hands it over.
fn hand_over(socket: &UnixStream, number: i32, image: Vec<u8>) -> Memory {
    let uffd = create_userfaultfd();
    // Before it is registered, as CRIU does it, so that faults cannot come first.
    send_userfaultfd(socket, number, &uffd);
    Memory::map(image, &uffd)
}

/// Maps memory, and has it handed over.
fn hand_over_mapped(socket: &UnixStream, number: i32, image: Vec<u8>, sender: &str) -> Memory {
    let uffd = create_userfaultfd();
    if sender == ITSELF {
        let memory = Memory::map(image, &uffd);
        send_userfaultfd(socket, number, &uffd);
        return memory;
    }
    let (mut ours, mut theirs) = UnixStream::pair().expect("sockets");
    // Before there is memory that somebody would have to be told of.
    let child = fork(|| {
        theirs.read_exact(&mut [0]).expect("a socket");
        send_userfaultfd(socket, number, &uffd);
        true
    });
    let memory = Memory::map(image, &uffd);
    ours.write_all(&[0]).expect("a socket");
    assert_eq!(wait(child), 0);
    memory
}

/// A second process, which checks its memory when it is told to.
struct Second {
    child: i32,
    socket: UnixStream,
}

impl Second {
    fn start(socket: &UnixStream, image: &[u8]) -> Self {
        let (mut ours, mut theirs) = UnixStream::pair().expect("sockets");
        let child = fork(|| {
            let memory = hand_over(socket, OTHER_PID.cast_signed(), image.to_vec());
            theirs.write_all(&[0]).expect("a socket");
            // Until the first process has been handed over, too.
            theirs.read_exact(&mut [0]).expect("a socket");
            memory.verify(0..memory.pages.len()) == "ok"
        });
        ours.read_exact(&mut [0]).expect("a socket");
        Self { child, socket: ours }
    }

    fn verify(mut self) -> String {
        self.socket.write_all(&[0]).expect("a socket");
        if wait(self.child) == 0 { "ok".into() } else { "the second process is wrong".into() }
    }
}

/// The process itself: maps, hands over, and obeys. Does nothing in a process that was not started for it.
pub(crate) fn obey() {
    let (Some(socket), Some(image)) = (env::var_os(SOCKET), env::var_os(IMAGE)) else { return };
    let image = fs::read(image).expect("the image");
    let socket = UnixStream::connect(socket).expect("a daemon that listens");
    let mut second = env::var_os(SECOND).map(|_| Second::start(&socket, &image));
    if second.is_some() {
        // A zombie that was dumped.
        send(&socket, &(-9i32).to_ne_bytes(), &[]);
    }
    let number = env::var(NUMBER).map_or(PID.cast_signed(), |number| number.parse().expect("a number"));
    let mut memory = match env::var(SENDER) {
        Ok(sender) => {
            let memory = hand_over_mapped(&socket, number, image, &sender);
            say(SENT);
            memory
        }
        Err(_) => hand_over(&socket, number, image),
    };
    let finish = |socket: UnixStream| {
        send(&socket, &FINISHED.to_ne_bytes(), &[]);
        "ok".into()
    };
    let mut socket = Some(socket);
    if env::var_os(SENDER).is_none() && env::var_os(LATE).is_none() {
        socket.take().map(finish);
    }
    stand_in::obey(|command, numbers| match command {
        "finish" => socket.take().map(finish),
        "second" => second.take().map(Second::verify),
        _ => answer(&mut memory, command, numbers),
    });
}

/// Answers a command; `None` if it is not known.
fn answer(memory: &mut Memory, command: &str, numbers: &[usize]) -> Option<String> {
    let count = memory.pages.len();
    Some(match (command, numbers) {
        ("verify", [first, end]) => memory.verify(*first..*end),
        ("all", []) => memory.verify(0..count),
        ("backwards", []) => memory.verify((0..count).rev()),
        ("random", [turns, seed]) => memory.verify(Generator::new(*seed as u64).numbers_below(count).take(*turns)),
        ("gap", []) => memory.verify_gap(),
        ("touch_each", []) => memory.touch_each(),
        ("remove", [first, count]) => {
            memory.remove(*first, *count);
            "ok".into()
        }
        ("unmap", [first, count]) => {
            memory.unmap(*first, *count);
            "ok".into()
        }
        ("move", [first, count]) => memory.relocate(*first, *count),
        ("fork", [depth]) => memory.fork(*depth),
        ("start_child", []) => memory.start_child(1).to_string(),
        ("wait", [child]) => format!("{:#x}", wait(i32::try_from(*child).expect("a process"))),
        ("storm", [seed]) => memory.storm(*seed as u64),
        ("chase_moved", []) => memory.chase(crate::moves::Leave::Move),
        ("chase_unmapped", []) => memory.chase(crate::moves::Leave::Unmap),
        ("give_back", [rounds]) => memory.give_back_and_fork(*rounds),
        ("fork_over_saved", []) => memory.fork_over(crate::moves::Target::Saved),
        ("fork_over_missing", []) => memory.fork_over(crate::moves::Target::Missing),
        ("fork_over_zeros", []) => memory.fork_over(crate::moves::Target::Zeros),
        ("share", [pages]) => tasks::share(memory, *pages),
        ("outlive", []) => tasks::outlive(memory),
        ("leave", []) => tasks::leave(memory),
        ("exec", []) => tasks::exec(),
        _ => return None,
    })
}
