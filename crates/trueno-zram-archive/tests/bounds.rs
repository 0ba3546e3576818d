//! Inputs that ask for much: many tiny frames, lengths that are only claimed, blocks that no encoder writes.
#![cfg(feature = "zstd")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use support::{archive_of, mixed_content, opened, plain_archive_of, read_good, read_stream, with_checksums};
use trueno_test_pages::frames;
use trueno_zram_archive::{
    Archive, ArchiveWriter, ContentBatch, ContentHash, ContentSpan, Error, Format, FrameReader, ReadAt, WriteOptions,
};
use trueno_zram_core::PAGE_SIZE;

fn xxh32(bytes: &[u8]) -> [u8; 4] {
    let mut hash = ContentHash::new();
    hash.update(bytes);
    hash.digest().to_le_bytes()
}

/// A frame around blocks, with right checksums.
fn frame(flags: u8, size_id: u8, blocks: &[(bool, &[u8])]) -> Vec<u8> {
    let mut frame = 0x184d_2204_u32.to_le_bytes().to_vec();
    frame.extend([flags, size_id << 4]);
    frame.push(xxh32(&frame[4..])[1]);
    for (raw, block) in blocks {
        let flag = if *raw { 1 << 31 } else { 0 };
        frame.extend((u32::try_from(block.len()).unwrap() | flag).to_le_bytes());
        frame.extend_from_slice(block);
        if flags & 0x10 != 0 {
            frame.extend(xxh32(block));
        }
    }
    frame.extend([0; 4]);
    frame
}

/// Counts the calls of `read`.
struct Counted<'a>(&'a [u8], usize);

impl Read for Counted<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        self.1 += 1;
        self.0.read(out)
    }
}

/// Reads a stream; returns its content, the batches that were handed out and the calls of `read`.
fn read_counted(bytes: &[u8]) -> (Vec<u8>, usize, usize) {
    let mut input = Counted(bytes, 0);
    let mut reader = FrameReader::new(&mut input);
    let (mut content, mut batch, mut batches) = (Vec::new(), ContentBatch::new(), 0);
    while reader.read_batch(&mut batch).unwrap() {
        support::append(&mut content, &batch);
        batches += 1;
    }
    drop(reader);
    (content, batches, input.1)
}

#[test]
fn many_tiny_frames_share_batches_and_reads() {
    const FRAMES: usize = 200_000;
    let word = b"tiny";
    let linked = frame(0x40, 7, &[(true, word)]);
    let kinds = [
        ("empty frames", frame(0x60, 4, &[]), &b""[..]),
        ("page frames", frame(0x60, 4, &[(true, word)]), word),
        ("frames of large blocks", frame(0x60, 7, &[(true, word)]), word),
        ("linked frames", linked, word),
        ("skippable frames", [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0], &b"abc"[..]].concat(), b""),
    ];
    for (name, one, content) in kinds {
        let bytes = one.repeat(FRAMES);
        let (read, batches, reads) = read_counted(&bytes);
        assert!(read == content.repeat(FRAMES), "{name}");
        assert!(batches <= read.len() / (1 << 20) + 1, "{name}: {batches} batches of {} bytes", read.len());
        assert!(reads <= bytes.len() / (64 << 10) + 4, "{name}: {reads} reads of {} bytes", bytes.len());
    }
}

#[test]
fn many_tiny_blocks_share_batches() {
    let blocks: Vec<(bool, &[u8])> = (0..300_000).map(|_| (true, &b"block"[..])).collect();
    for (flags, size_id) in [(0x60, 7), (0x40, 7), (0x70, 6)] {
        let (read, batches, _) = read_counted(&frame(flags, size_id, &blocks));
        assert!(read == b"block".repeat(blocks.len()));
        assert!(batches <= 30, "{batches} batches for {} blocks of {} bytes in all", blocks.len(), read.len());
    }
}

/// Blocks that C lz4 and this crate judge alike: a match needs five literals after it.
#[test]
fn a_block_that_ends_in_a_match_is_refused_as_by_c_lz4() {
    for last in [&[0x00][..], &[0x10, b'a'], &[0x40, b'a', b'b', b'c', b'd'], &[0x50, 1, 2, 3, 4, 5], &[]] {
        for size_id in [4, 7] {
            let block = [&[0x44, b'a', b'b', b'c', b'd', 4, 0], last].concat();
            let bytes = frame(0x60, size_id, &[(false, &block)]);
            let (read, result) = read_stream(&bytes, 1 << 20);
            let theirs = frames::decompress(&bytes);
            assert_eq!(result.is_ok(), theirs.is_some(), "{last:?}");
            assert!(theirs.is_none_or(|theirs| theirs == read));
        }
    }
}

