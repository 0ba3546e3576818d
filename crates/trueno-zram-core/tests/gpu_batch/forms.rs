//! Round trips in every form, through rings of every shape, all with the same bytes.

use trueno_gpu::kernels::lz4::Mode;
use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
use trueno_zram_core::{Algorithm, CompressedPage, CpuBatchCompressor, Page, PageKind};

use crate::harness::{
    Form, Memory, assert_no_fallback, assert_restored, assert_same, batch, check_batch, check_values, compressor,
    config, in_mode, lock_device, zstd_config,
};

/// Compresses and restores pages in every form. All must hold them in the bytes that `compress_batch` gives.
fn round_trips(compressor: &mut GpuBatchCompressor, pages: &[Page], what: &str) -> Vec<CompressedPage> {
    let mut memory = Memory::new(compressor, pages.len());
    let result = compressor.compress_batch(pages).unwrap();
    check_values(&result.pages, pages);
    let restored = compressor.decompress_batch(&result.pages).unwrap();
    assert_restored(&restored.pages, pages, what);
    for form in Form::ALL {
        let what = format!("{what}, {form:?}");
        memory.compress(compressor, form, pages);
        check_batch(&memory.batch, pages);
        assert_same(&memory.batch, &result.pages, &what);
        memory.restore(compressor, form).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_restored(&memory.restored, pages, &what);
    }
    assert_no_fallback(compressor);
    result.pages
}

#[test]
#[ignore = "needs a GPU"]
fn every_form_through_every_ring_gives_the_same_bytes() {
    let _device = lock_device();
    let pages = batch(3000);
    for mode in [Mode::Fast, Mode::Ratio] {
        let mut first: Option<Vec<CompressedPage>> = None;
        // The largest first: the others must give the same bytes.
        for batch_size in [4096, 1000, 3, 1] {
            // A launch per page, or per three pages, is slow, so fewer pages must do.
            let pages = if batch_size < 10 { &pages[..250] } else { &pages[..] };
            for ring_buffer_slots in 1..=4 {
                for async_dma in [true, false] {
                    let config = GpuBatchConfig { async_dma, ..config(batch_size, ring_buffer_slots) };
                    let what = format!("{mode:?}, {batch_size} pages, {ring_buffer_slots} slots, async {async_dma}");
                    let made = round_trips(&mut compressor(config, &in_mode(mode)), pages, &what);
                    let first = first.get_or_insert_with(|| made.clone());
                    assert!(made[..] == first[..made.len()], "{what}: the bytes differ from the first ring's");
                }
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn zstandard_in_every_form_through_several_rings_gives_the_same_bytes() {
    let _device = lock_device();
    let pages = batch(3000);
    for mode in [Mode::Fast, Mode::Ratio] {
        let mut first: Option<Vec<CompressedPage>> = None;
        for (batch_size, slots, async_dma) in [(4096, 1, true), (1000, 4, true), (700, 2, false), (3, 3, true)] {
            let pages = if batch_size < 10 { &pages[..250] } else { &pages[..] };
            let config = GpuBatchConfig { async_dma, ..zstd_config(batch_size, slots) };
            let what = format!("{mode:?}, {config:?}");
            let made = round_trips(&mut compressor(config, &in_mode(mode)), pages, &what);
            assert!(made.iter().any(|page| page.kind() == PageKind::Zstd), "{what}");
            let first = first.get_or_insert_with(|| made.clone());
            assert!(made[..] == first[..made.len()], "{what}: the bytes differ from the first ring's");
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn zstandard_frames_of_every_level_are_restored_in_every_form() {
    let _device = lock_device();
    let pages = batch(2000);
    let mut compressor = compressor(zstd_config(700, 3), &in_mode(Mode::Fast));
    let mut memory = Memory::new(&compressor, pages.len());
    for level in [-7, -1, 1, 3, 9, 12, 19] {
        memory.batch = CpuBatchCompressor::new(Algorithm::Zstd { level }).unwrap().compress(&pages).unwrap();
        for form in Form::ALL {
            memory.restore(&mut compressor, form).unwrap_or_else(|error| panic!("level {level}, {form:?}: {error}"));
            assert_restored(&memory.restored, &pages, &format!("level {level}, {form:?}"));
        }
    }
    assert_no_fallback(&compressor);
}

#[test]
#[ignore = "needs a GPU"]
fn bytes_match_the_interpreter() {
    let _device = lock_device();
    let pages = batch(300);
    let of_both = [config(128, 2), zstd_config(128, 2)].into_iter();
    for (config, mode) in of_both.flat_map(|config| [Mode::Fast, Mode::Ratio].map(|mode| (config.clone(), mode))) {
        let on_device = compressor(config.clone(), &in_mode(mode)).compress_batch(&pages).unwrap();
        let mut interpreted = GpuBatchCompressor::interpreted(config, &in_mode(mode)).unwrap();
        let expected = interpreted.compress_batch(&pages).unwrap();
        assert_eq!(interpreted.stats().fallback.batches, 0);
        for (i, (made, expected)) in on_device.pages.iter().zip(&expected.pages).enumerate() {
            assert!(made == expected, "{mode:?}: page {i}");
        }
        assert_eq!(on_device.pages.len(), expected.pages.len());
    }
}

#[test]
#[ignore = "needs a GPU"]
fn round_trips_empty_batches_and_partial_slots() {
    let _device = lock_device();
    for config in [config(100, 3), zstd_config(100, 3)] {
        let mut compressor = compressor(config, &in_mode(Mode::Fast));
        for count in [0, 1, 99, 100, 101, 299, 300, 301, 1000] {
            let pages = batch(count);
            round_trips(&mut compressor, &pages, &format!("{count} pages"));
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn larger_buffers_serve_smaller_batches() {
    let _device = lock_device();
    let mut compressor = compressor(config(500, 2), &in_mode(Mode::Fast));
    let mut memory = Memory::new(&compressor, 2000);
    for count in [2000, 7, 1200, 1] {
        let pages = batch(count);
        for form in Form::ALL {
            memory.compress(&mut compressor, form, &pages);
            check_batch(&memory.batch, &pages);
            memory.restore(&mut compressor, form).unwrap();
            assert_restored(&memory.restored, &pages, &format!("{count} pages, {form:?}"));
        }
    }
    assert_no_fallback(&compressor);
}

/// For compute-sanitizer: everything once, on few pages.
#[test]
#[ignore = "needs a GPU"]
fn few_pages_through_the_ring() {
    let _device = lock_device();
    let pages = batch(50);
    for mode in [Mode::Fast, Mode::Ratio] {
        round_trips(&mut compressor(config(16, 3), &in_mode(mode)), &pages, &format!("{mode:?}"));
        round_trips(&mut compressor(zstd_config(16, 3), &in_mode(mode)), &pages, &format!("Zstandard, {mode:?}"));
    }
}
