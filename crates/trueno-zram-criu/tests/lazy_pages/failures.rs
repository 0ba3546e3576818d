//! Processes whose pages are damaged, or whose daemon ends.

use std::sync::Arc;

use trueno_test_pages::corpus::numbered_pages as pages;
use trueno_test_pages::generate::Generator;
use trueno_test_restore::archive_of;
use trueno_test_restore::stand_in::{SIGBUS, SIGKILL};
use trueno_zram_archive::{Archive, Pages, PlainPages};
use trueno_zram_criu::Error;
use trueno_zram_restore::{OnDamage, RestoreOptions};

use crate::process::is_allowed;
use crate::support::{Held, HeldBack, Setup, file_content};

#[test]
fn a_damaged_page_is_poisoned_and_all_others_are_right() {
    if !is_allowed() {
        return;
    }
    let pages = pages(2000);
    let damaged = HeldBack::new(&pages, (Held::Fill, pages.len()), Some(777));
    let setup = Setup::with(&pages, [Arc::new(PlainPages::new(damaged).unwrap()) as _], RestoreOptions::default());
    let mut process = setup.process();
    process.must("verify 0 777");
    process.must("verify 778 2000");
    let report = setup.served().unwrap();
    assert!(report.complete && report.poisoned == 1, "{report:?}");
    assert_eq!(setup.daemon.failures(), 0);
    // A child inherits it, and the daemon is not needed for that.
    assert_eq!(process.ask("fork 1").as_deref(), Some("the child ended with status 0x7"));
    assert_eq!(process.ask("verify 777 778"), None);
    assert_eq!(process.signal(), SIGBUS);
}

#[test]
fn damage_ends_the_process_if_asked_for() {
    if !is_allowed() {
        return;
    }
    let pages = pages(2000);
    let damaged = HeldBack::new(&pages, (Held::Fill, pages.len()), Some(777));
    let options = RestoreOptions::default().with_on_damage(OnDamage::Kill);
    let setup = Setup::with(&pages, [Arc::new(PlainPages::new(damaged).unwrap()) as _], options);
    assert_eq!(setup.process().signal(), SIGKILL);
    let report = setup.served().unwrap();
    assert!(!report.complete && setup.daemon.failures() == 1, "{report:?}");
}

#[test]
fn no_damage_to_an_archive_shows_a_process_wrong_bytes() {
    if !is_allowed() {
        return;
    }
    let pages = pages(300);
    let intact = archive_of(&file_content(&pages));
    let mut random = Generator::new(16);
    let mut ended = 0;
    for _ in 0..24 {
        let mut bytes = intact.clone();
        let at = random.below(bytes.len());
        bytes[at] ^= 1 << random.below(8);
        let Ok(Some(file)) = Archive::read_from(Arc::new(bytes)) else { continue };
        if file.len_bytes() < (301 * 4096) {
            continue;
        }
        let setup = Setup::with(&pages, [Arc::new(file) as _], RestoreOptions::default());
        let mut process = setup.process();
        match process.ask("all") {
            Some(answer) => {
                assert_eq!(answer, "ok", "bit at {at}");
                process.end();
            }
            None => {
                ended += 1;
                assert_eq!(process.signal(), SIGBUS, "bit at {at}");
            }
        }
        setup.served().unwrap();
    }
    assert!(ended > 0, "no bit mattered");
}

#[test]
fn a_daemon_that_ends_early_leaves_nobody_with_zeros() {
    if !is_allowed() {
        return;
    }
    let (setup, held) = Setup::holding_back(&pages(2000), (Held::Everybody, 1023));
    let mut process = setup.process();
    process.must("verify 0 1000");
    // Up to the end of a group. The child waits for a page that is held back. It is known by its memory only.
    let child = process.ask("start_child").unwrap();
    process.must("verify 0 1000");
    setup.daemon.end_all();
    assert_eq!(process.signal(), SIGKILL);
    held.release();
    assert!(matches!(setup.served(), Err(Error::Restore(trueno_zram_restore::Error::ShuttingDown))));
    // Touching what is poisoned has ended it.
    let child: i32 = child.parse().unwrap();
    while std::fs::read_to_string(format!("/proc/{child}/stat")).is_ok_and(|stat| !stat.contains(") Z")) {
        std::thread::yield_now();
    }
}

#[test]
fn a_process_that_is_killed_ends_the_daemon() {
    if !is_allowed() {
        return;
    }
    let (setup, held) = Setup::holding_back(&pages(2000), (Held::Fill, 1023));
    let mut process = setup.process();
    process.must("verify 0 1000");
    process.kill();
    assert_eq!(process.signal(), SIGKILL);
    held.release();
    let report = setup.served().unwrap();
    assert!(!report.complete && setup.daemon.failures() == 0, "{report:?}");
}
