//! The handler of one VM: reads events, answers faults, and uses the time in between to restore what is near them.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use trueno_zram_core::{AlignedPages, PAGE_SIZE};

use super::fill::BackgroundFill;
use super::regions::Region;
use super::session::Session;
use super::touches::WINDOW_PAGES;
use super::vmms::ConnectedVmm;
use crate::disproofs::HandledDisproofs;
use crate::error::Error;
use crate::event::{self, Event, Events, Fault};
use crate::latency::TouchedGroups;
use crate::lazy_memory::{LazyMemory, Stop};
use crate::options::OnDamage;
use crate::report::{Notice, notify_poisoned};
use crate::wake::wait_for;

/// Blocks around faults that wait for a quiet moment. Older ones are given up.
const MAX_BLOCKS: usize = 32;

/// The interval of checks that some process still has the VM's memory, once the process that connected has ended.
const ORPHAN_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// The thread that makes the proofs of a VM's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prover {
    /// One of its own.
    Thread,
    /// The handler, in quiet moments: the system has no more threads.
    Handler,
}

/// Answers the faults of a VM.
pub(crate) struct VmHandler<'a> {
    session: &'a Session<'a>,
    fill: &'a BackgroundFill<'a>,
    vmm: &'a ConnectedVmm<'a>,
    events: Events,
    /// Faults that have not been answered.
    faults: Vec<Fault>,
    /// Units near faults, the latest block last.
    blocks: Vec<Range<usize>>,
    /// Room for the largest unit.
    buffer: AlignedPages,
    complete: bool,
    prover: Prover,
    /// Disproven pages that were acted upon.
    handled: HandledDisproofs,
    /// Groups of which the VM has touched a page.
    touched_groups: TouchedGroups,
    /// The process that connected has ended, but another one has the memory.
    is_orphaned: bool,
}

impl<'a> VmHandler<'a> {
    pub(crate) fn new(
        session: &'a Session<'a>,
        fill: &'a BackgroundFill<'a>,
        vmm: &'a ConnectedVmm<'a>,
        prover: Prover,
    ) -> Self {
        let unit_pages = session.regions.iter().map(Region::pages_per_unit).max().unwrap_or(1);
        Self {
            session,
            fill,
            vmm,
            events: Events::new(),
            faults: Vec::new(),
            blocks: Vec::new(),
            buffer: AlignedPages::new(unit_pages),
            complete: false,
            prover,
            handled: HandledDisproofs::default(),
            touched_groups: TouchedGroups::of(&*session.lazy.source),
            is_orphaned: false,
        }
    }

