//! Processes in the place of those that `criu restore --lazy-pages` restores, whose memory comes from a pages file.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod changes;
mod failures;
mod handshakes;
mod process;
mod support;

/// The second process.
#[test]
#[ignore = "run by other tests as a second process"]
fn stand_in_process() {
    process::obey();
}
