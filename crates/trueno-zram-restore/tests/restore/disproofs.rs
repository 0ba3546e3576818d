//! Archives whose pages are returned before they are proven, and indexes that lie.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use trueno_test_pages::corpus::numbered_pages as pages;
use trueno_test_restore::archive_of;
use trueno_test_restore::forged::{HeldProofs, lying_archive};
use trueno_test_restore::stand_in::{SIGBUS, SIGKILL};
use trueno_test_restore::vmm::is_allowed;
use trueno_zram_archive::{Archive, Verify};
use trueno_zram_core::Page;
use trueno_zram_restore::{Error, LazyRestore, Notice, OnDamage, OnDisproof, Pages, RestoreOptions, Touches};

use crate::support::{Hooked, Setup, on_demand};

/// The page that the index lies about, in the second group.
const LIE: usize = 1501;

fn opened(archive: Vec<u8>, verify: Verify) -> Archive {
    Archive::read_from(Arc::new(archive)).unwrap().unwrap().with_verify(verify)
}

/// Returns pages as a VM would see them, and an archive that lies about one of them.
fn lying() -> (Vec<Page>, Vec<u8>) {
    let mut pages = pages(3000);
    let (archive, lie) = lying_archive(&mut pages, LIE - 1);
    let read = opened(archive.clone(), Verify::Touched).read_page(LIE as u64).unwrap();
    assert!(read == lie && lie != pages[LIE], "the page alone is in order");
    assert!(opened(archive.clone(), Verify::Group).read_page(LIE as u64).is_err());
    (pages, archive)
}

/// Restores from an archive that is proven later. Returns the numbers of restored pages in the notices of failed proofs as well.
fn serve(pages: &[Page], archive: Arc<HeldProofs>, options: RestoreOptions) -> (Setup, Receiver<u64>) {
    let (sender, restored) = channel();
    let sender = Mutex::new(sender);
    let archive = Archive::read_from(archive).unwrap().unwrap().with_verify(Verify::Touched);
    let restore = LazyRestore::new(archive, options).on_notice(move |notice| {
        if let Notice::Disproven { restored, pages, .. } = notice {
            assert!(pages.start % 1024 == 0);
            sender.lock().unwrap().send(restored).unwrap();
        }
    });
    (Setup::with(pages, restore), restored)
}

#[test]
fn what_is_proven_later_is_what_is_proven_before() {
    if !is_allowed() {
        return;
    }
    let pages = pages(5000);
    for options in [on_demand(), RestoreOptions::default().with_background_fill(false), RestoreOptions::default()] {
        for verify in [Verify::Group, Verify::Touched] {
            let source = Arc::new(opened(archive_of(&pages), verify));
            let setup = Setup::with(&pages, LazyRestore::new(Arc::clone(&source), options));
            for order in ["random 300 1", "all"] {
                let mut vmm = setup.vmm();
                vmm.must(order);
                vmm.must("all");
                vmm.end();
                let report = setup.report().unwrap();
                assert!(!source.is_proof_due() && source.disproven().is_empty());
                assert_eq!((report.poisoned, report.disproven_pages, report.unproven), (0, 0, false));
                let touches = report.latencies.first.faults() + report.latencies.later.faults();
                assert_eq!(touches, report.faults);
                assert!(report.latencies.first.faults() <= 5);
            }
        }
    }
}

#[test]
fn a_vm_with_a_page_that_fails_its_proof_is_ended() {
    if !is_allowed() {
        return;
    }
    let (pages, archive) = lying();
    for fill in [false, true] {
        let archive = HeldProofs::new(archive.clone());
        let options = RestoreOptions::default().with_background_fill(fill).with_around_bytes(0);
        let (setup, restored) = serve(&pages, Arc::clone(&archive), options);
        let mut vmm = setup.vmm();
        vmm.must(&format!("touch {LIE}"));
        archive.release();
        assert_eq!(vmm.signal(), SIGKILL);
        assert_eq!(restored.recv(), Ok(1));
        assert!(matches!(setup.report(), Err(Error::Disproven { restored: 1, .. })));
    }
}

#[test]
fn a_vm_goes_on_if_asked_for_and_its_missing_pages_are_poisoned() {
    if !is_allowed() {
        return;
    }
    let (pages, archive) = lying();
    let archive = HeldProofs::new(archive);
    let options = on_demand().with_on_disproof(OnDisproof::GoOn);
    let (setup, restored) = serve(&pages, Arc::clone(&archive), options);
    let mut vmm = setup.vmm();
    vmm.must("verify 1100 1110");
    vmm.must(&format!("touch {LIE}"));
    archive.release();
    assert_eq!(restored.recv(), Ok(11));
    // A group before it is in order.
    vmm.must("verify 0 1024");
    vmm.must("verify 1100 1110");
    assert_eq!(vmm.ask("touch 1300"), None);
    assert_eq!(vmm.signal(), SIGBUS);
    let report = setup.report().unwrap();
    assert!(!report.complete && report.poisoned >= 1024 - 11, "{report:?}");
    assert_eq!((report.disproven_pages, report.unproven), (11, false));
}

