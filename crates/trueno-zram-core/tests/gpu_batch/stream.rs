//! Streams of page-locked slots through a real GPU.

use std::thread;

use trueno_gpu::kernels::lz4::Mode;
use trueno_zram_core::CompressedBatch;
use trueno_zram_core::gpu::{GpuBatchConfig, PageStream};

use crate::harness::{
    assert_no_fallback, assert_restored, batch, check_batch, compressor, config, in_mode, lock_device, zstd_config,
};

#[test]
#[ignore = "needs a GPU"]
fn pages_stream_through_page_locked_slots_and_back() {
    let _device = lock_device();
    for config in [config(1024, 3), zstd_config(1024, 3)] {
        pages_stream_through_a_ring_and_back(config);
    }
}

fn pages_stream_through_a_ring_and_back(config: GpuBatchConfig) {
    let pages = batch(70_000);
    let mut compressor = compressor(config, &in_mode(Mode::Fast));
    for _ in 0..3 {
        let mut held = CompressedBatch::new();
        let stream = compressor.compress_stream().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                for part in pages.chunks(1000) {
                    let mut slot = stream.slot().unwrap();
                    slot.set_len(part.len());
                    slot.pages_mut().copy_from_slice(part);
                    stream.submit(slot, ()).unwrap();
                }
                stream.close();
            });
            while let Some((compressed, ())) = stream.next().unwrap() {
                compressed.iter().for_each(|page| held.push(page));
            }
        });
        drop(stream);
        check_batch(&held, &pages);
        let mut restored = Vec::with_capacity(pages.len());
        let stream = compressor.decompress_stream().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut rest = held.iter().peekable();
                while rest.peek().is_some() {
                    let mut slot = stream.slot().unwrap();
                    rest.by_ref().take(1024).for_each(|page| slot.push(page).unwrap());
                    stream.submit(slot, ()).unwrap();
                }
                stream.close();
            });
            while let Some((slot, ())) = stream.next().unwrap() {
                slot.check().unwrap();
                restored.extend_from_slice(slot.pages());
            }
        });
        drop(stream);
        assert_restored(&restored, &pages, "streamed");
    }
    assert_no_fallback(&compressor);
}

#[test]
#[ignore = "needs a GPU"]
fn a_stream_dropped_half_way_leaves_the_compressor_usable() {
    let _device = lock_device();
    let pages = batch(5000);
    let mut compressor = compressor(config(512, 4), &in_mode(Mode::Fast));
    for in_flight in 0..8 {
        let stream = compressor.compress_stream().unwrap();
        for part in pages.chunks(512).take(in_flight) {
            let mut slot = stream.slot().unwrap();
            slot.set_len(part.len());
            slot.pages_mut().copy_from_slice(part);
            stream.submit(slot, ()).unwrap();
        }
        drop(stream);
        let mut held = CompressedBatch::new();
        compressor.compress_into(&pages, &mut held, &()).unwrap();
        check_batch(&held, &pages);
    }
    assert_no_fallback(&compressor);
}
