//! Damaged archives: every byte, every truncation. What is wrong is said, or what comes out is right.
#![cfg(feature = "zstd")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use support::{archive_of, mixed_content, opened, plain_archive_of, read_pages, read_stream, with_checksums};
use trueno_test_pages::frames;
use trueno_test_pages::generate::Generator;
use trueno_zram_archive::{BlockPlace, ContentHash, Error, Format, IndexVerdict, WriteOptions};
use trueno_zram_core::PAGE_SIZE;

/// Some 5 KB with blocks of every kind: zeros, a word, LZ4, raw and a tail.
fn small_content() -> Vec<u8> {
    let mut random = Generator::new(1);
    let mut content = vec![0; 3 * PAGE_SIZE];
    content.extend(b"deadbeef".iter().cycle().take(PAGE_SIZE));
    content.extend((0..PAGE_SIZE).map(|i| (i / 64).to_le_bytes()[0]));
    content.extend((0..PAGE_SIZE).map(|_| random.byte()));
    content.extend_from_slice(b"and a tail, a tail, a tail, a tail");
    content
}

/// Damages one byte of an archive in several ways, and reads it in all ways.
///
/// The format's block checksums do not cover the bit that says whether a block is compressed: a block that is taken for raw
/// bytes passes its own checksum, and only the content's length or checksum tell, or else the index.
fn assert_damage_shows(content: &[u8], options: WriteOptions) {
    let (archive, summary) = archive_of(content, options, 100);
    let index_at = archive.len() - usize::try_from(summary.index_len).unwrap();
    let pages = summary.pages.pages();
    let reader = opened(&archive).unwrap().unwrap();
    let offset = |place: trueno_zram_archive::Result<BlockPlace>| usize::try_from(place.unwrap().offset).unwrap();
    let raw_bits: Vec<_> = reader.blocks(0..pages).unwrap().map(|place| offset(place) + 3).collect();
    for at in 0..archive.len() {
        for change in [0x01, 0x80, 0xff, 0x10] {
            let raw_bit = raw_bits.contains(&at) && change == 0x80;
            let mut damaged = archive.clone();
            damaged[at] ^= change;
            let (read, result) = read_stream(&damaged, 1 << 20);
            match result {
                Err(_) => assert!(raw_bit || content.starts_with(&read), "byte {at}: all that came out is right"),
                Ok(summary) => {
                    let tolerated = raw_bit && !options.content_checksum && options.content_len.is_none();
                    assert!(at >= index_at || tolerated, "byte {at} of the frame is damaged, and nobody noticed");
                    assert!(read == content || tolerated, "byte {at}");
                    assert_ne!(summary.index, IndexVerdict::Agrees, "byte {at} of the index");
                }
            }
            for page in 0..pages {
                if let Ok(Some(read)) = read_pages(&damaged, page..page + 1) {
                    let start = usize::try_from(page).unwrap() * PAGE_SIZE;
                    assert!(read == content[start..(start + PAGE_SIZE).min(content.len())], "byte {at}, page {page}");
                }
            }
        }
    }
}

#[test]
fn every_byte_damaged() {
    let content = small_content();
    let content_len = Some(content.len() as u64);
    assert_damage_shows(&content, with_checksums().with_content_len(content_len));
    assert_damage_shows(&content, with_checksums());
    assert_damage_shows(&content, with_checksums().with_content_checksum(false));
}

/// Without checksums damage may go unnoticed; it must not do more than that.
#[test]
fn every_byte_damaged_without_checksums() {
    let content = small_content();
    let options = WriteOptions::default().with_format(Format::Lz4).with_block_checksums(false);
    let (archive, summary) = archive_of(&content, options, 100);
    for at in 0..archive.len() {
        for change in [0x01, 0x80, 0xff] {
            let mut damaged = archive.clone();
            damaged[at] ^= change;
            let (read, _) = read_stream(&damaged, 1 << 20);
            assert!(read.len() <= content.len() + (1 << 20));
            let _ = read_pages(&damaged, 0..summary.pages.pages());
        }
    }
}

#[test]
fn every_truncation() {
    let content = small_content();
    let (archive, summary) = archive_of(&content, with_checksums(), 100);
    let index_at = archive.len() - usize::try_from(summary.index_len).unwrap();
    for len in 0..archive.len() {
        let (read, result) = read_stream(&archive[..len], 1 << 20);
        assert!(content.starts_with(&read));
        if len == index_at {
            assert_eq!(result.unwrap().index, IndexVerdict::Absent, "the whole frame, and no index");
        } else {
            assert!(result.is_err(), "{len} bytes");
        }
        assert!(!matches!(read_pages(&archive[..len], 0..1), Ok(Some(_))), "{len} bytes have no index at their end");
    }
}

#[test]
fn damage_in_a_large_archive_is_reported_at_its_place() {
    let content = mixed_content(4, 20_000_000);
    let archive = plain_archive_of(&content);
    let mut random = Generator::new(5);
    for _ in 0..100 {
        let at = random.below(archive.len());
        let mut damaged = archive.clone();
        damaged[at] ^= 1 << random.below(8);
        let (read, result) = read_stream(&damaged, 1 << 20);
        assert!(content.starts_with(&read), "byte {at}");
        match result {
            Ok(summary) => assert!(matches!(summary.index, IndexVerdict::Disagrees(_)), "byte {at}"),
            Err(error) => {
                let place = match error {
                    Error::Truncated { .. } => continue,
                    Error::Header { at, .. }
                    | Error::Dictionary { at, .. }
                    | Error::TrailingGarbage { at }
                    | Error::BlockTooLarge { at, .. }
                    | Error::BlockChecksum { at, .. }
                    | Error::Block { at, .. }
                    | Error::ContentSize { at, .. }
                    | Error::ContentChecksum { at, .. } => usize::try_from(at).unwrap(),
                    other => panic!("byte {at}: {other}"),
                };
                assert!(place <= at + 4 && at <= place + 4200, "byte {at}: {place}");
            }
        }
    }
}

