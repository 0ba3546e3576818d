//! The handler of one VM: reads events, answers faults, and uses the time in between to restore what is near them.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use trueno_zram_core::PAGE_SIZE;

use crate::error::Error;
use crate::event::{self, Event, Events};
use crate::fill::Fill;
use crate::options::{Notice, OnDamage};
use crate::session::{DamagedPage, Put, Session, Stop, UnitBuffer};
use crate::source::PagesByNumber;
use crate::touches::WINDOW_PAGES;

/// Blocks around faults that wait for a quiet moment. Older ones are given up.
const MAX_BLOCKS: usize = 32;

/// The time between two looks whether a VM still has its memory, once the process that connected has ended.
const ORPHAN_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Answers the faults of a VM.
pub(crate) struct Handler<'a, S: ?Sized> {
    session: &'a Session<'a, S>,
    fill: &'a Fill,
    /// Becomes readable when the last worker of the fill ends.
    fill_ended: &'a OwnedFd,
    events: Events,
    /// Faults that have not been answered.
    faults: Vec<u64>,
    /// Units near faults, the latest block last.
    blocks: Vec<Range<usize>>,
    buffer: UnitBuffer,
    complete: bool,
    /// The process that connected has ended, but another one has the memory.
    is_orphaned: bool,
}

impl<'a, S: PagesByNumber + ?Sized> Handler<'a, S> {
    pub(crate) fn new(session: &'a Session<'a, S>, fill: &'a Fill, fill_ended: &'a OwnedFd) -> Self {
        Self {
            session,
            fill,
            fill_ended,
            events: Events::new(),
            faults: Vec::new(),
            blocks: Vec::new(),
            buffer: UnitBuffer::new(),
            complete: false,
            is_orphaned: false,
        }
    }

