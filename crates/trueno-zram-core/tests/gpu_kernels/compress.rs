//! The compression kernel on a device: the interpreter's bytes, standard blocks, the same bytes every time.

use std::num::NonZeroUsize;

use rayon::prelude::*;
use trueno_gpu::kernels::Kernel;
use trueno_gpu::kernels::lz4::{Lz4WarpCompressKernel, Mode};
use trueno_gpu::kernels::packed::PageKind;
use trueno_gpu::kernels::zstd::ZstdWarpCompressKernel;
use trueno_test_pages::oracle::assert_decodes;
use trueno_test_pages::{PAGE_SIZE, Page};
use trueno_zram_core::gpu::GpuError;
use trueno_zram_core::gpu::raw::{CompressBuffers, CudaStream, PageCompressor, PageFormat};

use crate::frames::libzstd;
use crate::harness::{Packed, device, few_pages, is_same_filled, many_pages};
use crate::interpreter;

/// Restores every page with decoders from other projects.
fn check(packed: &Packed, pages: &[Page]) {
    assert_eq!(packed.index.len(), pages.len());
    pages.par_iter().enumerate().for_each(|(i, page)| match packed.page(i) {
        (PageKind::SameFilled, word) => assert!(is_same_filled(page) && *word == page[..8], "page {i}"),
        (PageKind::Raw, bytes) => assert!(bytes == page && !is_same_filled(page), "page {i}"),
        (PageKind::Lz4, block) => {
            assert!(block.len() < PAGE_SIZE && !is_same_filled(page), "page {i}");
            assert_decodes(block, page);
        }
        (PageKind::Zstd, frame) => {
            assert!(frame.len() < PAGE_SIZE && !is_same_filled(page), "page {i}");
            assert_eq!(libzstd(frame), Some(*page), "page {i}");
        }
    });
}

fn compress_interpreted(format: PageFormat, mode: Mode, pages: &[Page]) -> Packed {
    let run = match format {
        PageFormat::Lz4 => Lz4WarpCompressKernel::new(1 << 20).with_mode(mode).interpret(pages, |launch| launch),
        PageFormat::Zstd => ZstdWarpCompressKernel::new(1 << 20).with_mode(mode).interpret(pages, |launch| launch),
    };
    let packed = interpreter::Packed::check(run.unwrap_or_else(|fault| panic!("{fault}")));
    Packed { index: packed.index, bytes: packed.bytes }
}