#[test]
fn a_vm_without_a_page_of_the_group_goes_on() {
    if !is_allowed() {
        return;
    }
    let (pages, archive) = lying();
    let archive = HeldProofs::new(archive);
    let (setup, restored) = serve(&pages, Arc::clone(&archive), on_demand());
    let mut vmm = setup.vmm();
    vmm.must("verify 0 10");
    let mut other = setup.vmm();
    other.must(&format!("touch {LIE}"));
    archive.release();
    assert_eq!(other.signal(), SIGKILL);
    assert!(setup.report().is_err());
    // Both handlers tell, in any order.
    let mut told = [restored.recv().unwrap(), restored.recv().unwrap()];
    told.sort_unstable();
    assert_eq!(told, [0, 1]);
    vmm.must("verify 0 1024");
    assert_eq!(vmm.ask("touch 1024"), None);
    assert_eq!(vmm.signal(), SIGBUS);
    let report = setup.report().unwrap();
    assert!(report.disproven_pages == 0 && report.poisoned > 1000, "{report:?}");
    // A later one finds the group disproven from the start.
    let mut vmm = setup.vmm();
    vmm.must("verify 0 1024");
    assert_eq!(vmm.ask(&format!("touch {LIE}")), None);
    assert_eq!(vmm.signal(), SIGBUS);
    assert_eq!(setup.report().unwrap().disproven_pages, 0);
}

#[test]
fn touching_a_group_that_is_disproven_ends_the_vm_if_asked_for() {
    if !is_allowed() {
        return;
    }
    let (pages, archive) = lying();
    let source = Arc::new(opened(archive, Verify::Touched));
    let _ = source.read_page(LIE as u64).unwrap();
    while !matches!(source.prove_next(), Ok(false)) {}
    let options = on_demand().with_on_damage(OnDamage::Kill);
    let setup = Setup::with(&pages, LazyRestore::new(source, options));
    let mut vmm = setup.vmm();
    vmm.must("verify 0 1024");
    assert_eq!(vmm.ask("touch 1024"), None);
    assert_eq!(vmm.signal(), SIGKILL);
    assert!(matches!(setup.report(), Err(Error::Damaged { page: 1024, .. })));
}

#[test]
fn pages_whose_proof_cannot_be_read_are_treated_as_disproven() {
    if !is_allowed() {
        return;
    }
    let pages = pages(3000);
    for on_disproof in [OnDisproof::End, OnDisproof::GoOn] {
        let file = HeldProofs::failing(archive_of(&pages));
        let archive = Archive::read_from(file).unwrap().unwrap().with_verify(Verify::Touched);
        let options = on_demand().with_on_disproof(on_disproof).with_proof_patience(std::time::Duration::ZERO);
        let (sender, unproven) = channel();
        let restore = LazyRestore::new(archive, options).on_notice(move |notice| {
            if matches!(notice, Notice::Unproven { .. }) {
                let _ = sender.send(());
            }
        });
        let setup = Setup::with(&pages, restore);
        let mut vmm = setup.vmm();
        let _ = vmm.ask("touch 7");
        if on_disproof == OnDisproof::End {
            assert_eq!(vmm.signal(), SIGKILL);
            assert!(matches!(setup.report(), Err(Error::Unproven { .. })));
            continue;
        }
        unproven.recv().unwrap();
        vmm.must("all");
        vmm.end();
        let report = setup.report().unwrap();
        assert!(report.unproven && report.disproven_pages == 0, "{report:?}");
    }
}

#[test]
fn proofs_read_nothing_while_a_list_of_touches_is_served() {
    if !is_allowed() {
        return;
    }
    /// A source that counts proofs, of which one is due as long as no proof was made.
    struct Proving<P> {
        pages: P,
        proofs: Mutex<u64>,
    }
    impl<P: Pages> Pages for Proving<P> {
        fn len_bytes(&self) -> u64 {
            self.pages.len_bytes()
        }

        fn read(&self, first: u64, out: &mut [Page]) -> Result<(), trueno_zram_archive::Error> {
            self.pages.read(first, out)
        }

        fn is_zero(&self, page: u64) -> Result<bool, trueno_zram_archive::Error> {
            self.pages.is_zero(page)
        }

        fn is_proof_due(&self) -> bool {
            *self.proofs.lock().unwrap() == 0
        }

        fn prove_next(&self) -> Result<bool, trueno_zram_archive::Error> {
            *self.proofs.lock().unwrap() += 1;
            Ok(true)
        }
    }
    let pages = pages(3000);
    let (release, held) = channel::<()>();
    let held = Mutex::new(held);
    // The window of the list that is last cannot be read until it is released.
    let source = Hooked::new(&pages, move |read| {
        if read.start == 2048 && read.end == 2064 {
            let _ = held.lock().unwrap().recv();
        }
        true
    });
    let source = Arc::new(Proving { pages: source, proofs: Mutex::new(0) });
    let touches = Touches::read("trueno-zram touches 1\n0\n1600\n2048\n".as_bytes()).unwrap();
    let (sender, complete) = channel();
    let restore =
        LazyRestore::new(Arc::clone(&source), RestoreOptions::default()).prefetch(touches).on_notice(move |notice| {
            if matches!(notice, Notice::Complete) {
                let _ = sender.send(());
            }
        });
    let setup = Setup::with(&pages, restore);
    let mut vmm = setup.vmm();
    // Touched while the list is served: proofs are due.
    vmm.must("verify 100 110");
    vmm.must("verify 1100 1110");
    assert_eq!(*source.proofs.lock().unwrap(), 0);
    drop(release);
    complete.recv().unwrap();
    assert_eq!(*source.proofs.lock().unwrap(), 1, "it is complete once all is proven");
    vmm.must("all");
    vmm.end();
    assert!(setup.report().unwrap().complete);
}
