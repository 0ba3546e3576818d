//! The proof of positions: as much as is asked for before a page is returned, the rest later.
#![cfg(feature = "zstd")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use support::forge::Forged;
use support::{FORMATS, archive_of, mixed_content, opened, plain_archive_in};
use trueno_zram_archive::{Archive, BlockPlace, Error, Pages, ReadAt, Verify, WriteOptions};
use trueno_zram_core::PAGE_SIZE;

/// A file that notes all reads.
struct Counted {
    bytes: Vec<u8>,
    reads: Mutex<Vec<Range<u64>>>,
}

impl Counted {
    fn new(bytes: Vec<u8>) -> Arc<Self> {
        Arc::new(Self { bytes, reads: Mutex::default() })
    }

    /// Returns the ranges that were read since the last call.
    fn take_reads(&self) -> Vec<Range<u64>> {
        std::mem::take(&mut *self.reads.lock().unwrap())
    }
}

impl ReadAt for Counted {
    fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        self.reads.lock().unwrap().push(at..at + bytes.len() as u64);
        self.bytes.read_exact_at(bytes, at)
    }

    fn len_bytes(&self) -> io::Result<u64> {
        self.bytes.len_bytes()
    }
}

fn page_of(content: &[u8], page: u64) -> &[u8] {
    let start = usize::try_from(page).unwrap() * PAGE_SIZE;
    &content[start..content.len().min(start + PAGE_SIZE)]
}

/// Proves all that is left. Returns how many units that took.
fn prove_all(archive: &Archive) -> Result<u64, Error> {
    let mut units = 0;
    while archive.prove_next()? {
        units += 1;
    }
    assert!(!archive.is_proof_due());
    Ok(units)
}

/// Proves all that is left, and goes on after failures. Returns the pages of groups that failed, as the errors name them.
fn disprove_all(archive: &Archive) -> Vec<(u64, u64)> {
    let mut failed = Vec::new();
    loop {
        match archive.prove_next() {
            Ok(true) => {}
            Ok(false) => return failed,
            Err(Error::Disproven { start, end, .. }) => failed.push((start, end)),
            Err(other) => panic!("{other}"),
        }
    }
}

fn is_disproven<T>(read: &Result<T, Error>) -> bool {
    matches!(read, Err(Error::Disproven { .. }))
}

#[test]
fn every_verification_returns_the_same_pages() {
    let content = mixed_content(1, 5000 * PAGE_SIZE + 77);
    for format in FORMATS {
        let bytes = plain_archive_in(format, &content);
        for verify in [Verify::Group, Verify::Touched, Verify::All] {
            let archive = opened(&bytes).unwrap().unwrap().with_verify(verify);
            for page in (0..5001).rev().step_by(37) {
                assert!(archive.read_page(page).unwrap().starts_with(page_of(&content, page)), "{verify:?}: {page}");
                assert!(archive.is_located(page), "{verify:?}: {page}");
            }
            let mut pages = vec![[0xff; PAGE_SIZE]; 5001];
            archive.read_pages(0, &mut pages).unwrap();
            assert!(pages.as_flattened().starts_with(&content), "{verify:?}");
            let mut few = vec![[0xff; PAGE_SIZE]; 30];
            archive.read_pages(2040, &mut few).unwrap();
            assert!(content[2040 * PAGE_SIZE..].starts_with(few.as_flattened()), "{verify:?}");
            prove_all(&archive).unwrap();
            assert!(!archive.prove_next().unwrap(), "{verify:?}: nothing is left to prove");
            assert!(archive.read_page(4999).unwrap() == page_of(&content, 4999), "{verify:?}");
        }
    }
}

