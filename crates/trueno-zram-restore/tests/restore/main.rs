//! VMs in second processes, and this process itself, are restored page by page.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod abandoned;
mod disproofs;
mod failures;
mod faults;
mod handshakes;
mod processes;
mod support;

/// The second process.
#[test]
#[ignore = "run by other tests as a second process"]
fn stand_in_vmm() {
    let _ = trueno_test_restore::vmm::obey();
}
