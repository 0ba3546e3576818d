//! The background fill: recorded touches first, then everything in order.

use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use trueno_zram_core::{PAGE_SIZE, Page, PageRoom};

use crate::options::Notice;
use crate::regions::Region;
use crate::session::{Content, Put, Session, Stop, UnitBuffer, load_page};
use crate::source::PagesByNumber;
use crate::touches::WINDOW_PAGES;

/// 4 KiB pages that are filled by one call. The handler may have to wait for such a call: see `gate`.
const CALL_UNITS: usize = 16;

/// 4 KiB pages that a worker takes at a time: a group of an archive, which is read and checked once.
const RUN_UNITS: usize = 1024;

/// What the workers take: the windows of recorded touches, then runs of all units.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Units in the order of recorded touches.
    windows: Vec<Range<usize>>,
    /// Units that are filled in order, run by run.
    rest: Vec<Range<usize>>,
}

/// The state of the fill that the workers share.
#[derive(Debug)]
pub(crate) struct Fill {
    plan: Plan,
    next: AtomicUsize,
    stop: AtomicBool,
    /// Workers that have not ended.
    active: AtomicUsize,
    panicked: AtomicBool,
}

impl Plan {
    /// Plans the fill of the memory of a session.
    pub(crate) fn new<S: PagesByNumber + ?Sized>(session: &Session<'_, S>, prefetch: &[u64]) -> Self {
        let regions = &session.regions;
        let windows = prefetch.iter().filter_map(|window| {
            let first = window.checked_mul(WINDOW_PAGES)?;
            let pages = first..first.checked_add(WINDOW_PAGES)?;
            let (region, start) = pages.clone().find_map(|page| regions.find_page(page))?;
            let end = start + usize::try_from(WINDOW_PAGES.div_ceil(region.pages_per_unit())).ok()?;
            Some(start..end.min(region.units().end))
        });
        let windows = windows.collect();
        let mut rest: Vec<&Region> = regions.iter().filter(|_| session.options.background_fill).collect();
        // The archive is read from its start to its end.
        rest.sort_by_key(|region| region.first_page);
        Self { windows, rest: rest.into_iter().flat_map(runs).collect() }
    }

    fn is_empty(&self) -> bool {
        self.windows.is_empty() && self.rest.is_empty()
    }

    /// Returns the units that are taken in this turn.
    fn get(&self, turn: usize) -> Option<Range<usize>> {
        if let Some(units) = self.windows.get(turn) {
            return Some(units.clone());
        }
        self.rest.get(turn - self.windows.len()).cloned()
    }
}

/// Returns the units of a region in runs that do not cross groups of the archive.
fn runs(region: &Region) -> impl Iterator<Item = Range<usize>> + use<> {
    let (units, first_page, per_unit) = (region.units(), region.first_page, region.pages_per_unit());
    let mut start = units.start;
    std::iter::from_fn(move || {
        let page = first_page + (start - units.start) as u64 * per_unit;
        let pages = RUN_UNITS as u64 - page % RUN_UNITS as u64;
        let run = start..units.end.min(start + usize::try_from(pages.div_ceil(per_unit)).unwrap_or(1));
        start = run.end;
        (!run.is_empty()).then_some(run)
    })
}

impl Fill {
    pub(crate) fn new(plan: Plan, workers: usize) -> Self {
        Self {
            active: AtomicUsize::new(if plan.is_empty() { 0 } else { workers }),
            plan,
            next: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
        }
    }

