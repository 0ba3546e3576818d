//! The decompression kernel on a device: restores every valid block and rejects all others without harm.

use rayon::prelude::*;
use trueno_gpu::interp::LaneOrder;
use trueno_gpu::kernels::Kernel;
use trueno_gpu::kernels::lz4::{Lz4WarpDecompressKernel, Mode};
use trueno_gpu::kernels::packed::{PackedEntry, PageKind, PageStatus};
use trueno_test_pages::{PAGE_SIZE, Page, corpus, generate::Generator};
use trueno_zram_core::gpu::GpuError;
use trueno_zram_core::gpu::raw::{DecompressBuffers, PageCompressor, PageDecompressor, PageFormat};
use trueno_zram_core::lz4::decode_simple;

use crate::harness::{Device, blocks_of, device, few_pages, is_same_filled, is_untouched, many_pages};
use crate::interpreter::{self, pack};

/// A page's status, and the contents of its place in the output.
type Restored = (PageStatus, Page);
/// The kind of a compressed page, and its bytes.
type Held = (PageKind, Vec<u8>);

/// Returns an entry that is always rejected. Its place in the output serves as a guard.
fn guard() -> PackedEntry {
    PackedEntry::new(u64::from(u32::MAX) * 16, 4096, PageKind::Raw)
}

/// Restores blocks with a guard before and after them, and checks the guards.
fn restore(device: &Device, decompressor: &mut PageDecompressor, index: &[PackedEntry], bytes: &[u8]) -> Vec<Restored> {
    let guarded: Vec<_> = [&[guard()], index, &[guard()]].concat();
    let mut restored = device.decompress(decompressor, &guarded, bytes);
    for (status, page) in [restored.remove(index.len() + 1), restored.remove(0)] {
        assert!(status == PageStatus::BadEntry && is_untouched(&page), "a guard was overwritten");
    }
    restored
}

fn assert_restored(restored: &[Restored], pages: &[Page]) {
    assert_eq!(restored.len(), pages.len());
    for (i, ((status, restored), page)) in restored.iter().zip(pages).enumerate() {
        assert_eq!(*status, PageStatus::Restored, "page {i}");
        assert!(restored == page, "page {i}");
    }
}

