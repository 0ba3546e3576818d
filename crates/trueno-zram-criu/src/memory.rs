//! The memory of all processes of an image directory, by process and address.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use trueno_zram_archive::Pages;
use trueno_zram_core::PAGE_SIZE;
use trueno_zram_io::ArchiveOpener;

use crate::error::Error;
use crate::image_dir::ImageDir;
use crate::pagemap::Pagemap;

/// The memory of processes.
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

struct ProcessPages {
    pages: Arc<dyn Pages>,
    extents: Vec<FileExtent>,
    /// The first address whose page can wait, but is in no file of the directory.
    absent: Option<u64>,
}

/// Pages that lie in a row, in memory and in the file.
#[derive(Clone, Copy, Debug)]
struct FileExtent {
    address: u64,
    end: u64,
    first_page: u64,
    /// `true` if the process can run without them.
    lazy: bool,
}

impl FileExtent {
    #[cfg(target_os = "linux")]
    fn pages(&self) -> u64 {
        (self.end - self.address) / PAGE_SIZE as u64
    }
}

impl DumpedMemory {
    /// Opens the pages of all processes of a directory. The opener finds the bases of deltas.
    ///
    /// # Errors
    /// [`Error`] if the directory, a pagemap or a pages file is not what it should be.
    pub fn open(dir: &ImageDir, opener: &ArchiveOpener) -> Result<Self, Error> {
        let mut memory = Self::default();
        for process in dir.processes() {
            memory.add(process.id, &process.pagemap, dir.open_pages(process, opener)?, &process.path)?;
        }
        Ok(memory)
    }

    /// Adds a process. `path` is the pagemap's, for messages.
    ///
    /// # Errors
    /// [`Error::PagesShort`] if the pagemap has more pages than the file.
    pub fn add(&mut self, pid: u64, pagemap: &Pagemap, pages: Arc<dyn Pages>, path: &Path) -> Result<(), Error> {
        pagemap.check_pages(pages.len_bytes(), path)?;
        let mut first_page = 0;
        let extents = pagemap.entries.iter().filter(|entry| entry.present).map(|entry| {
            let extent = FileExtent { address: entry.address, end: entry.end(), first_page, lazy: entry.lazy };
            first_page += entry.pages;
            extent
        });
        let extents = extents.collect();
        let absent = pagemap.entries.iter().find(|entry| entry.lazy && !entry.present).map(|entry| entry.address);
        self.processes.insert(pid, ProcessPages { pages, extents, absent });
        Ok(())
    }

    /// Returns the processes.
    pub fn processes(&self) -> impl Iterator<Item = u64> {
        self.processes.keys().copied()
    }

    /// Returns the bytes of memory of all processes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.processes.values().flat_map(|process| &process.extents).map(|extent| extent.end - extent.address).sum()
    }

    /// Checks that all pages that can wait are in the directory.
    #[cfg(target_os = "linux")]
    pub(crate) fn check_lazy_pages(&self) -> Result<(), Error> {
        let mut absent = self.processes.iter().filter_map(|(pid, process)| Some((*pid, process.absent?)));
        absent.next().map_or(Ok(()), |(pid, address)| Err(Error::Absent { pid, address }))
    }

    /// Returns the pages of a process that can wait: ranges of memory, and the file that they are in.
    #[cfg(target_os = "linux")]
    pub(crate) fn lazy_pages(&self, pid: u64) -> Option<(Vec<trueno_zram_restore::MemoryExtent>, Arc<dyn Pages>)> {
        let ProcessPages { pages, extents, .. } = self.processes.get(&pid)?;
        let lazy = extents.iter().filter(|extent| extent.lazy).map(|extent| trueno_zram_restore::MemoryExtent {
            address: extent.address,
            pages: extent.pages(),
            first_page: extent.first_page,
        });
        Some((lazy.collect(), Arc::clone(pages)))
    }

    /// Returns the part of each process's pages that can wait.
    #[cfg(target_os = "linux")]
    pub(crate) fn lazy_parts(&self) -> impl Iterator<Item = (&dyn Pages, Range<u64>)> {
        self.processes.values().filter_map(|process| {
            let mut lazy = process.extents.iter().filter(|extent| extent.lazy);
            let first = lazy.next()?;
            let last = lazy.next_back().unwrap_or(first);
            Some((&*process.pages, first.first_page..last.first_page + last.pages()))
        })
    }
}

impl std::fmt::Debug for DumpedMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DumpedMemory({} bytes of {} processes)", self.len_bytes(), self.processes.len())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use trueno_zram_archive::PlainPages;

    use super::*;
    use crate::pagemap::PagemapEntry;

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
        let (lazy, _) = memory.lazy_pages(7).unwrap();
        let found: Vec<_> = lazy.iter().map(|extent| (extent.address, extent.pages, extent.first_page)).collect();
        assert_eq!(found, [(0x1000, 2, 0), (0xa000, 4, 5)]);
        let parts: Vec<_> = memory.lazy_parts().map(|(_, pages)| (pages.start, pages.end)).collect();
        assert_eq!(parts, [(0, 9)]);
        assert!(memory.lazy_pages(8).is_none() && memory.check_lazy_pages().is_ok());

        let longer = [entries, vec![entry(0x1_0000, 1, true, true)]].concat();
        let refused = memory.add(8, &Pagemap { pages_id: 2, entries: longer }, pages(), Path::new("p"));
        assert!(matches!(refused, Err(Error::PagesShort { pages: 10, len_bytes: 36864, .. })), "{refused:?}");

        let absent = vec![entry(0x5000, 1, true, false)];
        memory.add(9, &Pagemap { pages_id: 3, entries: absent }, pages(), Path::new("p")).unwrap();
        let refused = memory.check_lazy_pages();
        assert!(matches!(refused, Err(Error::Absent { pid: 9, address: 0x5000 })), "{refused:?}");
    }
}
