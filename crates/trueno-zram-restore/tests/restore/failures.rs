//! VMs whose pages are damaged, whose handler fails, or that ends itself.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

use trueno_test_pages::corpus::numbered_pages as pages;
use trueno_test_pages::generate::Generator;
use trueno_test_restore::archive_of;
use trueno_test_restore::scheduling::stay_on_one_core;
use trueno_test_restore::stand_in::{SIGBUS, SIGKILL};
use trueno_test_restore::vmm::{self, GuestPages, is_allowed};
use trueno_zram_archive::Archive;
use trueno_zram_core::Page;
use trueno_zram_io::MappedFile;
use trueno_zram_restore::{Error, Image, LazyRestore, OnDamage, RestoreOptions};

use crate::support::{Hooked, Setup, damaged, on_demand};

#[test]
fn a_damaged_page_is_poisoned_and_all_others_are_right() {
    if !is_allowed() {
        return;
    }
    let pages = pages(200);
    for options in [on_demand(), RestoreOptions::default()] {
        let source = damaged(&pages, 77);
        let setup = Setup::with(&pages, LazyRestore::new(source, options));
        let mut vmm = setup.vmm();
        vmm.must("verify 0 77");
        vmm.must("verify 78 200");
        assert_eq!(vmm.ask("touch 77"), None);
        assert_eq!(vmm.signal(), SIGBUS);
        let report = setup.report().unwrap();
        assert!(report.poisoned == 1 && !report.complete, "{report:?}");
    }
}

#[test]
fn a_damaged_page_ends_the_vm_if_asked_for() {
    if !is_allowed() {
        return;
    }
    let pages = pages(200);
    for options in [on_demand(), RestoreOptions::default()] {
        let source = damaged(&pages, 77);
        let options = options.with_on_damage(OnDamage::Kill);
        let setup = Setup::with(&pages, LazyRestore::new(source, options));
        let mut vmm = setup.vmm();
        vmm.must("verify 78 200");
        assert_eq!(vmm.ask("touch 77"), None);
        assert_eq!(vmm.signal(), SIGKILL);
        assert!(matches!(setup.report(), Err(Error::Damaged { page: 77, .. })));
    }
}

#[test]
fn a_vm_that_is_ended_never_sees_zeros() {
    if !is_allowed() {
        return;
    }
    // The VM goes on before the handler does, the moment that its page is there or nobody is to fill it any more.
    stay_on_one_core();
    let pages = pages(200);
    for _ in 0..4 {
        let source = damaged(&pages, 77);
        let options = on_demand().with_on_damage(OnDamage::Kill);
        let setup = Setup::with(&pages, LazyRestore::new(source, options));
        let mut vmm = setup.vmm();
        vmm.must("close");
        vmm.must("come_first");
        vmm.must("verify 0 77");
        assert_eq!(vmm.ask("touch 77"), None);
        assert_eq!(vmm.signal(), SIGKILL);
        assert!(matches!(setup.report(), Err(Error::Damaged { page: 77, .. })));
    }
}

#[test]
fn removing_a_damaged_page_makes_it_zeros() {
    if !is_allowed() {
        return;
    }
    let pages = pages(200);
    let source = damaged(&pages, 77);
    let setup = Setup::with(&pages, LazyRestore::new(source, RestoreOptions::default()));
    let mut vmm = setup.vmm();
    vmm.must("remove 77 1");
    vmm.must("all");
    vmm.end();
    assert_eq!(setup.report().unwrap().poisoned, 0);
}

#[test]
fn no_damage_to_an_archive_shows_a_vm_wrong_bytes() {
    if !is_allowed() {
        return;
    }
    let pages = pages(96);
    let intact = archive_of(&pages);
    let mut random = Generator::new(16);
    let mut ended = 0;
    for round in 0..24 {
        let mut bytes = intact.clone();
        let at = random.below(bytes.len());
        bytes[at] ^= 1 << random.below(8);
        let Ok(Some(reader)) = Archive::read_from(Arc::new(bytes)) else { continue };
        let options = if round % 2 == 0 { on_demand() } else { RestoreOptions::default() };
        let setup = Setup::with(&pages, LazyRestore::new(reader, options));
        let mut vmm = setup.vmm();
        match vmm.ask("all") {
            Some(answer) => {
                assert_eq!(answer, "ok", "bit at {at}");
                vmm.end();
            }
            None => {
                ended += 1;
                assert_eq!(vmm.signal(), SIGBUS, "bit at {at}");
            }
        }
        setup.report().unwrap();
    }
    assert!(ended > 0, "no bit mattered");
}

