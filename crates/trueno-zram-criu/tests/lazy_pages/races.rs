//! Threads that change memory at the same time, while it is restored. Whatever comes first, content is right or access fails.

use trueno_test_pages::corpus::numbered_pages;
use trueno_zram_restore::RestoreOptions;

use crate::process::{LATE, is_allowed};
use crate::support::{Idle, archived};

/// Runs a command in a process whose background fill runs, and in one whose fill waits until the command is done.
fn race(command: &str) {
    if !is_allowed() {
        return;
    }
    let pages = numbered_pages(2400);
    for environment in [&[][..], &[(LATE, "1")]] {
        let idle = Idle::with(&pages, [archived(&pages)], RestoreOptions::default());
        let mut process = idle.process(environment);
        let setup = idle.serve();
        process.must(command);
        if !environment.is_empty() {
            process.must("finish");
        }
        process.must("all");
        process.end();
        setup.served().unwrap();
    }
}

#[test]
fn memory_that_is_moved_where_another_thread_has_just_moved_away_keeps_its_content() {
    race("chase_moved");
}

#[test]
fn memory_that_is_moved_where_another_thread_has_just_unmapped_keeps_its_content() {
    race("chase_unmapped");
}

#[test]
fn memory_that_was_given_back_and_moved_is_zeros_in_parent_and_child() {
    race("give_back 60");
}

#[test]
fn children_that_are_forked_while_saved_pages_are_moved_onto_others_see_no_other_bytes() {
    race("fork_over_saved");
}

#[test]
fn children_that_are_forked_while_saved_pages_are_moved_onto_missing_ones_see_no_other_bytes() {
    race("fork_over_missing");
}

#[test]
fn children_that_are_forked_while_saved_pages_are_moved_onto_zeros_see_no_other_bytes() {
    race("fork_over_zeros");
}
