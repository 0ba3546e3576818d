//! Frames of other encoders: C lz4's in every shape, lz4_flex's, the old format, and what may stand between them.
#![cfg(feature = "zstd")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::io::Write;

use support::{mixed_content, plain_archive_of, read_good, read_stream};
use trueno_test_pages::frames::{self, FrameSettings};
use trueno_test_pages::generate::Generator;
use trueno_zram_archive::{ContentBatch, Error, FrameReader, IndexVerdict};

/// Text-like content, which linked blocks gain from.
fn text(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Generator::new(seed);
    let words: Vec<Vec<u8>> =
        (0..500).map(|_| (0..2 + random.below(9)).map(|_| b'a' + random.byte() % 26).collect()).collect();
    let mut content = Vec::with_capacity(len + 10);
    while content.len() < len {
        content.extend_from_slice(&words[random.below(words.len())]);
        content.push(b' ');
    }
    content.truncate(len);
    content
}

#[test]
fn c_lz4_in_every_shape_and_many_lengths() {
    let contents = [text(1, 9_000_000), mixed_content(2, 5_000_000)];
    for shape in frames::all_settings() {
        for content in &contents {
            for len in [0, 1, 5, 4095, 4096, 65_535, 65_536, 65_537, 300_000, content.len()] {
                let frame = frames::compress(&content[..len], &shape);
                let (read, summary) = read_good(&frame);
                assert!(read == content[..len], "{shape:?}, {len} bytes");
                assert_eq!(summary.index, IndexVerdict::Absent);
                assert_eq!(summary.content_checksums, u64::from(shape.content_checksum));
            }
        }
    }
}

#[test]
fn c_lz4_slow_encoder() {
    let content = text(3, 700_000);
    for level in [3, 9, 12] {
        for shape in frames::all_settings().into_iter().step_by(5) {
            let frame = frames::compress(&content, &FrameSettings { level, ..shape });
            assert!(read_good(&frame).0 == content, "level {level}, {shape:?}");
        }
    }
}

#[test]
fn lz4_flex_frames() {
    use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
    let content = [text(4, 2_000_000), mixed_content(5, 2_000_000)].concat();
    for block_size in [BlockSize::Max64KB, BlockSize::Max256KB, BlockSize::Max1MB, BlockSize::Max4MB] {
        for mode in [BlockMode::Independent, BlockMode::Linked] {
            let info = FrameInfo::new()
                .block_size(block_size)
                .block_mode(mode)
                .block_checksums(true)
                .content_checksum(true)
                .content_size(Some(content.len() as u64));
            let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
            encoder.write_all(&content).unwrap();
            let frame = encoder.finish().unwrap();
            assert!(read_good(&frame).0 == content, "{block_size:?} {mode:?}");
        }
    }
}

/// A frame of the old format.
fn legacy(content: &[u8]) -> Vec<u8> {
    let mut frame = 0x184c_2102u32.to_le_bytes().to_vec();
    for block in content.chunks(8 << 20) {
        let block = lz4_flex::block::compress(block);
        frame.extend(u32::try_from(block.len()).unwrap().to_le_bytes());
        frame.extend(block);
    }
    frame
}

#[test]
fn the_old_format() {
    let content = text(6, 20_000_000);
    for len in [0, 1, 100, 8 << 20, (8 << 20) + 1, content.len()] {
        assert!(read_good(&legacy(&content[..len])).0 == content[..len], "{len} bytes");
    }
    let (first, second) = (&content[..100_000], &content[5_000_000..5_200_000]);
    let shape = frames::all_settings()[3];
    let mixed = [legacy(first), legacy(second), frames::compress(first, &shape), legacy(second)].concat();
    let (read, summary) = read_good(&mixed);
    assert!(read == [first, second, first, second].concat());
    assert_eq!(summary.frames, 4);
    let frame = legacy(first);
    for cut in [5, 6, 8, 9, frame.len() / 2, frame.len() - 1] {
        assert!(matches!(read_stream(&frame[..cut], 1 << 20).1, Err(Error::Truncated { .. })), "{cut}");
    }
}

fn skippable(number: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (0x184d_2a50 + number).to_le_bytes().to_vec();
    frame.extend(u32::try_from(payload.len()).unwrap().to_le_bytes());
    frame.extend_from_slice(payload);
    frame
}

#[test]
fn skippable_frames_anywhere() {
    let (first, second) = (text(7, 100_000), mixed_content(8, 100_000));
    let shape = frames::all_settings()[9];
    let large = vec![7; 3_000_000];
    let mut bytes = Vec::new();
    for number in 0..16 {
        bytes.extend(skippable(number, b"TZ-INDE"));
    }
    bytes.extend(frames::compress(&first, &shape));
    bytes.extend(skippable(3, &large));
    bytes.extend(plain_archive_of(&second));
    bytes.extend(skippable(0, b""));
    let (read, summary) = read_good(&bytes);
    assert!(read == [first, second].concat());
    assert_eq!((summary.frames, summary.skippable_frames), (2, 19));
    assert_eq!(summary.index, IndexVerdict::Agrees);
    let (read, summary) = read_good(&skippable(5, b"alone"));
    assert_eq!((read.len(), summary.skippable_frames), (0, 1));
    let claims = skippable(13, b"TZ-INDEX and then something else entirely");
    assert!(matches!(read_good(&claims).1.index, IndexVerdict::Disagrees(_)));
    let cut = skippable(3, &large);
    assert!(matches!(read_stream(&cut[..cut.len() - 1], 1 << 20).1, Err(Error::Truncated { .. })));
}

