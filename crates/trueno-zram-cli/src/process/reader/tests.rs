//! A process made up: what is read, what is noted, and what goes wrong.

use super::*;
use trueno_zram_archive::address_map::PageRun;

const PAGE: u64 = PAGE_SIZE as u64;

/// Pages from address 0 on, each filled with its number.
struct MadeUp {
    entries: Vec<u64>,
    /// Pages that give EIO.
    unreadable: Vec<u64>,
    /// From this page on, the process is no more.
    ends_at: u64,
    /// Bytes that a read gives at most.
    at_once: usize,
}

const PRESENT: u64 = 1 << 63;
const FILE: u64 = 1 << 61;

impl MadeUp {
    fn new(entries: &[u64]) -> Self {
        Self { entries: entries.to_vec(), unreadable: vec![], ends_at: u64::MAX, at_once: usize::MAX }
    }

    fn line(&self, permissions: &str, inode: u64, name: &str) -> MapsLine {
        let end = self.entries.len() as u64 * PAGE;
        MapsLine {
            start: 0,
            end,
            permissions: permissions.into(),
            offset: 0,
            inode,
            name: name.into(),
            held_kib: end / 1024,
        }
    }
}

impl MemorySource for MadeUp {
    fn page_entries(&self, address: u64, entries: &mut [u64]) -> io::Result<usize> {
        let from = &self.entries[usize::try_from(address / PAGE).unwrap()..];
        let count = from.len().min(entries.len());
        entries[..count].copy_from_slice(&from[..count]);
        Ok(count)
    }

    fn memory(&self, address: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let (first, mut done) = (address / PAGE, 0);
        for page in first..first + bytes.len() as u64 / PAGE {
            if page >= self.ends_at || done >= self.at_once {
                break;
            }
            if self.unreadable.contains(&page) {
                return if done == 0 { Err(Errno::IO.into()) } else { Ok(done) };
            }
            bytes[done..done + PAGE_SIZE].fill(page.to_le_bytes()[0]);
            done += PAGE_SIZE;
        }
        Ok(done)
    }
}

/// The mappings, and the first byte of every page that was read, four pages at a time.
fn read(source: &MadeUp, lines: &[MapsLine], selection: Selection) -> (Result<Vec<Mapping>, ProcessError>, Vec<u8>) {
    let mut seen = Vec::new();
    let mut reader = MemoryReader::new(7, source, lines.to_vec(), selection);
    let mut room = vec![[0; PAGE_SIZE]; 4];
    loop {
        match reader.fill(&mut room) {
            Ok(0) => return (Ok(reader.mappings), seen),
            Ok(filled) => seen.extend(room[..filled].iter().map(|page| page[0])),
            Err(error) => return (Err(error), seen),
        }
    }
}

fn runs(mapping: &Mapping) -> Vec<(u64, PageState)> {
    mapping.runs().iter().map(|PageRun { pages, state }| (*pages, *state)).collect()
}

use PageState::{Stored, Unreadable, Untouched};

#[test]
fn touched_pages_are_stored_in_order_over_batches() {
    let source = MadeUp::new(&[PRESENT, PRESENT, 0, 0, PRESENT, 1 << 62, PRESENT, PRESENT, PRESENT, PRESENT | FILE]);
    let (mappings, seen) = read(&source, &[source.line("rw-p", 0, "[heap]")], Selection::Anonymous);
    let mappings = mappings.unwrap();
    assert_eq!(runs(&mappings[0]), [(2, Stored), (2, Untouched), (6, Stored)]);
    assert_eq!(seen, [0, 1, 4, 5, 6, 7, 8, 9]);
    assert_eq!((mappings[0].pages(Stored), mappings[0].end()), (8, 10 * PAGE));
}

#[test]
fn unreadable_pages_are_noted_and_not_stored() {
    let mut source = MadeUp::new(&[PRESENT; 7]);
    source.unreadable = vec![0, 3, 4];
    let (mappings, seen) = read(&source, &[source.line("rw-p", 0, "")], Selection::Anonymous);
    let expected = [(1, Unreadable), (2, Stored), (2, Unreadable), (2, Stored)];
    assert_eq!((runs(&mappings.unwrap()[0]), seen), (expected.to_vec(), vec![1, 2, 5, 6]));
}

#[test]
fn short_reads_are_continued() {
    let mut source = MadeUp::new(&[PRESENT; 9]);
    source.at_once = 1;
    let (mappings, seen) = read(&source, &[source.line("rw-p", 0, "")], Selection::Anonymous);
    assert_eq!((runs(&mappings.unwrap()[0]), seen), (vec![(9, Stored)], (0..9).collect()));
}