/// Returns pages for a batch of any size: all kinds mixed, no two neighbours equal.
fn batch(count: usize) -> Vec<Page> {
    let pages = many_pages();
    (0..count).map(|i| pages[i * 7919 % pages.len()]).collect()
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_shape_gives_the_interpreters_bytes_and_index() {
    let device = device();
    // Zstandard takes the interpreter ten times as long.
    for (format, pages) in [(PageFormat::Lz4, many_pages()), (PageFormat::Zstd, few_pages())] {
        let expected = [Mode::Fast, Mode::Ratio].map(|mode| (mode, compress_interpreted(format, mode, &pages)));
        for (name, mode, mut compressor) in device.compressors(format) {
            let packed = device.compress(&mut compressor, &pages);
            let (_, expected) = expected.iter().find(|(of, _)| *of == mode).unwrap();
            for i in 0..pages.len() {
                assert!(packed.page(i) == expected.page(i), "{name}: page {i}");
            }
            assert!(packed == *expected, "{name}: the bytes between the pages");
            check(&packed, &pages);
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn round_trips_batches_of_any_size() {
    let device = device();
    let of_both = PageFormat::ALL.into_iter().flat_map(|format| device.compressors(format));
    for (name, _, mut compressor) in of_both {
        for count in [0, 1, 31, 33, 1000, 20_000] {
            let pages = batch(count);
            println!("{name}: {count} pages");
            check(&device.compress(&mut compressor, &pages), &pages);
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn twenty_runs_give_the_same_bytes() {
    let (device, pages) = (device(), batch(20_000));
    let of_both = PageFormat::ALL.into_iter().flat_map(|format| [Mode::Fast, Mode::Ratio].map(|mode| (format, mode)));
    for (format, mode) in of_both {
        let mut compressor = PageCompressor::new(&device.context, format, mode).unwrap();
        let first = device.compress(&mut compressor, &pages);
        for run in 1..20 {
            assert!(device.compress(&mut compressor, &pages) == first, "{format:?} {mode:?}: run {run}");
        }
    }
}

/// Launches of one compressor in several streams share its scratch memory, so they must not overlap, or each has its own.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn streams_can_share_a_compressor() {
    for format in PageFormat::ALL {
        (1..=3).for_each(|concurrent| streams_share_a_compressor(format, concurrent));
    }
}

fn streams_share_a_compressor(format: PageFormat, concurrent: usize) {
    let (device, pages) = (device(), batch(3000));
    let mut compressor = PageCompressor::new(&device.context, format, Mode::Fast).unwrap();
    let scratch_bytes = compressor.scratch_bytes();
    compressor.allow_concurrent(NonZeroUsize::new(concurrent).unwrap()).unwrap();
    assert_eq!(compressor.scratch_bytes(), concurrent * scratch_bytes);
    let expected = device.compress(&mut compressor, &pages);
    let input = device.upload(pages.as_flattened());
    let results = [(); 8].map(|()| (device.buffer(pages.len() * PAGE_SIZE), device.buffer(pages.len() * 8)));
    // One stream more: launches in different streams also use the same scratch memory, one after the other.
    let streams: Vec<_> = (0..=concurrent).map(|_| CudaStream::new(&device.context).unwrap()).collect();
    for ((output, index), stream) in results.iter().zip(streams.iter().cycle()) {
        let buffers = CompressBuffers { input: &input, output, index, pages: u32::try_from(pages.len()).unwrap() };
        // SAFETY: each launch has an index of its own.
        unsafe { compressor.compress(stream, buffers, None) }.unwrap();
    }
    device.context.synchronize().unwrap();
    for (output, index) in &results {
        let words: Vec<u8> = expected.index.iter().flat_map(|entry| entry.bits().to_le_bytes()).collect();
        assert!(device.download(index) == words);
        assert!(device.download(output)[..expected.bytes.len()] == expected.bytes);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn rejects_short_buffers() {
    let device = device();
    let mut compressor = PageCompressor::new(&device.context, PageFormat::Zstd, Mode::Fast).unwrap();
    let (page, entry, short) = (device.buffer(8192), device.buffer(16), device.buffer(15));
    for (input, output, index, what) in
        [(&short, &page, &entry, "input"), (&page, &short, &entry, "output"), (&page, &page, &short, "index")]
    {
        // SAFETY: no launch takes place.
        let refused =
            unsafe { compressor.compress(&device.stream, CompressBuffers { input, output, index, pages: 2 }, None) };
        assert!(matches!(refused, Err(GpuError::ShortBuffer { what: named, .. }) if named == what), "{refused:?}");
    }
    let many = CompressBuffers { input: &page, output: &page, index: &entry, pages: u32::MAX };
    // SAFETY: no launch takes place.
    let refused = unsafe { compressor.compress(&device.stream, many, None) };
    assert!(matches!(refused, Err(GpuError::OutOfRange { .. })), "{refused:?}");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn driver_compiler_stays_within_the_budget() {
    let device = device();
    let of_both = PageFormat::ALL.into_iter().flat_map(|format| device.compressors(format));
    for (name, _, compressor) in of_both {
        let budget = match compressor.format() {
            PageFormat::Lz4 => Lz4WarpCompressKernel::new(1).budget(),
            PageFormat::Zstd => ZstdWarpCompressKernel::new(1).budget(),
        };
        let (loaded, made) = (compressor.loaded(), compressor.loaded().attributes().unwrap());
        println!("{name}: {made:?}, {} blocks per SM", loaded.blocks_per_multiprocessor());
        assert!(made.local_bytes == 0 && made.registers <= budget.registers, "{name}");
    }
}

/// For compute-sanitizer: everything once, on few pages.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn few_pages_in_every_shape() {
    let (device, pages) = (device(), few_pages());
    let of_both = PageFormat::ALL.into_iter().flat_map(|format| device.compressors(format));
    for (name, _, mut compressor) in of_both {
        println!("{name}: {} pages", pages.len());
        check(&device.compress(&mut compressor, &pages), &pages);
    }
}
