//! An index that lies, with every checksum right: a page read by the index is that of the stream, or an error.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use support::forge::Forged;
use support::{archive_of, mixed_content, read_pages, read_stream};
use trueno_test_pages::generate::Generator;
use trueno_zram_archive::WriteOptions;
use trueno_zram_core::PAGE_SIZE;

/// Reads some pages by the index, and holds them to what the stream gives.
fn assert_no_other_page(archive: &[u8], pages: u64, wanted: &mut dyn FnMut() -> u64, what: &str) -> (usize, usize) {
    let (content, result) = read_stream(archive, 1 << 20);
    let (mut equal, mut refused) = (0, 0);
    for _ in 0..6 {
        let page = wanted() % pages;
        match read_pages(archive, page..page + 1) {
            Ok(Some(read)) => {
                let start = usize::try_from(page).unwrap() * PAGE_SIZE;
                let there = content.get(start..content.len().min(start + PAGE_SIZE));
                let beyond = result.is_err() && content.len() < start + PAGE_SIZE;
                assert!(beyond || there == Some(&read[..]), "{what}: page {page} is another one");
                equal += 1;
            }
            _ => refused += 1,
        }
    }
    (equal, refused)
}

/// Pages of one to a few groups, with raw ones and small LZ4 blocks among them.
fn archives() -> Vec<Vec<u8>> {
    let mut archives = Vec::new();
    for (seed, pages) in [(1, 40), (2, 300), (3, 1500), (4, 2600)] {
        for bits in 0..4 {
            let options = WriteOptions {
                content_len: (bits & 1 != 0).then_some((pages * PAGE_SIZE + 100) as u64),
                block_checksums: bits & 2 != 0,
                content_checksum: false,
            };
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
        let rounds = if archive.len() > 2_000_000 { 60 } else { 600 };
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