/// Damage in front of a page does not matter to it, as long as a stream cannot get past the damage either.
#[test]
fn intact_pages_are_read_behind_damage() {
    let content = mixed_content(11, 2500 * PAGE_SIZE);
    let archive = plain_archive_of(&content);
    let mut damaged = archive.clone();
    damaged[50..archive.len() / 2].fill(0x5a);
    let mut intact = 0;
    for page in (0..2500).step_by(7) {
        if let Ok(Some(read)) = read_pages(&damaged, page..page + 1) {
            let start = usize::try_from(page).unwrap() * PAGE_SIZE;
            assert!(read == content[start..start + PAGE_SIZE]);
            intact += 1;
        }
    }
    assert!(intact > 100, "{intact} of 358 pages");
    damaged[archive.len() - 100] ^= 1;
    assert!(read_pages(&damaged, 2400..2401).is_err(), "the index itself");
}

#[test]
fn random_damage_to_foreign_frames_never_panics_and_never_disagrees_with_c_lz4() {
    let mut random = Generator::new(6);
    let content = mixed_content(7, 300_000);
    for shape in frames::all_settings() {
        let frame = frames::compress(&content, &shape);
        for _ in 0..12 {
            let mut damaged = frame.clone();
            random.corrupt(&mut damaged);
            let (read, result) = read_stream(&damaged, 1 << 20);
            if let (Ok(_), Some(theirs)) = (result, frames::decompress(&damaged)) {
                assert!(read == theirs, "{shape:?}");
            }
        }
    }
}

#[test]
fn shuffled_soup_of_frames() {
    let mut random = Generator::new(8);
    let shapes = frames::all_settings();
    for _ in 0..200 {
        let mut soup = Vec::new();
        for _ in 0..1 + random.below(5) {
            let (seed, len) = (random.next_u64(), random.below(30_000));
            let piece = mixed_content(seed, len);
            let mut frame = match random.below(3) {
                0 => plain_archive_of(&piece),
                _ => frames::compress(&piece, &shapes[random.below(shapes.len())]),
            };
            if random.below(3) == 0 {
                random.corrupt(&mut frame);
            }
            soup.extend(frame);
        }
        let (read, result) = read_stream(&soup, 1 << 20);
        if let (Ok(_), Some(theirs)) = (result, frames::decompress(&soup)) {
            assert!(read == theirs);
        }
        let _ = read_pages(&soup, 0..1);
    }
}

fn xxh32(bytes: &[u8]) -> [u8; 4] {
    let mut hash = ContentHash::new();
    hash.update(bytes);
    hash.digest().to_le_bytes()
}

/// Makes all checksums of the index right again, in an archive of one group.
fn seal(archive: &mut [u8], entries: std::ops::Range<usize>) {
    let (table, footer) = (archive.len() - 92, archive.len() - 80);
    let checksum = xxh32(&archive[entries]);
    archive[table + 8..table + 12].copy_from_slice(&checksum);
    let checksum = xxh32(&archive[table..footer]);
    archive[footer + 56..footer + 60].copy_from_slice(&checksum);
    let checksum = xxh32(&archive[footer..footer + 68]);
    archive[footer + 68..footer + 72].copy_from_slice(&checksum);
}

#[test]
fn an_index_that_lies_with_right_checksums_gives_no_wrong_page() {
    let content = [small_content(), mixed_content(9, 60 * PAGE_SIZE)].concat();
    let archive = plain_archive_of(&content);
    let pages = content.len().div_ceil(PAGE_SIZE);
    let index_len = opened(&archive).unwrap().unwrap().info().index_len;
    let entries_at = archive.len() - usize::try_from(index_len).unwrap() + 16;
    let entries = entries_at..entries_at + 2 * pages;
    let (table, footer) = (archive.len() - 92, archive.len() - 80);
    let mut sealed = archive.clone();
    seal(&mut sealed, entries.clone());
    assert!(sealed == archive, "the test knows the layout");

    let mut random = Generator::new(10);
    for round in 0..3000 {
        let mut lying = archive.clone();
        match round % 4 {
            0 => {
                let (a, b) = (entries.start + 2 * random.below(pages), entries.start + 2 * random.below(pages));
                let (first, second) = ([lying[a], lying[a + 1]], [lying[b], lying[b + 1]]);
                lying[a..a + 2].copy_from_slice(&second);
                lying[b..b + 2].copy_from_slice(&first);
            }
            1 => lying[entries.start + random.below(2 * pages)] ^= 1 << random.below(8),
            2 => lying[table + random.below(8)] ^= 1 << random.below(8),
            _ => lying[footer + random.below(56)] ^= 1 << random.below(8),
        }
        seal(&mut lying, entries.clone());
        let start = random.below(pages);
        if let Ok(Some(read)) = read_pages(&lying, start as u64..start as u64 + 1) {
            let bytes = &content[start * PAGE_SIZE..((start + 1) * PAGE_SIZE).min(content.len())];
            assert!(read == bytes, "round {round}, page {start}");
        }
        let (read, summary) = read_stream(&lying, 1 << 20);
        assert!(read == content && (lying == archive || summary.unwrap().index != IndexVerdict::Agrees));
    }
}
