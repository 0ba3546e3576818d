//! The shared reader: the same pages as the stream's, from many threads, with little memory and few reads.
#![cfg(feature = "zstd")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::io::{self, Read, Seek, SeekFrom};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use support::{FORMATS, archive_of, mixed_content, opened, plain_archive_in, read_pages, with_checksums};
use trueno_test_pages::generate::Generator;
use trueno_zram_archive::{Archive, ArchiveWriter, Error, Format, Pages, PagesCursor, ReadAt};
use trueno_zram_core::PAGE_SIZE;

/// Counts the bytes that are read.
struct Counted {
    bytes: Vec<u8>,
    read_bytes: AtomicU64,
}

impl Counted {
    fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, read_bytes: AtomicU64::new(0) }
    }

    fn take(&self) -> u64 {
        self.read_bytes.swap(0, Ordering::Relaxed)
    }
}

impl ReadAt for Counted {
    fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        self.read_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.bytes.read_exact_at(bytes, at)
    }

    fn len_bytes(&self) -> io::Result<u64> {
        self.bytes.len_bytes()
    }
}

/// An archive that counts the bytes that are read.
fn counted(bytes: Vec<u8>) -> (Archive, Arc<Counted>) {
    let file = Arc::new(Counted::new(bytes));
    (Archive::read_from(Arc::clone(&file) as _).unwrap().unwrap(), file)
}

#[test]
fn every_page_from_many_threads() {
    let content = mixed_content(1, 5000 * PAGE_SIZE + 77);
    for format in FORMATS {
        for block_checksums in [true, false] {
            let options = with_checksums().with_format(format).with_block_checksums(block_checksums);
            let archive = opened(&archive_of(&content, options, 700).0).unwrap().unwrap();
            std::thread::scope(|threads| {
                for thread in 0..4u64 {
                    let (archive, content) = (&archive, &content);
                    threads.spawn(move || {
                        let mut random = Generator::new(thread);
                        let mut page = [0xa5; PAGE_SIZE];
                        for _ in 0..4000 {
                            let number = random.below(5001);
                            archive.read(number as u64, std::slice::from_mut(&mut page)).unwrap();
                            let len = archive.page_len(number as u64);
                            let wanted = &content[number * PAGE_SIZE..content.len().min((number + 1) * PAGE_SIZE)];
                            assert!(
                                page[..len] == *wanted && page[len..].iter().all(|byte| *byte == 0),
                                "page {number}"
                            );
                            let zero = len == PAGE_SIZE && wanted.iter().all(|byte| *byte == 0);
                            assert_eq!(archive.is_zero(number as u64).unwrap(), zero);
                        }
                        for _ in 0..300 {
                            let start = random.below(content.len() + 1000);
                            let mut out = vec![0; random.below(40_000)];
                            let count = archive.read_at(start as u64, &mut out).unwrap();
                            let wanted = &content[start.min(content.len())..content.len().min(start + out.len())];
                            assert!(out[..count] == *wanted);
                        }
                    });
                }
            });
            let mut page = [0; PAGE_SIZE];
            assert!(matches!(
                archive.read(5001, std::slice::from_mut(&mut page)),
                Err(Error::PageRange { pages: 5001, .. })
            ));
            let (mut cursor, mut end) = (PagesCursor::new(&archive), Vec::new());
            cursor.seek(SeekFrom::End(-10_000)).unwrap();
            cursor.read_to_end(&mut end).unwrap();
            assert!(end == content[content.len() - 10_000..]);
        }
    }
}

