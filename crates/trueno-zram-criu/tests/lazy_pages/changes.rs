//! Memory has the content that was saved, wherever the process moves it, in its children as well, and zeros after it was removed.

use std::sync::Arc;

use trueno_test_pages::corpus::numbered_pages as pages;
use trueno_zram_archive::PlainPages;
use trueno_zram_restore::RestoreOptions;

use crate::process::{self, SECOND, is_allowed};
use crate::support::{Held, Setup, archived, file_content};

#[test]
fn every_page_is_right_in_whatever_order_it_is_touched() {
    if !is_allowed() {
        return;
    }
    let pages = pages(5000);
    for order in ["all", "backwards", "random 8000 1"] {
        let plain = PlainPages::new(Arc::new(file_content(&pages).as_flattened().to_vec())).unwrap();
        for file in [Arc::new(plain) as _, archived(&pages)] {
            let setup = Setup::with(&pages, [file], RestoreOptions::default());
            let mut process = setup.process();
            process.must(order);
            process.must("gap");
            let report = setup.served().unwrap();
            assert!(report.complete && report.poisoned == 0, "{report:?}");
            assert_eq!(report.memory_bytes, 5000 * 4096);
            // The daemon has gone, and nothing is missing.
            process.must("all");
            process.must("fork 1");
            process.end();
        }
    }
}

#[test]
fn memory_that_is_removed_unmapped_or_moved_is_followed() {
    if !is_allowed() {
        return;
    }
    let pages = pages(4000);
    for held_from in [0, 500, 2000] {
        let (setup, held) = Setup::holding_back(&pages, (Held::Fill, held_from));
        let mut process = setup.process();
        process.must("remove 0 20");
        process.must("move 100 300");
        process.must("unmap 150 20");
        process.must("remove 390 40");
        process.must("move 380 60");
        // Across both parts, in pieces of what was moved before.
        process.must("move 120 3800");
        process.must("move 3000 10");
        held.release();
        process.must("backwards");
        process.must("all");
        process.end();
        let report = setup.served().unwrap();
        assert!(report.complete, "{report:?}");
        assert!(report.removed_bytes >= 80 * 4096, "{report:?}");
    }
}

#[test]
fn children_have_the_memory_of_the_moment_they_were_forked() {
    if !is_allowed() {
        return;
    }
    let (setup, held) = Setup::holding_back(&pages(3000), (Held::Fill, 100));
    let mut process = setup.process();
    process.must("remove 10 10");
    process.must("move 200 50");
    let children: Vec<String> = (0..3)
        .map(|turn| {
            let child = process.ask("start_child").unwrap();
            // The child still has it.
            process.must(&format!("remove {} 100", 1000 + turn * 100));
            process.must(&format!("unmap {} 50", 2000 + turn * 50));
            process.must(&format!("move {} 300", 2300 + turn * 100));
            child
        })
        .collect();
    held.release();
    for child in children {
        assert_eq!(process.ask(&format!("wait {child}")).unwrap(), "0x0");
    }
    process.must("fork 3");
    process.must("all");
    process.end();
    assert!(setup.served().unwrap().complete);
}

#[test]
fn threads_that_read_change_and_fork_at_once_see_the_right_content() {
    if !is_allowed() {
        return;
    }
    for seed in 0..4 {
        let setup = Setup::new(&pages(6000));
        let mut process = setup.process();
        process.must(&format!("storm {seed}"));
        process.must("all");
        process.end();
        assert!(setup.served().unwrap().complete);
    }
}

#[test]
fn several_processes_are_restored_at_once() {
    if !is_allowed() {
        return;
    }
    let pages = pages(3000);
    let setup = Setup::with(&pages, [archived(&pages), archived(&pages)], RestoreOptions::default());
    let mut process = process::start(&setup.socket(), &setup.image(), &[(SECOND, "1")]);
    process.must("all");
    process.must("second");
    process.end();
    let report = setup.served().unwrap();
    assert_eq!(report.memory_bytes, 2 * 3000 * 4096);
    assert!(report.complete, "{report:?}");
}
