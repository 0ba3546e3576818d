//! Memory that is touched in every way has the content that was saved, or zeros after it was removed.

use std::fs;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use trueno_test_pages::corpus::numbered_pages as pages;
use trueno_test_restore::archive_of;
use trueno_test_restore::vmm::{GuestPages, is_allowed};
use trueno_zram_archive::Archive;
use trueno_zram_core::PAGE_SIZE;
use trueno_zram_restore::{Image, LazyRestore, Notice, Pages, RestoreOptions, Touches};

use crate::support::{Hooked, Setup, on_demand};

#[test]
fn every_page_is_right_in_whatever_order_it_is_touched() {
    if !is_allowed() {
        return;
    }
    let pages = pages(3000);
    let around = RestoreOptions::default().with_background_fill(false);
    for options in [on_demand(), around, RestoreOptions::default()] {
        let setup = Setup::new(&pages, options);
        for order in ["all", "backwards", "random 6000 1"] {
            let mut vmm = setup.vmm();
            vmm.must(order);
            vmm.must("all");
            vmm.end();
            let report = setup.report().unwrap();
            assert_eq!(report.memory_bytes, 3000 * 4096);
            assert_eq!(report.copied_bytes + report.zero_bytes, 3000 * 4096);
        }
    }
}

#[test]
fn zero_pages_are_mapped_and_not_copied() {
    if !is_allowed() {
        return;
    }
    let pages = pages(800);
    let setup = Setup::new(&pages, on_demand());
    let mut vmm = setup.vmm();
    vmm.must("all");
    vmm.end();
    let report = setup.report().unwrap();
    assert_eq!((report.faults, report.zero_bytes, report.copied_bytes), (800, 200 * 4096, 600 * 4096));
}

#[test]
fn removed_pages_come_back_as_zeros() {
    if !is_allowed() {
        return;
    }
    for options in [on_demand(), RestoreOptions::default().with_background_fill(false)] {
        let setup = Setup::new(&pages(1000), options);
        let mut vmm = setup.vmm();
        vmm.must("verify 0 400");
        // Some that were touched, and some that never were.
        vmm.must("remove 300 300");
        vmm.must("all");
        vmm.must("remove 350 10");
        vmm.must("backwards");
        vmm.end();
        assert_eq!(setup.report().unwrap().removed_bytes, 300 * 4096);
    }
}

#[test]
fn touching_and_removing_at_once_never_shows_old_content() {
    if !is_allowed() {
        return;
    }
    let setup = Setup::new(&pages(8000), RestoreOptions::default());
    for seed in 0..3 {
        let mut vmm = setup.vmm();
        vmm.must(&format!("storm 12000 {seed}"));
        vmm.must("all");
        vmm.end();
        setup.report().unwrap();
    }
}

#[test]
fn several_vms_are_restored_from_one_archive() {
    if !is_allowed() {
        return;
    }
    let setup = Setup::new(&pages(2000), RestoreOptions::default());
    let mut vmms: Vec<_> = (0..3).map(|_| setup.vmm()).collect();
    vmms[1].must("remove 0 1500");
    for vmm in &mut vmms {
        vmm.must("all");
    }
    vmms.into_iter().for_each(|vmm| vmm.end());
    (0..3).for_each(|_| assert_eq!(setup.report().unwrap().memory_bytes, 2000 * 4096));
}

#[test]
fn a_vm_whose_memory_is_complete_no_longer_needs_the_handler() {
    if !is_allowed() {
        return;
    }
    let pages = pages(2000);
    let (sender, completed) = channel();
    let sender = Mutex::new(sender);
    let restore = LazyRestore::new(Image::new(pages.clone()), RestoreOptions::default()).on_notice(move |notice| {
        if matches!(notice, Notice::Complete) {
            sender.lock().unwrap().send(()).unwrap();
        }
    });
    let restore = Arc::new(restore);
    let setup = Setup::with_shared(&pages, Arc::clone(&restore));
    let mut vmm = setup.vmm();
    completed.recv().unwrap();
    restore.end_all();
    vmm.must("remove 100 200");
    vmm.must("all");
    vmm.end();
    let report = setup.report().unwrap();
    assert!(report.complete);
    assert_eq!((report.faults, report.removed_bytes), (0, 0));
    assert!(completed.try_recv().is_err(), "it was reported once");
}