/// lz4 1.9.4 loses the frame after one with block checksums, without a content checksum, and with full blocks.
#[test]
fn frames_without_a_content_checksum_have_no_full_blocks() {
    for (content_checksum, block_checksums) in [(true, true), (false, true), (false, false)] {
        let options = WriteOptions::default()
            .with_format(Format::Lz4)
            .with_block_checksums(block_checksums)
            .with_content_checksum(content_checksum);
        let mut archive = ArchiveWriter::new(Vec::new(), options).unwrap();
        let mut hash = ContentHash::new();
        archive.write_zero_pages(300).unwrap();
        hash.update_zeros(300 * PAGE_SIZE as u64);
        let (bytes, _) = archive.finish(Some(hash)).unwrap();
        let reader = opened(&bytes).unwrap().unwrap();
        let longest = reader.blocks(0..300).unwrap().map(|block| block.unwrap().pages).max();
        assert_eq!(longest, Some(if block_checksums && !content_checksum { 15 } else { 16 }));
        let (read, summary) = read_good(&bytes);
        assert!(read == vec![0; 300 * PAGE_SIZE]);
        assert_eq!(summary.index, trueno_zram_archive::IndexVerdict::Agrees);
    }
}

/// A file of zeros, with some bytes at its end or start: what a sparse file is.
struct Sparse {
    start: Vec<u8>,
    len: u64,
    end: Vec<u8>,
    read_bytes: AtomicU64,
}

