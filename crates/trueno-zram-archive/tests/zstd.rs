//! Archives of the Zstandard format: the seek table, runs of zeros, and .zst files of other encoders.
#![cfg(feature = "zstd")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::io::Write;

use support::{append, archive_of, mixed_content, opened, plain_archive_in, read_good, read_pages, read_stream};
use trueno_test_pages::generate::Generator;
use trueno_zram_archive::{ArchiveWriter, ContentBatch, Error, Format, FrameReader, IndexVerdict, WriteOptions};
use trueno_zram_core::{Algorithm, CompressedBatch, CpuBatchCompressor, IndexEntry, PAGE_SIZE, Page, PageKind};
use zstd_safe::seekable::Seekable;

/// The options of these archives.
fn options() -> WriteOptions {
    WriteOptions::default().with_format(Format::Zstd)
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}

/// A reader of the seek table that follows its specification and knows nothing of this crate: offset, length and content
/// length of each frame.
fn seek_table(file: &[u8]) -> Vec<(usize, usize, usize)> {
    let footer = file.len() - 9;
    assert_eq!(u32_at(file, footer + 5), 0x8f92_eab1);
    assert_eq!(file[footer + 4], 0, "no checksums in the table, no reserved bits");
    let frames = u32_at(file, footer);
    let head = footer - 8 * frames - 8;
    assert_eq!((u32_at(file, head), u32_at(file, head + 4)), (0x184d_2a5e, file.len() - head - 8));
    let (mut table, mut at) = (Vec::new(), 0);
    for entry in (head + 8..footer).step_by(8) {
        let (len, content_len) = (u32_at(file, entry), u32_at(file, entry + 4));
        table.push((at, len, content_len));
        at += len;
    }
    assert_eq!(at, head, "the frames fill the file up to the table");
    table
}

#[test]
fn the_seek_table_leads_to_every_frame() {
    for len in [0, 1, 100, 255, 256, 4095, 4096, 4097, 70_000, 3_000_000] {
        let content = mixed_content(1, len);
        for block_checksums in [true, false] {
            let archive = archive_of(&content, options().with_block_checksums(block_checksums), 300).0;
            let table = seek_table(&archive);
            let (&(index_at, index_len, none), frames) = table.split_last().unwrap();
            assert_eq!((u32_at(&archive, index_at), none), (0x184d_2a5d, 0), "the last frame is the index");
            assert_eq!(u32_at(&archive, index_at + 4) + 8, index_len);
            let mut at = 0;
            for &(frame, frame_len, content_len) in frames {
                let decoded = zstd::decode_all(&archive[frame..frame + frame_len]).unwrap();
                assert!(decoded == content[at..at + content_len]);
                assert_eq!(archive[frame + 4] & 4 != 0, block_checksums);
                at += content_len;
            }
            assert_eq!(at, len);
        }
    }
}

#[test]
fn the_c_reader_of_the_seekable_format_finds_any_bytes() {
    let content = mixed_content(2, 2_000_000);
    let archive = plain_archive_in(Format::Zstd, &content);
    let mut seekable = Seekable::create();
    seekable.init_buff(&archive).unwrap();
    assert_eq!(seekable.num_frames() as usize, seek_table(&archive).len());
    let mut random = Generator::new(3);
    for _ in 0..300 {
        let start = random.below(content.len());
        let mut out = vec![0; random.below(30_000).min(content.len() - start)];
        let mut done = 0;
        while done < out.len() {
            let count = seekable.decompress(&mut out[done..], (start + done) as u64).unwrap();
            assert!(count > 0, "{} bytes from {start}", out.len());
            done += count;
        }
        assert!(out == content[start..start + out.len()]);
    }
}

