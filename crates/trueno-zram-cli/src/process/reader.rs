//! Reads the pages of a process in order of their addresses, and notes where each was.

use std::io;
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread;

use rustix::io::Errno;
use trueno_zram_archive::address_map::{Flags, Mapping, PageState};
use trueno_zram_core::{PAGE_SIZE, Page};

use super::{MapsLine, MemorySource, ProcessError, Wanted, pagemap};

/// Entries of the pagemap read at once: those of 256 MiB.
const ENTRIES_AT_ONCE: usize = 1 << 16;

/// The ranges to save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    /// Heap, stacks and other anonymous memory.
    Anonymous,
    /// In addition, the pages of private file mappings that the process wrote to.
    AllPrivate,
}

/// The sizes of ranges that are not saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeftOut {
    /// Bytes of memory that is shared with other processes.
    pub(crate) shared_bytes: u64,
    /// Bytes of private file mappings.
    pub(crate) file_bytes: u64,
}

/// Pages that a thread reads at a time: 1 MiB.
const PART_PAGES: usize = 256;

/// Reads the pages of a process.
pub(crate) struct MemoryReader<'a, S> {
    pid: u32,
    source: &'a S,
    selection: Selection,
    /// Threads that read.
    threads: usize,
    lines: std::vec::IntoIter<MapsLine>,
    /// The rest of the range that is being planned.
    cursor: Option<RangeCursor>,
    /// Entries of the pagemap for the pages from the cursor on.
    entries: Vec<u64>,
    next_entry: usize,
    /// The range whose pages are being noted.
    current: Option<(Wanted, Mapping)>,
    /// Pages read that were in swap.
    pub(crate) swapped: u64,
    pub(crate) left: LeftOut,
    /// The ranges that were read to their end. Those in which nothing was touched are among them: they are part of the
    /// process's picture.
    pub(crate) mappings: Vec<Mapping>,
}

/// The rest of a range.
struct RangeCursor {
    at: u64,
    end: u64,
    wanted: Wanted,
}

/// A step of a plan. Steps are in order of the addresses.
enum ReadStep {
    /// A range begins.
    Begin(Wanted, Mapping),
    /// Pages that were never touched.
    PassOver(u64),
    /// Pages to read.
    Read { address: u64, pages: usize },
    /// The range ends.
    End,
}

/// Pages that one thread reads.
struct PageRun<'r> {
    address: u64,
    room: &'r mut [Page],
    /// The states of the pages, in order.
    runs: Vec<(usize, PageState)>,
}

impl<'a, S: MemorySource> MemoryReader<'a, S> {
    pub(crate) fn new(pid: u32, source: &'a S, lines: Vec<MapsLine>, selection: Selection) -> Self {
        Self {
            pid,
            source,
            selection,
            threads: 1,
            lines: lines.into_iter(),
            cursor: None,
            entries: Vec::new(),
            next_entry: 0,
            current: None,
            swapped: 0,
            left: LeftOut::default(),
            mappings: Vec::new(),
        }
    }

    /// Reads with this many threads.
    pub(crate) fn on_threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// The bytes that the ranges hold at most, as far as they are not read yet.
    pub(crate) fn most_bytes(&self) -> u64 {
        let wanted = self.lines.as_slice().iter().filter(|line| self.wanted(line).is_some());
        wanted.map(|line| line.held_kib.saturating_mul(1024)).fold(0, u64::saturating_add)
    }

    /// Reads on into `room`. Returns the number of pages read: fewer than there is room for only at the end.
    pub(crate) fn fill(&mut self, room: &mut [Page]) -> Result<usize, ProcessError> {
        let mut filled = 0;
        while filled < room.len() {
            let steps = self.plan(room.len() - filled)?;
            if steps.is_empty() {
                break;
            }
            filled += self.follow(steps, &mut room[filled..])?;
        }
        Ok(filled)
    }

