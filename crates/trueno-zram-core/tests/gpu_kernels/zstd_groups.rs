//! Batches of Zstandard pages through `PageDecompressor`: small ones by one warp per page, large ones in groups. Every page
//! gets the result that the CPU has for it.

use std::num::NonZeroU32;

use rayon::prelude::*;
use trueno_gpu::Target;
use trueno_gpu::kernels::Kernel;
use trueno_gpu::kernels::packed::{Mode, PageKind, PageStatus};
use trueno_gpu::kernels::zstd::{ZstdGroupDecompressKernel, ZstdWarpDecompressKernel};
use trueno_test_kernels::zstd_restore::{RestoreError, restore};
use trueno_test_pages::{PAGE_SIZE, Page, generate::Generator};
use trueno_zram_core::gpu::raw::{CudaStream, DecompressBuffers, PageCompressor, PageDecompressor, PageFormat};

use crate::frames::{compress, crafted, damage, pages, random_sequences};
use crate::harness::{Device, device, is_same_filled, is_untouched};
use crate::interpreter::pack;

/// A page of a batch: how it is held, its bytes, and what restoring it gives on the CPU.
#[derive(Clone)]
struct Case {
    kind: PageKind,
    bytes: Vec<u8>,
    expected: Result<Page, PageStatus>,
}

impl Case {
    fn new(kind: PageKind, bytes: Vec<u8>) -> Self {
        let expected = match (kind, bytes.len()) {
            (PageKind::SameFilled, 8) => Ok(std::array::from_fn(|i| bytes[i % 8])),
            (PageKind::Raw, PAGE_SIZE) => Ok(bytes[..].try_into().unwrap()),
            // 32 bytes are more than any header and checksum take.
            (PageKind::Zstd, 1..=4128) => restore(&bytes).map_err(|refusal| match refusal {
                RestoreError::Malformed => PageStatus::BadBlock,
                RestoreError::Unsupported => PageStatus::Unsupported,
            }),
            _ => Err(PageStatus::BadEntry),
        };
        Self { kind, bytes, expected }
    }

    /// A case that must be restored to `page`.
    fn whole(kind: PageKind, bytes: Vec<u8>, page: &Page) -> Self {
        let case = Self::new(kind, bytes);
        assert!(case.expected == Ok(*page), "the CPU restores what was compressed");
        case
    }
}

/// Returns libzstd's frames, those of our own compressor, damaged and crafted ones, and pages of all other kinds.
fn cases(device: &Device, pages: &[Page]) -> Vec<Case> {
    let of_page = |(i, page): (usize, &Page)| {
        let mut generator = Generator::new(i as u64);
        let mut cases: Vec<_> =
            [1, 3, 9, 19].map(|level| Case::whole(PageKind::Zstd, compress(page, level), page)).into();
        for _ in 0..2 {
            let mut frame = cases[generator.below(4)].bytes.clone();
            damage(&mut generator, &mut frame);
            cases.push(Case::new(PageKind::Zstd, frame));
        }
        let mut frame = random_sequences(&mut generator);
        generator.corrupt(&mut frame);
        cases.push(Case::new(PageKind::Zstd, frame));
        if is_same_filled(page) {
            cases.push(Case::whole(PageKind::SameFilled, page[..8].to_vec(), page));
        }
        match i % 8 {
            0 => cases.push(Case::whole(PageKind::Raw, page.to_vec(), page)),
            1 => cases.push(Case::new(PageKind::Raw, page[1..].to_vec())),
            2 => cases.push(Case::new(PageKind::Lz4, cases[0].bytes.clone())),
            3 => cases.push(Case::new(PageKind::Zstd, Vec::new())),
            _ => {}
        }
        cases
    };
    let mut cases: Vec<_> = pages.par_iter().enumerate().flat_map_iter(of_page).collect();
    cases.extend(crafted().into_iter().map(|(_, frame)| Case::new(PageKind::Zstd, frame)));
    for mode in [Mode::Fast, Mode::Ratio] {
        let mut compressor = PageCompressor::new(&device.context, PageFormat::Zstd, mode).unwrap();
        let packed = device.compress(&mut compressor, pages);
        let own = pages.iter().enumerate().map(|(i, page)| {
            let (kind, bytes) = packed.page(i);
            Case::whole(kind, bytes.to_vec(), page)
        });
        cases.extend(own);
    }
    cases
}