/// Returns every way to hold each page: same-filled, raw, and the blocks of every encoder.
fn held(pages: &[Page]) -> (Vec<Held>, Vec<Page>) {
    let same_filled = pages.iter().filter(|page| is_same_filled(page));
    let words = same_filled.map(|page| ((PageKind::SameFilled, page[..8].to_vec()), *page));
    let raw = pages.iter().step_by(5).map(|page| ((PageKind::Raw, page.to_vec()), *page));
    let blocks = blocks_of(pages).into_iter().map(|(block, page)| ((PageKind::Lz4, block), page));
    words.chain(raw).chain(blocks).unzip()
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn restores_pages_of_every_kind_and_encoder() {
    let device = device();
    let (blocks, pages) = held(&many_pages());
    let (index, bytes) = pack(&blocks);
    for (warps, mut decompressor) in device.decompressors(PageFormat::Lz4) {
        println!("{} blocks, {warps} warps per block", blocks.len());
        assert_restored(&restore(&device, &mut decompressor, &index, &bytes), &pages);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn restores_own_batches_of_any_size() {
    let (device, all) = (device(), many_pages());
    let of_both = PageFormat::ALL.into_iter().flat_map(|format| [Mode::Fast, Mode::Ratio].map(|mode| (format, mode)));
    for (format, mode) in of_both {
        let mut compressor = PageCompressor::new(&device.context, format, mode).unwrap();
        for count in [0, 1, 31, 33, 1000, 20_000] {
            let pages: Vec<Page> = all.iter().cycle().take(count).copied().collect();
            let packed = device.compress(&mut compressor, &pages);
            for (_, mut decompressor) in device.decompressors(format) {
                assert_restored(&device.decompress(&mut decompressor, &packed.index, &packed.bytes), &pages);
            }
        }
    }
}

/// The longest block of a page: one literal run with its token and length bytes.
const MAX_BLOCK_BYTES: usize = PAGE_SIZE + 18;

/// Returns damaged or invented blocks. None is empty or longer than a page's block can be.
fn damaged(whole: &[(Vec<u8>, Page)], count: usize, seed: u64) -> Vec<Held> {
    let mut generator = Generator::new(seed);
    let mut damage = || {
        let mut block = whole[generator.below(whole.len())].0.clone();
        match generator.below(8) {
            0 => block.truncate(1 + generator.below(block.len())),
            1..4 => block = generator.token_soup(),
            _ => generator.corrupt(&mut block),
        }
        block.truncate(MAX_BLOCK_BYTES);
        if block.is_empty() {
            block.push(0);
        }
        (PageKind::Lz4, block)
    };
    (0..count).map(|_| damage()).collect()
}

/// Checks each page against the reference decoder on the CPU. Returns the number of restored pages.
fn check_against_decode_simple(restored: &[Restored], blocks: &[Held]) -> usize {
    assert_eq!(restored.len(), blocks.len());
    let check = |(i, ((status, page), (_, block))): (usize, (&Restored, &Held))| {
        let mut expected = [0; PAGE_SIZE];
        match decode_simple(block, &mut expected) {
            Ok(()) => assert!(*status == PageStatus::Restored && *page == expected, "block {i}: {block:02x?}"),
            Err(why) => {
                assert!(*status == PageStatus::BadBlock, "the CPU rejects block {i} ({why}): {block:02x?}");
                assert!(is_untouched(page), "block {i}: a rejected page must stay unchanged");
            }
        }
        usize::from(*status == PageStatus::Restored)
    };
    restored.par_iter().zip(blocks).enumerate().map(check).sum()
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn damaged_blocks_give_the_same_result_as_on_the_cpu() {
    const ROUNDS: u64 = 10;
    const BLOCKS: usize = 20_000;
    let device = device();
    let whole = blocks_of(&many_pages().into_iter().step_by(5).collect::<Vec<_>>());
    let mut decompressors = device.decompressors(PageFormat::Lz4);
    let mut taken = 0;
    for round in 0..ROUNDS {
        let blocks = damaged(&whole, BLOCKS, 100 + round);
        let (index, bytes) = pack(&blocks);
        // A different shape in each round.
        let shapes = decompressors.len();
        let (_, decompressor) = &mut decompressors[usize::try_from(round).unwrap() % shapes];
        taken += check_against_decode_simple(&restore(&device, decompressor, &index, &bytes), &blocks);
    }
    println!("{} blocks, {taken} of them valid", BLOCKS * 10);
    assert!((1000..190_000).contains(&taken), "{taken} restored: the sample must have both results");
}

/// The same check on fewer blocks, without a device.
#[test]
fn interpreter_agrees_with_the_cpu_on_damaged_blocks() {
    let whole = blocks_of(&corpus::all_pages().step_by(31).copied().collect::<Vec<_>>());
    let blocks = damaged(&whole, 4000, 99);
    let (index, bytes) = pack(&blocks);
    // Also with one warp per block, where every address past the warp's own memory is out of bounds.
    for warps in [1, 4] {
        let kernel = Lz4WarpDecompressKernel::new(10_000).with_warps_per_block(warps);
        let restored = interpreter::decompress(&kernel, &index, &bytes, LaneOrder::Ascending);
        let (restored, _) = restored.unwrap_or_else(|fault| panic!("{fault}"));
        assert!(check_against_decode_simple(&restored, &blocks) > 10);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn rejects_every_truncation() {
    let device = device();
    let mut decompressor = PageDecompressor::new(&device.context, PageFormat::Lz4).unwrap();
    for (block, _) in blocks_of(&[corpus::ALL[0].pages[17], corpus::ALL[3].pages[40]]) {
        let cut: Vec<_> = (1..block.len()).map(|len| (PageKind::Lz4, block[..len].to_vec())).collect();
        let (index, bytes) = pack(&cut);
        let restored = restore(&device, &mut decompressor, &index, &bytes);
        assert!(restored.iter().all(|(status, page)| *status == PageStatus::BadBlock && is_untouched(page)));
    }
}

/// Returns a block with a literal run past the end of the input, followed by a plausible end of a page. A lane that
/// takes the run for a wrong guess skips it, and the lanes after it find a valid tail.
fn run_past_the_end_before_a_plausible_tail() -> Vec<u8> {
    let extended = |block: &mut Vec<u8>, length: usize| {
        block.extend(vec![255; (length - 15) / 255]);
        block.push(u8::try_from((length - 15) % 255).unwrap());
    };
    let mut block = vec![0xf0, 0xfe, 1, 2, 0x00, 1, 0, 0x0f, 1, 0];
    extended(&mut block, PAGE_SIZE - 269 - 4 - 150 - 4);
    block.push(0xf0);
    extended(&mut block, 150);
    block.extend([7; 150]);
    block
}

#[test]
fn rejects_a_run_past_the_end_before_a_plausible_tail() {
    let bad = run_past_the_end_before_a_plausible_tail();
    // Rejected pages before it leave distances behind that must not be used for this page.
    let poison = [0, 40, 4095].map(|offset: u16| {
        let [low, high] = offset.to_le_bytes();
        [&[0xf0, 0xfe][..], &[5; 269], &[low, high], &[0x10, 1]].concat()
    });
    let blocks: Vec<Held> = [&bad, &poison[0], &bad, &poison[1], &bad, &poison[2], &bad]
        .map(|block| (PageKind::Lz4, block.clone()))
        .to_vec();
    let (index, bytes) = pack(&blocks);
    let kernel = Lz4WarpDecompressKernel::new(10).with_warps_per_block(1);
    let restored = interpreter::decompress(&kernel, &index, &bytes, LaneOrder::Ascending);
    let (restored, _) = restored.unwrap_or_else(|fault| panic!("{fault}"));
    assert!(restored.iter().all(|(status, page)| *status == PageStatus::BadBlock && is_untouched(page)));
}

#[test]
fn accepts_blocks_longer_than_their_page() {
    let mut generator = Generator::new(41);
    let noise: Page = std::array::from_fn(|_| generator.byte());
    let mut block = vec![0xf0];
    block.extend([255; 16]);
    block.push(1);
    block.extend(noise);
    assert_eq!(block.len(), MAX_BLOCK_BYTES);
    let (index, bytes) = pack(&[(PageKind::Lz4, block)]);
    let restored = interpreter::decompress(&Lz4WarpDecompressKernel::new(10), &index, &bytes, LaneOrder::Descending);
    let (restored, _) = restored.unwrap_or_else(|fault| panic!("{fault}"));
    assert!(restored == [(PageStatus::Restored, noise)]);
}

/// Returns the expected result for an entry with any bits.
fn expected_result(entry: PackedEntry, bytes: &[u8]) -> Result<Page, PageStatus> {
    let (start, len) = (entry.offset_bytes(), usize::from(entry.len_bytes()));
    let held = usize::try_from(start).ok().and_then(|start| bytes.get(start..start + len.next_multiple_of(16)));
    let block = &held.filter(|_| entry.is_placed()).ok_or(PageStatus::BadEntry)?[..len];
    let mut page = [0; PAGE_SIZE];
    match (entry.kind(), len) {
        (PageKind::SameFilled, 8) => page.as_chunks_mut::<8>().0.fill(*block.first_chunk().unwrap()),
        (PageKind::Raw, PAGE_SIZE) => page.copy_from_slice(block),
        (PageKind::Lz4, 1..=MAX_BLOCK_BYTES) => {
            decode_simple(block, &mut page).map_err(|_| PageStatus::BadBlock)?;
        }
        _ => return Err(PageStatus::BadEntry),
    }
    Ok(page)
}

/// Returns invalid entries: valid ones with a few bits changed, fields at their limits, and random bits.
fn invalid_entries(index: &[PackedEntry], end: u64, count: usize) -> Vec<PackedEntry> {
    let mut generator = Generator::new(31);
    let kinds = [PageKind::SameFilled, PageKind::Lz4, PageKind::Raw];
    let lens = [0, 1, 7, 8, 9, 15, 16, 17, 4079, 4080, 4095, 4096, 4097, 8191];
    let mut lie = || match generator.below(4) {
        0 => PackedEntry::from_bits(generator.next_u64()),
        1 => {
            let near_end = end.saturating_sub(16 * generator.below(300) as u64) + 16 * generator.below(40) as u64;
            PackedEntry::new(near_end, lens[generator.below(lens.len())], kinds[generator.below(3)])
        }
        2 => PackedEntry::new(
            generator.next_u64() % (end / 16) * 16,
            lens[generator.below(lens.len())],
            kinds[generator.below(3)],
        ),
        _ => {
            let right = index[generator.below(index.len())];
            PackedEntry::from_bits(right.bits() ^ 1 << generator.below(64) ^ 1 << generator.below(64))
        }
    };
    (0..count).map(|_| lie()).collect()
}

/// Checks each page against the expected result of its entry. Returns the number of restored pages.
fn check_against_entries(restored: &[Restored], entries: &[PackedEntry], bytes: &[u8]) -> usize {
    assert_eq!(restored.len(), entries.len());
    let mut taken = 0;
    for (i, ((status, page), entry)) in restored.iter().zip(entries).enumerate() {
        match expected_result(*entry, bytes) {
            Ok(expected) => {
                taken += 1;
                assert!(*status == PageStatus::Restored && *page == expected, "entry {i}: {:#x}", entry.bits());
            }
            Err(expected) => {
                assert!(*status == expected && is_untouched(page), "entry {i}: {:#x}", entry.bits());
            }
        }
    }
    taken
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn rejects_invalid_entries_without_harm() {
    let device = device();
    let (index, bytes) = pack(&held(&few_pages()).0);
    let entries = invalid_entries(&index, bytes.len() as u64, 30_000);
    for (warps, mut decompressor) in device.decompressors(PageFormat::Lz4) {
        let taken = check_against_entries(&restore(&device, &mut decompressor, &entries, &bytes), &entries, &bytes);
        println!("{taken} of {} entries were valid by chance, {warps} warps per block", entries.len());
        assert!(taken > 100 && taken < entries.len() / 2);
    }
}

/// The same check on fewer entries, without a device.
#[test]
fn interpreter_agrees_on_invalid_entries() {
    let (index, bytes) = pack(&held(&few_pages()[..60]).0);
    let entries = invalid_entries(&index, bytes.len() as u64, 3000);
    let restored =
        interpreter::decompress(&Lz4WarpDecompressKernel::new(10_000), &entries, &bytes, LaneOrder::Descending);
    let (restored, _) = restored.unwrap_or_else(|fault| panic!("{fault}"));
    let taken = check_against_entries(&restored, &entries, &bytes);
    assert!(taken > 30 && taken < entries.len() / 2, "{taken} restored: the sample must have both results");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn rejects_wrong_buffers() {
    let device = device();
    let mut decompressor = PageDecompressor::new(&device.context, PageFormat::Lz4).unwrap();
    let (page, entry, short) = (device.buffer(8192), device.buffer(16), device.buffer(7));
    let (packed, output, index, status) = (&page, &page, &entry, &entry);
    let right = DecompressBuffers { packed, packed_bytes: 4096, index, output, status, pages: 2 };
    let mut refused = |buffers| {
        // SAFETY: no launch takes place.
        unsafe { decompressor.decompress(&device.stream, buffers, None) }.unwrap_err()
    };
    for (error, what) in [
        (refused(DecompressBuffers { packed_bytes: 8208, ..right }), "packed"),
        (refused(DecompressBuffers { index: &short, ..right }), "index"),
        (refused(DecompressBuffers { output: &short, ..right }), "output"),
        (refused(DecompressBuffers { status: &short, ..right }), "status"),
    ] {
        assert!(matches!(error, GpuError::ShortBuffer { what: named, .. } if named == what), "{error}");
    }
    let odd = refused(DecompressBuffers { packed_bytes: 4095, ..right });
    assert!(matches!(odd, GpuError::Misaligned { value: 4095, .. }), "{odd}");
    let many = refused(DecompressBuffers { pages: u32::MAX, ..right });
    assert!(matches!(many, GpuError::OutOfRange { .. }), "{many}");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn driver_compiler_stays_within_the_budget() {
    let device = device();
    let budget = Lz4WarpDecompressKernel::new(1).budget();
    for (warps, decompressor) in device.decompressors(PageFormat::Lz4) {
        let (loaded, made) = (decompressor.loaded(), decompressor.loaded().attributes().unwrap());
        println!("{warps} warps: {made:?}, {} blocks per SM", loaded.blocks_per_multiprocessor());
        assert!(made.local_bytes == 0 && made.registers <= budget.registers, "{warps} warps");
    }
}

/// For compute-sanitizer: whole and damaged blocks in every shape, but only a few.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn few_blocks_in_every_shape() {
    let device = device();
    let (blocks, pages) = held(&few_pages());
    let (blocks, pages): (Vec<_>, Vec<_>) = blocks.into_iter().zip(pages).step_by(4).unzip();
    let (index, bytes) = pack(&blocks);
    let damaged = damaged(&blocks_of(&few_pages()[..40]), 300, 7);
    let (damaged_index, damaged_bytes) = pack(&damaged);
    for (warps, mut decompressor) in device.decompressors(PageFormat::Lz4) {
        println!("{} whole and {} damaged blocks, {warps} warps per block", blocks.len(), damaged.len());
        assert_restored(&restore(&device, &mut decompressor, &index, &bytes), &pages);
        let restored = restore(&device, &mut decompressor, &damaged_index, &damaged_bytes);
        check_against_decode_simple(&restored, &damaged);
    }
}