/// The first touch of a group reads its entries and the block of the page, and not a byte more. Later ones read their block.
#[test]
fn a_touched_page_takes_two_reads_of_what_it_needs() {
    let mut content = mixed_content(2, 3000 * PAGE_SIZE);
    // The second group is zeros.
    content[1024 * PAGE_SIZE..2048 * PAGE_SIZE].fill(0);
    content[2600 * PAGE_SIZE..2601 * PAGE_SIZE].fill(0);
    for format in FORMATS {
        let file = Counted::new(plain_archive_in(format, &content));
        let archive = Archive::read_from(Arc::clone(&file) as _).unwrap().unwrap().with_verify(Verify::Touched);
        let blocks: Vec<BlockPlace> = archive.blocks(0..3000).unwrap().map(Result::unwrap).collect();
        let block_of = |page: u64| {
            let at = blocks.partition_point(|block| block.first_page <= page) - 1;
            let end = blocks.get(at + 1).map_or(u64::MAX, |next| next.offset);
            (!blocks[at].zero).then_some(blocks[at].offset..end)
        };
        let (frame_end, mut touched) = (archive.info().archive_len - archive.info().index_len, [false; 3]);
        for page in [2500, 2501, 7, 1500, 2600, 8, 2999, 1024, 2500] {
            file.take_reads();
            assert!(archive.read_page(page).unwrap() == page_of(&content, page));
            let mut reads = file.take_reads();
            let group = usize::try_from(page / 1024).unwrap();
            let is_first = !std::mem::replace(&mut touched[group], true);
            // The table says of some groups that they are zero.
            if is_first && !(group == 1 && reads.is_empty()) {
                let entries = reads.remove(0);
                let pages = if group == 2 { 3000 - 2048 } else { 1024 };
                assert_eq!(entries.end - entries.start, 2 * pages, "{format:?}: the entries of group {group}");
                assert!(entries.start >= frame_end);
            }
            match block_of(page) {
                None => assert!(reads.is_empty(), "{format:?}: zero page {page}: {reads:?}"),
                Some(block) => {
                    assert_eq!(reads.len(), 1, "{format:?}: page {page}: {reads:?}");
                    let is_whole = reads[0].start == block.start && reads[0].end <= block.end.min(frame_end);
                    assert!(is_whole, "{format:?}: page {page} lies in {block:?}, read {reads:?}");
                }
            }
        }
        file.take_reads();
        prove_all(&archive).unwrap();
        let read: u64 = file.take_reads().iter().map(|read| read.end - read.start).sum();
        assert!(read <= file.bytes.len() as u64 + 100, "{format:?}: {read} bytes of {}", file.bytes.len());
    }
}

/// The range of touched pages that are restored one after the other is read in portions, and the entries once.
#[test]
fn touched_pages_that_follow_each_other_take_one_read_more() {
    let content: Vec<u8> = (0..3000 * PAGE_SIZE).map(|at| (at / 97 * (at % 7) + 1).to_le_bytes()[0]).collect();
    for format in FORMATS {
        let file = Counted::new(plain_archive_in(format, &content));
        let archive = Archive::read_from(Arc::clone(&file) as _).unwrap().unwrap().with_verify(Verify::Touched);
        file.take_reads();
        let mut pages = vec![[0; PAGE_SIZE]; 16];
        archive.read(1600, &mut pages).unwrap();
        assert!(content[1600 * PAGE_SIZE..].starts_with(pages.as_flattened()));
        assert_eq!(file.take_reads().len(), 2, "{format:?}");
        archive.read(1700, &mut pages).unwrap();
        assert_eq!(file.take_reads().len(), 1, "{format:?}");
    }
}