#[test]
fn zeros_take_a_frame_per_group_and_little_memory() {
    let mut archive = ArchiveWriter::new(Vec::new(), options()).unwrap();
    let page: Page = std::array::from_fn(|i| (i / 64).to_le_bytes()[0]);
    let batch = CpuBatchCompressor::new(Algorithm::Zstd { level: 1 }).unwrap().compress(&[page]).unwrap();
    archive.write_batch(&batch).unwrap();
    archive.write_zero_pages(300_000).unwrap();
    archive.write_batch(&batch).unwrap();
    let (bytes, summary) = archive.finish(None).unwrap();
    assert_eq!((summary.pages.zero, summary.pages.zstd), (300_000, 2));
    assert!(bytes.len() < 60_000, "{} bytes for 1.2 GB of zeros", bytes.len());
    assert!(seek_table(&bytes).len() < 300);
    let mut decoder = zstd::stream::read::Decoder::new(&bytes[..]).unwrap();
    decoder.window_log_max(17).unwrap();
    let mut counted = std::io::sink();
    let copied = std::io::copy(&mut decoder, &mut counted).unwrap();
    assert_eq!(copied, 300_002 * PAGE_SIZE as u64, "with a window of 128 KiB");
    let reader = opened(&bytes).unwrap().unwrap();
    let places: Vec<_> = reader.blocks(100_000..100_001).unwrap().map(Result::unwrap).collect();
    assert_eq!((places.len(), places[0].zero, places[0].pages), (1, true, 1024));
    assert_eq!(read_pages(&bytes, 300_001..300_002).unwrap().unwrap(), page);
    let mut stream = FrameReader::new(&bytes[..]);
    let (mut batch, mut len) = (ContentBatch::new(), 0);
    while stream.read_batch(&mut batch).unwrap() {
        len += batch.len_bytes();
    }
    assert_eq!((len, &stream.summary().index), (copied, &IndexVerdict::Agrees));
}

/// Frames of libzstd with and without content size and checksum, at all levels, become the archive's frames.
#[test]
fn frames_of_any_encoder_are_taken() {
    let mut random = Generator::new(4);
    let (mut content, mut arena, mut index) = (Vec::new(), Vec::new(), Vec::new());
    for level in -7..=19 {
        for flags in 0..4 {
            let page = random.page();
            let mut compressor = zstd::bulk::Compressor::new(level).unwrap();
            compressor.include_contentsize(flags & 1 != 0).unwrap();
            compressor.include_checksum(flags & 2 != 0).unwrap();
            let frame = compressor.compress(&page[..]).unwrap();
            if frame.len() < PAGE_SIZE {
                let len_bytes = u16::try_from(frame.len()).unwrap();
                index.push(IndexEntry { offset: arena.len() as u64, len_bytes, kind: PageKind::Zstd });
                arena.extend(frame);
                content.extend_from_slice(&page[..]);
            }
        }
    }
    assert!(index.len() > 50);
    let batch = CompressedBatch::from_parts(arena, index).unwrap();
    for block_checksums in [true, false] {
        let mut archive = ArchiveWriter::new(Vec::new(), options().with_block_checksums(block_checksums)).unwrap();
        archive.write_batch(&batch).unwrap();
        let (bytes, summary) = archive.finish(None).unwrap();
        let (read, read_summary) = read_good(&bytes);
        assert!(read == content && zstd::decode_all(&bytes[..]).unwrap() == content);
        assert_eq!((read_summary.index, read_summary.pages), (IndexVerdict::Agrees, summary.pages));
    }
}

/// A page, and a frame of it without a checksum that is `saved` bytes shorter than 4,115: raw literals, of which the first
/// eight are repeated for that long.
fn barely_packed(random: &mut Generator, saved: usize) -> (Page, Vec<u8>) {
    let literals: Vec<u8> = (0..PAGE_SIZE - saved).map(|_| random.byte()).collect();
    let mut content = literals[..8].to_vec();
    content.extend(literals[..8].iter().cycle().take(saved));
    content.extend_from_slice(&literals[8..]);
    let three_bytes = |number: usize| u32::try_from(number).unwrap().to_le_bytes()[..3].to_vec();
    let code = u8::try_from(saved - 3).unwrap();
    let block = [&three_bytes(literals.len() << 4 | 12)[..], &literals, &[1, 0x54, 8, 3, code, 0x0b]].concat();
    let header = [0x28, 0xb5, 0x2f, 0xfd, 0x60, 0, 15];
    (content.try_into().unwrap(), [&header[..], &three_bytes(block.len() << 3 | 5), &block].concat())
}