/// Returns a batch of `count` cases, all kinds mixed.
fn batch(cases: &[Case], count: u32) -> Vec<&Case> {
    (0..count as usize).map(|i| &cases[i * 7919 % cases.len()]).collect()
}

fn held(batch: &[&Case]) -> Vec<(PageKind, Vec<u8>)> {
    batch.iter().map(|case| (case.kind, case.bytes.clone())).collect()
}

fn assert_equals_cpu(batch: &[&Case], restored: &[(PageStatus, Page)]) {
    assert_eq!(batch.len(), restored.len());
    for (i, (case, (status, page))) in batch.iter().zip(restored).enumerate() {
        let Case { kind, bytes, expected } = case;
        match expected {
            Ok(expected) => {
                assert_eq!(*status, PageStatus::Restored, "page {i}, {kind:?}: {bytes:02x?}");
                assert!(page == expected, "page {i}, {kind:?}: {bytes:02x?}");
            }
            Err(expected) => {
                assert_eq!(status, expected, "page {i}, {kind:?}: {bytes:02x?}");
                assert!(is_untouched(page), "page {i}, {kind:?}: {bytes:02x?}");
            }
        }
    }
}

fn restore_batch(device: &Device, decompressor: &mut PageDecompressor, cases: &[Case], count: u32) {
    let batch = batch(cases, count);
    let (index, bytes) = pack(&held(&batch));
    assert_equals_cpu(&batch, &device.decompress(decompressor, &index, &bytes));
}

