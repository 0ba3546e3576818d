//! The background fill of a VM: recorded touches first, then everything in order.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use trueno_zram_core::{AlignedPages, Page};

use super::regions::{Region, Regions};
use super::session::Session;
use super::touches::WINDOW_PAGES;
use crate::error::Error;
use crate::lazy_memory::{Content, Stop};
use crate::read_intact::read_intact;
use crate::report::Notice;
use crate::wake::Wake;

/// 4 KiB pages that are filled by one call. The handler may have to wait for such a call: see `gate`.
const CALL_UNITS: usize = 16;

/// 4 KiB pages that a worker takes at a time: a group of an archive, which is read and checked once.
const RUN_PAGES: usize = trueno_zram_archive::GROUP_PAGES;

/// The state of the fill that the workers share.
pub(crate) struct BackgroundFill<'a> {
    session: &'a Session<'a>,
    /// Units that workers take at a time: the windows of recorded touches, then runs of everything.
    parts: Vec<Range<usize>>,
    next: AtomicUsize,
    /// The first of `parts` are windows.
    windows: usize,
    /// Windows that are not done.
    windows_left: AtomicUsize,
    stop: AtomicBool,
    /// Workers that have not ended.
    active: AtomicUsize,
    panicked: AtomicBool,
    /// Wakes the handler when a worker ends, or there is news of a proof.
    pub(crate) ended: Arc<Wake>,
}

/// Returns the units of a window of recorded touches.
fn window_units(regions: &Regions, window: u64) -> Option<Range<usize>> {
    let first = window.checked_mul(WINDOW_PAGES)?;
    let mut pages = first..first.checked_add(WINDOW_PAGES)?;
    let (region, start) = pages.find_map(|page| regions.find_page(page))?;
    let end = start + usize::try_from(WINDOW_PAGES).ok()?.div_ceil(region.pages_per_unit());
    Some(start..end.min(region.units().end))
}

/// Returns the units of a region in runs that do not cross groups of the archive.
fn runs(region: &Region) -> impl Iterator<Item = Range<usize>> + use<> {
    let (region, mut start) = (*region, region.first_unit);
    std::iter::from_fn(move || {
        let pages = RUN_PAGES - usize::try_from(region.page_of(start) % RUN_PAGES as u64).expect("small");
        let run = start..region.units().end.min(start + pages.div_ceil(region.pages_per_unit()));
        start = run.end;
        (!run.is_empty()).then_some(run)
    })
}

impl<'a> BackgroundFill<'a> {
    /// Plans the fill of the memory of a session.
    pub(crate) fn new(session: &'a Session<'a>, prefetch: &[u64], workers: usize) -> Result<Self, Error> {
        let mut parts: Vec<_> = prefetch.iter().filter_map(|window| window_units(&session.regions, *window)).collect();
        let windows = parts.len();
        if windows > 0 {
            session.proof.background.hold();
        }
        let mut regions: Vec<&Region> = session.regions.iter().filter(|_| session.options.background_fill).collect();
        // The archive is read from its start to its end.
        regions.sort_by_key(|region| region.first_page);
        parts.extend(regions.into_iter().flat_map(runs));
        Ok(Self {
            session,
            active: AtomicUsize::new(if parts.is_empty() { 0 } else { workers }),
            parts,
            next: AtomicUsize::new(0),
            windows,
            windows_left: AtomicUsize::new(windows),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            ended: Arc::new(Wake::new()?),
        })
    }

