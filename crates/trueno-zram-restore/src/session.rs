//! One VM: what the handler and the workers of the background fill share.

use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use trueno_zram_core::{PAGE_SIZE, Page, PageRoom, is_zero};

use crate::error::Error;
use crate::gate::Gate;
use crate::options::{Notice, Options, Report};
use crate::process::Process;
use crate::regions::{Region, Regions};
use crate::source::PagesByNumber;
use crate::states::{FirstSeen, States};
use crate::uffd::{PROBE_ADDRESS, Userfaultfd};

/// A VM that is being restored.
pub(crate) struct Session<'a, S: ?Sized> {
    pub(crate) uffd: &'a Userfaultfd,
    pub(crate) vmm: &'a Process,
    pub(crate) regions: Regions,
    pub(crate) states: States,
    pub(crate) gate: Gate,
    pub(crate) source: &'a S,
    pub(crate) options: &'a Options,
    pub(crate) touched: Option<&'a FirstSeen>,
    pub(crate) notify: &'a (dyn Fn(Notice<'_>) + Send + Sync),
    pub(crate) counters: Counters,
}

/// What was done so far.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) faults: AtomicU64,
    pub(crate) copied_bytes: AtomicU64,
    pub(crate) zero_bytes: AtomicU64,
    pub(crate) removed_bytes: AtomicU64,
    pub(crate) poisoned: AtomicU64,
}

impl Counters {
    /// Adds what was done to a report.
    pub(crate) fn add_to(&self, report: &mut Report) {
        let Report { memory_bytes, complete, .. } = *report;
        let own = self.report(memory_bytes, complete);
        report.faults += own.faults;
        report.copied_bytes += own.copied_bytes;
        report.zero_bytes += own.zero_bytes;
        report.removed_bytes += own.removed_bytes;
        report.poisoned += own.poisoned;
    }

    pub(crate) fn report(&self, memory_bytes: u64, complete: bool) -> Report {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Report {
            memory_bytes,
            faults: value(&self.faults),
            copied_bytes: value(&self.copied_bytes),
            zero_bytes: value(&self.zero_bytes),
            removed_bytes: value(&self.removed_bytes),
            poisoned: value(&self.poisoned),
            complete,
        }
    }
}

/// Content for missing units.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Content<'a> {
    Bytes(&'a [u8]),
    Zeros(u64),
}

impl<'a> Content<'a> {
    /// Returns runs of pages that are zero or not, and how many pages each has.
    pub(crate) fn runs_of(pages: &'a [Page]) -> impl Iterator<Item = (Self, usize)> {
        pages.chunk_by(|one, other| is_zero(one) == is_zero(other)).map(|run| {
            let bytes = run.as_flattened();
            let content = if run.first().is_some_and(|page| is_zero(page)) {
                Self::Zeros(bytes.len() as u64)
            } else {
                Self::Bytes(bytes)
            };
            (content, run.len())
        })
    }

    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Zeros(len) => *len,
        }
    }

    /// Returns a part of it, by bytes.
    pub(crate) fn part(&self, range: Range<usize>) -> Self {
        match self {
            Self::Bytes(bytes) => Self::Bytes(&bytes[range]),
            Self::Zeros(_) => Self::Zeros(range.len() as u64),
        }
    }
}

/// How far units were filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    Done,
    /// The VMM is removing memory, and events must be read before it goes on. The number of bytes that are done.
    Changing(u64),
}

/// Why no more can be filled.
#[derive(Debug)]
pub(crate) enum Stop {
    Ended,
    NoMemory,
    Failed(Error),
}

/// A 4 KiB page that cannot be restored.
#[derive(Debug)]
pub(crate) struct DamagedPage {
    pub(crate) page: u64,
    pub(crate) error: trueno_zram_archive::Error,
}

/// A thread's memory for the pages of one unit.
#[derive(Debug)]
pub(crate) struct UnitBuffer {
    page: PageRoom,
    huge: PageRoom,
}

impl UnitBuffer {
    pub(crate) fn new() -> Self {
        Self { page: PageRoom::new(1), huge: PageRoom::new(0) }
    }

    fn huge(&mut self, len: u64) -> &mut [Page] {
        let pages = usize::try_from(len).expect("at most 2 MiB") / PAGE_SIZE;
        if self.huge.len() != pages {
            self.huge = PageRoom::new(pages);
        }
        &mut self.huge
    }
}

