//! Reads the pages of a process, batch by batch, and notes where each was.

use std::io;
use std::ops::ControlFlow;

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
    /// And the pages of files' private mappings that the process wrote to.
    AllPrivate,
}

/// What was left out by choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Left {
    /// Bytes of memory shared with other processes, which is not private to this one.
    pub(crate) shared_bytes: u64,
    /// Bytes of private mappings of files.
    pub(crate) file_bytes: u64,
}

/// Reads pages into batches, which it hands on.
pub(crate) struct MemoryReader<'a, S, F> {
    pid: u32,
    source: &'a S,
    /// Takes full pages from the front of the batch; what it leaves there is filled again. `Break` ends the reading.
    sink: F,
    batch: Vec<Page>,
    filled: usize,
    entries: Vec<u64>,
    /// Pages handed on or waiting to be.
    pages: u64,
    /// Pages of those that were out in swap.
    pub(crate) swapped: u64,
    pub(crate) left: Left,
}

impl<'a, S: Source, F: FnMut(&mut Vec<Page>, usize) -> ControlFlow<()>> MemoryReader<'a, S, F> {
    pub(crate) fn new(pid: u32, source: &'a S, batch: Vec<Page>, sink: F) -> Self {
        let entries = vec![0; ENTRIES_AT_ONCE];
        Self { pid, source, sink, batch, filled: 0, entries, pages: 0, swapped: 0, left: Left::default() }
    }

    /// Reads all ranges that are wanted. Those in which nothing was touched are in the result too: they are part of the
    /// process's picture. Less than all if the sink broke off.
    pub(crate) fn read(&mut self, lines: &[MapsLine], selection: Selection) -> Result<Vec<Mapping>, ProcessError> {
        let mut mappings = Vec::new();
        for line in lines {
            let bytes = line.end - line.start;
            let wanted = match selection {
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
            let (name, first_page) = (line.name.clone(), self.pages);
            let mut mapping = Mapping { start: line.start, flags, name, first_page, runs: Vec::new() };
            let flow = if line.held_kib == 0 {
                mapping.push(bytes / PAGE_SIZE as u64, PageState::Untouched);
                ControlFlow::Continue(())
            } else {
                self.read_range(line, wanted, &mut mapping)?
            };
            // A file's mapping of which no page is the process's own says nothing.
            let says_nothing =
                wanted == Wanted::Own && mapping.runs.iter().all(|run| run.state == PageState::Untouched);
            if !says_nothing {
                mappings.push(mapping);
            }
            if flow.is_break() {
                return Ok(mappings);
            }
        }
        if self.filled > 0 {
            // The end either way.
            let _ = (self.sink)(&mut self.batch, self.filled);
        }
        Ok(mappings)
    }

    fn read_range(
        &mut self,
        line: &MapsLine,
        wanted: Wanted,
        mapping: &mut Mapping,
    ) -> Result<ControlFlow<()>, ProcessError> {
        let mut at = line.start;
        while at < line.end {
            let entries_left = usize::try_from((line.end - at) / PAGE_SIZE as u64).unwrap_or(usize::MAX);
            let mut entries = std::mem::take(&mut self.entries);
            let asked = &mut entries[..entries_left.min(ENTRIES_AT_ONCE)];
            let got = retried(|| self.source.page_entries(at, asked)).map_err(|e| self.failed("pagemap", e))?;
            if got == 0 {
                return Err(ProcessError::Gone { pid: self.pid });
            }
            for run in entries[..got].chunk_by(|a, b| wanted.takes(*a) == wanted.takes(*b)) {
                if wanted.takes(run[0]) {
                    self.swapped += run.iter().filter(|entry| pagemap::is_swapped(**entry)).count() as u64;
                    if self.read_run(at, run.len(), mapping)?.is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                } else {
                    mapping.push(run.len() as u64, PageState::Untouched);
                }
                at += (run.len() * PAGE_SIZE) as u64;
            }
            self.entries = entries;
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Reads neighbouring pages. One that the kernel does not give is noted as such; the next is tried again.
    fn read_run(&mut self, start: u64, pages: usize, mapping: &mut Mapping) -> Result<ControlFlow<()>, ProcessError> {
        let mut done = 0;
        while done < pages {
            let room = (self.batch.len() - self.filled).min(pages - done);
            let bytes = self.batch[self.filled..self.filled + room].as_flattened_mut();
            let address = start + (done * PAGE_SIZE) as u64;
            match retried(|| self.source.memory(address, bytes)) {
                Ok(0) => return Err(ProcessError::Gone { pid: self.pid }),
                // A part of a page is of no use to anyone.
                Ok(bytes) if bytes < PAGE_SIZE => self.unreadable(&mut done, mapping),
                Ok(bytes) => {
                    let got = bytes / PAGE_SIZE;
                    mapping.push(got as u64, PageState::Stored);
                    self.pages += got as u64;
                    self.filled += got;
                    done += got;
                }
                // EFAULT: as EIO, of kernels that pass it on.
                Err(error) if is_errno(&error, Errno::IO) || is_errno(&error, Errno::FAULT) => {
                    self.unreadable(&mut done, mapping);
                }
                Err(error) => return Err(self.failed("mem", error)),
            }
            if self.filled == self.batch.len() {
                let full = std::mem::take(&mut self.filled);
                if (self.sink)(&mut self.batch, full).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn unreadable(&self, done: &mut usize, mapping: &mut Mapping) {
        mapping.push(1, PageState::Unreadable);
        *done += 1;
    }

    fn failed(&self, file: &'static str, error: io::Error) -> ProcessError {
        ProcessError::io(self.pid, file, error)
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