#[test]
fn pages_in_a_row_are_the_same_as_one_by_one() {
    let content = mixed_content(7, 5000 * PAGE_SIZE + 77);
    let page_of = |number: usize| {
        let mut page = [0; PAGE_SIZE];
        let bytes = &content[number * PAGE_SIZE..content.len().min((number + 1) * PAGE_SIZE)];
        page[..bytes.len()].copy_from_slice(bytes);
        page
    };
    for format in FORMATS {
        let bytes = plain_archive_in(format, &content);
        let mut random = Generator::new(3);
        for round in 0..60 {
            // Some groups are known already, some are not.
            let archive = opened(&bytes).unwrap().unwrap();
            (0..round % 4).for_each(|_| drop(archive.read(random.below(5001) as u64, &mut [[0; PAGE_SIZE]])));
            let (start, len) = (random.below(5001), random.below(2500));
            let end = (start + len).min(5001);
            let mut pages = vec![[0xa5; PAGE_SIZE]; end - start];
            archive.read_pages(start as u64, &mut pages).unwrap();
            assert!(pages.iter().zip(start..).all(|(page, number)| *page == page_of(number)), "{start}..{end}");
            let (mut buffer, mut next) = (vec![[0xa5; PAGE_SIZE]; 1 + random.below(40)], start);
            archive.visit(start as u64..end as u64, &mut buffer, &mut |first, pages| {
                assert_eq!(first, next as u64);
                for page in pages.unwrap() {
                    assert!(*page == page_of(next), "page {next}");
                    next += 1;
                }
                ControlFlow::Continue(())
            });
            assert_eq!(next, end);
            let mut visits = 0;
            archive.visit(5000..5002, &mut buffer, &mut |first, pages| {
                assert!(
                    matches!(pages, Err(Error::PageRange { start: 5000, end: 5002, pages: 5001 })) && first == 5000
                );
                visits += 1;
                ControlFlow::Continue(())
            });
            assert_eq!(visits, 1, "there are no such pages");
        }
    }
}

#[test]
fn damage_spoils_its_portion_and_no_other() {
    let content: Vec<u8> = mixed_content(8, 3000 * PAGE_SIZE);
    for format in FORMATS {
        let mut bytes = plain_archive_in(format, &content);
        let place = {
            let archive = opened(&bytes).unwrap().unwrap();
            let blocks = archive.blocks(1500..2000).unwrap();
            blocks.map(Result::unwrap).find(|place| place.len_bytes > 1000).unwrap()
        };
        bytes[usize::try_from(place.offset).unwrap() + 500] ^= 1;
        let archive = opened(&bytes).unwrap().unwrap();
        let mut buffer = vec![[0; PAGE_SIZE]; 16];
        // Twice: before and after the groups are known.
        for _ in 0..2 {
            let mut failed = Vec::new();
            archive.visit(0..3000, &mut buffer, &mut |first, pages| {
                match pages {
                    Ok(pages) => {
                        let start = usize::try_from(first).unwrap() * PAGE_SIZE;
                        assert!(*pages.as_flattened() == content[start..start + pages.len() * PAGE_SIZE]);
                    }
                    Err(_) => failed.push(first),
                }
                ControlFlow::Continue(())
            });
            assert_eq!(failed.len(), 1, "{failed:?}");
            assert!((failed[0]..failed[0] + 16).contains(&place.first_page), "{failed:?} {place:?}");
        }
        assert!(archive.read_pages(place.first_page, &mut buffer).is_err());
    }
}

/// Threads that read an archive in order read it once, not once each.
#[test]
fn groups_that_follow_each_other_are_read_once() {
    let content: Vec<u8> = mixed_content(9, 8 * 1024 * PAGE_SIZE);
    for format in FORMATS {
        let bytes = plain_archive_in(format, &content);
        let len = bytes.len() as u64;
        let (archive, file) = counted(bytes);
        let mut buffer = vec![[0; PAGE_SIZE]; 16];
        for group in 0..8 {
            let pages = group * 1024..(group + 1) * 1024;
            archive.visit(pages, &mut buffer, &mut |_, pages| {
                pages.unwrap();
                ControlFlow::Continue(())
            });
        }
        let read = file.take();
        assert!(read < len * 21 / 20, "{read} bytes of {len}");
    }
}

/// The table has 12 bytes per group, whatever is in the groups.
#[test]
fn an_archive_of_100_gb_opens_by_its_table_alone() {
    const GROUPS: u64 = (100 << 30) / (1024 * PAGE_SIZE as u64);
    let options = with_checksums().with_format(Format::Zstd).with_content_checksum(false);
    let mut archive = ArchiveWriter::new(Vec::new(), options).unwrap();
    archive.write_zero_pages(GROUPS * 1024).unwrap();
    let (bytes, _) = archive.finish(None).unwrap();
    let (archive, file) = counted(bytes);
    assert_eq!(archive.len_bytes(), 100 << 30);
    let read = file.take();
    assert!(read < GROUPS * 12 + 1000, "{read} bytes read");
    let memory = archive.index_memory_bytes() as u64;
    assert!(memory <= GROUPS * 32, "{memory} bytes of memory for {GROUPS} groups");
    assert!(archive.with_walk_limit(0).is_zero(GROUPS * 1024 - 1).unwrap());
}