#[test]
fn recorded_touches_are_restored_first_the_next_time() {
    if !is_allowed() {
        return;
    }
    let pages = pages(512);
    let restore = Arc::new(LazyRestore::new(Image::new(pages.clone()), on_demand()).record());
    let setup = Setup::with_shared(&pages, Arc::clone(&restore));
    let mut vmm = setup.vmm();
    for page in [500, 100, 111, 101, 40, 3] {
        vmm.must(&format!("touch {page}"));
    }
    vmm.end();
    setup.report().unwrap();
    let mut text = Vec::new();
    restore.recorded().unwrap().write(&mut text).unwrap();
    assert_eq!(String::from_utf8(text.clone()).unwrap(), "trueno-zram touches 1\n496\n96\n32\n0\n");

    let order = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&order);
    let source = Hooked::new(&pages, move |read| {
        log.lock().unwrap().extend(read);
        true
    });
    let options = RestoreOptions::default().with_workers(std::num::NonZeroUsize::MIN);
    let touches = Touches::read(&text[..]).unwrap();
    let (sender, complete) = channel();
    let restore = LazyRestore::new(source, options).record().prefetch(touches.clone()).on_notice(move |notice| {
        if matches!(notice, Notice::Complete) {
            let _ = sender.send(());
        }
    });
    let restore = Arc::new(restore);
    let setup = Setup::with_shared(&pages, Arc::clone(&restore));
    let mut vmm = setup.vmm();
    // A page that was read, but is not there yet, would be touched.
    complete.recv().unwrap();
    vmm.must("all");
    vmm.end();
    setup.report().unwrap();
    let order: Vec<u64> = order.lock().unwrap().iter().step_by(16).copied().collect();
    assert_eq!(order[..8], [496, 96, 32, 0, 16, 48, 64, 80]);
    assert_eq!(restore.recorded().unwrap(), touches);
}

#[test]
fn touches_of_another_archive_are_ignored() {
    if !is_allowed() {
        return;
    }
    let pages = pages(64);
    let touches = Touches::read("trueno-zram touches 1\n18446744073709551615\n64\n63\n".as_bytes()).unwrap();
    let restore = LazyRestore::new(Image::new(pages.clone()), RestoreOptions::default()).prefetch(touches).record();
    let setup = Setup::with(&pages, restore);
    let mut vmm = setup.vmm();
    vmm.must("all");
    vmm.end();
    setup.report().unwrap();
}

#[test]
fn huge_pages_are_restored_removed_and_zeroed() {
    let free = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = free.lines().find_map(|line| line.strip_prefix("HugePages_Free:")).map(|free| free.trim().parse());
    if !is_allowed() || !matches!(free, Some(Ok(8u64..))) {
        println!("skipped: needs 8 free huge pages of 2 MiB (sysctl vm.nr_hugepages=8)");
        return;
    }
    let pages = pages(8 * 512);
    for options in [on_demand(), RestoreOptions::default()] {
        let setup = Setup::new(&pages, options);
        let mut vmm = setup.vmm_with(GuestPages::Huge);
        vmm.must("verify 0 1024");
        vmm.must("remove 512 1024");
        vmm.must("all");
        vmm.end();
        let report = setup.report().unwrap();
        assert_eq!((report.removed_bytes, report.zero_bytes), (2 << 21, 0));
    }
}

#[test]
#[ignore = "takes a minute and a gigabyte"]
fn two_hundred_thousand_random_faults_are_right() {
    if !is_allowed() {
        return;
    }
    let pages = pages(65_536);
    let reader = Archive::read_from(Arc::new(archive_of(&pages))).unwrap().unwrap();
    assert_eq!(reader.len_bytes(), (65_536 * PAGE_SIZE) as u64);
    let setup = Setup::with(&pages, LazyRestore::new(reader, on_demand()));
    let mut faults = 0;
    for seed in 0..4 {
        let mut vmm = setup.vmm();
        vmm.must(&format!("random 160000 {seed}"));
        vmm.must(&format!("storm 50000 {seed}"));
        vmm.end();
        faults += setup.report().unwrap().faults;
    }
    assert!(faults >= 200_000, "{faults}");
}
