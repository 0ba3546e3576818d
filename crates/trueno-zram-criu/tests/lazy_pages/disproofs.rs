//! Processes whose pages are returned before they are proven, and indexes that lie.

use std::sync::Arc;
use std::time::Duration;

use trueno_test_pages::corpus::numbered_pages;
use trueno_test_restore::archive_of;
use trueno_test_restore::forged::{HeldProofs, lying_archive};
use trueno_test_restore::stand_in::{SIGBUS, SIGKILL, StandIn};
use trueno_zram_archive::{Archive, Pages, Verify};
use trueno_zram_core::Page;
use trueno_zram_restore::{OnDamage, OnDisproof, RestoreOptions};

use crate::process::{LATE, is_allowed};
use crate::support::{Idle, Setup, file_content, one_worker};

/// The page of the process that the index lies about, in the second group of the file.
const LIE: usize = 1500;
/// The pages of a process: two groups.
const PAGES: usize = 2000;

/// Returns pages as a process would see them, and an archive that lies about one of them. The page that cannot wait comes first.
fn lying() -> (Vec<Page>, Vec<u8>) {
    let mut content = file_content(&numbered_pages(PAGES));
    let (archive, _) = lying_archive(&mut content, LIE);
    (content.split_off(1), archive)
}

fn touched(file: Arc<HeldProofs>) -> Arc<dyn Pages> {
    Arc::new(Archive::read_from(file).unwrap().unwrap().with_verify(Verify::Touched))
}

/// Serves a process whose background fill begins with the command to finish.
fn serve(pages: &[Page], file: &Arc<HeldProofs>, options: RestoreOptions) -> (Setup, StandIn) {
    let idle = Idle::with(pages, [touched(Arc::clone(file))], options);
    let process = idle.process(&[(LATE, "1")]);
    (idle.serve(), process)
}

#[test]
fn what_is_proven_later_is_what_is_proven_before() {
    if !is_allowed() {
        return;
    }
    let pages = numbered_pages(5000);
    for verify in [Verify::Group, Verify::Touched] {
        for order in ["all", "random 2000 1"] {
            let file = Arc::new(archive_of(&file_content(&pages)));
            let source = Arc::new(Archive::read_from(file).unwrap().unwrap().with_verify(verify));
            let setup = Setup::with(&pages, [Arc::clone(&source) as _], RestoreOptions::default());
            let mut process = setup.process();
            process.must(order);
            process.must("all");
            let report = setup.served().unwrap();
            assert!(report.complete && !source.is_proof_due() && source.disproven().is_empty());
            assert_eq!((report.poisoned, report.disproven_pages, report.unproven), (0, 0, false));
            let latencies = setup.daemon.latencies();
            assert!(latencies.first.faults() + latencies.later.faults() <= report.faults, "{report:?}");
            process.end();
        }
    }
}

#[test]
fn a_process_with_a_page_that_fails_its_proof_is_ended() {
    if !is_allowed() {
        return;
    }
    let (pages, archive) = lying();
    let file = HeldProofs::new(archive);
    let (setup, mut process) = serve(&pages, &file, one_worker());
    // The page is shown, and is another one.
    assert_ne!(process.ask(&format!("verify {LIE} {}", LIE + 1)).as_deref(), Some("ok"));
    process.must("finish");
    file.release();
    assert_eq!(process.signal(), SIGKILL);
    let report = setup.served().unwrap();
    assert!(!report.complete && report.disproven_pages > 0, "{report:?}");
    assert_eq!(setup.daemon.failures(), 1);
}

#[test]
fn a_process_goes_on_if_asked_for_and_its_missing_pages_are_poisoned() {
    if !is_allowed() {
        return;
    }
    let (pages, archive) = lying();
    let file = HeldProofs::new(archive);
    let (setup, mut process) = serve(&pages, &file, one_worker().with_on_disproof(OnDisproof::GoOn));
    process.must("verify 1100 1103");
    assert_ne!(process.ask(&format!("verify {LIE} {}", LIE + 1)).as_deref(), Some("ok"));
    process.must("finish");
    file.release();
    let report = setup.served().unwrap();
    assert!(report.complete && report.disproven_pages >= 4, "{report:?}");
    // The second group has the pages from 1023 on.
    assert_eq!(report.poisoned + report.disproven_pages, (PAGES - 1023) as u64);
    assert_eq!((setup.daemon.failures(), report.unproven), (0, false));
    process.must("verify 0 1023");
    process.must("verify 1100 1103");
    assert_eq!(process.ask("verify 1900 1901"), None);
    assert_eq!(process.signal(), SIGBUS);
}

#[test]
fn a_process_without_a_page_of_the_group_goes_on() {
    if !is_allowed() {
        return;
    }
    let (pages, archive) = lying();
    for on_damage in [OnDamage::Poison, OnDamage::Kill] {
        let file = HeldProofs::new(archive.clone());
        let (setup, mut process) = serve(&pages, &file, one_worker().with_on_damage(on_damage));
        process.must("verify 0 50");
        process.must("finish");
        file.release();
        if on_damage == OnDamage::Kill {
            // Damage that is found ends it, touched or not.
            assert_eq!(process.signal(), SIGKILL);
            assert_eq!((setup.served().unwrap().complete, setup.daemon.failures()), (false, 1));
            continue;
        }
        let report = setup.served().unwrap();
        assert_eq!((report.complete, report.poisoned, report.disproven_pages), (true, (PAGES - 1023) as u64, 0));
        assert_eq!(setup.daemon.failures(), 0);
        process.must("verify 0 1023");
        assert_eq!(process.ask("verify 1100 1101"), None);
        assert_eq!(process.signal(), SIGBUS);
    }
}

#[test]
fn pages_whose_proof_cannot_be_read_are_treated_as_disproven() {
    if !is_allowed() {
        return;
    }
    let pages = numbered_pages(PAGES);
    for on_disproof in [OnDisproof::End, OnDisproof::GoOn] {
        let file = HeldProofs::failing(archive_of(&file_content(&pages)));
        let options = one_worker().with_on_disproof(on_disproof).with_proof_patience(Duration::ZERO);
        let (setup, mut process) = serve(&pages, &file, options);
        // It may be ended before the command comes.
        let _ = process.ask("verify 0 1");
        let _ = process.ask("finish");
        if on_disproof == OnDisproof::End {
            assert_eq!(process.signal(), SIGKILL);
            // The rest depends on the messages that the process has sent by then.
            let _ = setup.served();
            assert_eq!(setup.daemon.failures(), 1);
            continue;
        }
        let report = setup.served().unwrap();
        assert!(report.complete && report.unproven && report.disproven_pages == 0, "{report:?}");
        process.must("all");
        process.end();
    }
}

#[test]
fn a_process_that_ends_before_the_proof_is_told_of_it() {
    if !is_allowed() {
        return;
    }
    let (pages, archive) = lying();
    let file = HeldProofs::new(archive);
    let (setup, mut process) = serve(&pages, &file, one_worker());
    assert_ne!(process.ask(&format!("verify {LIE} {}", LIE + 1)).as_deref(), Some("ok"));
    process.must("finish");
    process.kill();
    assert_eq!(process.signal(), SIGKILL);
    file.release();
    let report = setup.served().unwrap();
    assert!(!report.complete && report.disproven_pages > 0, "{report:?}");
}