impl<S: PagesByNumber + ?Sized> Session<'_, S> {
    /// Reads the content of a unit. Huge units are never `Zeros`: hugetlb memory has no zero page.
    pub(crate) fn load<'b>(
        &'b self,
        region: &Region,
        unit: usize,
        buffer: &'b mut UnitBuffer,
    ) -> Result<Content<'b>, DamagedPage> {
        let first = region.page_of(unit);
        if !region.is_huge() {
            let own = &mut buffer.page[0];
            let kept = self.source.page(first, own).map_err(|error| DamagedPage { page: first, error })?;
            let page = kept.unwrap_or(own);
            return Ok(if is_zero(page) { Content::Zeros(PAGE_SIZE as u64) } else { Content::Bytes(page) });
        }
        let pages = buffer.huge(region.unit_len);
        let (all, mut is_whole) = (first..first + pages.len() as u64, true);
        self.source.visit(all.clone(), pages, &mut |_, portion| {
            is_whole = portion.is_ok();
            if is_whole { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        if !is_whole {
            // One by one, to find the page that is damaged.
            for (out, page) in pages.iter_mut().zip(all) {
                load_page(self.source, page, out).map_err(|error| DamagedPage { page, error })?;
            }
        }
        Ok(Content::Bytes(pages.as_flattened()))
    }

    /// Returns the zeros of a unit that was removed.
    pub(crate) fn zeros<'b>(&self, region: &Region, buffer: &'b mut UnitBuffer) -> Content<'b> {
        if !region.is_huge() {
            return Content::Zeros(region.unit_len);
        }
        let bytes = buffer.huge(region.unit_len).as_flattened_mut();
        bytes.fill(0);
        Content::Bytes(bytes)
    }

    /// Fills the units from `unit` on that are missing, and wakes the threads that wait for them.
    pub(crate) fn put(&self, region: &Region, unit: usize, content: Content<'_>) -> Result<Put, Stop> {
        let (start, len) = (region.address_of(unit), content.len());
        let mut at = 0;
        let unit_at = |at: u64| unit + usize::try_from(at / region.unit_len).expect("units are in memory");
        while at < len {
            let progress = match content {
                Content::Bytes(bytes) => self.uffd.copy(start + at, &bytes[usize::try_from(at).expect("in a slice")..]),
                Content::Zeros(len) => self.uffd.zero(start + at, len - at),
            };
            (unit_at(at)..unit_at(at + progress.done)).for_each(|unit| self.states.set_filled(unit));
            let counter = match content {
                Content::Bytes(_) => &self.counters.copied_bytes,
                Content::Zeros(_) => &self.counters.zero_bytes,
            };
            counter.fetch_add(progress.done, Ordering::Relaxed);
            at += progress.done;
            match progress.stopped {
                None => break,
                // The next call says what is wrong with the next unit.
                Some(_) if progress.done > 0 => {}
                Some(Errno::AGAIN) => return Ok(Put::Changing(at)),
                // EEXIST: the unit is there already. ENOENT: the VMM has unmapped it. Both leave nothing to do but to wake.
                Some(Errno::EXIST | Errno::NOENT) => {
                    let _ = self.uffd.wake(start + at, region.unit_len);
                    self.states.set_filled(unit_at(at));
                    at += region.unit_len;
                }
                Some(error) => return Err(self.stop(error)),
            }
        }
        Ok(Put::Done)
    }

    /// Returns whether the VM has ended: no process has its memory any more. The process that connected may be another one.
    pub(crate) fn is_gone(&self) -> bool {
        if self.regions.find(PROBE_ADDRESS).is_some() {
            return self.vmm.has_ended();
        }
        self.uffd.is_gone()
    }

    /// Interprets an error of a fill. ENOSPC meant the same as ESRCH from Linux 4.11 to 4.13.
    pub(crate) fn stop(&self, error: Errno) -> Stop {
        match error {
            Errno::SRCH => Stop::Ended,
            _ if self.is_gone() => Stop::Ended,
            Errno::NOMEM => Stop::NoMemory,
            error => Stop::Failed(Error::system("filling a page of the VM")(error)),
        }
    }
}

/// Reads a page to a place of its own.
pub(crate) fn load_page<S: PagesByNumber + ?Sized>(
    source: &S,
    number: u64,
    out: &mut Page,
) -> Result<(), trueno_zram_archive::Error> {
    if let Some(page) = source.page(number, out)? {
        *out = *page;
    }
    Ok(())
}
