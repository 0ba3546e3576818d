//! Checks the parts of archives that processes touch first, before they run.
//!
//! The first page of a group of an archive takes a millisecond or more, since the whole group is checked; the next ones take
//! microseconds. A process that begins to run touches both ends of its memory first: the program's data and its heap have the
//! lowest addresses, stacks and the data of libraries the highest.

use std::sync::atomic::{AtomicBool, Ordering};

use trueno_zram_core::PAGE_SIZE;

use crate::memory::DumpedMemory;

const GROUP_PAGES: u64 = trueno_zram_archive::GROUP_PAGES as u64;
/// Groups to check at either end of a process's memory.
const GROUPS_PER_END: u64 = 8;
/// The most groups to check: half a second of one core, and 2 KiB of memory each.
const MAX_GROUPS: usize = 256;

/// Checks until processes run.
#[derive(Debug, Default)]
pub(crate) struct EarlyChecks {
    ended: AtomicBool,
}

impl EarlyChecks {
    /// Reads a page of each group that is probably touched first, from the ends inwards, unless the group is checked
    /// already. A page that is damaged is found again when it is touched.
    pub(crate) fn run(&self, memory: &DumpedMemory) {
        let parts: Vec<_> = memory.lazy_parts().collect();
        let pages = (0..GROUPS_PER_END).flat_map(|group| {
            parts.iter().flat_map(move |(source, pages)| {
                let low = pages.start + group * GROUP_PAGES;
                let high = (pages.end - 1).checked_sub(group * GROUP_PAGES);
                let inside = [Some(low), high].into_iter().flatten().filter(|page| pages.contains(page));
                inside.map(|page| (*source, page))
            })
        });
        let new = pages.filter(|(source, page)| !source.is_located(*page)).take(MAX_GROUPS);
        let mut content = [[0; PAGE_SIZE]];
        for (source, page) in new.take_while(|_| !self.ended.load(Ordering::Relaxed)) {
            let _ = source.read(page, &mut content);
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

    use trueno_zram_archive::{Archive, ArchiveWriter, Pages, WriteOptions};
    use trueno_zram_core::CpuBatchCompressor;

    use super::*;
    use crate::pagemap::{Pagemap, PagemapEntry};

    /// An archive of 40 groups.
    fn archive() -> Vec<u8> {
        let pages: Vec<[u8; PAGE_SIZE]> =
            (0..1024u64).map(|n| std::array::from_fn(|i| (i as u64 / 64 * n).to_le_bytes()[0])).collect();
        let options = WriteOptions::default();
        let mut archive = ArchiveWriter::new(Vec::new(), options).unwrap();
        let group = CpuBatchCompressor::default().compress(&pages).unwrap();
        (0..40).for_each(|_| archive.write_batch(&group).unwrap());
        archive.finish(None).unwrap().0
    }

    /// Memory of a process in the groups from the fifth on. The pages before it cannot wait.
    fn memory(archive: Vec<u8>) -> DumpedMemory {
        let entry = |address, pages, lazy| PagemapEntry { address, pages, parent: false, lazy, present: true };
        let (first, end) = (4 * GROUP_PAGES + 500, 40 * GROUP_PAGES);
        let entries = vec![
            entry(0x1_0000, first, false),
            entry(0x1000_0000, 100, true),
            entry(0x7000_0000, end - first - 100, true),
        ];
        let mut memory = DumpedMemory::default();
        let pages = Archive::read_from(Arc::new(archive)).unwrap().unwrap();
        memory.add(7, &Pagemap { pages_id: 1, entries }, Arc::new(pages), Path::new("p")).unwrap();
        memory
    }

    fn pages(memory: &DumpedMemory) -> &dyn Pages {
        memory.lazy_parts().next().unwrap().0
    }

    fn located(memory: &DumpedMemory) -> Vec<u64> {
        (0..40).filter(|group| pages(memory).is_located(group * GROUP_PAGES)).collect()
    }

    #[test]
    fn groups_at_both_ends_are_checked() {
        let memory = memory(archive());
        EarlyChecks::default().run(&memory);
        assert_eq!(located(&memory), (4..12).chain(32..40).collect::<Vec<_>>());
    }

    #[test]
    fn small_memory_is_checked_as_a_whole() {
        let mut memory = DumpedMemory::default();
        let entries = vec![PagemapEntry { address: 0x1000, pages: 1, parent: false, lazy: true, present: true }];
        let pages = Archive::read_from(Arc::new(archive())).unwrap().unwrap();
        memory.add(7, &Pagemap { pages_id: 1, entries }, Arc::new(pages), Path::new("p")).unwrap();
        EarlyChecks::default().run(&memory);
        assert_eq!(located(&memory), [0]);
    }

    #[test]
    fn nothing_is_checked_once_processes_run() {
        let (memory, checks) = (memory(archive()), EarlyChecks::default());
        checks.end();
        checks.run(&memory);
        assert!(located(&memory).is_empty());
    }

    #[test]
    fn damage_is_left_for_those_who_touch_it() {
        let mut damaged = archive();
        let at = damaged.len() / 40 * 5;
        damaged[at] ^= 1;
        let memory = memory(damaged);
        EarlyChecks::default().run(&memory);
        assert!(located(&memory).contains(&39));
        let read = (4 * GROUP_PAGES..7 * GROUP_PAGES).map(|page| pages(&memory).read(page, &mut [[0; PAGE_SIZE]]));
        assert_eq!(read.filter(Result::is_err).count(), 1);
    }
}
