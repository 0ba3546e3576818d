//! The slow twin of the Zstandard decompression kernel, compared with libzstd.

#[allow(dead_code, unused_imports)]
#[path = "support/zstd.rs"]
mod support;

use support::{
    LEVELS, Parts, compress, compress_flushed, compress_with, crafted, damage, libzstd, pages, random_sequences,
};
use trueno_test_kernels::zstd_restore::{RestoreError, restore};
use trueno_test_pages::generate::Generator;

#[test]
fn frames_of_every_level_are_restored() {
    for page in pages(5, 31) {
        for level in LEVELS {
            assert!(restore(&compress(&page, level)) == Ok(page), "level {level}");
        }
    }
}

#[test]
fn every_form_of_the_header_is_read() {
    for page in pages(29, 32) {
        for (content_size, checksum) in [(false, false), (false, true), (true, true)] {
            for level in [1, 9] {
                let mut frame = compress_with(&page, level, content_size, checksum);
                assert!(restore(&frame) == Ok(page), "size {content_size}, checksum {checksum}, level {level}");
                if checksum {
                    let last = frame.len() - 1;
                    frame[last] ^= 1;
                    assert_eq!(restore(&frame), Err(RestoreError::Malformed));
                }
            }
        }
        assert!(restore(&compress_flushed(&page, 3)) == Ok(page), "an empty last block");
    }
}

#[test]
fn other_content_than_one_page_is_refused() {
    let text: Vec<u8> = (0..20_000u32).flat_map(|i| (i * i / 77).to_le_bytes()).collect();
    for len in [0, 1, 255, 256, 4095, 4097, 8192, 20_000] {
        for content_size in [false, true] {
            let frame = compress_with(&text[..len], 3, content_size, false);
            assert!(restore(&frame).is_err(), "{len} bytes, size {content_size}");
        }
    }
    let two = [compress(&text[..4096], 3), compress(&[], 3)].concat();
    assert_eq!(restore(&two), Err(RestoreError::Unsupported));
}

#[test]
fn crafted_frames_are_refused_or_restored_as_libzstd_does() {
    let mut restored = 0;
    for (name, frame) in crafted() {
        let ours = restore(&frame);
        if name.contains("12 bits") {
            assert_eq!(ours, Err(RestoreError::Unsupported), "{name}");
            continue;
        }
        assert!(ours.ok() == libzstd(&frame), "{name}: {:?}", ours.err());
        restored += usize::from(ours.is_ok());
    }
    assert!(restored >= 12, "{restored} crafted frames are valid");
}

#[test]
fn damaged_frames_are_refused_or_restored_as_libzstd_does() {
    let mut generator = Generator::new(33);
    let (mut restored, mut refused, mut laxer) = (0, 0, 0);
    let pages = pages(23, 34);
    for round in 0..12 {
        for page in &pages {
            let mut frame = compress_with(page, LEVELS[generator.below(LEVELS.len())], true, generator.below(9) == 0);
            if round % 3 == 2 {
                generator.corrupt(&mut frame);
            } else {
                damage(&mut generator, &mut frame);
            }
            match (restore(&frame), libzstd(&frame)) {
                (Ok(ours), theirs) => {
                    assert!(Some(ours) == theirs, "libzstd refuses it, or restores another page: {frame:02x?}");
                    restored += 1;
                }
                (Err(_), None) => refused += 1,
                (Err(RestoreError::Unsupported), Some(_)) => laxer += 1,
                (Err(RestoreError::Malformed), Some(_)) => {
                    // Only the ends of Huffman streams.
                    let parts = Parts::of(&frame).expect("a compressed block");
                    assert_eq!(parts.literals_kind, 2, "libzstd restores a page from {frame:02x?}");
                    laxer += 1;
                }
            }
        }
    }
    println!("{restored} restored, {refused} refused by both, {laxer} refused only here");
    assert!(restored > 100 && refused > 900 && laxer * 5 < refused, "{restored}, {refused}, {laxer}");
}

#[test]
fn every_truncation_is_refused() {
    for page in pages(61, 35) {
        for frame in [compress(&page, 3), compress_with(&page, 1, false, true)] {
            for len in (0..frame.len()).step_by(3) {
                assert!(restore(&frame[..len]).is_err(), "{len} of {} bytes", frame.len());
            }
        }
    }
}

#[test]
fn chains_of_repeated_offsets_are_restored() {
    let mut generator = Generator::new(36);
    for i in 0..300 {
        let mut frame = random_sequences(&mut generator);
        let page = libzstd(&frame);
        assert!(page.is_some(), "frame {i} is valid");
        assert!(restore(&frame).ok() == page, "frame {i}");
        for _ in 0..10 {
            damage(&mut generator, &mut frame);
            assert!(restore(&frame).ok() == libzstd(&frame), "frame {i}, damaged");
        }
    }
}
