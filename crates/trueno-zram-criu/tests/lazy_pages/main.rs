//! Processes in the place of those that `criu restore --lazy-pages` restores, whose memory comes from a pages file.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod changes;
mod disproofs;
mod failures;
mod handshakes;
mod lifetimes;
mod memory;
mod moves;
mod process;
mod races;
mod senders;
mod support;
mod tasks;

/// The second process.
#[test]
#[ignore = "run by other tests as a second process"]
fn stand_in_process() {
    process::obey();
}

/// A daemon in a PID namespace of its own.
#[test]
#[ignore = "run by other tests as a second process"]
fn daemon_in_a_namespace() {
    senders::obey();
}
