//! Matches that reach before the start of their page or frame: an error in every reader, although its buffers hold a page of
//! secrets.
#![cfg(feature = "zstd")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

#[path = "../../trueno-gpu/tests/support/reaching.rs"]
mod reaching;

use std::sync::Arc;

use reaching::{leaks, lz4_blocks, secrets, zstd_frames};
use support::{FORMATS, append, opened, read_pages, read_stream, with_checksums};
use trueno_zram_archive::{
    ArchiveWriter, ContentBatch, ContentHash, ContentSpan, Error, Format, FrameReader, Pages, SalvageReader,
};
use trueno_zram_core::{CompressedBatch, PAGE_SIZE, PageData, PageKind};

/// An archive in which a bad page stands between two pages of secrets.
fn archive_with(format: Format, bad: &[u8], block_checksums: bool) -> Vec<u8> {
    // The context that restores the bad frame restores the secrets before.
    let (kind, whole) = match format {
        Format::Lz4 => (PageKind::Lz4, (PageKind::Raw, secrets().to_vec())),
        Format::Zstd => (PageKind::Zstd, (PageKind::Zstd, zstd::bulk::compress(&secrets(), 3).unwrap())),
    };
    let mut batch = CompressedBatch::new();
    batch.push(PageData::new(whole.0, &whole.1).unwrap());
    batch.push(PageData::new(kind, bad).unwrap());
    batch.push(PageData::new(whole.0, &whole.1).unwrap());
    let options =
        with_checksums().with_format(format).with_block_checksums(block_checksums).with_content_checksum(false);
    let mut archive = ArchiveWriter::new(Vec::new(), options).unwrap();
    archive.write_batch(&batch).unwrap();
    archive.finish(None).unwrap().0
}

#[test]
fn archive_readers_refuse_pages_that_reach_before_their_start() {
    for format in FORMATS {
        let bad = if format == Format::Lz4 { lz4_blocks() } else { zstd_frames() };
        for (name, block) in bad.iter().step_by(3) {
            // The writer decodes Zstandard pages for their checksums, so it makes none of these.
            let archive = archive_with(format, block, format == Format::Lz4);
            let (content, verdict) = read_stream(&archive, PAGE_SIZE);
            assert!(matches!(verdict, Err(Error::Block { .. })), "{name}: {verdict:?}");
            assert!(content == secrets(), "{name}: what comes before the bad page");

            let shared = opened(&archive).unwrap().unwrap();
            for number in [0, 1, 2] {
                let mut page = [0xee; PAGE_SIZE];
                let (alone, together) =
                    (read_pages(&archive, number..number + 1), shared.read(number, std::slice::from_mut(&mut page)));
                if number == 1 {
                    assert!(matches!(alone, Err(Error::Block { .. })), "{name}: {alone:?}");
                    assert!(matches!(together, Err(Error::Block { .. })), "{name}: {together:?}");
                    assert_eq!(leaks(&page, block), [], "{name}");
                } else {
                    assert!(alone.unwrap().unwrap() == secrets() && page == secrets(), "{name}: page {number}");
                }
            }

            let mut salvage = SalvageReader::open(Arc::new(archive.to_vec())).unwrap();
            let (mut content, mut batch) = (Vec::new(), ContentBatch::new());
            while salvage.read_batch(&mut batch).unwrap() {
                append(&mut content, &batch);
            }
            assert!(content == [secrets(), [0; PAGE_SIZE], secrets()].as_flattened(), "{name}");
            assert_eq!(salvage.damage().len(), 1, "{name}");
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Linked {
    Yes,
    No,
}

/// A frame of blocks, stored ones marked `true`.
fn frame(linked: Linked, blocks: &[(bool, Vec<u8>)]) -> Vec<u8> {
    let flags = if linked == Linked::Yes { 0x40 } else { 0x60 };
    let mut frame = 0x184d_2204_u32.to_le_bytes().to_vec();
    frame.extend([flags, 4 << 4]);
    let mut hash = ContentHash::new();
    hash.update(&frame[4..]);
    frame.push(hash.digest().to_le_bytes()[1]);
    for (stored, bytes) in blocks {
        let size = u32::try_from(bytes.len()).unwrap() | if *stored { 1 << 31 } else { 0 };
        frame.extend(size.to_le_bytes());
        frame.extend(bytes);
    }
    frame.extend([0; 4]);
    frame
}

/// Five literals, a match of 1,000 bytes with this offset, and five literals.
fn block_reaching(offset: u16) -> Vec<u8> {
    let [low, high] = offset.to_le_bytes();
    let mut block = b"\x5fLLLLL".to_vec();
    block.extend([low, high]);
    // 1,000 = 4 + 15 + 3 * 255 + 216
    block.extend([255, 255, 255, 216]);
    block.extend(b"\x50LLLLL");
    block
}

/// Blocks of a frame may refer to its own content, if they are linked, and to nothing before it.
#[test]
fn blocks_refer_to_nothing_before_their_frame() {
    let full = frame(Linked::Yes, &[(true, secrets().repeat(16))]);
    let mut used = ContentBatch::new();
    for linked in [Linked::Yes, Linked::No] {
        // Frames of a few bytes and of more: they are read in different ways.
        for before in [0_usize, 100, 60_000] {
            let own = vec![b'o'; before];
            for beyond in [1_usize, 2, 1000, 4096, 5000] {
                let within = before + 5;
                let offset = u16::try_from(within + beyond).unwrap();
                let mut blocks = vec![(true, own.clone()), (false, block_reaching(offset))];
                blocks.retain(|(_, bytes)| !bytes.is_empty());
                let bad = frame(linked, &blocks);
                let what = format!("{linked:?}, {before} bytes before, offset {offset}");

                let (content, verdict) = read_stream(&[&full[..], &bad].concat(), 1 << 20);
                assert!(matches!(verdict, Err(Error::Block { .. })), "{what}: {verdict:?}");
                assert!([secrets().repeat(16), own.clone()].concat().starts_with(&content), "{what}");

                // The same memory, after a stream of secrets.
                assert!(FrameReader::new(&full[..]).read_batch(&mut used).unwrap());
                let mut reader = FrameReader::new(&bad[..]);
                let read = std::iter::repeat_with(|| reader.read_batch(&mut used)).take(10).find(Result::is_err);
                assert!(matches!(read, Some(Err(Error::Block { .. }))), "{what}: {read:?}");
                let shown =
                    |span| matches!(span, ContentSpan::Data(bytes) if bytes.iter().any(|byte| byte & 0xc0 == 0x80));
                assert!(!used.spans().any(shown), "{what}");
            }
            // The farthest byte of the frame itself, and of the block itself.
            let whole = [(true, own.clone()), (false, block_reaching(u16::try_from(before + 5).unwrap()))];
            let (_, verdict) = read_stream(&frame(linked, &whole[usize::from(before == 0)..]), 1 << 20);
            assert_eq!(verdict.is_ok(), linked == Linked::Yes || before == 0, "{linked:?}, {before} bytes before");
        }
    }
}
