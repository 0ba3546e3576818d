//! Processes that end, begin another program, or leave their memory to others while it is restored.

use std::sync::Arc;

use trueno_test_pages::corpus::numbered_pages;
use trueno_test_restore::stand_in::StandIn;
use trueno_zram_criu::Error;

use crate::process::is_allowed;
use crate::support::{Held, HeldBack, Setup};
use crate::tasks::{ALONE, NEW_PROGRAM};

/// Serves a process whose background fill waits behind the first pages until it is released. `None` where that is not possible.
fn held_process() -> Option<(Setup, Arc<HeldBack>, StandIn)> {
    if !is_allowed() {
        return None;
    }
    let (setup, held) = Setup::holding_back(&numbered_pages(2000), (Held::Fill, 1023));
    let mut process = setup.process();
    process.must("verify 0 50");
    process.must("remove 100 50");
    process.must("move 90 200");
    Some((setup, held, process))
}

/// Asserts that the daemon has ended with memory that is not complete: nobody has it any more, or the daemon was told to end.
fn assert_incomplete(setup: &Setup) {
    match setup.served() {
        Ok(report) => assert!(!report.complete, "{report:?}"),
        Err(error) => {
            assert!(matches!(error, Error::Restore(trueno_zram_restore::Error::ShuttingDown)), "{error}");
        }
    }
}

#[test]
fn a_task_that_shares_the_memory_sees_the_right_content() {
    let Some((setup, held, mut process)) = held_process() else { return };
    process.must("share 1000");
    held.release();
    process.must("share 2000");
    process.end();
    assert!(setup.served().unwrap().complete);
}

#[test]
fn memory_that_outlives_its_process_is_restored() {
    let Some((setup, held, mut process)) = held_process() else { return };
    assert_eq!(process.ask("outlive").as_deref(), Some(ALONE));
    held.release();
    assert_eq!(process.answer().as_deref(), Some("ok"));
    process.end();
    let report = setup.served().unwrap();
    assert_eq!((report.poisoned, setup.daemon.failures()), (0, 0), "{report:?}");
}

#[test]
fn memory_that_outlives_its_process_fails_if_the_daemon_ends() {
    if !is_allowed() {
        return;
    }
    let (setup, held) = Setup::holding_back(&numbered_pages(2000), (Held::Everybody, 1023));
    let mut process = setup.process();
    assert_eq!(process.ask("outlive").as_deref(), Some(ALONE));
    setup.daemon.end_all();
    // The task has touched what is poisoned, or was killed before it could.
    assert_eq!(process.answer(), None);
    held.release();
    assert_incomplete(&setup);
    process.end();
}

#[test]
fn a_program_that_the_process_begins_is_not_ended() {
    for daemon_ends in [false, true] {
        let Some((setup, held, mut process)) = held_process() else { return };
        assert_eq!(process.ask("exec").as_deref(), Some(NEW_PROGRAM));
        if daemon_ends {
            setup.daemon.end_all();
        }
        held.release();
        assert_incomplete(&setup);
        assert_eq!(setup.daemon.failures(), 0);
        assert_eq!(process.ask("go on").as_deref(), Some(NEW_PROGRAM));
        process.end();
    }
}

#[test]
fn a_process_that_ends_while_it_is_restored_ends_the_daemon() {
    let Some((setup, held, process)) = held_process() else { return };
    process.end();
    held.release();
    let report = setup.served().unwrap();
    assert!(!report.complete && setup.daemon.failures() == 0, "{report:?}");
}

#[test]
fn the_child_of_a_process_that_ends_while_threads_touch_its_memory_is_restored() {
    let Some((setup, held, mut process)) = held_process() else { return };
    // The answers of the child.
    assert_eq!(process.ask("leave").as_deref(), Some(ALONE));
    held.release();
    assert_eq!(process.answer().as_deref(), Some("ok"));
    process.end();
    let report = setup.served().unwrap();
    assert_eq!((report.poisoned, setup.daemon.failures()), (0, 0), "{report:?}");
}