    /// Returns the selection of a range's pages; `None` if the range is left out.
    fn wanted(&self, line: &MapsLine) -> Option<Wanted> {
        match self.selection {
            _ if line.belongs_to_kernel() || line.is_shared() => None,
            _ if line.is_anonymous() => Some(Wanted::Touched),
            Selection::AllPrivate => Some(Wanted::Own),
            Selection::Anonymous => None,
        }
    }

    /// Plans the next `most` pages. Returns no steps at the end.
    fn plan(&mut self, most: usize) -> Result<Vec<ReadStep>, ProcessError> {
        let (mut steps, mut pages) = (Vec::new(), 0);
        while pages < most {
            let Some(mut cursor) = self.cursor.take().or_else(|| self.next_range(&mut steps)) else { break };
            if cursor.at == cursor.end {
                steps.push(ReadStep::End);
                continue;
            }
            if self.next_entry == self.entries.len() {
                self.read_entries(&cursor)?;
            }
            let is_wanted = |entry: &u64| cursor.wanted.takes(*entry);
            let entries = &self.entries[self.next_entry..];
            let run = entries.chunk_by(|a, b| is_wanted(a) == is_wanted(b)).next().unwrap_or(&[]);
            let passed = if run.first().is_some_and(is_wanted) {
                let run = &run[..run.len().min(most - pages)];
                self.swapped += run.iter().filter(|entry| pagemap::is_swapped(**entry)).count() as u64;
                steps.push(ReadStep::Read { address: cursor.at, pages: run.len() });
                pages += run.len();
                run.len()
            } else {
                steps.push(ReadStep::PassOver(run.len() as u64));
                run.len()
            };
            self.next_entry += passed;
            cursor.at += (passed * PAGE_SIZE) as u64;
            self.cursor = Some(cursor);
        }
        // A range that was planned to its end is noted with its last pages.
        if self.cursor.as_ref().is_some_and(|cursor| cursor.at == cursor.end) {
            self.cursor = None;
            steps.push(ReadStep::End);
        }
        Ok(steps)
    }

    /// Begins the next range that is wanted; `None` at the end.
    fn next_range(&mut self, steps: &mut Vec<ReadStep>) -> Option<RangeCursor> {
        loop {
            let line = self.lines.next()?;
            let bytes = line.end - line.start;
            let Some(wanted) = self.wanted(&line) else {
                match line {
                    line if line.belongs_to_kernel() => {}
                    line if line.is_shared() => self.left.shared_bytes += bytes,
                    _ => self.left.file_bytes += bytes,
                }
                continue;
            };
            let flags = if line.is_anonymous() { Flags::anonymous } else { Flags::of_file };
            let mapping = Mapping::new(line.start, flags(&line.permissions), line.name);
            steps.push(ReadStep::Begin(wanted, mapping));
            let mut cursor = RangeCursor { at: line.start, end: line.end, wanted };
            if line.held_kib == 0 {
                steps.push(ReadStep::PassOver(bytes / PAGE_SIZE as u64));
                cursor.at = cursor.end;
            }
            self.entries.clear();
            self.next_entry = 0;
            return Some(cursor);
        }
    }

    /// Reads what is planned into `room`, on several threads, and notes the state of every page. Returns the pages read.
    fn follow(&mut self, steps: Vec<ReadStep>, room: &mut [Page]) -> Result<usize, ProcessError> {
        let mut parts = Vec::new();
        let mut rest = &mut *room;
        for step in &steps {
            let ReadStep::Read { address, pages } = step else { continue };
            let (now, after) = rest.split_at_mut(*pages);
            rest = after;
            let starts = (*address..).step_by(PART_PAGES * PAGE_SIZE);
            parts.extend(now.chunks_mut(PART_PAGES).zip(starts).map(|(room, address)| PageRun {
                address,
                room,
                runs: Vec::new(),
            }));
        }
        self.read_parts(&mut parts)?;
        let runs: Vec<_> = parts.into_iter().map(|part| part.runs).collect();
        let mut runs = runs.into_iter().flatten();
        // Pages behind one that could not be read move up.
        let (mut from, mut to) = (0, 0);
        for step in steps {
            match step {
                ReadStep::Begin(wanted, mapping) => self.current = Some((wanted, mapping)),
                ReadStep::PassOver(pages) => self.note(pages, PageState::Untouched),
                ReadStep::Read { pages, .. } => {
                    let end = from + pages;
                    while from < end {
                        let (pages, state) = runs.next().expect("a part has a state for each of its pages");
                        self.note(pages as u64, state);
                        if state == PageState::Stored {
                            room.copy_within(from..from + pages, to);
                            to += pages;
                        }
                        from += pages;
                    }
                }
                ReadStep::End => self.finish(),
            }
        }
        Ok(to)
    }

