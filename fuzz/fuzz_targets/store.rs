//! Any sequence of requests to a store, against a plain array, with compaction, recompression and attaching in between.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use trueno_zram_core::{Algorithm, CpuBatchCompressor};
use trueno_zram_store::{RecompressOptions, Store, StoreHandle, StoreOptions, ZeroPages};

const SIZE: usize = 64 << 10;

fuzz_target!(|data: &[u8]| {
    let mut store = Arc::new(Store::create(&StoreOptions::new(SIZE as u64)).expect("a small store"));
    let mut handle = StoreHandle::new(&store).expect("LZ4 needs nothing");
    let mut model = vec![0u8; SIZE];
    let (steps, _) = data.as_chunks::<8>();
    for step in steps {
        let offset = usize::from(u16::from_le_bytes([step[1], step[2]]));
        let len = usize::from(u16::from_le_bytes([step[3], step[4]])).min(SIZE - offset);
        let range = offset..offset + len;
        match step[0] % 8 {
            0..3 => {
                // Repeated with a period and a drift: from same-filled to incompressible.
                let fill =
                    |at: usize| step[5].wrapping_add((at / (usize::from(step[6]) + 1)) as u8).wrapping_mul(step[7]);
                range.clone().for_each(|at| model[at] = fill(at));
                handle.write_at(offset as u64, &model[range]).expect("there is room");
            }
            3 => {
                let mut back = vec![0xaa; len];
                handle.read_at(offset as u64, &mut back).expect("all pages are whole");
                assert!(back == model[range]);
            }
            4 => {
                let pages = if step[5] % 2 == 0 { ZeroPages::Discard } else { ZeroPages::Keep };
                handle.write_zeroes(offset as u64, len as u64, pages).expect("there is room");
                model[range].fill(0);
            }
            5 => {
                let (first, end) = (offset.next_multiple_of(4096), (offset + len) / 4096 * 4096);
                handle.discard(offset as u64, len as u64).expect("within the store");
                if first < end {
                    model[first..end].fill(0);
                }
            }
            6 => {
                store.compact().expect("memory can be returned");
                store.tick();
                let mut codec = CpuBatchCompressor::new(Algorithm::Zstd { level: 1 }).expect("a known level");
                let options = RecompressOptions::default().with_min_age(1);
                store.recompress(&mut codec, &options).expect("pages are whole");
            }
            _ => {
                let fds = store.fds().map(|fd| fd.try_clone_to_owned().expect("a descriptor"));
                drop(handle);
                drop(store);
                store = Arc::new(Store::attach(fds).expect("the table is whole"));
                handle = StoreHandle::new(&store).expect("LZ4 needs nothing");
            }
        }
    }
    let mut back = vec![0xaa; SIZE];
    handle.read_at(0, &mut back).expect("all pages are whole");
    assert!(back == model);
});
