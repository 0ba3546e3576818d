//! An index that lies, with every checksum right: a page read by the index is that of the stream, or an error.
#![cfg(feature = "zstd")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use support::forge::Forged;
use support::{FORMATS, archive_of, mixed_content, opened, read_pages, read_stream, with_checksums};
use trueno_test_pages::generate::Generator;
use trueno_zram_archive::{Error, Format, IndexVerdict, Pages, WriteOptions};
use trueno_zram_core::PAGE_SIZE;

/// Reads one page by the index, without proof of where its group starts.
fn read_unproven(archive: &[u8], page: u64) -> Result<Option<Vec<u8>>, Error> {
    let Some(archive) = opened(archive)? else { return Ok(None) };
    let archive = archive.with_walk_limit(0);
    let mut content = [[0xff; PAGE_SIZE]];
    archive.read_pages(page, &mut content)?;
    Ok(Some(content[0][..archive.page_len(page)].to_vec()))
}

/// Reads one page with the index in memory.
fn read_shared(archive: &[u8], page: u64) -> Result<Option<Vec<u8>>, Error> {
    let Some(archive) = opened(archive)? else { return Ok(None) };
    Ok(Some(archive.read_page(page)?[..archive.page_len(page)].to_vec()))
}

/// Reads some pages by the index, and compares them with the stream's.
fn assert_no_other_page(archive: &[u8], pages: u64, wanted: &mut dyn FnMut() -> u64, what: &str) -> (usize, usize) {
    let (content, result) = read_stream(archive, 1 << 20);
    let agrees = result.as_ref().is_ok_and(|summary| summary.index == IndexVerdict::Agrees);
    let (mut equal, mut refused) = (0, 0);
    for _ in 0..6 {
        let page = wanted() % pages;
        let read = read_pages(archive, page..page + 1);
        assert!(
            read_shared(archive, page).ok().flatten() == read.as_ref().ok().cloned().flatten(),
            "{what}: page {page}"
        );
        match read {
            Ok(Some(read)) => {
                let start = usize::try_from(page).unwrap() * PAGE_SIZE;
                let there = content.get(start..content.len().min(start + PAGE_SIZE));
                let beyond = result.is_err() && content.len() < start + PAGE_SIZE;
                assert!(beyond || there == Some(&read[..]), "{what}: page {page} is another one");
                equal += 1;
            }
            _ => refused += 1,
        }
        if agrees && let Ok(Some(read)) = read_unproven(archive, page) {
            let start = usize::try_from(page).unwrap() * PAGE_SIZE;
            assert!(content[start..].starts_with(&read), "{what}: the index agrees, and page {page} is another one");
        }
    }
    (equal, refused)
}

/// Pages of one to a few groups, with raw ones and small LZ4 blocks among them.
fn archives() -> Vec<Vec<u8>> {
    let mut archives = Vec::new();
    for (seed, pages) in [(1, 40), (2, 300), (3, 1500), (4, 2600)] {
        for bits in 0..8 {
            let options = WriteOptions::default()
                .with_format(FORMATS[bits >> 2])
                .with_content_len((bits & 1 != 0).then_some((pages * PAGE_SIZE + 100) as u64))
                .with_block_checksums(bits & 2 != 0);
            archives.push(archive_of(&mixed_content(seed, pages * PAGE_SIZE + 100), options, 500).0);
        }
    }
    archives
}

#[test]
fn no_forged_archive_gives_another_page() {
    let archives = archives();
    let mut random = Generator::new(11);
    let (mut equal, mut refused) = (0, 0);
    for archive in &archives {
        let whole = Forged::parse(archive);
        assert!(whole.build() == *archive, "the test knows the layout");
        let rounds = if archive.len() > 2_000_000 { 30 } else { 250 };
        for round in 0..rounds {
            let mut forged = whole.clone();
            for _ in 0..=random.below(3) {
                forged.edit(&mut |n| random.below(n));
            }
            let pages = forged.content_len.div_ceil(PAGE_SIZE as u64).clamp(1, 3000);
            let counts =
                assert_no_other_page(&forged.build(), pages, &mut || random.next_u64(), &format!("round {round}"));
            equal += counts.0;
            refused += counts.1;
        }
    }
    assert!(
        equal > 1000 && refused > 1000,
        "{equal} pages read and {refused} refused: the edits are too mild or too wild"
    );
}

/// The position of a group far behind the start rests on the index alone, unless the limit is raised. A stream finds such
/// a lie.
#[test]
fn the_walk_limit_is_what_proves_positions() {
    let pages: Vec<u8> =
        (0..3000 * PAGE_SIZE).map(|at| (at / PAGE_SIZE % 251 * (at % 7) + 1).to_le_bytes()[0]).collect();
    for format in FORMATS {
        let options = with_checksums().with_format(format).with_content_checksum(false);
        assert_limit_proves(&pages, &archive_of(&pages, options, 500).0);
    }
}

fn assert_limit_proves(pages: &[u8], archive: &[u8]) {
    let mut forged = Forged::parse(archive);
    assert!(forged.move_boundary(&mut |_| 900), "the second and third group start a block late");
    let lying = forged.build();
    let wanted = &pages[1500 * PAGE_SIZE..1501 * PAGE_SIZE];
    assert!(read_unproven(archive, 1500).unwrap().unwrap() == wanted);
    assert!(read_unproven(&lying, 1500).unwrap().unwrap() != wanted, "nothing in the group itself is wrong");
    assert!(matches!(read_pages(&lying, 1500..1501), Err(Error::Index(_))));
    let (content, summary) = read_stream(&lying, 1 << 20);
    assert!(content == pages && matches!(summary.unwrap().index, IndexVerdict::Disagrees(_)));
}

#[test]
fn rejects_a_frame_that_goes_on_behind_the_last_block() {
    let options = WriteOptions::default().with_format(Format::Lz4).with_block_checksums(false);
    let mut archive = archive_of(&mixed_content(5, 40 * PAGE_SIZE + 100), options, 500).0;
    assert!(read_pages(&archive, 40..41).unwrap().is_some());
    let footer = archive.len() - 80;
    let frame_len = u64::from_le_bytes(archive[footer + 8..footer + 16].try_into().unwrap());
    let end_mark = usize::try_from(frame_len).unwrap() - 4;
    assert_eq!(archive[end_mark..end_mark + 4], [0; 4]);
    // The size word of a stored block of 66 bytes: for a stream, the content goes on.
    archive[end_mark..end_mark + 4].copy_from_slice(&(0x8000_0000_u32 | 66).to_le_bytes());
    assert!(read_pages(&archive, 40..41).is_err());
}
