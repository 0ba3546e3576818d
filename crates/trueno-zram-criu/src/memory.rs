//! The memory of all processes of an image directory, by process and address.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use trueno_zram_archive::Pages;
use trueno_zram_core::PAGE_SIZE;
use trueno_zram_io::ArchiveOpener;
use trueno_zram_restore::{MemoryExtent, MissingMemory};

use crate::error::Error;
use crate::image_dir::ImageDir;
use crate::pagemap::{Pagemap, PagemapEntry};

/// The memory of processes, as it was dumped.
///
/// ```
/// use std::sync::Arc;
/// use trueno_zram_archive::PlainPages;
/// use trueno_zram_criu::{DumpedMemory, Pagemap, PagemapEntry};
/// let entries = vec![PagemapEntry { address: 0x7000, pages: 2, parent: false, lazy: true, present: true }];
/// let mut memory = DumpedMemory::default();
/// let pages = PlainPages::new(Arc::new(vec![1; 8192]))?;
/// memory.add(42, &Pagemap { pages_id: 1, entries }, Arc::new(pages), "pagemap-42.img".as_ref())?;
/// assert_eq!(memory.processes().collect::<Vec<_>>(), [42]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Default)]
pub struct DumpedMemory {
    processes: BTreeMap<u64, ProcessPages>,
}

/// The pages of a process: those in its pages file, and those among them that can wait.
pub(crate) struct ProcessPages {
    pages: Arc<dyn Pages>,
    present_pages: u64,
    lazy: Vec<MemoryExtent>,
}

impl ProcessPages {
    /// Returns the memory that the process has handed over with `uffd`.
    pub(crate) fn missing(&self, pid: u32, uffd: OwnedFd) -> MissingMemory {
        MissingMemory { pid, uffd, source: Arc::clone(&self.pages), extents: self.lazy.clone() }
    }
}

impl DumpedMemory {
    /// Opens the pages of all processes of a directory. The opener finds the bases of deltas. The example of [`ImageDir`] opens
    /// some.
    ///
    /// # Errors
    /// [`Error`] if the directory, a pagemap or a pages file is not what it should be.
    pub fn open(dir: &ImageDir, opener: &ArchiveOpener) -> Result<Self, Error> {
        let mut memory = Self::default();
        for process in &dir.processes {
            memory.add(process.id, &process.pagemap, dir.open_pages(process, opener)?, &process.path)?;
        }
        Ok(memory)
    }

    /// Adds a process. `path` is the pagemap's, for errors. The example of [`DumpedMemory`] adds one.
    ///
    /// # Errors
    /// [`Error::PagesShort`] if the pagemap has more pages than the file; [`Error::Absent`] if pages that can wait are not in it.
    pub fn add(&mut self, pid: u64, pagemap: &Pagemap, pages: Arc<dyn Pages>, path: &Path) -> Result<(), Error> {
        pagemap.check_pages(pages.len_bytes(), path)?;
        let mut process = ProcessPages { pages, present_pages: 0, lazy: Vec::new() };
        for PagemapEntry { address, pages, lazy, present, .. } in pagemap.entries.iter().copied() {
            match (lazy, present) {
                (true, true) => process.lazy.push(MemoryExtent { address, pages, first_page: process.present_pages }),
                (true, false) => return Err(Error::Absent { pid, address }),
                (false, _) => {}
            }
            if present {
                process.present_pages += pages;
            }
        }
        self.processes.insert(pid, process);
        Ok(())
    }

    /// Returns the processes.
    pub fn processes(&self) -> impl Iterator<Item = u64> {
        self.processes.keys().copied()
    }

    /// Returns the bytes of memory of all processes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.processes.values().map(|process| process.present_pages * PAGE_SIZE as u64).sum()
    }

    /// Returns the pages of a process.
    pub(crate) fn process(&self, pid: u64) -> Option<&ProcessPages> {
        self.processes.get(&pid)
    }

    /// Returns the part of each process's pages that can wait.
    pub(crate) fn lazy_parts(&self) -> impl Iterator<Item = (&dyn Pages, Range<u64>)> {
        self.processes.values().filter_map(|process| {
            let (first, last) = (process.lazy.first()?, process.lazy.last()?);
            Some((&*process.pages, first.first_page..last.first_page + last.pages))
        })
    }
}

impl std::fmt::Debug for DumpedMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DumpedMemory({} bytes of {} processes)", self.len_bytes(), self.processes.len())
    }
}

#[cfg(test)]
mod tests {
    use trueno_zram_archive::PlainPages;

    use super::*;

    #[test]
    fn only_pages_in_the_file_that_can_wait_are_lazy() {
        let entry =
            |address, pages, lazy, present: bool| PagemapEntry { address, pages, parent: !present, lazy, present };
        let entries = vec![
            entry(0x1000, 2, true, true),
            entry(0x3000, 4, false, false),
            entry(0x7000, 3, false, true),
            entry(0xa000, 4, true, true),
        ];
        let pages = || Arc::new(PlainPages::new(Arc::new(vec![0; 9 * PAGE_SIZE])).unwrap());
        let mut memory = DumpedMemory::default();
        memory.add(7, &Pagemap { pages_id: 1, entries: entries.clone() }, pages(), Path::new("p")).unwrap();
        assert_eq!(memory.len_bytes(), 9 * PAGE_SIZE as u64);
        let extent = |address, pages, first_page| MemoryExtent { address, pages, first_page };
        assert_eq!(memory.process(7).unwrap().lazy, [extent(0x1000, 2, 0), extent(0xa000, 4, 5)]);
        let parts: Vec<_> = memory.lazy_parts().map(|(_, pages)| (pages.start, pages.end)).collect();
        assert_eq!(parts, [(0, 9)]);
        assert!(memory.process(8).is_none());

        let longer = [entries, vec![entry(0x1_0000, 1, true, true)]].concat();
        let refused = memory.add(8, &Pagemap { pages_id: 2, entries: longer }, pages(), Path::new("p"));
        assert!(matches!(refused, Err(Error::PagesShort { pages: 10, len_bytes: 36864, .. })), "{refused:?}");

        let absent = vec![entry(0x5000, 1, true, false)];
        let refused = memory.add(9, &Pagemap { pages_id: 3, entries: absent }, pages(), Path::new("p"));
        assert!(matches!(refused, Err(Error::Absent { pid: 9, address: 0x5000 })), "{refused:?}");
    }
}