#[test]
fn rejects_non_frames_like_lz4() {
    let frame = frames::compress(b"hello hello hello hello", &frames::all_settings()[0]);
    let error_of = |bytes: &[u8]| read_stream(bytes, 1 << 20).1.unwrap_err();
    assert!(matches!(error_of(b""), Error::Empty));
    assert!(matches!(error_of(b"PK\x03"), Error::Truncated { at: 3, .. }));
    assert!(matches!(error_of(b"PK\x03\x04 and more"), Error::NotCompressed { magic: [b'P', b'K', 3, 4] }));
    for garbage in 1..=3 {
        let bytes = [&frame[..], &vec![0; garbage]].concat();
        assert!(matches!(error_of(&bytes), Error::Truncated { .. }), "{garbage} bytes of garbage");
    }
    let (content, result) = read_stream(&[&frame[..], b"garbage"].concat(), 1 << 20);
    assert_eq!(content, b"hello hello hello hello");
    assert!(matches!(result, Err(Error::TrailingGarbage { at }) if at == frame.len() as u64));
}

#[test]
fn headers_that_ask_for_too_much_are_refused() {
    let header = |flags: u8, sizes: u8, rest: &[u8]| {
        let mut bytes = 0x184d_2204u32.to_le_bytes().to_vec();
        bytes.extend([flags, sizes]);
        bytes.extend_from_slice(rest);
        let mut hash = trueno_zram_archive::ContentHash::new();
        hash.update(&bytes[4..]);
        bytes.push(hash.digest().to_le_bytes()[1]);
        bytes.extend([0; 4]);
        bytes
    };
    assert!(read_stream(&header(0x60, 0x40, &[]), 1 << 20).1.is_ok());
    let error_of = |bytes: Vec<u8>| read_stream(&bytes, 1 << 20).1.unwrap_err();
    assert!(matches!(error_of(header(0x61, 0x40, &[1, 2, 3, 4])), Error::Dictionary { at: 0, id: 0x0403_0201 }));
    for (flags, sizes) in [(0x62, 0x40), (0xa0, 0x40), (0x20, 0x40), (0x60, 0x30), (0x60, 0xc0), (0x60, 0x41)] {
        assert!(matches!(error_of(header(flags, sizes, &[])), Error::Header { at: 0, .. }), "{flags:x} {sizes:x}");
    }
    let mut large = header(0x60, 0x40, &[]);
    large.truncate(7);
    large.extend(65_537u32.to_le_bytes());
    assert!(matches!(error_of(large), Error::BlockTooLarge { at: 7, len_bytes: 65_537, max_bytes: 65_536, .. }));
    let announced = header(0x68, 0x40, &5u64.to_le_bytes());
    assert!(matches!(error_of(announced), Error::ContentSize { at: 0, announced: 5, actual: 0 }));
}

/// A frame of 64 KiB blocks whose first block looks like a page.
#[test]
fn frames_that_only_start_like_page_archives() {
    let mut bytes = 0x184d_2204u32.to_le_bytes().to_vec();
    bytes.extend([0x60, 0x40, 0x82]);
    let mut content = Vec::new();
    for (number, len) in (0u64..).zip([4096, 65_536, 100, 4096, 4096, 50_000, 4096, 1, 4096].repeat(200)) {
        let piece = text(number, len);
        let block = lz4_flex::block::compress(&piece);
        bytes.extend(u32::try_from(block.len()).unwrap().to_le_bytes());
        bytes.extend(block);
        content.extend(piece);
        bytes.extend(0x8000_0000u32.to_le_bytes()); // a block of nothing
    }
    bytes.extend([0; 4]);
    for batch_bytes in [1, 4096, 100_000, 1 << 20, 64 << 20] {
        let (read, summary) = read_stream(&bytes, batch_bytes);
        assert!(read == content, "{batch_bytes}");
        assert_eq!(summary.unwrap().blocks, 3600);
    }
}

#[test]
fn input_that_comes_byte_by_byte() {
    struct Trickle<'a>(&'a [u8], usize);
    impl std::io::Read for Trickle<'_> {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            self.1 += 1;
            if self.1.is_multiple_of(3) {
                return Err(std::io::ErrorKind::Interrupted.into());
            }
            let len = self.0.len().min(1 + self.1 % 7).min(out.len());
            out[..len].copy_from_slice(&self.0[..len]);
            self.0 = &self.0[len..];
            Ok(len)
        }
    }
    let content = mixed_content(9, 200_000);
    let archive = plain_archive_of(&content);
    let mut reader = FrameReader::new(Trickle(&archive, 0));
    let (mut read, mut batch) = (Vec::new(), ContentBatch::new());
    while reader.read_batch(&mut batch).unwrap() {
        support::append(&mut read, &batch);
    }
    assert!(read == content);
    assert_eq!(reader.announced_len(), Some(200_000));
}

#[test]
fn a_read_error_says_where() {
    struct Broken(usize);
    impl std::io::Read for Broken {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            let frame = b"\x04\x22\x4d\x18\x60\x40\x82\x05";
            if self.0 == frame.len() {
                return Err(std::io::Error::other("unplugged"));
            }
            out[0] = frame[self.0];
            self.0 += 1;
            Ok(1)
        }
    }
    let error = FrameReader::new(Broken(0)).read_batch(&mut ContentBatch::new()).unwrap_err();
    assert!(matches!(error, Error::Read { at: 8, .. }), "{error}");
}
