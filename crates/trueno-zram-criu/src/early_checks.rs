//! Checks the parts of archives that processes touch first, before they run.
//!
//! The first page of a group of an archive takes a millisecond or more, since the whole group is checked; the next ones take
//! microseconds. A process that begins to run touches its small mappings first: stacks, and the data of its libraries.

use std::sync::atomic::{AtomicBool, Ordering};

use trueno_zram_core::PAGE_SIZE;

use crate::memory::Memory;

/// The most groups to check: a second of one core at most, and 2 KiB of memory each.
const MAX_GROUPS: usize = 256;

/// Checks until it is told that processes run.
#[derive(Debug, Default)]
pub(crate) struct EarlyChecks {
    ended: AtomicBool,
}

impl EarlyChecks {
    /// Reads the first and the last page of each range that can wait, the smallest ranges first, unless their group is
    /// checked already. Pages that are damaged are found again when they are touched.
    pub(crate) fn run(&self, memory: &Memory) {
        let mut ranges: Vec<_> = memory.lazy_ranges().collect();
        ranges.sort_by_key(|(_, pages)| pages.end - pages.start);
        let ends = ranges.into_iter().flat_map(|(file, pages)| [(file, pages.start), (file, pages.end - 1)]);
        let new = ends.filter(|(file, page)| !memory.file(*file).is_located(*page)).take(MAX_GROUPS);
        let mut content = [[0; PAGE_SIZE]];
        for (file, page) in new.take_while(|_| !self.ended.load(Ordering::Relaxed)) {
            let _ = memory.file(file).read(page, &mut content);
        }
    }

    /// Makes [`run`](Self::run) end after the group that it is at.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use trueno_zram_archive::{ArchiveWriter, WriteOptions};
    use trueno_zram_core::CpuBatchCompressor;

    use super::*;
    use crate::pagemap::{Pagemap, PagemapEntry};
    use crate::pages_file::PagesFile;

    const GROUP: u64 = 1024;

    fn archive() -> Vec<u8> {
        let pages: Vec<[u8; PAGE_SIZE]> =
            (0..6 * GROUP).map(|n| std::array::from_fn(|i| (i as u64 / 64 * n).to_le_bytes()[0])).collect();
        let options = WriteOptions { content_checksum: false, ..WriteOptions::default() };
        let mut archive = ArchiveWriter::new(Vec::new(), options).unwrap();
        archive.write_batch(&CpuBatchCompressor::default().compress(&pages).unwrap()).unwrap();
        archive.finish(None).unwrap().0
    }

    /// Memory of six groups: a small range in the first, one over the next four, and a small one in the last.
    fn memory(archive: Vec<u8>) -> Memory {
        let lens = [GROUP / 2, 4 * GROUP, GROUP];
        let entries = lens.iter().zip([0x1_0000, 0x1000_0000, 0x7000_0000]).map(|(pages, address)| PagemapEntry {
            address,
            pages: *pages,
            parent: false,
            lazy: true,
            present: true,
        });
        let pagemap = Pagemap { pages_id: 1, entries: entries.collect() };
        let mut memory = Memory::default();
        memory.add(7, &pagemap, PagesFile::archive(Arc::new(archive)).unwrap().unwrap(), Path::new("p")).unwrap();
        memory
    }

    fn located(memory: &Memory) -> Vec<bool> {
        (0..6).map(|group| memory.file(0).is_located(group * GROUP)).collect()
    }

    #[test]
    fn groups_at_the_ends_of_ranges_are_checked() {
        let memory = memory(archive());
        EarlyChecks::default().run(&memory);
        assert_eq!(located(&memory), [true, false, false, false, true, true]);
    }

    #[test]
    fn nothing_is_checked_once_processes_run() {
        let (memory, checks) = (memory(archive()), EarlyChecks::default());
        checks.end();
        checks.run(&memory);
        assert_eq!(located(&memory), [false; 6]);
    }

    #[test]
    fn damage_is_left_for_those_who_touch_it() {
        let mut damaged = archive();
        damaged[2000] ^= 1;
        let memory = memory(damaged);
        EarlyChecks::default().run(&memory);
        assert_eq!(located(&memory), [false, false, false, false, true, true]);
        let pages = (0..GROUP).map(|page| memory.file(0).read(page, &mut [[0; PAGE_SIZE]]));
        assert_eq!(pages.filter(Result::is_err).count(), 1);
    }
}