/// Pages that shrink by less than the checksum takes are stored.
#[test]
fn frames_that_would_not_fit_are_stored() {
    let mut random = Generator::new(5);
    for saved in 20..30 {
        let (page, frame) = barely_packed(&mut random, saved);
        assert!(zstd::decode_all(&frame[..]).unwrap() == page);
        let index =
            vec![IndexEntry { offset: 0, len_bytes: u16::try_from(frame.len()).unwrap(), kind: PageKind::Zstd }];
        let batch = CompressedBatch::from_parts(frame, index).unwrap();
        for (with_pages, block_checksums) in [(true, true), (false, true), (false, false)] {
            let mut archive = ArchiveWriter::new(Vec::new(), options().with_block_checksums(block_checksums)).unwrap();
            if with_pages { archive.write_batch_of(&batch, &[page]) } else { archive.write_batch(&batch) }.unwrap();
            let (bytes, summary) = archive.finish(None).unwrap();
            let stored = block_checksums && saved < 24;
            assert_eq!((summary.pages.raw, summary.pages.zstd), (u64::from(stored), u64::from(!stored)), "{saved}");
            assert!(read_good(&bytes).0 == page && read_pages(&bytes, 0..1).unwrap().unwrap() == page);
        }
    }
}

/// A few pages of every form, and a tail.
fn small_content() -> Vec<u8> {
    let mut random = Generator::new(1);
    let mut content = vec![0; 3 * PAGE_SIZE];
    content.extend(b"deadbeef".iter().cycle().take(PAGE_SIZE));
    content.extend((0..PAGE_SIZE).map(|i| (i / 64).to_le_bytes()[0]));
    content.extend((0..PAGE_SIZE).map(|_| random.byte()));
    content.extend_from_slice(b"and a tail, a tail, a tail, a tail");
    content
}

#[test]
fn every_byte_damaged() {
    let content = small_content();
    let archive = plain_archive_in(Format::Zstd, &content);
    let index_at = seek_table(&archive).last().unwrap().0;
    for at in 0..archive.len() {
        for change in [0x01, 0x80, 0xff, 0x10, 0x04] {
            let mut damaged = archive.clone();
            damaged[at] ^= change;
            let (read, result) = read_stream(&damaged, 1 << 20);
            match result {
                Err(_) => assert!(content.starts_with(&read), "byte {at}: all that came out is right"),
                Ok(summary) => {
                    // Some bits of a frame mean nothing to a decoder.
                    assert!(read == content, "byte {at}");
                    assert!(at < index_at || summary.index != IndexVerdict::Agrees, "byte {at}, change {change:x}");
                }
            }
            for page in 0..7 {
                if let Ok(Some(read)) = read_pages(&damaged, page..page + 1) {
                    let start = usize::try_from(page).unwrap() * PAGE_SIZE;
                    assert!(read == content[start..(start + PAGE_SIZE).min(content.len())], "byte {at}, page {page}");
                }
            }
        }
    }
}

#[test]
fn every_truncation() {
    let content = small_content();
    let archive = plain_archive_in(Format::Zstd, &content);
    let frames = seek_table(&archive);
    for len in 1..archive.len() {
        let (read, result) = read_stream(&archive[..len], 1 << 20);
        assert!(content.starts_with(&read), "{len} bytes");
        // Between two frames, a file is whole for a decoder, but its index is missing.
        if frames.iter().any(|frame| frame.0 == len || frame.0 + frame.1 == len) {
            assert_ne!(result.unwrap().index, IndexVerdict::Agrees, "{len} bytes");
        } else {
            assert!(result.is_err(), "{len} bytes");
        }
    }
}