#[test]
fn a_process_that_is_no_more_is_an_error() {
    let mut source = MadeUp::new(&[PRESENT; 9]);
    source.ends_at = 6;
    let (mappings, _) = read(&source, &[source.line("rw-p", 0, "")], Selection::Anonymous);
    assert!(matches!(mappings, Err(ProcessError::Gone { pid: 7 })));
}

#[test]
fn what_is_left_out_is_counted() {
    let source = MadeUp::new(&[PRESENT | FILE, PRESENT, 0]);
    let lines =
        [source.line("r--p", 0, "[vvar]"), source.line("rw-s", 5, "/dev/shm/x"), source.line("rw-p", 5, "/lib/x.so")];
    let mut reader = MemoryReader::new(7, &source, lines.to_vec(), Selection::Anonymous);
    assert_eq!(reader.fill(&mut [[0; PAGE_SIZE]; 4]).unwrap(), 0);
    assert_eq!(reader.mappings, []);
    assert_eq!(reader.left, LeftOut { shared_bytes: 3 * PAGE, file_bytes: 3 * PAGE });
    let (mappings, seen) = read(&source, &lines, Selection::AllPrivate);
    let mappings = mappings.unwrap();
    assert_eq!((mappings.len(), runs(&mappings[0])), (1, vec![(1, Untouched), (1, Stored), (1, Untouched)]));
    assert!(!mappings[0].flags.is_anonymous());
    assert_eq!(seen, [1], "the page that is the process's own");
}

#[test]
fn ranges_that_hold_nothing_are_not_looked_through() {
    let source = MadeUp::new(&[]);
    let reserved = MapsLine { end: 1 << 46, held_kib: 0, ..source.line("---p", 0, "") };
    let (mappings, seen) = read(&source, &[reserved], Selection::Anonymous);
    assert_eq!((runs(&mappings.unwrap()[0]), seen), (vec![((1 << 46) / PAGE, Untouched)], vec![]));
}

#[test]
fn pages_count_on_over_mappings_and_reading_can_end_anywhere() {
    let source = MadeUp::new(&[PRESENT; 3]);
    let lines = [source.line("rw-p", 0, "a"), source.line("rw-p", 0, "b")];
    let (mappings, _) = read(&source, &lines, Selection::Anonymous);
    let stored: Vec<_> = mappings.unwrap().iter().map(|mapping| mapping.pages(Stored)).collect();
    assert_eq!(stored, [3, 3], "the second begins with page 3");
    let mut reader = MemoryReader::new(7, &source, lines.to_vec(), Selection::Anonymous);
    let mut room = [[0; PAGE_SIZE]; 4];
    assert_eq!(reader.fill(&mut room).unwrap(), 4, "over the end of a mapping");
    assert_eq!(reader.mappings.len(), 1);
    assert_eq!((reader.fill(&mut room).unwrap(), reader.mappings.len()), (2, 2), "the end");
}

#[test]
fn several_threads_read_what_one_reads() {
    let mut entries = vec![PRESENT; 3000];
    entries[1500..1600].fill(0);
    let mut source = MadeUp::new(&entries);
    source.unreadable = vec![0, 255, 256, 1000, 1499, 1601, 2999];
    let lines = [source.line("rw-p", 0, "a"), source.line("rw-p", 0, "b")];
    let one = read(&source, &lines, Selection::Anonymous);
    let mut reader = MemoryReader::new(7, &source, lines.to_vec(), Selection::Anonymous).on_threads(4);
    assert_eq!(reader.most_bytes(), 2 * 3000 * PAGE);
    let (mut room, mut seen) = (vec![[0; PAGE_SIZE]; 2000], Vec::new());
    loop {
        match reader.fill(&mut room).unwrap() {
            0 => break,
            filled => seen.extend(room[..filled].iter().map(|page| page[0])),
        }
    }
    assert_eq!((reader.mappings, seen), (one.0.unwrap(), one.1));
}

#[test]
fn several_threads_find_out_that_a_process_is_no_more() {
    let mut source = MadeUp::new(&[PRESENT; 3000]);
    source.ends_at = 700;
    let lines = vec![source.line("rw-p", 0, "")];
    let mut reader = MemoryReader::new(7, &source, lines, Selection::Anonymous).on_threads(3);
    let gone = reader.fill(&mut vec![[0; PAGE_SIZE]; 3000]);
    assert!(matches!(gone, Err(ProcessError::Gone { pid: 7 })));
}