    /// Serves the VM until it has ended. Returns `true` if all its memory was restored.
    pub(crate) fn run(&mut self) -> Result<bool, Error> {
        match self.serve() {
            Err(Stop::Ended) => Ok(self.complete),
            Err(Stop::NoMemory) => Err(Error::system("filling a page of the VM")(Errno::NOMEM)),
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    fn serve(&mut self) -> Result<Infallible, Stop> {
        let mut last_event = Instant::now();
        loop {
            let active = self.read_events()?;
            self.session.follow_proofs(&mut self.handled)?;
            let mut at = 0;
            while let Some(&fault) = self.faults.get(at) {
                if self.answer(fault)? {
                    self.faults.remove(at);
                } else {
                    at += 1;
                }
            }
            if active {
                last_event = Instant::now();
            } else if !self.faults.is_empty() {
                // The VMM must go on before they can be answered.
                thread::yield_now();
            } else if let Some(block) = self.blocks.pop() {
                self.notice_proofs();
                self.fill_next(block)?;
            } else if !self.complete && last_event.elapsed() < self.session.options.spin {
                self.notice_proofs();
                std::hint::spin_loop();
            } else if self.prover == Prover::Thread || !self.prove_next() {
                self.notice_proofs();
                self.finish_fill()?;
                self.sleep()?;
                // The spinning starts again, whatever woke the handler.
                last_event = Instant::now();
            }
        }
    }

    /// Wakes the thread that makes proofs if there are any. Only while no fault waits: that takes a system call.
    fn notice_proofs(&self) {
        self.session.proof.background.notice(&*self.session.lazy.source);
    }

    /// Makes a proof. Returns `false` if none is due, or can be made now.
    fn prove_next(&self) -> bool {
        let source = &*self.session.lazy.source;
        let proven = source.prove_next();
        self.session.disproofs.refresh(source);
        proven.unwrap_or_else(|error| matches!(error, trueno_zram_archive::Error::Disproven { .. }))
    }

    /// Reads the events that wait, and notes what was removed. Returns `false` if there were none.
    fn read_events(&mut self) -> Result<bool, Stop> {
        let session = self.session;
        if !self.fill.is_active() {
            return self.take_events();
        }
        let mut fds = [PollFd::new(&session.lazy.uffd, PollFlags::IN)];
        wait_for(&mut fds, Some(&Timespec::default())).map_err(Stop::Failed)?;
        if fds[0].revents().is_empty() {
            return Ok(false);
        }
        session.lazy.gate.shut(|| self.take_events())
    }

    fn take_events(&mut self) -> Result<bool, Stop> {
        let LazyMemory { uffd, states, counters, .. } = &self.session.lazy;
        let active = self.events.read(uffd).map_err(Stop::Failed)?;
        let read_at = Instant::now();
        for event in self.events.iter() {
            match event.map_err(Stop::Failed)? {
                Event::Fault(address) => self.faults.push(Fault { address, read_at }),
                Event::Removed(addresses) | Event::Unmapped(addresses) => {
                    for (region, units) in self.session.regions.units_in(addresses) {
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

    /// Answers a fault. Returns `false` if the VMM must go on before that is possible.
    fn answer(&mut self, fault: Fault) -> Result<bool, Stop> {
        let (session, address) = (self.session, fault.address);
        let Some((region, unit)) = session.regions.find(address) else {
            return Err(Stop::Failed(Error::Event { event: event::PAGEFAULT, address }));
        };
        let content = if session.lazy.states.is_wanted(unit) {
            match session.load(region, unit, &mut self.buffer) {
                Ok(content) => content,
                Err(error) => {
                    session.disproofs.refresh(&*session.lazy.source);
                    return poison(session, region, unit, error);
                }
            }
        } else {
            // Removed: zeros. Filled: the thread waits no longer, unless the page was dropped again; then zeros as well.
            session.zeros(region, &mut self.buffer)
        };
        if session.put(region, unit..unit + 1, content)? == 0 {
            return Ok(false);
        }
        self.record_latency(region.page_of(unit), fault.read_at);
        session.lazy.counters.faults.fetch_add(1, Ordering::Relaxed);
        if let Some(recorder) = session.recorder {
            recorder.record(region.page_of(unit) / WINDOW_PAGES);
        }
        self.plan_block(region, unit);
        Ok(true)
    }

    /// Records that a fault was answered.
    fn record_latency(&self, page: u64, read_at: Instant) {
        let latency = read_at.elapsed();
        let touch = self.touched_groups.touch(page);
        self.session.latencies.record(touch, latency);
        self.session.latencies_of_all.record(touch, latency);
    }

    /// Remembers the block around a fault: first what follows the fault, then what precedes it.
    fn plan_block(&mut self, region: &Region, unit: usize) {
        let block = usize::try_from(self.session.options.around_bytes / PAGE_SIZE as u64).unwrap_or(usize::MAX);
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
        let Some(unit) = block.find(|unit| session.lazy.states.is_wanted(*unit)) else { return Ok(()) };
        let Some(region) = session.regions.of_unit(unit) else { return Ok(()) };
        let Some(content) = session.load_wanted(region, unit, &mut self.buffer) else { return Ok(()) };
        match session.put(region, unit..unit + 1, content) {
            Ok(1) => self.blocks.push(block),
            // If memory is short or changing, the rest can wait until it is touched.
            Ok(_) | Err(Stop::NoMemory) => {}
            Err(stop) => return Err(stop),
        }
        Ok(())
    }

    /// Leaves the VM to the kernel if all its memory is restored.
    fn finish_fill(&mut self) -> Result<(), Stop> {
        let session = self.session;
        if self.fill.has_panicked() {
            return Err(Stop::Failed(Error::FillPanicked));
        }
        if self.complete
            || self.fill.is_active()
            || !session.options.background_fill
            || session.lazy.source.is_proof_due()
            || !session.lazy.states.is_complete()
        {
            return Ok(());
        }
        // The last proof may have failed a moment ago. Then the handler is woken.
        if session.disproofs.refresh(&*session.lazy.source) > self.handled.pages() {
            return Ok(());
        }
        for region in session.regions.iter() {
            // EINVAL: the VMM has unmapped it.
            match session.lazy.uffd.unregister(region.start, region.len) {
                Ok(()) | Err(Errno::INVAL) => {}
                // The VMM is ending, or the kernel is short of memory: the range stays as it is.
                Err(Errno::NOMEM) => return Ok(()),
                Err(error) => return Err(session.stop(error)),
            }
        }
        self.complete = true;
        self.vmm.release();
        (session.notify)(Notice::Complete);
        Ok(())
    }

    /// Sleeps until there is an event, the fill ends, or the VM ends.
    fn sleep(&mut self) -> Result<(), Stop> {
        let session = self.session;
        let mut fds = [
            PollFd::new(&session.lazy.uffd, PollFlags::IN),
            PollFd::new(&self.fill.ended, PollFlags::IN),
            PollFd::new(session.vmm, PollFlags::IN),
        ];
        // Only the end of the known process is reported. The end of others' memory has to be polled for.
        let (awaited, timeout) =
            if self.is_orphaned { (&mut fds[..2], Some(&ORPHAN_PAUSE)) } else { (&mut fds[..], None) };
        wait_for(awaited, timeout).map_err(Stop::Failed)?;
        let [_, fill, vmm] = fds.map(|fd| !fd.revents().is_empty());
        if vmm || self.is_orphaned {
            if session.is_gone() {
                return Err(Stop::Ended);
            }
            self.is_orphaned = true;
        }
        if fill {
            self.fill.ended.clear();
        }
        Ok(())
    }
}

/// Poisons a unit that cannot be restored, unless the options say to kill. Returns `false` if the VMM must go on first.
fn poison(session: &Session<'_>, region: &Region, unit: usize, error: Error) -> Result<bool, Stop> {
    if session.options.on_damage == OnDamage::Kill {
        return Err(Stop::Failed(error));
    }
    let (address, uffd) = (region.address_of(unit), &session.lazy.uffd);
    match uffd.poison(address, region.unit_len).stopped {
        None => {
            session.lazy.counters.poisoned.fetch_add(1, Ordering::Relaxed);
            notify_poisoned(session.notify, &error);
        }
        Some(Errno::AGAIN) => return Ok(false),
        Some(Errno::EXIST | Errno::NOENT) => {
            let _ = uffd.wake(address, region.unit_len);
        }
        Some(Errno::SRCH) => return Err(Stop::Ended),
        // The kernel cannot poison.
        Some(_) => return Err(Stop::Failed(error)),
    }
    Ok(true)
}