/// A decompressor that uses few multiprocessors restores small batches in groups, too.
fn limited(device: &Device, multiprocessors: u32) -> PageDecompressor {
    let mut decompressor = PageDecompressor::new(&device.context, PageFormat::Zstd).unwrap();
    decompressor.limit_multiprocessors(NonZeroU32::new(multiprocessors));
    decompressor
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn large_and_small_batches_equal_the_cpu() {
    let device = device();
    let cases = cases(&device, &pages(3, 70));
    let refused = cases.iter().filter(|case| case.expected.is_err()).count();
    assert!(refused > cases.len() / 10 && refused < cases.len() / 2, "{refused} of {}", cases.len());
    let mut decompressor = PageDecompressor::new(&device.context, PageFormat::Zstd).unwrap();
    let least = decompressor.least_group_pages().unwrap();
    let large = least.max(45_000);
    println!("{} cases, {refused} of them refused; groups from {least} pages on", cases.len());

    restore_batch(&device, &mut decompressor, &cases, least - 1);
    assert_eq!(decompressor.scratch_bytes(), 0, "a small batch takes no scratch memory");
    restore_batch(&device, &mut decompressor, &cases, least);
    let first = decompressor.scratch_bytes();
    assert!(first > 0, "a large batch was not restored in groups");
    restore_batch(&device, &mut decompressor, &cases, large);
    restore_batch(&device, &mut decompressor, &cases, 1000);
    let grown = decompressor.scratch_bytes();
    assert!(grown > first, "the scratch memory was not replaced");
    restore_batch(&device, &mut decompressor, &cases, large + 1);
    assert_eq!(decompressor.scratch_bytes(), grown, "one more page needs no new memory");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn share_of_the_device_restores_smaller_batches_in_groups() {
    let device = device();
    let cases = cases(&device, &pages(7, 71));
    for multiprocessors in [1, 3, 20] {
        let mut decompressor = limited(&device, multiprocessors);
        let least = decompressor.least_group_pages().unwrap();
        let blocks = decompressor.loaded_group().unwrap().blocks_per_multiprocessor() * multiprocessors;
        assert_eq!(least, blocks * ZstdGroupDecompressKernel::LEAST_PAGES_PER_BLOCK);
        for count in [least, least + 1, 5 * least + 77] {
            restore_batch(&device, &mut decompressor, &cases, count);
            assert!(decompressor.scratch_bytes() > 0, "{count} pages were not restored in groups");
        }
    }
}

/// Launches of one decompressor in two streams share its scratch memory, so they must not overlap.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn two_streams_can_share_a_decompressor() {
    let device = device();
    let cases = cases(&device, &pages(11, 72));
    let mut decompressor = limited(&device, 4);
    let batch = batch(&cases, decompressor.least_group_pages().unwrap() * 3);
    let (index, bytes) = pack(&held(&batch));
    let words: Vec<u8> = index.iter().flat_map(|entry| entry.bits().to_le_bytes()).collect();
    let (input, index) = (device.upload(&bytes), device.upload(&words));
    let results = [(); 8].map(|()| (device.buffer(batch.len() * PAGE_SIZE), device.buffer(batch.len() * 4)));
    for (output, _) in &results {
        device.stream.fill(output, 0..output.len_bytes(), crate::harness::FILL).unwrap();
    }
    device.context.synchronize().unwrap();
    let streams = [(); 2].map(|()| CudaStream::new(&device.context).unwrap());
    // Also small batches, which do not use that memory.
    let counts = [batch.len(), batch.len(), 100, batch.len(), batch.len(), 100, 100, batch.len()];
    for (((output, status), stream), count) in results.iter().zip(streams.iter().cycle()).zip(counts) {
        let pages = u32::try_from(count).unwrap();
        let (packed, packed_bytes, index) = (&input, bytes.len() as u64, &index);
        let buffers = DecompressBuffers { packed, packed_bytes, index, output, status, pages };
        // SAFETY: each launch has an output and a status buffer of its own.
        unsafe { decompressor.decompress(stream, buffers, None) }.unwrap();
    }
    device.context.synchronize().unwrap();
    for ((output, status), count) in results.iter().zip(counts) {
        let (output, status) = (device.download(output), device.download(status));
        let codes = status.as_chunks().0.iter().map(|code| PageStatus::from_code(u32::from_le_bytes(*code)));
        let restored: Vec<_> =
            codes.take(count).map(Option::unwrap).zip(output.as_chunks().0.iter().copied()).collect();
        assert_equals_cpu(&batch[..count], &restored);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn driver_compiler_stays_within_the_budget() {
    let device = device();
    let decompressor = PageDecompressor::new(&device.context, PageFormat::Zstd).unwrap();
    let group = decompressor.loaded_group().unwrap();
    let (major, minor) = device.context.info().compute_capability;
    let target = Target::for_capability(major, minor).unwrap();
    let budgets = [
        ("one page per warp", decompressor.loaded(), ZstdWarpDecompressKernel::new(1).budget()),
        ("groups", group, ZstdGroupDecompressKernel::new(1).with_target(target).budget()),
    ];
    for (name, loaded, budget) in budgets {
        let made = loaded.attributes().unwrap();
        println!("{name}: {made:?}, {} blocks per SM", loaded.blocks_per_multiprocessor());
        assert!(made.local_bytes == 0 && made.registers <= budget.registers, "{name}");
    }
}

/// For compute-sanitizer: a few frames of all kinds, in groups and by one warp per page.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn few_frames_in_groups_and_alone() {
    let device = device();
    let cases = cases(&device, &pages(97, 73));
    let mut decompressor = limited(&device, 1);
    let least = decompressor.least_group_pages().unwrap();
    restore_batch(&device, &mut decompressor, &cases, least - 1);
    assert_eq!(decompressor.scratch_bytes(), 0);
    restore_batch(&device, &mut decompressor, &cases, least + 50);
    assert!(decompressor.scratch_bytes() > 0);
    println!("{} and {} of {} cases", least - 1, least + 50, cases.len());
}