#[test]
fn misuse_is_refused() {
    let new = || ArchiveWriter::new(Vec::new(), options()).unwrap();
    let page: Page = std::array::from_fn(|i| (i / 64).to_le_bytes()[0]);
    let lz4 = CpuBatchCompressor::default().compress(&[page]).unwrap();
    assert!(matches!(new().write_batch(&lz4), Err(Error::Misuse(_))));
    let zstd = CpuBatchCompressor::new(Algorithm::Zstd { level: 1 }).unwrap().compress(&[page]).unwrap();
    assert!(matches!(new().write_batch_of(&zstd, &[]), Err(Error::Misuse(_))));
    let batch = |bytes: &[u8]| {
        let len_bytes = u16::try_from(bytes.len()).unwrap();
        CompressedBatch::from_parts(bytes.to_vec(), vec![IndexEntry { offset: 0, len_bytes, kind: PageKind::Zstd }])
            .unwrap()
    };
    let frame = zstd.get(0).unwrap().bytes();
    assert!(matches!(new().write_batch(&batch(&frame[1..])), Err(Error::Misuse(_))));
    assert!(matches!(new().write_batch(&batch(&[frame, frame].concat())), Err(Error::Misuse(_))));
    let other = zstd::bulk::compress(&page[..100], 1).unwrap();
    assert!(matches!(new().write_batch(&batch(&other)), Err(Error::Decoder(_) | Error::Misuse(_))));
    assert_eq!(new().finish(None).unwrap().1.content_len, 0);
}

/// Text-like content with far repetitions.
fn text(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Generator::new(seed);
    let words: Vec<Vec<u8>> =
        (0..3000).map(|_| (0..2 + random.below(9)).map(|_| b'a' + random.byte() % 26).collect()).collect();
    let mut content = Vec::with_capacity(len + 10);
    while content.len() < len {
        content.extend_from_slice(&words[random.below(words.len())]);
    }
    content.truncate(len);
    content
}

#[test]
fn files_of_other_encoders() {
    let content = [text(1, 3_000_000), mixed_content(2, 1_000_000)].concat();
    for level in [-5, 1, 3, 9, 19] {
        for (checksum, size, window_log) in [(true, true, 10), (false, false, 20), (true, false, 27), (false, true, 23)]
        {
            let whole = if level < 9 || window_log == 27 { content.len() } else { 300_000 };
            for len in [0, 1, 4095, 4096, 4097, 200_000, whole] {
                let mut encoder = zstd::stream::Encoder::new(Vec::new(), level).unwrap();
                encoder.include_checksum(checksum).unwrap();
                encoder.window_log(window_log).unwrap();
                if size {
                    encoder.set_pledged_src_size(Some(len as u64)).unwrap();
                }
                encoder.include_contentsize(size).unwrap();
                encoder.write_all(&content[..len]).unwrap();
                let file = encoder.finish().unwrap();
                let (read, summary) = read_good(&file);
                assert!(read == content[..len], "level {level}, {len} bytes");
                assert_eq!((summary.frames, summary.index), (1, IndexVerdict::Absent));
                assert_eq!(summary.input_len, file.len() as u64);
            }
        }
    }
}

