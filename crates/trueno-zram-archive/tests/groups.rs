//! Whole archives by their groups: what a stream returns, or an error.
#![cfg(feature = "zstd")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use support::{FORMATS, archive_of, mixed_content, opened, with_checksums};
use trueno_test_pages::generate::Generator;
use trueno_zram_archive::{
    ContentBatch, ContentHash, ContentSpan, Format, FrameReader, GroupBuffer, GroupTotals, ReadSummary, Result,
    WriteOptions,
};
use trueno_zram_core::{PAGE_SIZE, PageCodec};

fn push(content: &mut Vec<u8>, span: ContentSpan<'_>) {
    match span {
        ContentSpan::Data(bytes) => content.extend_from_slice(bytes),
        ContentSpan::Zeros(len_bytes) => content.resize(content.len() + usize::try_from(len_bytes).unwrap(), 0),
    }
}

/// Restores an archive group by group. `None` if it has no usable index.
fn by_groups(archive: &[u8]) -> Result<Option<(Vec<u8>, ReadSummary)>> {
    let Some(archive) = opened(archive)? else { return Ok(None) };
    let (mut group, mut totals) = (GroupBuffer::new(), GroupTotals::default());
    let mut codec = PageCodec::default();
    let mut content = Vec::new();
    for number in 0..archive.info().group_count {
        totals += archive.read_group(number, &mut group)?;
        let mut restored = vec![[0; PAGE_SIZE]; group.data_pages()];
        for (page, into) in group.pages().zip(&mut restored) {
            codec.decompress(page, into).map_err(trueno_zram_archive::Error::Decoder)?;
        }
        assert_eq!(group.content_start(), content.len() as u64);
        group.spans(&restored).for_each(|span| push(&mut content, span));
        assert_eq!(group.content_start() + group.content_len(), content.len() as u64);
    }
    let mut hash = ContentHash::new();
    hash.update(&content);
    let summary = archive.finish(totals, Some(&hash))?;
    Ok(Some((content, summary)))
}

fn by_stream(archive: &[u8]) -> Result<(Vec<u8>, ReadSummary)> {
    let mut reader = FrameReader::new(archive);
    let (mut batch, mut content) = (ContentBatch::new(), Vec::new());
    while reader.read_batch(&mut batch)? {
        batch.spans().for_each(|span| push(&mut content, span));
    }
    Ok((content, reader.summary().clone()))
}

fn options(format: Format, block_checksums: bool, content_checksum: bool) -> WriteOptions {
    with_checksums().with_format(format).with_block_checksums(block_checksums).with_content_checksum(content_checksum)
}

#[test]
fn groups_give_what_a_stream_gives() {
    for (seed, len) in [(1, 0), (2, 77), (3, PAGE_SIZE), (4, 5000 * PAGE_SIZE + 77), (5, 3 << 22)] {
        let content = mixed_content(seed, len);
        for format in FORMATS {
            for (block_checksums, content_checksum) in [(true, false), (false, true), (true, true)] {
                let content_checksum = content_checksum && format == Format::Lz4;
                let archive = archive_of(&content, options(format, block_checksums, content_checksum), 700).0;
                let (by_groups, found) = by_groups(&archive).unwrap().unwrap();
                let (by_stream, expected) = by_stream(&archive).unwrap();
                assert!(by_groups == content && by_stream == content, "{format:?}, {len} bytes");
                assert_eq!(found, expected, "{format:?}, {len} bytes");
            }
        }
    }
}

#[test]
fn groups_of_damaged_archives_give_what_a_stream_gives_or_an_error() {
    let content = mixed_content(6, 1500 * PAGE_SIZE + 9);
    for format in FORMATS {
        let intact = archive_of(&content, options(format, true, false), 700).0;
        let (mut random, mut refused) = (Generator::new(7), 0);
        for round in 0..300 {
            let mut archive = intact.clone();
            match round % 3 {
                0 => archive.truncate(random.below(intact.len())),
                1 => {
                    let at = random.below(archive.len());
                    archive[at] ^= 1 << random.below(8);
                }
                _ => {
                    let at = archive.len() - 1 - random.below(9000);
                    archive[at] = random.byte();
                }
            }
            match by_groups(&archive) {
                Err(_) | Ok(None) => refused += 1,
                Ok(Some((by_groups, found))) => {
                    let (by_stream, expected) = by_stream(&archive).unwrap();
                    assert!(by_groups == by_stream, "{format:?}, round {round}");
                    assert_eq!(found, expected, "{format:?}, round {round}");
                }
            }
        }
        assert!(refused > 200, "{format:?}: {refused} of 300");
    }
}

#[test]
fn groups_with_another_content_hash_are_refused() {
    let archive = opened(&archive_of(&[7; 5000], options(Format::Lz4, true, true), 700).0).unwrap().unwrap();
    let totals = archive.read_group(0, &mut GroupBuffer::new()).unwrap();
    let mut hash = ContentHash::new();
    hash.update(&[7; 5000]);
    assert!(archive.finish(totals, Some(&hash)).is_ok());
    hash.update(&[7]);
    assert!(archive.finish(totals, Some(&hash)).is_err() && archive.finish(totals, None).is_err());
}