impl ReadAt for Sparse {
    fn read_exact_at(&self, out: &mut [u8], at: u64) -> std::io::Result<()> {
        let end_at = self.len - self.end.len() as u64;
        for (at, byte) in (at..).zip(&mut *out) {
            *byte = match usize::try_from(at) {
                Ok(at) if at < self.start.len() => self.start[at],
                _ if at >= end_at => self.end[usize::try_from(at - end_at).unwrap()],
                _ => 0,
            };
        }
        self.read_bytes.fetch_add(out.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn len_bytes(&self) -> std::io::Result<u64> {
        Ok(self.len)
    }
}

/// The footer of an index with these lengths.
fn footer(content_len: u64, frame_len: u64, entries_len: u32, sections_len: u32, sections: [u8; 4]) -> Vec<u8> {
    let mut footer = Vec::new();
    let pages = content_len.div_ceil(PAGE_SIZE as u64);
    for field in [content_len, frame_len, pages, 0, 0, 0] {
        footer.extend(field.to_le_bytes());
    }
    footer.extend(entries_len.to_le_bytes());
    footer.extend(sections_len.to_le_bytes());
    footer.extend(xxh32(&[]));
    footer.extend(sections);
    footer.extend([1, 0, 0, 0]);
    footer.extend(xxh32(&footer));
    footer.extend(b"TZ-PAGES");
    footer
}

#[test]
fn a_table_that_is_only_claimed_is_not_read() {
    let whole = plain_archive_of(&[]);
    let header = &whole[..15];
    // A frame of 16 TB and a table of 3 GB, all of it a hole.
    let groups = 250_000_000u64;
    let (content_len, index_len) = (groups * 1024 * PAGE_SIZE as u64, 16 + 80 + 12 * groups);
    let frame_len = groups * 70_000;
    let mut start = header.to_vec();
    start[6..14].copy_from_slice(&content_len.to_le_bytes());
    start[14] = xxh32(&start[4..14])[1];
    let mut end = footer(content_len, frame_len, 0, 0, xxh32(&[]));
    let mut file = Sparse { start, len: frame_len + index_len, end: Vec::new(), read_bytes: AtomicU64::new(0) };
    std::mem::swap(&mut file.end, &mut end);
    let file = Arc::new(file);
    // The head of the index lies in the hole: it is refused there, or at the table's first record.
    assert!(matches!(Archive::read_from(Arc::clone(&file) as _), Err(Error::Index(_))));
    let read_bytes = file.read_bytes.load(Ordering::Relaxed);
    assert!(read_bytes < 100_000, "{read_bytes} bytes read");
}

#[test]
fn a_section_is_refused_by_its_length_before_it_is_read() {
    let mut archive = ArchiveWriter::new(Vec::new(), with_checksums()).unwrap();
    archive.add_section("map", &vec![0; 30 << 20]).unwrap();
    let (bytes, _) = archive.finish(Some(ContentHash::new())).unwrap();
    let reader = opened(&bytes).unwrap().unwrap();
    for max_bytes in [1 << 20, (30 << 20) - 1] {
        let error = reader.section("map", max_bytes).unwrap_err();
        assert!(
            matches!(&error, Error::SectionTooLarge { name, len_bytes: 0x1e0_0000, max_bytes: most } if name == "map" && *most == max_bytes),
            "{error}"
        );
    }
    assert_eq!(reader.section("map", 30 << 20).unwrap().unwrap().len(), 30 << 20);
}

#[test]
fn errors_name_the_page() {
    let content = mixed_content(3, 200 * PAGE_SIZE);
    let (archive, _) = archive_of(&content, with_checksums(), 50);
    let reader = opened(&archive).unwrap().unwrap();
    let block = reader.blocks(150..151).unwrap().next().unwrap().unwrap();
    let at = usize::try_from(block.offset).unwrap();
    let (page, byte) = (block.first_page, block.offset);
    let damaged = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = archive.clone();
        change(&mut bytes);
        read_stream(&bytes, 100_000).1.unwrap_err()
    };
    let checksum = damaged(&|bytes| bytes[at + 4] ^= 1);
    assert!(
        matches!(checksum, Error::BlockChecksum { at, page: Some(found), .. } if (at, found) == (byte, page)),
        "{checksum}"
    );
    let size = damaged(&|bytes| bytes[at + 2] ^= 0x70);
    assert!(
        matches!(size, Error::BlockTooLarge { at, page: Some(found), .. } if (at, found) == (byte, page)),
        "{size}"
    );
    let cut = damaged(&|bytes| bytes.truncate(at + 6));
    assert!(matches!(cut, Error::Truncated { at, page: Some(found), .. } if (at, found) == (byte + 6, page)), "{cut}");
    let mut bytes = archive.clone();
    bytes[at + 4] ^= 1;
    let reader = opened(&bytes).unwrap().unwrap();
    let error = reader.read_page(page).unwrap_err();
    assert!(
        matches!(error, Error::BlockChecksum { at, page: Some(found), .. } if (at, found) == (byte, page)),
        "{error}"
    );
}

/// The most content that a byte of a file stands for, as SECURITY.md states it: the densest files come close, and stay below.
#[test]
fn no_byte_stands_for_more_than_its_format_allows() {
    let shape = frames::FrameSettings {
        block_size_id: 7,
        linked: false,
        block_checksums: false,
        content_checksum: false,
        content_size: false,
        level: 0,
    };
    let content = vec![7; 64 << 20];
    let factor = content.len() / frames::compress(&content, &shape).len();
    assert!((250..255).contains(&factor), "{factor} in large blocks of LZ4");
    for (format, factors) in [(Format::Lz4, 200..255), (Format::Zstd, 25_000..32_768)] {
        let options = with_checksums().with_format(format).with_content_checksum(false);
        let mut archive = ArchiveWriter::new(Vec::new(), options).unwrap();
        archive.write_zero_pages(1 << 18).unwrap();
        let (archive, _) = archive.finish(None).unwrap();
        let factor = (PAGE_SIZE << 18) / archive.len();
        assert!(factors.contains(&factor), "{factor} in zero pages of {format:?}");
        let (mut reader, mut batch, mut batches) = (FrameReader::new(&archive[..]), ContentBatch::new(), 0);
        while reader.read_batch(&mut batch).unwrap() {
            assert_eq!(batch.spans().filter(|span| matches!(span, ContentSpan::Data(_))).count(), 0);
            batches += 1;
        }
        assert_eq!(reader.summary().content_len, (PAGE_SIZE as u64) << 18);
        assert!(batches <= 1 + archive.len() / 1000, "{batches} batches of zeros for {} bytes", archive.len());
    }
    // Blocks of 4 bytes that repeat one 128 KiB long.
    let mut dense = b"\x28\xb5\x2f\xfd\x00\x38".to_vec();
    for left in (0..1000).rev() {
        let header = (128_u32 << 10) << 3 | 1 << 1 | u32::from(left == 0);
        dense.extend(&header.to_le_bytes()[..3]);
        dense.push(b'x');
    }
    let (content, _) = read_good(&dense);
    assert_eq!(content.len(), 1000 << 17);
    assert!((32_000..32_768).contains(&(content.len() / dense.len())));
}