    /// Returns `true` if a worker may still fill units.
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire) > 0
    }

    /// Returns `true` if a worker ended by a panic.
    pub(crate) fn has_panicked(&self) -> bool {
        self.panicked.load(Ordering::Acquire)
    }

    /// Makes the workers end soon.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Records that a worker has ended, or could not start.
    pub(crate) fn leave(&self) {
        if thread::panicking() {
            self.panicked.store(true, Ordering::Release);
        }
        if self.active.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.session.proof.background.release();
        }
        self.ended.wake();
    }

    /// Fills parts that no other worker has taken, until none is left. Damaged pages stay missing, and are handled when they are
    /// touched.
    pub(crate) fn work(&self) {
        // Handlers of faults should run first. If the priority cannot be lowered, workers share the cores with them evenly.
        let _ = rustix::process::setpriority_process(None, 10);
        let mut buffer = AlignedPages::new(RUN_PAGES);
        while !self.is_stopped() {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(units) = self.parts.get(number) else { return };
            let Some(region) = self.session.regions.of_unit(units.start) else { continue };
            let filled = if region.is_huge() {
                self.fill_huge(region, units.clone(), &mut buffer)
            } else {
                self.fill_run(region, units.clone(), &mut buffer)
            };
            match filled {
                Ok(()) => {}
                Err(Stop::NoMemory) => {
                    self.stop();
                    (self.session.notify)(Notice::FillStopped);
                }
                // The handler finds out by itself, and reports it.
                Err(Stop::Ended | Stop::Failed(_)) => self.stop(),
            }
            self.finish_part(number);
        }
    }

    /// Lets proofs begin once the windows are done: until then, they would read what the VM does not wait for.
    fn finish_part(&self, number: usize) {
        let Session { lazy, proof, disproofs, .. } = self.session;
        if number < self.windows && self.windows_left.fetch_sub(1, Ordering::AcqRel) == 1 {
            proof.background.release();
        }
        disproofs.refresh(&*lazy.source);
        proof.background.notice(&*lazy.source);
    }

    /// Fills huge pages one by one.
    fn fill_huge(&self, region: &Region, mut units: Range<usize>, buffer: &mut [Page]) -> Result<(), Stop> {
        units.try_for_each(|unit| match self.session.load_wanted(region, unit, buffer) {
            Some(content) => self.put(region, unit..unit + 1, content),
            None => Ok(()),
        })
    }

    /// Fills 4 KiB pages: reads some, and copies those that follow each other by one call.
    fn fill_run(&self, region: &Region, units: Range<usize>, buffer: &mut [Page]) -> Result<(), Stop> {
        let lazy = &self.session.lazy;
        // Gaps of a few units are filled again: the kernel skips them.
        for wanted in lazy.states.wanted_in(units, CALL_UNITS) {
            let pages = region.page_of(wanted.start)..region.page_of(wanted.end);
            read_intact(&*lazy.source, pages, buffer, &mut |pages, content| {
                let mut unit = region.unit_of(pages.start);
                let calls = content.unwrap_or_default().chunks(CALL_UNITS);
                for (content, count) in calls.flat_map(Content::runs_of) {
                    self.put(region, unit..unit + count, content)?;
                    unit += count;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Fills units that were neither removed nor barred, while no events are read.
    fn put(&self, region: &Region, units: Range<usize>, content: Content<'_>) -> Result<(), Stop> {
        let (unit_len, lazy) = (content.len() / units.len(), &self.session.lazy);
        let mut next = units.start;
        while next < units.end {
            if self.is_stopped() {
                return Err(Stop::Ended);
            }
            let done = lazy.gate.pass(|| {
                let end = (next..units.end).find(|unit| lazy.states.is_closed(*unit)).unwrap_or(units.end);
                if end == next {
                    return Ok(1);
                }
                let content = content.part((next - units.start) * unit_len..(end - units.start) * unit_len);
                self.session.put(region, next..end, content)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages 8 to 2055 of the archive as 4 KiB pages, and pages 4096 to 6143 as huge ones.
    fn regions() -> Regions {
        let message = br#"[{"base_host_virt_addr":1048576,"size":8388608,"offset":32768},
            {"base_host_virt_addr":16777216,"size":8388608,"offset":16777216,"page_size":2097152}]"#;
        Regions::parse(message, 6144 * 4096).unwrap()
    }

    #[test]
    fn windows_have_the_units_that_are_in_a_region() {
        let regions = regions();
        let units = |window| window_units(&regions, window);
        // The first 8 pages of window 0 are in no region, and the last window reaches beyond the end of the region.
        assert_eq!((units(0), units(1)), (Some(0..16), Some(8..24)));
        assert_eq!((units(128), units(129)), (Some(2040..2048), None));
        assert_eq!((units(4096 / 16), units(6143 / 16), units(6144 / 16)), (Some(2048..2049), Some(2051..2052), None));
        assert_eq!(units(u64::MAX / WINDOW_PAGES), None);
    }

    #[test]
    fn runs_end_with_the_groups_of_the_archive() {
        let regions = regions();
        let all: Vec<_> = regions.iter().flat_map(runs).collect();
        assert_eq!(all, [0..1016, 1016..2040, 2040..2048, 2048..2050, 2050..2052]);
    }
}