    fn note(&mut self, pages: u64, state: PageState) {
        let (_, mapping) = self.current.as_mut().expect("pages belong to a range that has begun");
        mapping.push(pages, state);
    }

    /// Keeps a range that was read to its end. A file mapping without a page of the process's own is not recorded.
    fn finish(&mut self) {
        let (wanted, mapping) = self.current.take().expect("a range that ends has begun");
        let is_untouched = mapping.runs().iter().all(|run| run.state == PageState::Untouched);
        if wanted != Wanted::Own || !is_untouched {
            self.mappings.push(mapping);
        }
    }

    fn read_parts(&self, parts: &mut [PageRun<'_>]) -> Result<(), ProcessError> {
        let threads = self.threads.min(parts.len());
        if threads <= 1 {
            return parts.iter_mut().try_for_each(|part| read_part(self.pid, self.source, part));
        }
        let parts = Mutex::new(parts.iter_mut());
        let work = || {
            // Not in the condition of the loop, where the lock would be held until its end.
            let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).next();
            while let Some(part) = next() {
                read_part(self.pid, self.source, part)?;
            }
            Ok(())
        };
        thread::scope(|scope| {
            // This thread reads, too. Where others cannot be started, it reads everything.
            let spawn = |_| thread::Builder::new().name("read".into()).spawn_scoped(scope, work).ok();
            let others: Vec<_> = (1..threads).filter_map(spawn).collect();
            let joined = others.into_iter().map(|other| other.join().unwrap_or_else(|panic| resume_unwind(panic)));
            work().and(joined.fold(Ok(()), Result::and))
        })
    }

    fn read_entries(&mut self, cursor: &RangeCursor) -> Result<(), ProcessError> {
        let left = usize::try_from((cursor.end - cursor.at) / PAGE_SIZE as u64).unwrap_or(usize::MAX);
        self.entries.resize(left.min(ENTRIES_AT_ONCE), 0);
        self.next_entry = 0;
        let got = retried(|| self.source.page_entries(cursor.at, &mut self.entries));
        let got = got.map_err(|error| ProcessError::io(self.pid, "pagemap", error))?;
        self.entries.truncate(got);
        if got == 0 { Err(ProcessError::Gone { pid: self.pid }) } else { Ok(()) }
    }
}

/// Reads the pages of a part, and notes which the kernel does not give.
fn read_part(pid: u32, source: &impl MemorySource, part: &mut PageRun<'_>) -> Result<(), ProcessError> {
    let mut done = 0;
    while done < part.room.len() {
        let address = part.address + (done * PAGE_SIZE) as u64;
        let got = match retried(|| source.memory(address, part.room[done..].as_flattened_mut())) {
            Ok(0) => return Err(ProcessError::Gone { pid }),
            // A part of a page is of no use.
            Ok(bytes) => bytes / PAGE_SIZE,
            // EFAULT: some kernels pass it on instead of EIO.
            Err(error) if is_errno(&error, Errno::IO) || is_errno(&error, Errno::FAULT) => 0,
            Err(error) => return Err(ProcessError::io(pid, "mem", error)),
        };
        // A page that the kernel does not give is passed over; the next one is tried again.
        let run = if got > 0 { (got, PageState::Stored) } else { (1, PageState::Unreadable) };
        part.runs.push(run);
        done += run.0;
    }
    Ok(())
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