/// Every block is in order, and in the wrong place: only the proof can tell.
#[test]
fn a_lie_about_positions_is_found_by_the_proof_and_by_nothing_else() {
    let content: Vec<u8> =
        (0..3000 * PAGE_SIZE).map(|at| (at / PAGE_SIZE % 251 * (at % 7) + 1).to_le_bytes()[0]).collect();
    for format in FORMATS {
        let options = WriteOptions::default().with_format(format);
        let mut forged = Forged::parse(&archive_of(&content, options, 500).0);
        assert!(forged.move_boundary(&mut |_| 900), "the second and third group start a block late");
        let lying = forged.build();
        let open = |verify| opened(&lying).unwrap().unwrap().with_verify(verify);
        assert!(matches!(open(Verify::Group).read_page(1500), Err(Error::Index(_))), "{format:?}");
        assert!(is_disproven(&open(Verify::All).read_page(1500)), "{format:?}");

        let touched = open(Verify::Touched);
        assert!(touched.read_page(1500).unwrap() != page_of(&content, 1500), "{format:?}: the next page");
        // The lie is in the group before, which nobody has read.
        let failed = disprove_all(&touched);
        assert!(failed.contains(&(1024, 2048)), "{format:?}: {failed:?}");
        assert!(is_disproven(&touched.read_page(1500)), "{format:?}: what is disproven is not read again");
        assert!(is_disproven(&touched.read_page(1024)), "{format:?}: nor are other pages of the group");
        assert!(is_disproven(&touched.read_pages(1400, &mut [[0; PAGE_SIZE]; 4])), "{format:?}");
        assert!(is_disproven(&touched.read_pages(1024, &mut vec![[0; PAGE_SIZE]; 1024])), "{format:?}");
        assert!(is_disproven(&touched.is_zero(1500)), "{format:?}");
        assert!(!touched.is_located(1500), "{format:?}");
        assert!(touched.disproven().iter().any(|pages| pages.contains(&1500)), "{format:?}");
        assert!(!touched.prove_next().unwrap(), "{format:?}: each failure is reported once");
        // Groups behind a faulty one are not trusted any more.
        assert!(is_disproven(&touched.read_page(2500)), "{format:?}");
        assert!(touched.disproven().iter().any(|pages| pages.contains(&2500)), "{format:?}");
    }
}

/// A wrong position far behind the start is found without a limit only.
#[test]
fn all_has_no_limit() {
    let content: Vec<u8> =
        (0..3000 * PAGE_SIZE).map(|at| (at / PAGE_SIZE % 251 * (at % 7) + 1).to_le_bytes()[0]).collect();
    for format in FORMATS {
        let options = WriteOptions::default().with_format(format);
        let mut forged = Forged::parse(&archive_of(&content, options, 500).0);
        assert!(forged.move_boundary(&mut |_| 900));
        let lying = forged.build();
        let open = |verify| opened(&lying).unwrap().unwrap().with_walk_limit(0).with_verify(verify);
        assert!(open(Verify::Group).read_page(1500).unwrap() != page_of(&content, 1500), "{format:?}");
        assert!(open(Verify::All).read_page(1500).is_err(), "{format:?}");
    }
}

/// Damage to the block of a page is found when it is touched. Damage to others is found by the proof, which does not stop there:
/// no stream gets past it.
#[test]
fn damage_is_found_where_it_is() {
    let content = mixed_content(3, 3000 * PAGE_SIZE);
    for format in FORMATS {
        let mut bytes = plain_archive_in(format, &content);
        let place = {
            let archive = opened(&bytes).unwrap().unwrap();
            let mut blocks = archive.blocks(100..200).unwrap().map(Result::unwrap);
            blocks.find(|place| place.len_bytes > 1000).unwrap()
        };
        bytes[usize::try_from(place.offset).unwrap() + 500] ^= 1;
        let archive = opened(&bytes).unwrap().unwrap().with_verify(Verify::Touched);
        assert!(archive.read_page(place.first_page).is_err(), "{format:?}");
        let other = place.first_page + 1;
        assert!(archive.read_page(other).unwrap() == page_of(&content, other), "{format:?}");
        prove_all(&archive).unwrap();
        assert!(archive.read_page(place.first_page).is_err(), "{format:?}");
        assert!(archive.read_page(other).unwrap() == page_of(&content, other), "{format:?}");
    }
}

/// Threads that prove and threads that read do not hinder each other.
#[test]
fn proof_runs_beside_reads() {
    let content = mixed_content(4, 6000 * PAGE_SIZE);
    for format in FORMATS {
        let archive = opened(&plain_archive_in(format, &content)).unwrap().unwrap().with_verify(Verify::Touched);
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| prove_all(&archive).unwrap());
            }
            for thread in 0..3 {
                let (archive, content) = (&archive, &content);
                threads.spawn(move || {
                    for page in (thread..6000).step_by(61) {
                        assert!(archive.read_page(page).unwrap() == page_of(content, page), "page {page}");
                    }
                });
            }
        });
        // Pages may be read after those threads found nothing to prove.
        prove_all(&archive).unwrap();
        assert!(!archive.prove_next().unwrap() && archive.disproven().is_empty());
    }
}
