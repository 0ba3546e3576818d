//! Other lives of a stand-in process: tasks that share its memory, its end, and another program in its place.

use std::io;
use std::os::unix::process::{CommandExt, parent_id};
use std::process::{Command, id};
use std::ptr;
use std::thread;

use trueno_test_pages::generate::Generator;
use trueno_test_restore::stand_in::{ANSWER, say};
use trueno_test_restore::system::{fork, wait};

use crate::memory::Memory;

const STACK_LEN: usize = 1 << 20;
/// The answers of a task whose leader has ended, and by a program that has taken the place of the process.
pub(crate) const ALONE: &str = "alone";
pub(crate) const NEW_PROGRAM: &str = "the new program";

/// The arguments of a task.
struct Shared<'a> {
    memory: &'a Memory,
    /// The first pages, which it checks.
    pages: usize,
    starter: u32,
}

/// Starts a process that has the same memory as this one, and a stack of its own. It ends when `body` returns.
fn start_sharing(more_flags: i32, body: extern "C" fn(*mut libc::c_void) -> i32, shared: &Shared<'_>) -> i32 {
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping.
    let stack = unsafe { libc::mmap(ptr::null_mut(), STACK_LEN, access, flags, -1, 0) };
    assert_ne!(stack, libc::MAP_FAILED, "{}", io::Error::last_os_error());
    let stack_end = stack.wrapping_byte_add(STACK_LEN);
    let shared = ptr::from_ref(shared).cast_mut().cast();
    // SAFETY: the stack is used for nothing else, and never unmapped. The caller waits for the task, or ends and leaves memory as it is.
    let task = unsafe { libc::clone(body, stack_end, libc::CLONE_VM | libc::SIGCHLD | more_flags, shared) };
    assert!(task > 0, "{}", io::Error::last_os_error());
    task
}

/// Returns what a task was started with.
fn shared<'a>(shared: *mut libc::c_void) -> &'a Shared<'a> {
    // SAFETY: it points to what `start_sharing` was called with, which nobody changes or drops meanwhile.
    unsafe { &*shared.cast::<Shared<'_>>().cast_const() }
}

extern "C" fn verify_shared(argument: *mut libc::c_void) -> i32 {
    let Shared { memory, pages, .. } = shared(argument);
    i32::from(memory.verify((0..*pages).rev()) != "ok")
}

/// A task as `vfork` makes it checks the first pages, while this process waits.
pub(crate) fn share(memory: &Memory, pages: usize) -> String {
    let shared = Shared { memory, pages, starter: id() };
    match wait(start_sharing(libc::CLONE_VFORK, verify_shared, &shared)) {
        0 => memory.verify(0..pages),
        status => format!("the task ended with status {status:#x}"),
    }
}

extern "C" fn verify_alone(argument: *mut libc::c_void) -> i32 {
    let Shared { memory, pages, starter } = shared(argument);
    say_alone(*starter);
    say(&memory.verify(0..*pages));
    0
}

/// Reports that the process that started this one has ended, when it has.
fn say_alone(starter: u32) {
    while parent_id() == starter {
        thread::yield_now();
    }
    say(ALONE);
}

/// Ends, and leaves its memory to a task that says `ALONE`, checks all of it, and says what it found.
pub(crate) fn outlive(memory: &Memory) -> String {
    let shared = Shared { memory, pages: memory.pages.len(), starter: id() };
    start_sharing(0, verify_alone, &shared);
    exit_now(0)
}

/// Ends this process, whatever its threads do, and leaves memory as it is.
fn exit_now(code: i32) -> ! {
    // SAFETY: does not return.
    unsafe { libc::_exit(code) }
}

/// Ends while threads touch its memory. A child that was forked before says `ALONE`, checks all of its own, and says what it found.
pub(crate) fn leave(memory: &Memory) -> String {
    let starter = id();
    fork(|| {
        say_alone(starter);
        say(&memory.verify(0..memory.pages.len()));
        true
    });
    let count = memory.pages.len();
    let touch = |pages: &mut dyn Iterator<Item = usize>| {
        if memory.verify(pages) != "ok" {
            exit_now(1);
        }
    };
    thread::scope(|threads| {
        for seed in 0..3 {
            threads.spawn(move || touch(&mut Generator::new(seed).numbers_below(count)));
        }
        touch(&mut (0..count / 8));
        exit_now(0)
    })
}

/// Begins another program, which says so, waits for a line, and says it again.
pub(crate) fn exec() -> String {
    let script = format!("echo; echo '{ANSWER}{NEW_PROGRAM}'; read line; echo; echo '{ANSWER}{NEW_PROGRAM}'");
    let error = Command::new("/bin/sh").arg("-c").arg(script).exec();
    format!("no other program: {error}")
}