#[test]
fn a_page_takes_one_read_and_two_bytes_of_memory() {
    let content: Vec<u8> = mixed_content(2, 6000 * PAGE_SIZE);
    for format in FORMATS {
        let (archive, file) = counted(plain_archive_in(format, &content));
        assert!(file.take() < 400, "only headers and the table");
        let untouched = archive.index_memory_bytes();
        assert!((6 * 12..6000 / 8).contains(&untouched), "{untouched} bytes");
        let mut page = [0; PAGE_SIZE];
        for number in 0..6000 {
            archive.read(number, std::slice::from_mut(&mut page)).unwrap();
        }
        let once = file.take();
        for number in (0..6000).rev() {
            archive.read(number, std::slice::from_mut(&mut page)).unwrap();
            let read = file.take();
            assert!(read <= PAGE_SIZE as u64 + 16, "{read} bytes for a page");
            assert_eq!(read == 0, archive.is_zero(number).unwrap());
        }
        assert!(once <= 3 * file.bytes.len() as u64, "each group is read once, and each page");
        let touched = archive.index_memory_bytes();
        assert!((6000 * 2..=6000 * 9 / 4).contains(&touched), "{touched} bytes for 6,000 pages");
    }
}

/// A group is read for its pages, and once more if one behind it was restored first.
#[test]
fn groups_in_any_order_are_read_twice_at_most() {
    let content = mixed_content(12, 7 * 1024 * PAGE_SIZE + 5);
    for format in FORMATS {
        let bytes = plain_archive_in(format, &content);
        let archive_len = bytes.len() as u64;
        let (archive, file) = counted(bytes);
        let read_group = |group: usize| {
            let range = group * 1024 * PAGE_SIZE..content.len().min((group + 1) * 1024 * PAGE_SIZE);
            let mut pages = vec![[0xa5; PAGE_SIZE]; range.len().div_ceil(PAGE_SIZE)];
            archive.read_pages(group as u64 * 1024, &mut pages).unwrap();
            assert!(pages.as_flattened()[..range.len()] == content[range], "group {group}");
        };
        // One by one, then by threads that wait for each other.
        [6, 3].into_iter().for_each(read_group);
        std::thread::scope(|threads| {
            for group in [7, 5, 4, 2, 1, 0] {
                threads.spawn(move || read_group(group));
            }
        });
        let read = file.take();
        assert!(read <= archive_len * 9 / 4, "{read} bytes of {archive_len}");
        assert!((0..7 * 1024).step_by(1024).all(|page| archive.is_located(page)));
    }
}

/// An archive of 100 GB whose data is never looked at: a table, a footer and a head, and holes between.
struct Huge {
    len: u64,
    parts: Vec<(u64, Vec<u8>)>,
    read_bytes: AtomicU64,
}

impl ReadAt for Huge {
    fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        self.read_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        bytes.fill(0);
        for (start, part) in &self.parts {
            for (offset, byte) in (*start..).zip(part) {
                if let Some(place) = offset.checked_sub(at).and_then(|n| bytes.get_mut(usize::try_from(n).ok()?)) {
                    *place = *byte;
                }
            }
        }
        Ok(())
    }

    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.len)
    }
}

fn xxh32(bytes: &[u8]) -> [u8; 4] {
    let mut hash = trueno_zram_archive::ContentHash::new();
    hash.update(bytes);
    hash.digest().to_le_bytes()
}