    /// Serves the VM until it has ended. Calls `complete` once it no longer needs the handler.
    pub(crate) fn run(&mut self, complete: impl FnOnce()) -> Result<bool, Error> {
        match self.serve(complete) {
            Err(Stop::Ended) => Ok(self.complete),
            Err(Stop::NoMemory) => Err(Error::system("filling a page of the VM")(Errno::NOMEM)),
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    fn serve(&mut self, complete: impl FnOnce()) -> Result<std::convert::Infallible, Stop> {
        let mut complete = Some(complete);
        let mut last_event = Instant::now();
        loop {
            let active = self.read_events()?;
            self.answer_faults()?;
            if active {
                last_event = Instant::now();
            } else if !self.faults.is_empty() {
                // The VMM must go on before they can be answered.
                thread::yield_now();
            } else if let Some(block) = self.blocks.pop() {
                self.fill_next(block)?;
            } else if !self.complete && last_event.elapsed() < self.session.options.spin {
                std::hint::spin_loop();
            } else {
                self.finish_fill(&mut complete)?;
                self.sleep()?;
                // The spinning starts again, whatever woke the handler.
                last_event = Instant::now();
            }
        }
    }

    /// Reads the events that wait, and notes what was removed. Returns `false` if there were none.
    fn read_events(&mut self) -> Result<bool, Stop> {
        let session = self.session;
        if !self.fill.is_active() {
            return self.take_events();
        }
        if !is_readable(session)? {
            return Ok(false);
        }
        session.gate.shut(|| self.take_events())
    }

    fn take_events(&mut self) -> Result<bool, Stop> {
        let Session { uffd, regions, states, counters, .. } = self.session;
        let active = self.events.read(uffd).map_err(Stop::Failed)?;
        for event in self.events.iter() {
            match event.map_err(Stop::Failed)? {
                Event::Fault(address) => self.faults.push(address),
                Event::Removed(addresses) | Event::Unmapped(addresses) => {
                    for (region, units) in regions.units_in(addresses) {
                        let bytes = states.set_removed(units) * region.unit_len;
                        counters.removed_bytes.fetch_add(bytes, Ordering::Relaxed);
                    }
                }
                // Not without the features of these names, which are refused.
                Event::Remapped { from, .. } => {
                    return Err(Stop::Failed(Error::Event { event: event::REMAP, address: from }));
                }
                Event::Forked => return Err(Stop::Failed(Error::Event { event: event::FORK, address: 0 })),
            }
        }
        Ok(active)
    }

    /// Answers the faults that were read. Those that must wait stay in the list.
    fn answer_faults(&mut self) -> Result<(), Stop> {
        let mut faults = std::mem::take(&mut self.faults);
        let mut left = 0;
        for at in 0..faults.len() {
            if self.answer(faults[at])? != Put::Done {
                faults[left] = faults[at];
                left += 1;
            }
        }
        faults.truncate(left);
        self.faults = faults;
        Ok(())
    }

    fn answer(&mut self, address: u64) -> Result<Put, Stop> {
        let session = self.session;
        let Some((region, unit)) = session.regions.find(address) else {
            return Err(Stop::Failed(Error::Event { event: 0x12, address }));
        };
        let content = if session.states.is_wanted(unit) {
            match session.load(region, unit, &mut self.buffer) {
                Ok(content) => content,
                Err(damaged) => return self.answer_damaged(region.address_of(unit), region.unit_len, damaged),
            }
        } else {
            // Removed: zeros. Filled: the thread waits no longer, unless the page was dropped again; then zeros as well.
            session.zeros(region, &mut self.buffer)
        };
        let put = session.put(region, unit, content)?;
        if put == Put::Done {
            session.counters.faults.fetch_add(1, Ordering::Relaxed);
            if let Some(touched) = session.touched {
                touched.add(region.page_of(unit) / WINDOW_PAGES);
            }
            self.plan_block(unit);
        }
        Ok(put)
    }

    /// Answers a fault on a page that cannot be restored.
    fn answer_damaged(&mut self, address: u64, len: u64, damaged: DamagedPage) -> Result<Put, Stop> {
        let (session, DamagedPage { page, error }) = (self.session, damaged);
        let failed = |source| Err(Stop::Failed(Error::Damaged { page, source }));
        if session.options.on_damage == OnDamage::Kill {
            return failed(error);
        }
        match session.uffd.poison(address, len).stopped {
            None => {
                session.counters.poisoned.fetch_add(1, Ordering::Relaxed);
                (session.notify)(Notice::Poisoned { page, error: &error });
                Ok(Put::Done)
            }
            Some(Errno::AGAIN) => Ok(Put::Changing(0)),
            Some(Errno::EXIST | Errno::NOENT) => {
                let _ = session.uffd.wake(address, len);
                Ok(Put::Done)
            }
            Some(Errno::SRCH) => Err(Stop::Ended),
            // The kernel cannot poison.
            Some(_) => failed(error),
        }
    }

    /// Remembers the block around a fault: first what follows the fault, then what precedes it.
    fn plan_block(&mut self, unit: usize) {
        let block = usize::try_from(self.session.options.around_bytes / PAGE_SIZE as u64).unwrap_or(usize::MAX);
        let Some(region) = self.session.regions.of_unit(unit) else { return };
        if block <= 1 || region.is_huge() {
            return;
        }
        let units = region.units();
        let start = units.start + (unit - units.start) / block * block;
        let end = start.saturating_add(block).min(units.end);
        for part in [start..unit, unit + 1..end] {
            if !part.is_empty() {
                self.blocks.push(part);
            }
        }
        let surplus = self.blocks.len().saturating_sub(MAX_BLOCKS);
        self.blocks.drain(..surplus);
    }

    /// Fills the next missing unit of a block, and keeps the rest of the block for later: a fault may come first.
    fn fill_next(&mut self, mut block: Range<usize>) -> Result<(), Stop> {
        let session = self.session;
        let Some(unit) = block.find(|unit| session.states.is_wanted(*unit)) else { return Ok(()) };
        let Some(region) = session.regions.of_unit(unit) else { return Ok(()) };
        // A damaged page is dealt with when it is touched.
        let Ok(content) = session.load(region, unit, &mut self.buffer) else { return Ok(()) };
        match session.put(region, unit, content) {
            Ok(Put::Done) if !block.is_empty() => self.blocks.push(block),
            // If memory is short or changing, the rest can wait until it is touched.
            Ok(_) | Err(Stop::NoMemory) => {}
            Err(stop) => return Err(stop),
        }
        Ok(())
    }

    /// Leaves the VM to the kernel if all its memory is restored.
    fn finish_fill(&mut self, complete: &mut Option<impl FnOnce()>) -> Result<(), Stop> {
        let session = self.session;
        if self.fill.has_panicked() {
            return Err(Stop::Failed(Error::Worker));
        }
        if self.complete || self.fill.is_active() || !session.options.background_fill || !session.states.is_complete() {
            return Ok(());
        }
        for region in session.regions.iter() {
            // EINVAL: the VMM has unmapped it.
            match session.uffd.unregister(region.start, region.len) {
                Ok(()) | Err(Errno::INVAL) => {}
                // The VMM is ending, or the kernel is short of memory: the range stays as it is.
                Err(Errno::NOMEM) => return Ok(()),
                Err(error) => return Err(session.stop(error)),
            }
        }
        self.complete = true;
        if let Some(complete) = complete.take() {
            complete();
        }
        (session.notify)(Notice::Complete);
        Ok(())
    }

    /// Sleeps until there is an event, the fill ends, or the VM ends.
    fn sleep(&mut self) -> Result<(), Stop> {
        let session = self.session;
        let mut fds = [
            PollFd::new(&session.uffd, PollFlags::IN),
            PollFd::new(self.fill_ended, PollFlags::IN),
            PollFd::new(session.vmm, PollFlags::IN),
        ];
        // Nothing tells the end of memory but the end of the process that is known.
        let (awaited, patience) =
            if self.is_orphaned { (&mut fds[..2], Some(&ORPHAN_PAUSE)) } else { (&mut fds[..], None) };
        match poll(awaited, patience) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(Stop::Failed(Error::system("poll")(error))),
        }
        let [_, fill, vmm] = fds.map(|fd| !fd.revents().is_empty());
        if vmm || self.is_orphaned {
            if session.is_gone() {
                return Err(Stop::Ended);
            }
            self.is_orphaned = true;
        }
        if fill {
            // Read once, so that it does not wake the handler again.
            let _ = rustix::io::read(self.fill_ended, &mut [0; 8]);
        }
        Ok(())
    }
}

fn is_readable<S: PagesByNumber + ?Sized>(session: &Session<'_, S>) -> Result<bool, Stop> {
    let mut fds = [PollFd::new(&session.uffd, PollFlags::IN)];
    match poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(Stop::Failed(Error::system("poll")(error))),
    }
}