/// An archive in a file that is mapped, and the file to change.
fn mapped_archive(pages: &[Page]) -> (Archive, File) {
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(&archive_of(pages), 0).unwrap();
    let mapped = MappedFile::new(file.try_clone().unwrap());
    assert!(mapped.is_mapped());
    (Archive::read_from(Arc::new(mapped)).unwrap().unwrap(), file)
}

#[test]
fn a_mapped_archive_that_changes_shows_a_vm_no_wrong_bytes() {
    if !is_allowed() {
        return;
    }
    let pages = pages(3000);
    let damage = |file: &File, len: u64| file.write_all_at(&[0xa5; 9000], len / 6).unwrap();
    let cut = |file: &File, len: u64| file.set_len(len / 6).unwrap();
    for (change, others) in [(&damage as &dyn Fn(&File, u64), "verify 1024 3000"), (&cut, "verify 0 100")] {
        let (reader, file) = mapped_archive(&pages);
        let setup = Setup::with(&pages, LazyRestore::new(reader, on_demand()));
        let mut vmm = setup.vmm();
        // The groups of these pages are known from here on.
        vmm.must("verify 0 10");
        vmm.must("verify 1030 1040");
        change(&file, file.metadata().unwrap().len());
        vmm.must(others);
        assert_eq!(vmm.ask("all"), None);
        assert_eq!(vmm.signal(), SIGBUS);
        assert_eq!(setup.report().unwrap().poisoned, 1);
        // The handler serves the next one what is left.
        let mut vmm = setup.vmm();
        vmm.must(others);
        vmm.end();
        setup.report().unwrap();
    }
}

#[test]
fn a_mapped_archive_that_is_cut_during_the_background_fill_shows_a_vm_no_wrong_bytes() {
    if !is_allowed() {
        return;
    }
    let pages = pages(9000);
    for round in 0..8 {
        let (reader, file) = mapped_archive(&pages);
        let setup = Setup::with(&pages, LazyRestore::new(reader, RestoreOptions::default()));
        let mut vmm = setup.vmm();
        vmm.must("verify 0 10");
        file.set_len(file.metadata().unwrap().len() * round / 8).unwrap();
        match vmm.ask("all") {
            Some(answer) => {
                assert_eq!(answer, "ok", "cut to {round} of 8");
                vmm.end();
            }
            None => assert_eq!(vmm.signal(), SIGBUS, "cut to {round} of 8"),
        }
        setup.report().unwrap();
    }
}

#[test]
fn a_handler_that_panics_ends_its_vm() {
    if !is_allowed() {
        return;
    }
    let pages = pages(100);
    // In the handler, and in a worker of the fill.
    for options in [on_demand(), RestoreOptions::default().with_around_bytes(0)] {
        let source = Hooked::new(&pages, |read| {
            assert!(!read.contains(&50), "of the test");
            true
        });
        let setup = Setup::with(&pages, LazyRestore::new(source, options));
        let mut vmm = setup.vmm();
        let _ = vmm.ask("all");
        assert_eq!(vmm.signal(), SIGKILL);
    }
}

#[test]
fn a_handler_that_shuts_down_ends_its_vms_and_takes_no_more() {
    if !is_allowed() {
        return;
    }
    let pages = pages(100);
    let restore = Arc::new(LazyRestore::new(Image::new(pages.clone()), on_demand()));
    let setup = Setup::with_shared(&pages, Arc::clone(&restore));
    let mut vmm = setup.vmm();
    vmm.must("verify 0 50");
    restore.end_all();
    assert_eq!(vmm.signal(), SIGKILL);
    setup.report().unwrap();
    assert!(UnixStream::connect(setup.socket()).is_err());
    // One that has connected elsewhere.
    let elsewhere = setup.dir.path().join("elsewhere");
    let listener = UnixListener::bind(&elsewhere).unwrap();
    let mut vmm = vmm::start(&elsewhere, &setup.image(), GuestPages::Small, &[]);
    vmm.must("close");
    assert!(matches!(restore.serve(&listener.accept().unwrap().0), Err(Error::ShuttingDown)));
    assert_eq!(vmm.signal(), SIGKILL);
}

#[test]
fn a_vm_that_is_killed_ends_its_session() {
    if !is_allowed() {
        return;
    }
    for options in [on_demand(), RestoreOptions::default()] {
        let setup = Setup::new(&pages(4000), options);
        let mut vmm = setup.vmm();
        vmm.must("verify 0 10");
        vmm.kill();
        assert_eq!(vmm.signal(), SIGKILL);
        setup.report().unwrap();
        // The handler serves the next one.
        let mut vmm = setup.vmm();
        vmm.must("all");
        vmm.end();
        setup.report().unwrap();
    }
}