#[test]
fn opening_a_large_archive_reads_only_the_table() {
    let content_len = 100u64 << 30;
    let (groups, group_len) = (content_len / (1024 * PAGE_SIZE as u64), 1_500_000u64);
    let frame_len = groups * group_len;
    let entries_len = u32::try_from(groups * 2048).unwrap();
    let table: Vec<u8> =
        (0..groups).flat_map(|group| [&(group * group_len).to_le_bytes()[..], &[0; 4]].concat()).collect();
    let mut footer = Vec::new();
    for field in [content_len, frame_len, 0, 0, content_len / PAGE_SIZE as u64, 0] {
        footer.extend(field.to_le_bytes());
    }
    footer.extend(entries_len.to_le_bytes());
    footer.extend([0; 4]);
    footer.extend(xxh32(&table));
    footer.extend(xxh32(&[]));
    footer.extend([2, 0, 1, 0]);
    footer.extend(xxh32(&footer));
    footer.extend(b"TZ-PAGES");
    let payload_len = 8 + entries_len + u32::try_from(table.len() + 80).unwrap();
    let head = [&0x184d_2a5d_u32.to_le_bytes()[..], &payload_len.to_le_bytes(), b"TZ-INDEX"].concat();
    let end = [table, footer].concat();
    let len = frame_len + 8 + u64::from(payload_len);
    let parts = vec![(0, vec![0x28, 0xb5, 0x2f, 0xfd, 0x64]), (frame_len, head), (len - end.len() as u64, end)];
    let file = Huge { len, parts, read_bytes: AtomicU64::new(0) };
    let file = Arc::new(file);
    let archive = Archive::read_from(Arc::clone(&file) as _).unwrap().unwrap();
    assert_eq!((archive.len_bytes(), archive.info().format), (content_len, Format::Zstd));
    let read = file.read_bytes.load(Ordering::Relaxed);
    assert!(read < 400_000, "{read} bytes read of {len}");
    let memory = archive.index_memory_bytes() as u64;
    assert!(memory * 16 < archive.page_count(), "{memory} bytes for {} pages", archive.page_count());
    assert!(archive.read(5, &mut [[0; PAGE_SIZE]]).is_err(), "there are no pages in it");
}

/// Damage and truncation: a page, or an error, and the same verdict as by the other reader.
#[test]
fn damaged_archives_give_the_pages_that_the_other_reader_gives() {
    let content = mixed_content(3, 1500 * PAGE_SIZE + 5);
    let mut random = Generator::new(4);
    for format in FORMATS {
        let whole = plain_archive_in(format, &content);
        let data_len = {
            let reader = opened(&whole).unwrap().unwrap();
            whole.len() - usize::try_from(reader.info().index_len).unwrap()
        };
        let (mut read, mut refused) = (0, 0);
        for round in 0..60 {
            let mut damaged = whole.clone();
            for _ in 0..=random.below(40) {
                let at = random.below(data_len);
                damaged[at] ^= 1 << random.below(8);
            }
            let Ok(Some(archive)) = opened(&damaged) else { continue };
            for _ in 0..20 {
                let number = random.next_u64() % archive.page_count();
                let ours = archive.read_page(number).map(|page| page[..archive.page_len(number)].to_vec()).ok();
                let other = read_pages(&damaged, number..number + 1).ok().flatten();
                assert!(ours == other, "{format:?}, round {round}, page {number}");
                if let Some(ours) = ours {
                    let start = usize::try_from(number).unwrap() * PAGE_SIZE;
                    assert!(content[start..].starts_with(&ours), "round {round}");
                    read += 1;
                } else {
                    refused += 1;
                }
            }
        }
        assert!(read > 100 && refused > 10, "{format:?}: {read} read, {refused} refused");
    }
}

/// A change of the file after its group was compared with the index is noticed at the page.
#[test]
fn a_file_that_changes_is_noticed() {
    struct Changing(std::sync::RwLock<Vec<u8>>);
    impl ReadAt for Changing {
        fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
            self.0.read().unwrap().read_exact_at(bytes, at)
        }
        fn len_bytes(&self) -> io::Result<u64> {
            self.0.read().unwrap().len_bytes()
        }
    }
    let content = mixed_content(5, 300 * PAGE_SIZE);
    for format in FORMATS {
        let bytes = plain_archive_in(format, &content);
        let reader = opened(&bytes).unwrap().unwrap();
        let places: Vec<_> = reader.blocks(0..300).unwrap().map(Result::unwrap).filter(|place| !place.zero).collect();
        let file = Arc::new(Changing(std::sync::RwLock::new(bytes)));
        let archive = Archive::read_from(Arc::clone(&file) as _).unwrap().unwrap();
        let mut page = [0; PAGE_SIZE];
        archive.read(0, std::slice::from_mut(&mut page)).unwrap();
        let mut random = Generator::new(6);
        for place in places {
            let at = usize::try_from(place.offset).unwrap() + random.below(place.len_bytes as usize);
            let flip = |bit: u8| file.0.write().unwrap()[at] ^= bit;
            let bit = 1 << random.below(8);
            flip(bit);
            assert!(archive.read(place.first_page, std::slice::from_mut(&mut page)).is_err(), "{place:?}, byte {at}");
            flip(bit);
            archive.read(place.first_page, std::slice::from_mut(&mut page)).unwrap();
        }
    }
}