#[test]
fn frames_and_skippable_frames_in_any_order() {
    let parts = [text(3, 300_000), mixed_content(4, 50_000), text(5, 10), Vec::new(), text(6, 4096), text(7, 4096)];
    let skippable = |number: u32| [&(0x184d_2a50 + number).to_le_bytes()[..], &[5, 0, 0, 0], b"12345"].concat();
    let (mut file, mut content) = (skippable(3), Vec::new());
    for (number, part) in (0..).zip(&parts) {
        if number % 2 == 0 {
            file.extend(zstd::encode_all(&part[..], 3).unwrap());
        } else {
            file.extend(zstd::bulk::compress(part, 3).unwrap());
        }
        file.extend(skippable(number));
        content.extend_from_slice(part);
    }
    let archive = plain_archive_in(Format::Zstd, &parts[1]);
    file.extend_from_slice(&archive);
    content.extend_from_slice(&parts[1]);
    let (read, summary) = read_good(&file);
    assert!(read == content);
    assert_eq!((summary.index, summary.skippable_frames), (IndexVerdict::Agrees, 9));
    for batch_bytes in [1, 5000, 100_000] {
        assert!(read_stream(&file, batch_bytes).0 == content);
    }
    // LZ4 and Zstandard do not mix.
    let lz4 = plain_archive_in(Format::Lz4, b"other");
    for mixed in [[&archive[..], &lz4].concat(), [&lz4[..], &archive].concat()] {
        assert!(matches!(read_stream(&mixed, 1 << 20).1, Err(Error::TrailingGarbage { .. })));
    }
}

#[test]
fn what_libzstd_refuses_is_refused() {
    let content = text(8, 100_000);
    let mut compressor = zstd::bulk::Compressor::new(3).unwrap();
    compressor.include_checksum(true).unwrap();
    let frame = compressor.compress(&content).unwrap();
    let mut random = Generator::new(9);
    for round in 0..2000 {
        let mut damaged = frame.clone();
        if round % 5 == 0 {
            damaged.truncate(random.below(frame.len()));
        } else {
            random.corrupt(&mut damaged);
        }
        let ours = read_stream(&damaged, 1 << 20);
        let theirs = zstd::decode_all(&damaged[..]);
        if let Ok(theirs) = theirs
            && !damaged.is_empty()
        {
            assert!(ours.1.is_ok() && ours.0 == theirs, "round {round}");
        } else {
            assert!(ours.1.is_err(), "round {round}");
        }
    }
    let mut reserved = frame.clone();
    reserved[4] |= 8;
    assert!(matches!(read_stream(&reserved, 1 << 20).1, Err(Error::Header { at: 0, .. })));
    // A header with the number of a dictionary.
    let dictionary = [&0xfd2f_b528_u32.to_le_bytes()[..], &[0x21, 77, 5], &[0x29, 0, 0], b"hello"].concat();
    assert!(matches!(read_stream(&dictionary, 1 << 20).1, Err(Error::Dictionary { at: 0, id: 77 })));
    // A window of more than 128 MiB.
    let wide = [&0xfd2f_b528_u32.to_le_bytes()[..], &[0, 0x90], &[0x29, 0, 0], b"hello"].concat();
    assert!(matches!(read_stream(&wide, 1 << 20).1, Err(Error::Block { at: 0, .. })));
}

#[test]
fn many_tiny_frames_share_batches() {
    const FRAMES: usize = 100_000;
    let word = b"tiny";
    let mut unsized_frames = zstd::bulk::Compressor::new(1).unwrap();
    unsized_frames.include_contentsize(false).unwrap();
    let kinds = [
        ("with a size", zstd::bulk::compress(word, 1).unwrap(), &word[..]),
        ("without a size", unsized_frames.compress(word).unwrap(), word),
        ("empty", zstd::bulk::compress(b"", 1).unwrap(), b""),
    ];
    for (name, one, content) in kinds {
        let bytes = one.repeat(FRAMES);
        let mut reader = FrameReader::new(&bytes[..]);
        let (mut read, mut batch, mut batches) = (Vec::new(), ContentBatch::new(), 0);
        while reader.read_batch(&mut batch).unwrap() {
            append(&mut read, &batch);
            batches += 1;
        }
        assert!(read == content.repeat(FRAMES), "{name}");
        assert!(batches <= 30, "{name}: {batches} batches of {} bytes", read.len());
        assert_eq!(reader.summary().frames, FRAMES as u64, "{name}");
    }
}
