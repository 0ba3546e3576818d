//! Small files that expand to much, or claim to: `decompress`, `test` and `extract` take memory in proportion to the file.

use std::fs;

use trueno_test_pages::PAGE_SIZE;
use trueno_test_pages::frames::{self, Shape};
use trueno_test_pages::generate::Generator;

use crate::hostile::{archive, run_limited};
use crate::support::folder;

/// Runs all commands that decode on `bytes`. They work if the file has content of a known length, and fail otherwise.
#[track_caller]
fn decode(bytes: &[u8], content_len: Option<u64>) {
    let folder = folder();
    fs::write(folder.path().join("bomb.lz4"), bytes).unwrap();
    for args in [
        &["test", "bomb.lz4"][..],
        &["decompress", "-f", "-o", "out", "bomb.lz4"],
        &["decompress", "-f", "-o", "out", "--salvage", "bomb.lz4"],
        &["extract", "-f", "-o", "out", "--bytes", "0..100", "bomb.lz4"],
    ] {
        let (ran, _) = run_limited(folder.path(), args, bytes.len() as u64);
        let expected = if content_len.is_some() { 0 } else { 1 };
        assert_eq!(ran.code, Some(expected), "{args:?}: {}", ran.stderr);
        if let Some(content_len) = content_len.filter(|_| args[0] == "decompress") {
            assert_eq!(fs::metadata(folder.path().join("out")).unwrap().len(), content_len, "{args:?}");
        }
    }
}

/// A frame's header with a content size, and nothing after it.
fn header_claiming(content_size: u64, block_size_id: u8) -> Vec<u8> {
    let mut descriptor = vec![0b0110_1000, block_size_id << 4];
    descriptor.extend(content_size.to_le_bytes());
    let mut hash = trueno_zram_archive::ContentHash::new();
    hash.update(&descriptor);
    let mut frame = 0x184d_2204_u32.to_le_bytes().to_vec();
    frame.extend(&descriptor);
    frame.push(hash.digest().to_le_bytes()[1]);
    frame
}

#[test]
fn large_blocks_that_expand_255_times() {
    let content = vec![0x5a; 48 << 20];
    for linked in [false, true] {
        let shape = Shape {
            block_size_id: 7,
            linked,
            block_checksums: false,
            content_checksum: false,
            content_size: false,
            level: 0,
        };
        let frame = frames::compress(&content, &shape);
        assert!(frame.len() < content.len() / 200);
        decode(&frame.repeat(3), Some(3 * content.len() as u64));
    }
}

#[test]
fn zero_pages_without_end() {
    let pages = 1 << 18;
    decode(&archive(pages, &[], &[]), Some(pages * PAGE_SIZE as u64));
}

#[test]
fn skippable_frames_without_end() {
    let mut bytes = [0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0].repeat(500_000);
    bytes.extend(b"\x04\x22\x4d\x18\x60\x40\x82");
    bytes.extend((0x8000_0000_u32 | 200).to_le_bytes());
    bytes.extend([7; 200]);
    bytes.extend([0; 4]);
    decode(&bytes, Some(200));
}

#[test]
fn lengths_that_are_only_claimed() {
    // Of the content, with a block that is cut short.
    for (content_size, block_size_id) in [(u64::MAX, 4), (1 << 62, 7), (1 << 40, 7)] {
        let mut bytes = header_claiming(content_size, block_size_id);
        bytes.extend((0x8000_0000_u32 | 60_000).to_le_bytes());
        bytes.extend([1; 1000]);
        decode(&bytes, None);
    }
    // Of a block, and of a skippable frame.
    let mut bytes = header_claiming(1 << 40, 7);
    bytes.extend((4_u32 << 20).to_le_bytes());
    decode(&bytes, None);
    decode(&[0x50, 0x2a, 0x4d, 0x18, 0xff, 0xff, 0xff, 0xff, 1, 2, 3], None);
}

/// Frames of one small block each, all of which may hold 4 MiB.
#[test]
fn small_blocks_that_may_be_large() {
    let mut random = Generator::new(7);
    let shape = Shape {
        block_size_id: 7,
        linked: false,
        block_checksums: true,
        content_checksum: true,
        content_size: true,
        level: 0,
    };
    let content: Vec<u8> = (0..100).map(|_| u8::try_from(random.below(256)).unwrap()).collect();
    decode(&frames::compress(&content, &shape).repeat(20_000), Some(2_000_000));
}
