//! The Zstandard decompression kernels in the interpreter: equal to their slow twin on every frame.

#[allow(dead_code, unused_imports)]
#[path = "support/zstd.rs"]
mod support;

use support::{LEVELS, compress, compress_flushed, compress_with, crafted, damage, pages, random_sequences};
use trueno_gpu::interp::{LaneOrder, LaunchReport};
use trueno_gpu::kernels::packed::{Mode, PackedEntry, PageKind, PageStatus};
use trueno_gpu::kernels::zstd::{ZstdGroupDecompressKernel, ZstdWarpCompressKernel, ZstdWarpDecompressKernel};
use trueno_test_kernels::zstd_restore::{RestoreError, restore};
use trueno_test_pages::generate::Generator;
use trueno_test_pages::{PAGE_SIZE, Page};

const ORDERS: [LaneOrder; 3] = [LaneOrder::Ascending, LaneOrder::Descending, LaneOrder::Shuffled { seed: 7 }];

/// The kernel that restores the frames.
#[derive(Clone, Copy, Debug)]
enum Design {
    /// One warp per page.
    Warp,
    /// Groups of pages.
    Group,
}

/// Restores frames in one batch.
fn run(design: Design, frames: &[Vec<u8>], order: LaneOrder) -> (Vec<(PageStatus, Page)>, LaunchReport) {
    let (mut bytes, mut index) = (Vec::new(), Vec::new());
    for frame in frames {
        let len_bytes = u16::try_from(frame.len()).expect("frames are shorter than 64 KiB");
        index.extend(PackedEntry::new(bytes.len() as u64, len_bytes, PageKind::Zstd).bits().to_le_bytes());
        bytes.extend_from_slice(frame);
        bytes.resize(bytes.len().next_multiple_of(16), 0xdb);
    }
    run_packed(design, &bytes, &index, order)
}

/// Restores a packed batch. Any stray access would be a fault.
fn run_packed(design: Design, bytes: &[u8], index: &[u8], order: LaneOrder) -> (Vec<(PageStatus, Page)>, LaunchReport) {
    let mut pages = vec![[0xee; PAGE_SIZE]; index.len() / PackedEntry::BYTES];
    // With one warp per block, every address past the warp's own memory is out of bounds.
    let warps_per_block = if order == LaneOrder::Ascending { 4 } else { 1 };
    let run = match design {
        Design::Warp => ZstdWarpDecompressKernel::new(100_000).with_warps_per_block(warps_per_block).interpret(
            bytes,
            index,
            &mut pages,
            |launch| launch.lane_order(order),
        ),
        Design::Group => ZstdGroupDecompressKernel::new(100_000).with_warps_per_block(warps_per_block).interpret(
            bytes,
            index,
            &mut pages,
            |launch| launch.lane_order(order),
        ),
    };
    let run = run.unwrap_or_else(|fault| panic!("{fault}"));
    let codes = run.status.as_chunks().0.iter().map(|code| u32::from_le_bytes(*code));
    let status = codes.map(|code| PageStatus::from_code(code).expect("known"));
    (status.zip(pages).collect(), run.report)
}

/// Checks both kernels against their twin. Returns how many pages were restored.
fn assert_equals_twin(frames: &[Vec<u8>], order: LaneOrder) -> usize {
    let restored = [Design::Warp, Design::Group].map(|design| assert_design_equals_twin(design, frames, order));
    restored[0]
}

fn assert_design_equals_twin(design: Design, frames: &[Vec<u8>], order: LaneOrder) -> usize {
    let mut restored = 0;
    for (i, ((status, page), frame)) in run(design, frames, order).0.iter().zip(frames).enumerate() {
        let expected = restore(frame);
        let expected_status = match expected {
            Ok(_) => PageStatus::Restored,
            Err(RestoreError::Malformed) if frame.is_empty() || frame.len() > PAGE_SIZE + 32 => PageStatus::BadEntry,
            Err(RestoreError::Malformed) => PageStatus::BadBlock,
            Err(RestoreError::Unsupported) => PageStatus::Unsupported,
        };
        assert_eq!(*status, expected_status, "{design:?}, frame {i}: {frame:02x?}");
        // A refused page is not written.
        assert!(*page == expected.unwrap_or([0xee; PAGE_SIZE]), "{design:?}, frame {i}: {frame:02x?}");
        restored += usize::from(expected.is_ok());
    }
    restored
}

#[test]
fn frames_of_every_level_are_restored() {
    for (i, level) in LEVELS.into_iter().enumerate() {
        let frames: Vec<_> = pages(31 + i, 40).iter().map(|page| compress(page, level)).collect();
        assert_eq!(assert_equals_twin(&frames, ORDERS[i % 3]), frames.len(), "level {level}");
    }
}

