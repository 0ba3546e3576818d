//! Reads the pages of a process in order of their addresses, and notes where each was.

use std::io;

use rustix::io::Errno;
use trueno_zram_core::{PAGE_SIZE, Page};

use super::{MapsLine, ProcessError, Source, Wanted, pagemap};
use crate::address_map::{Flags, Mapping, PageState};

/// Entries of the pagemap read at once: those of 256 MiB.
const ENTRIES_AT_ONCE: usize = 1 << 16;

/// Which ranges are saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    /// Heap, stacks and other anonymous memory.
    Anonymous,
    /// In addition, the pages of private file mappings that the process wrote to.
    AllPrivate,
}

/// What was left out by choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Left {
    /// Bytes of memory that is shared with other processes.
    pub(crate) shared_bytes: u64,
    /// Bytes of private file mappings.
    pub(crate) file_bytes: u64,
}

/// Reads the pages of a process.
pub(crate) struct MemoryReader<'a, S> {
    pid: u32,
    source: &'a S,
    selection: Selection,
    lines: std::vec::IntoIter<MapsLine>,
    /// The range that is being read.
    current: Option<Current>,
    /// Entries of the pagemap for the pages of the current range from its `at` on.
    entries: Vec<u64>,
    next_entry: usize,
    /// Pages read.
    pages: u64,
    /// Those of them that were in swap.
    pub(crate) swapped: u64,
    pub(crate) left: Left,
    /// The ranges that were read to their end. Those in which nothing was touched are among them: they are part of the
    /// process's picture.
    pub(crate) mappings: Vec<Mapping>,
}

/// A range that is being read.
struct Current {
    at: u64,
    end: u64,
    wanted: Wanted,
    mapping: Mapping,
}

impl<'a, S: Source> MemoryReader<'a, S> {
    pub(crate) fn new(pid: u32, source: &'a S, lines: Vec<MapsLine>, selection: Selection) -> Self {
        Self {
            pid,
            source,
            selection,
            lines: lines.into_iter(),
            current: None,
            entries: Vec::new(),
            next_entry: 0,
            pages: 0,
            swapped: 0,
            left: Left::default(),
            mappings: Vec::new(),
        }
    }

    /// Reads on into `room`; the pages read. Fewer than there is room for only at the end.
    pub(crate) fn fill(&mut self, room: &mut [Page]) -> Result<usize, ProcessError> {
        let mut filled = 0;
        while filled < room.len() {
            let Some(mut current) = self.current.take().or_else(|| self.next_range()) else { break };
            if current.at < current.end {
                filled += self.read_some(&mut current, &mut room[filled..])?;
            }
            if current.at < current.end {
                self.current = Some(current);
            } else {
                self.finish(current);
            }
        }
        Ok(filled)
    }

    /// The next range that is wanted; none at the end.
    fn next_range(&mut self) -> Option<Current> {
        loop {
            let line = self.lines.next()?;
            let bytes = line.end - line.start;
            let wanted = match self.selection {
                _ if line.is_the_kernels() => continue,
                _ if line.is_shared() => {
                    self.left.shared_bytes += bytes;
                    continue;
                }
                _ if line.is_anonymous() => Wanted::Touched,
                Selection::AllPrivate => Wanted::Own,
                Selection::Anonymous => {
                    self.left.file_bytes += bytes;
                    continue;
                }
            };
            let flags = Flags::new(&line.permissions, line.is_anonymous());
            let mapping =
                Mapping { start: line.start, flags, name: line.name, first_page: self.pages, runs: Vec::new() };
            let mut current = Current { at: line.start, end: line.end, wanted, mapping };
            if line.held_kib == 0 {
                current.mapping.push(bytes / PAGE_SIZE as u64, PageState::Untouched);
                current.at = current.end;
            }
            self.entries.clear();
            self.next_entry = 0;
            return Some(current);
        }
    }

    /// Keeps a range that was read to its end. A file mapping without a page of the process's own is not recorded.
    fn finish(&mut self, Current { wanted, mapping, .. }: Current) {
        let is_untouched = mapping.runs.iter().all(|run| run.state == PageState::Untouched);
        if wanted != Wanted::Own || !is_untouched {
            self.mappings.push(mapping);
        }
    }

    /// Reads neighbouring pages that are wanted, or passes over some that are not; the pages read.
    fn read_some(&mut self, current: &mut Current, room: &mut [Page]) -> Result<usize, ProcessError> {
        if self.next_entry == self.entries.len() {
            self.read_entries(current)?;
        }
        let is_wanted = |entry: &u64| current.wanted.takes(*entry);
        let entries = &self.entries[self.next_entry..];
        let run = entries.chunk_by(|a, b| is_wanted(a) == is_wanted(b)).next().unwrap_or(&[]);
        if !run.first().is_some_and(is_wanted) {
            current.mapping.push(run.len() as u64, PageState::Untouched);
            self.advance(current, run.len());
            return Ok(0);
        }
        let pages = run.len().min(room.len());
        let read = retried(|| self.source.memory(current.at, room[..pages].as_flattened_mut()));
        let got = match read {
            Ok(0) => return Err(ProcessError::Gone { pid: self.pid }),
            // A part of a page is of no use.
            Ok(bytes) => bytes / PAGE_SIZE,
            // EFAULT: some kernels pass it on instead of EIO.
            Err(error) if is_errno(&error, Errno::IO) || is_errno(&error, Errno::FAULT) => 0,
            Err(error) => return Err(ProcessError::io(self.pid, "mem", error)),
        };
        let done = got.max(1);
        let swapped = run[..done].iter().filter(|entry| pagemap::is_swapped(**entry)).count() as u64;
        if got > 0 {
            current.mapping.push(got as u64, PageState::Stored);
        } else {
            // The kernel does not give this page; the next one is tried again.
            current.mapping.push(1, PageState::Unreadable);
        }
        self.swapped += swapped;
        self.pages += got as u64;
        self.advance(current, done);
        Ok(got)
    }

    fn advance(&mut self, current: &mut Current, pages: usize) {
        self.next_entry += pages;
        current.at += (pages * PAGE_SIZE) as u64;
    }

    fn read_entries(&mut self, current: &Current) -> Result<(), ProcessError> {
        let left = usize::try_from((current.end - current.at) / PAGE_SIZE as u64).unwrap_or(usize::MAX);
        self.entries.resize(left.min(ENTRIES_AT_ONCE), 0);
        self.next_entry = 0;
        let got = retried(|| self.source.page_entries(current.at, &mut self.entries));
        let got = got.map_err(|error| ProcessError::io(self.pid, "pagemap", error))?;
        self.entries.truncate(got);
        if got == 0 { Err(ProcessError::Gone { pid: self.pid }) } else { Ok(()) }
    }
}

fn retried<T>(mut read: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match read() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

fn is_errno(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

#[cfg(test)]
mod tests;