    /// Whether a worker may still fill units.
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire) > 0
    }

    /// Whether a worker ended by a panic.
    pub(crate) fn has_panicked(&self) -> bool {
        self.panicked.load(Ordering::Acquire)
    }

    /// Makes the workers end soon.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Notes that a worker has ended, or could not start.
    pub(crate) fn leave(&self) {
        if thread::panicking() {
            self.panicked.store(true, Ordering::Release);
        }
        self.active.fetch_sub(1, Ordering::AcqRel);
    }

    /// Fills what no other worker has taken, until all is done.
    pub(crate) fn work<S: PagesByNumber + ?Sized>(&self, session: &Session<'_, S>) {
        // Faults come first. Where the priority cannot be lowered, the scheduler is fair.
        let _ = rustix::process::setpriority_process(None, 10);
        let (mut pages, mut unit) = (PageRoom::new(RUN_UNITS), UnitBuffer::new());
        while !self.stop.load(Ordering::Relaxed) {
            let Some(units) = self.plan.get(self.next.fetch_add(1, Ordering::Relaxed)) else { return };
            let Some(region) = session.regions.of_unit(units.start) else { continue };
            let filled = if region.is_huge() {
                self.fill_huge(session, region, units, &mut unit)
            } else {
                self.fill_run(session, region, units, &mut pages)
            };
            match filled {
                Ok(()) => {}
                Err(Stop::NoMemory) => {
                    self.stop();
                    (session.notify)(Notice::FillStopped);
                }
                // The handler finds out by itself, and reports it.
                Err(Stop::Ended | Stop::Failed(_)) => self.stop(),
            }
        }
    }

    /// Fills huge pages one by one. Damaged ones stay missing, and are dealt with when they are touched.
    fn fill_huge<S: PagesByNumber + ?Sized>(
        &self,
        session: &Session<'_, S>,
        region: &Region,
        units: Range<usize>,
        buffer: &mut UnitBuffer,
    ) -> Result<(), Stop> {
        for unit in units {
            if !session.states.is_wanted(unit) {
                continue;
            }
            if let Ok(content) = session.load(region, unit, buffer) {
                self.put(session, region, unit..unit + 1, content)?;
            }
        }
        Ok(())
    }

    /// Fills 4 KiB pages: reads some, and copies those that follow each other by one call.
    fn fill_run<S: PagesByNumber + ?Sized>(
        &self,
        session: &Session<'_, S>,
        region: &Region,
        units: Range<usize>,
        pages: &mut [Page],
    ) -> Result<(), Stop> {
        let mut result = Ok(());
        for wanted in wanted(session, units) {
            let first = region.page_of(wanted.start);
            let all = first..first + wanted.len() as u64;
            session.source.visit(all, pages, &mut |number, portion| {
                let unit = wanted.start + usize::try_from(number - first).expect("units are in memory");
                result = match portion {
                    Ok(portion) => portion
                        .chunks(CALL_UNITS)
                        .zip((unit..).step_by(CALL_UNITS))
                        .try_for_each(|(pages, unit)| self.fill_portion(session, region, unit, pages)),
                    Err(_) => self.fill_parts(session, region, unit..wanted.end.min(unit + RUN_UNITS)),
                };
                let goes_on = result.is_ok() && !self.stop.load(Ordering::Relaxed);
                if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            if result.is_err() {
                break;
            }
        }
        result
    }

    /// Fills the pages of a portion, from `unit` on.
    fn fill_portion<S: PagesByNumber + ?Sized>(
        &self,
        session: &Session<'_, S>,
        region: &Region,
        unit: usize,
        pages: &[Page],
    ) -> Result<(), Stop> {
        let mut start = unit;
        for (content, count) in Content::runs_of(pages) {
            let run_units = start..start + count;
            start = run_units.end;
            self.put(session, region, run_units, content)?;
        }
        Ok(())
    }

    /// Fills pages a few at a time, where one of them is damaged.
    fn fill_parts<S: PagesByNumber + ?Sized>(
        &self,
        session: &Session<'_, S>,
        region: &Region,
        units: Range<usize>,
    ) -> Result<(), Stop> {
        let first = region.page_of(units.start);
        let mut result = Ok(());
        session.source.visit(
            first..first + units.len() as u64,
            &mut [[0; PAGE_SIZE]; CALL_UNITS],
            &mut |number, part| {
                let unit = units.start + usize::try_from(number - first).expect("units are in memory");
                result = match part {
                    Ok(pages) => self.fill_portion(session, region, unit, pages),
                    Err(_) => self.fill_each(session, region, unit..units.end.min(unit + CALL_UNITS)),
                };
                if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            },
        );
        result
    }

    /// Fills pages one by one, where one of them is damaged. That one stays missing, and is dealt with when it is touched.
    fn fill_each<S: PagesByNumber + ?Sized>(
        &self,
        session: &Session<'_, S>,
        region: &Region,
        units: Range<usize>,
    ) -> Result<(), Stop> {
        let mut page = [[0; PAGE_SIZE]];
        for unit in units {
            if load_page(session.source, region.page_of(unit), &mut page[0]).is_ok() {
                self.fill_portion(session, region, unit, &page)?;
            }
        }
        Ok(())
    }

    /// Fills units that were not removed, while no events are read.
    fn put<S: PagesByNumber + ?Sized>(
        &self,
        session: &Session<'_, S>,
        region: &Region,
        units: Range<usize>,
        content: Content<'_>,
    ) -> Result<(), Stop> {
        let unit_len = usize::try_from(region.unit_len).expect("at most 2 MiB");
        let mut next = units.start;
        while next < units.end && !self.stop.load(Ordering::Relaxed) {
            let done = session.gate.pass(|| {
                if session.states.is_removed(next) {
                    return Ok(1);
                }
                let end = (next..units.end).find(|unit| session.states.is_removed(*unit)).unwrap_or(units.end);
                let content = content.part((next - units.start) * unit_len..(end - units.start) * unit_len);
                Ok(match session.put(region, next, content)? {
                    Put::Done => end - next,
                    Put::Changing(bytes) => usize::try_from(bytes).expect("in memory") / unit_len,
                })
            })?;
            next += done;
            if done == 0 {
                // The handler must read the events, and the VMM go on, before anything can be filled.
                thread::yield_now();
            }
        }
        Ok(())
    }
}

/// Returns the parts of a range that still have to be filled. Gaps of a few units are filled again: the kernel skips them.
fn wanted<S: PagesByNumber + ?Sized>(session: &Session<'_, S>, units: Range<usize>) -> Vec<Range<usize>> {
    let mut parts: Vec<Range<usize>> = Vec::new();
    for unit in units.filter(|unit| session.states.is_wanted(*unit)) {
        match parts.last_mut() {
            Some(part) if unit - part.end < CALL_UNITS => part.end = unit + 1,
            _ => parts.push(unit..unit + 1),
        }
    }
    parts
}
