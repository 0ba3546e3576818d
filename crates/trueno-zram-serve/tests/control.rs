//! The control socket.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;

use trueno_test_pages::corpus;
use trueno_zram_core::Algorithm;
use trueno_zram_serve::control::{ControlClient, ControlError, ControlServer, ServedStore};
use trueno_zram_store::{Store, StoreHandle, StoreOptions};

const SIZE: u64 = 4 << 20;

fn filled() -> Arc<Store> {
    let store = Arc::new(Store::create(&StoreOptions::new(SIZE)).unwrap());
    let mut handle = StoreHandle::new(&store).unwrap();
    for (page, content) in (0..500).zip(corpus::all_pages()) {
        handle.write_page(page * 2, content).unwrap();
    }
    store
}

fn content(store: &Arc<Store>) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(SIZE).unwrap()];
    StoreHandle::new(store).unwrap().read_at(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn stores_are_shown_saved_and_loaded_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control");
    let (first, second) = (filled(), Arc::new(Store::create(&StoreOptions::new(SIZE)).unwrap()));
    let stores = vec![ServedStore::new("first", Arc::clone(&first)), ServedStore::new("second", Arc::clone(&second))];
    let server = ControlServer::start(&path, stores).unwrap();
    let connect = || ControlClient::connect(&path).unwrap();

    let exports = connect().stat().unwrap();
    assert_eq!(exports.iter().map(|export| &export.name[..]).collect::<Vec<_>>(), ["first", "second"]);
    assert_eq!(exports[0].stats, first.stats());
    assert_eq!(exports[0].algorithm, "lz4");

    let mut archive = Vec::new();
    for algorithm in [Algorithm::Zstd { level: 5 }, Algorithm::None, Algorithm::Lz4] {
        StoreHandle::new(&second).unwrap().discard(0, SIZE).unwrap();
        archive.clear();
        assert_eq!(connect().save("first", algorithm, &mut archive).unwrap(), SIZE);
        assert_eq!(connect().load("second", &mut &archive[..]).unwrap(), SIZE);
        assert!(content(&second) == content(&first));
    }

    // Refusals say why, and the server goes on.
    assert!(matches!(connect().save("third", Algorithm::Lz4, &mut Vec::new()), Err(ControlError::Server(_))));
    let cut = &archive[..archive.len() / 3];
    assert!(matches!(connect().load("second", &mut &cut[..]), Err(ControlError::Server(_))));
    assert!(matches!(connect().load("second", &mut &b"no archive"[..]), Err(ControlError::Server(_))));
    assert_eq!(connect().stat().unwrap().len(), 2);
    drop(server);
    assert!(ControlClient::connect(&path).is_err());
}
