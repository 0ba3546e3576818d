//! Decides which thread runs first, for tests of the order of two threads.

use std::io;
use std::mem;

/// Keeps this thread, and the threads and processes that it starts, on the core that it runs on.
///
/// # Panics
/// If the system does not allow it.
pub fn stay_on_one_core() {
    // SAFETY: returns a number.
    let core = usize::try_from(unsafe { libc::sched_getcpu() }).expect("a core");
    // SAFETY: a set of bits, for which zeros are valid.
    let mut cores: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: sets a bit of the set, or nothing if the number is too large.
    unsafe { libc::CPU_SET(core, &mut cores) };
    // SAFETY: reads the set.
    let result = unsafe { libc::sched_setaffinity(0, size_of_val(&cores), &raw const cores) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

/// Lets this thread run before all others on its core, as soon as it can go on. Returns `false` where this user may not do that.
#[must_use]
pub fn come_first() -> bool {
    // SAFETY: a structure of numbers, for which zeros are valid.
    let mut parameters: libc::sched_param = unsafe { mem::zeroed() };
    parameters.sched_priority = 1;
    // SAFETY: reads the parameters.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) == 0 }
}