/// Whole batches as they leave our compressor, with pages of all kinds.
#[test]
fn batches_of_our_own_compressor_are_restored() {
    let pages = pages(13, 47);
    for (mode, order) in [(Mode::Fast, ORDERS[0]), (Mode::Ratio, ORDERS[1]), (Mode::Ratio, ORDERS[2])] {
        let packed = ZstdWarpCompressKernel::new(1000).with_mode(mode).interpret(&pages, |launch| launch);
        let packed = packed.unwrap_or_else(|fault| panic!("{fault}"));
        let entries = packed.index.as_chunks().0.iter().map(|bits| PackedEntry::from_bits(u64::from_le_bytes(*bits)));
        let kinds: Vec<_> = entries.map(PackedEntry::kind).collect();
        assert!([PageKind::SameFilled, PageKind::Raw, PageKind::Zstd].iter().all(|kind| kinds.contains(kind)));
        for design in [Design::Warp, Design::Group] {
            let (restored, _) = run_packed(design, &packed.packed, &packed.index, order);
            for (i, ((status, restored), page)) in restored.iter().zip(&pages).enumerate() {
                assert_eq!(*status, PageStatus::Restored, "{design:?}, {mode:?}, page {i}, {:?}", kinds[i]);
                assert!(restored == page, "{design:?}, {mode:?}, page {i}, {:?}", kinds[i]);
            }
        }
    }
}

#[test]
fn every_form_of_the_header_is_read() {
    let mut frames = Vec::new();
    for page in pages(97, 41) {
        for (content_size, checksum) in [(false, false), (false, true), (true, true)] {
            frames.push(compress_with(&page, 3, content_size, checksum));
        }
        frames.push(compress_flushed(&page, 3));
    }
    let whole = frames.len();
    for i in 0..whole {
        // A wrong checksum, and one byte less.
        let mut frame = frames[i].clone();
        *frame.last_mut().expect("not empty") ^= 1;
        frames.push(frame.clone());
        frame.pop();
        frames.push(frame);
    }
    for order in ORDERS {
        assert!(assert_equals_twin(&frames, order) >= whole);
    }
}

#[test]
fn crafted_frames_are_refused_or_restored() {
    let mut generator = Generator::new(42);
    let mut frames: Vec<_> = crafted().into_iter().map(|(_, frame)| frame).collect();
    frames.extend((0..60).map(|_| random_sequences(&mut generator)));
    for order in ORDERS {
        assert!(assert_equals_twin(&frames, order) >= 60);
    }
}

#[test]
fn damaged_frames_are_refused_or_restored_and_harm_no_neighbour() {
    let mut generator = Generator::new(43);
    let pages = pages(37, 44);
    for order in ORDERS {
        let mut frames = Vec::new();
        for page in &pages {
            let level = LEVELS[generator.below(LEVELS.len())];
            let whole = compress_with(page, level, true, generator.below(6) == 0);
            for round in 0..4 {
                let mut frame = whole.clone();
                if round == 3 {
                    generator.corrupt(&mut frame);
                } else {
                    damage(&mut generator, &mut frame);
                }
                frame.truncate(8191);
                frames.push(frame);
            }
            let mut frame = random_sequences(&mut generator);
            damage(&mut generator, &mut frame);
            frames.push(frame);
            frames.push(whole);
        }
        let restored = assert_equals_twin(&frames, order);
        assert!(restored > pages.len() && restored < frames.len() / 2, "{restored} of {}", frames.len());
    }
}

#[test]
fn random_bytes_are_refused() {
    let mut generator = Generator::new(45);
    let mut frames = Vec::new();
    for i in 0..300 {
        let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0x60, 0x00, 0x0f];
        let len = 2 + generator.below(400);
        frame.extend(&(len << 3 | 2 << 1 | 1).to_le_bytes()[..3]);
        frame.extend((0..len).map(|_| generator.byte()));
        if i % 2 == 0 {
            // Huffman literals of plausible lengths, so that trees and streams are read.
            let held = len / 2;
            let head = 2 | (1 << 2) | (600 << 4) | held << 14;
            frame[10..12].copy_from_slice(&head.to_le_bytes()[..2]);
            if len > 3 {
                frame[12] = head.to_le_bytes()[2];
            }
        }
        frames.push(frame);
    }
    assert!(assert_equals_twin(&frames, LaneOrder::Shuffled { seed: 9 }) == 0);
}

#[test]
fn truncated_frames_are_refused() {
    for page in pages(211, 46) {
        let frame = compress_with(&page, 5, true, true);
        let cut: Vec<_> = (1..frame.len()).step_by(7).map(|len| frame[..len].to_vec()).collect();
        assert_eq!(assert_equals_twin(&cut, LaneOrder::Ascending), 0);
    }
}
