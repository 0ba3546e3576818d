//! Corrupt pages: the error is the CPU's, with the page's number, and the other pages are restored.

use trueno_gpu::kernels::lz4::Mode;
use trueno_test_pages::generate::Generator;
use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
use trueno_zram_core::{
    Algorithm, CompressedBatch, CompressedPage, CpuBatchCompressor, Error, Page, PageCodec, PageData, PageKind,
};

use crate::harness::{Form, Memory, assert_no_fallback, batch, compressor, config, in_mode, lock_device, zstd_config};

/// Returns the CPU's result for each page, and its error for the batch.
fn on_the_cpu(held: &CompressedBatch) -> (Vec<Option<Page>>, Error) {
    let mut codec = PageCodec::default();
    let pages = held.iter().map(|data| {
        let mut page = [0; 4096];
        codec.decompress(data, &mut page).ok().map(|()| page)
    });
    let pages = pages.collect();
    let mut restored = vec![[0; 4096]; held.len()];
    let error = CpuBatchCompressor::default().decompress_into(held, &mut restored, &()).unwrap_err();
    (pages, error)
}

/// Restores a batch in every form. Returns the compressor.
fn assert_found(config: GpuBatchConfig, held: CompressedBatch, what: &str) -> GpuBatchCompressor {
    let (expected, expected_error) = on_the_cpu(&held);
    let mut compressor = compressor(config, &in_mode(Mode::Fast));
    let mut memory = Memory::new(&compressor, held.len());
    memory.batch = held;
    for form in Form::ALL {
        let error = memory.restore(&mut compressor, form).unwrap_err();
        assert_eq!(error, expected_error, "{what}, {form:?}");
        if form == Form::Values {
            continue; // This form returns all pages or none.
        }
        for (i, (restored, expected)) in memory.restored.iter().zip(&expected).enumerate() {
            assert!(expected.is_none_or(|expected| *restored == expected), "{what}, {form:?}: page {i}");
        }
    }
    compressor
}

#[test]
#[ignore = "needs a GPU"]
fn damaged_pages_are_reported_and_others_restored() {
    let _device = lock_device();
    let whole = CpuBatchCompressor::default().compress(&batch(2000)).unwrap();
    // An offset of 0 after one literal, and missing literals.
    for (bad, block) in [(0, &[0x10, 7, 0, 0][..]), (1203, &[0x4f, 1, 2]), (1999, &[0xf0, 255, 255])] {
        let mut held = CompressedBatch::new();
        for (i, page) in whole.iter().enumerate() {
            held.push(if i == bad { PageData::new(PageKind::Lz4, block).unwrap() } else { page });
        }
        let (_, error) = on_the_cpu(&held);
        assert!(
            matches!(&error, Error::InPage { index, error } if *index == bad && matches!(**error, Error::CorruptLz4(_)))
        );
        assert_no_fallback(&assert_found(config(700, 3), held, &format!("page {bad}")));
    }
}

#[test]
#[ignore = "needs a GPU"]
fn finds_many_damaged_pages_at_once() {
    let _device = lock_device();
    let whole = CpuBatchCompressor::default().compress(&batch(2000)).unwrap();
    let mut generator = Generator::new(77);
    let mut held = CompressedBatch::new();
    for page in whole.iter() {
        let mut block = page.bytes().to_vec();
        if page.kind() == PageKind::Lz4 && generator.below(3) == 0 {
            generator.corrupt(&mut block);
        }
        // Blocks with an invalid length are left intact.
        held.push(PageData::new(page.kind(), &block).unwrap_or(page));
    }
    assert_no_fallback(&assert_found(config(700, 3), held, "a third of the blocks"));
}

/// libzstd accepts some damaged frames that the kernel refuses, so the CPU may restore pages. They are the CPU's pages.
#[test]
#[ignore = "needs a GPU"]
fn finds_many_damaged_frames_at_once() {
    let _device = lock_device();
    let mut generator = Generator::new(78);
    for level in [1, 3, 19] {
        let mut zstd = CpuBatchCompressor::new(Algorithm::Zstd { level }).unwrap();
        let mut held = CompressedBatch::new();
        for page in zstd.compress(&batch(2000)).unwrap().iter() {
            let mut frame = page.bytes().to_vec();
            if page.kind() == PageKind::Zstd && generator.below(3) == 0 {
                generator.corrupt(&mut frame);
            }
            held.push(PageData::new(page.kind(), &frame).unwrap_or(page));
        }
        let compressor = assert_found(zstd_config(700, 3), held, &format!("a third of the frames, level {level}"));
        assert!(compressor.uses_device());
    }
}

#[test]
#[ignore = "needs a GPU"]
fn cpu_restores_pages_of_the_other_format() {
    let _device = lock_device();
    let pages = batch(1000);
    let mut zstd = CpuBatchCompressor::new(Algorithm::Zstd { level: 1 }).unwrap();
    let (frames, blocks) = (zstd.compress(&pages).unwrap(), CpuBatchCompressor::default().compress(&pages).unwrap());
    for (config, foreign) in [(config(300, 2), PageKind::Zstd), (zstd_config(300, 2), PageKind::Lz4)] {
        let mut compressor = compressor(config, &in_mode(Mode::Fast));
        let mut memory = Memory::new(&compressor, pages.len());
        for (i, (frame, block)) in frames.iter().zip(blocks.iter()).enumerate() {
            memory.batch.push(if i % 3 == 1 { frame } else { block });
        }
        let foreign_pages = memory.batch.iter().filter(|page| page.kind() == foreign).count() as u64;
        assert!(foreign_pages > 0);
        for (done, form) in (1..).zip(Form::ALL) {
            memory.restore(&mut compressor, form).unwrap();
            assert!(memory.restored == pages, "{foreign}, {form:?}");
            let fallback = &compressor.stats().fallback;
            assert_eq!(fallback.unsupported_pages, done * foreign_pages, "{foreign}, {form:?}");
            assert_eq!((fallback.batches, fallback.pages), (0, 0), "{foreign}, {form:?}");
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn rejects_batches_that_do_not_fit_their_destination() {
    let _device = lock_device();
    let mut compressor = compressor(config(10, 1), &in_mode(Mode::Fast));
    let held = CpuBatchCompressor::default().compress(&batch(5)).unwrap();
    let count = |batch_pages, destination_pages| Some(Error::PageCount { batch_pages, destination_pages });
    assert_eq!(compressor.decompress_into(&held, &mut [[0; 4096]; 4], &()).err(), count(5, 4));
    let mut pinned = compressor.pinned_pages(6).unwrap();
    assert_eq!(compressor.decompress_pinned_into(&held, &mut pinned, &()).err(), count(5, 6));
    let (mut four, mut packed) = (compressor.device_pages(4).unwrap(), compressor.packed_on_device(5).unwrap());
    packed.upload(&held).unwrap();
    assert_eq!(compressor.decompress_resident(&packed, &mut four).err(), count(5, 4));
    let six = compressor.device_pages(6).unwrap();
    assert_eq!(compressor.compress_resident(&six, &mut packed).err(), count(6, 5));
    assert_eq!((four.upload(&[[0; 4096]; 5]).err(), four.set_len(5).err()), (count(5, 4), count(5, 4)));
    assert_eq!(four.download(&mut [[0; 4096]; 3]).err(), count(4, 3));
    let page: Vec<CompressedPage> = held.into_pages();
    assert_eq!(compressor.decompress_batch(&page).unwrap().pages, batch(5), "the compressor still works");
}
