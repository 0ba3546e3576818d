//! The handler of all processes: reads events, follows changes, and answers faults.

use std::ops::Range;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use trueno_zram_core::{PAGE_SIZE, Page};

use super::contents::RUN_PAGES;
use super::fill::Filler;
use super::layout::UnitSpan;
use super::memory::ProcessMemory;
use super::restore::ProcessRestore;
use super::served::{ServedProcess, UnsettledChild};
use crate::error::Error;
use crate::event::{Event, Events, Fault};
use crate::lazy_memory::{Content, Stop};
use crate::process_handle::Process;
use crate::report::{Notice, RestoreReport};
use crate::wake::wait_for;

/// Units that a fault restores by one call, if the thread reads in order. It waits for all of them.
const FAULT_CALL_UNITS: usize = 16;
/// The time that the changes beside a fork may take to be reported, if the process never stops changing its memory. A thread
/// reports a change right after it has made it.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(1);
/// Blocks behind faults that wait for a quiet moment. Older ones are given up.
const MAX_BLOCKS: usize = 16;

/// The result of answering a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Done,
    /// A worker is about to fill the page.
    Delegated,
    /// The process must go on, or the system have memory, before the fault can be answered.
    Retry,
}

pub(super) struct ProcessHandler<'a> {
    restore: &'a ProcessRestore,
    served: Vec<ServedProcess>,
    /// Memory that can be neither restored nor poisoned. Threads that touch it wait.
    stuck: Vec<Arc<ProcessMemory>>,
    /// Memory of processes that have ended, with pages that were not proven by then.
    unproven: Vec<Arc<ProcessMemory>>,
    events: Events,
    buffer: Vec<Page>,
    report: RestoreReport,
    /// A fault must be tried again.
    retry_faults: bool,
}

impl<'a> ProcessHandler<'a> {
    pub(super) fn new(restore: &'a ProcessRestore) -> Self {
        let report = RestoreReport { complete: true, ..RestoreReport::default() };
        let (served, stuck, unproven) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            restore,
            served,
            stuck,
            unproven,
            events: Events::new(),
            buffer: Vec::new(),
            report,
            retry_faults: false,
        }
    }

    /// Serves until there is nothing left to restore.
    pub(super) fn run(&mut self) -> Result<RestoreReport, Error> {
        loop {
            self.take_added();
            self.finish();
            if self.restore.is_shut_down() {
                return Err(Error::ShuttingDown);
            }
            if self.is_done() {
                // Processes that were ended early are gone before `end_all` is done with all of them.
                return if self.restore.is_shutting_down() {
                    Err(Error::ShuttingDown)
                } else {
                    Ok(self.finish_report())
                };
            }
            let had_events = self.wait_for_events()?;
            self.retry_faults = false;
            for at in 0..self.served.len() {
                self.settle(at);
                let memory = Arc::clone(&self.served[at].memory);
                self.restore.follow_proofs(&memory, &mut self.served[at].proofs);
                for fault in self.served[at].take_faults() {
                    if memory.has_ended() {
                        break;
                    }
                    let answer = self.answer(at, &memory, fault.address & !(PAGE_SIZE as u64 - 1));
                    self.record_answer(at, fault, answer);
                }
                self.restore.proofs.background.notice(&*memory.lazy.source);
            }
            if !had_events && !self.fill_block() && self.is_busy() {
                thread::yield_now();
            }
        }
    }

    /// Proves what processes that have ended were shown, and returns the report.
    fn finish_report(&mut self) -> RestoreReport {
        self.restore.prove_remaining_of_all();
        for memory in std::mem::take(&mut self.unproven) {
            self.restore.add_proofs(&memory, &mut self.report);
        }
        self.report.latencies = self.restore.latencies();
        std::mem::take(&mut self.report)
    }

    /// Returns `true` if there is nothing left to restore, and will not be.
    fn is_done(&self) -> bool {
        let is_idle = self.served.is_empty() && self.stuck.is_empty();
        is_idle && self.restore.queue.has_started() && self.restore.lock_added().is_empty()
    }

    /// Returns `true` if there is something to do without an event.
    fn is_busy(&self) -> bool {
        self.retry_faults || self.served.iter().any(ServedProcess::is_busy)
    }

    fn take_added(&mut self) {
        let added = std::mem::take(&mut *self.restore.lock_added());
        added.into_iter().for_each(|memory| self.serve(memory));
    }

    fn serve(&mut self, memory: Arc<ProcessMemory>) {
        self.report.memory_bytes += (memory.contents.units * PAGE_SIZE) as u64;
        self.restore.proofs.add(&memory.lazy.source);
        if !memory.is_unsettled() {
            self.restore.queue.add(&memory);
        }
        self.served.push(ServedProcess::new(memory));
    }

    /// Waits for events if there is nothing else to do, and reads them. Returns `true` if there were any.
    ///
    /// Unlike the handler of VMs, it sleeps instead of polling for the next fault: while workers fill memory, the cores are
    /// awake, and the workers need them.
    fn wait_for_events(&mut self) -> Result<bool, Error> {
        let running: Vec<_> = self.served.iter().filter(|served| served.memory.running_process().is_some()).collect();
        let processes = running.iter().filter_map(|served| served.memory.running_process());
        let mut fds = vec![PollFd::new(&self.restore.wake, PollFlags::IN)];
        fds.extend(self.served.iter().map(|served| PollFd::new(&served.memory.lazy.uffd, PollFlags::IN)));
        fds.extend(processes.map(|process| PollFd::new(process, PollFlags::IN)));
        wait_for(&mut fds, self.is_busy().then_some(&Timespec::default()))?;
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let (events, ends) = ready[1..].split_at(self.served.len());
        for (served, _) in running.iter().zip(ends).filter(|(_, has_ended)| **has_ended) {
            served.memory.set_process_ended();
        }
        if ready[0] {
            self.restore.wake.clear();
        }
        let mut had_events = false;
        for at in (0..events.len()).filter(|at| events[*at]) {
            had_events |= self.read_events(at);
        }
        Ok(had_events)
    }

    /// Reads the events of a process, and follows the changes. Returns `false` if there were none.
    fn read_events(&mut self, at: usize) -> bool {
        let memory = Arc::clone(&self.served[at].memory);
        if memory.is_unsettled() {
            // Its events name addresses that are known only after the changes of its parent.
            return false;
        }
        let result = memory.lazy.gate.shut(|| {
            if !self.events.read(&memory.lazy.uffd)? {
                return Ok(false);
            }
            let events = self.events.iter().collect::<Result<Vec<_>, Error>>()?;
            events.into_iter().for_each(|event| self.apply_event(at, &memory, event));
            Ok(true)
        });
        result.unwrap_or_else(|error| {
            self.restore.fail(&memory, error);
            true
        })
    }

    /// Records an event. The gate is shut.
    fn apply_event(&mut self, at: usize, memory: &Arc<ProcessMemory>, event: Event) {
        let served = &mut self.served[at];
        if !matches!(event, Event::Fault(_)) {
            served.unsettled_children.get_or_insert_default();
        }
        match event {
            Event::Fault(address) => served.faults.push(Fault { address, read_at: Instant::now() }),
            Event::Removed(range) => {
                let parts = memory.layout().parts_in(&range);
                self.record_removed(memory, &parts);
            }
            Event::Unmapped(range) => {
                let mut layout = memory.layout_mut();
                let parts = layout.unmap(&range);
                let lost = parts.iter().flat_map(|span| span.unit_range());
                lost.filter(|unit| !memory.lazy.states.is_removed(*unit)).for_each(|unit| layout.record_unmapped(unit));
                drop(layout);
                self.record_removed(memory, &parts);
            }
            Event::Remapped { from, to, len } => {
                let moved = memory.layout_mut().remap(from, to, len);
                for UnsettledChild { memory: child, .. } in served.unsettled_children.iter().flatten() {
                    let target = to..to.saturating_add(len);
                    if child.lazy.gate.shut(|| child.layout_mut().record_parent_move(&moved, target)) {
                        self.restore.fail(child, Error::ForkRace);
                    }
                }
            }
            Event::Forked => {
                let Some(uffd) = self.events.next_forked() else { return };
                let child = Arc::new(memory.fork(uffd));
                served.has_more_threads |= memory.process.as_ref().is_some_and(Process::has_more_threads);
                let unsettled = UnsettledChild { memory: Arc::clone(&child), since: Instant::now() };
                served.unsettled_children.get_or_insert_default().push(unsettled);
                if child.layout().is_ambiguous() {
                    self.restore.fail(&child, Error::ForkRace);
                }
                if self.restore.add_dependent(&child) {
                    self.serve(child);
                } else {
                    child.end();
                }
            }
        }
    }

    /// Checks if a process has stopped changing its memory, and then starts the children that waited for it.
    fn settle(&mut self, at: usize) {
        let ServedProcess { memory, unsettled_children, was_changing, last_forget, .. } = &mut self.served[at];
        if unsettled_children.is_none() {
            return;
        }
        if !memory.lazy.uffd.is_changing() {
            memory.lazy.gate.shut(|| memory.layout_mut().settle());
            self.settle_children(at);
            return;
        }
        *was_changing = true;
        // Threads that never pause must not keep children waiting forever, nor make the list of changes grow.
        if last_forget.elapsed() > SETTLE_TIMEOUT {
            *last_forget = Instant::now();
            memory.lazy.gate.shut(|| memory.layout_mut().forget_old());
        }
        let is_due = |child: &mut UnsettledChild| child.since.elapsed() > SETTLE_TIMEOUT;
        let due: Vec<_> = unsettled_children.iter_mut().flat_map(|children| children.extract_if(.., is_due)).collect();
        due.into_iter().for_each(|child| self.start_child(&child.memory));
    }

    /// Starts the children that were forked while a process changed its memory.
    fn settle_children(&mut self, at: usize) {
        let ServedProcess { memory, unsettled_children, was_changing, has_more_threads, .. } = &mut self.served[at];
        // A process that has ended reports no more of the changes that were under way. A process of one thread had none beside the fork.
        let [was_changing, has_more_threads] = [was_changing, has_more_threads].map(std::mem::take);
        let are_lost = was_changing && has_more_threads && memory.is_gone();
        for UnsettledChild { memory: child, .. } in unsettled_children.take().into_iter().flatten() {
            if are_lost {
                self.restore.fail(&child, Error::ParentEnded);
            }
            self.start_child(&child);
        }
    }

    /// Starts to restore a child.
    fn start_child(&self, child: &Arc<ProcessMemory>) {
        child.settle_fork();
        self.restore.queue.add(child);
    }

    /// Reads the events of all processes: one that was forked waits for those of the other one.
    fn catch_up(&mut self) {
        for at in 0..self.served.len() {
            self.read_events(at);
            self.settle(at);
        }
    }

    /// Records the result of answering a fault.
    fn record_answer(&mut self, at: usize, fault: Fault, answer: Result<Answer, Stop>) {
        let ServedProcess { memory, faults, delegated, touched_groups, .. } = &mut self.served[at];
        match answer {
            Ok(Answer::Done) => {
                memory.lazy.counters.faults.fetch_add(1, Ordering::Relaxed);
                let latency = fault.read_at.elapsed();
                // A page that is in no unit is zeros.
                if let Some(unit) = memory.layout().find(fault.address) {
                    let touch = touched_groups.touch(memory.contents.page_of(unit));
                    self.restore.latencies.record(touch, latency);
                }
            }
            Ok(Answer::Delegated) => delegated.push(fault),
            Ok(Answer::Retry) | Err(Stop::NoMemory) => {
                faults.push(fault);
                self.retry_faults = true;
            }
            Err(Stop::Ended) => memory.set_ended(),
            Err(Stop::Failed(error)) => {
                faults.push(fault);
                self.restore.fail(memory, error);
            }
        }
    }

    fn answer(&mut self, at: usize, memory: &Arc<ProcessMemory>, address: u64) -> Result<Answer, Stop> {
        if memory.is_unsettled() {
            return Ok(Answer::Retry);
        }
        let unit = memory.layout().find(address);
        let Some(unit) = unit.filter(|unit| memory.lazy.states.is_wanted(*unit)) else {
            // In no unit, or removed: zeros. Filled: the thread waits no longer.
            return memory.put_zeros(address).map(|is_done| if is_done { Answer::Done } else { Answer::Retry });
        };
        // It may be filled at another address. Then the content of this one is known.
        let is_uncertain = memory.layout().is_uncertain(unit);
        let done = |is_done: bool| {
            let is_elsewhere = is_uncertain && !memory.lazy.states.is_wanted(unit);
            if is_done && !is_elsewhere { Answer::Done } else { Answer::Retry }
        };
        let run = memory.contents.run_of(unit);
        if memory.progress.is_being_filled(run) {
            memory.progress.set_urgent(unit);
            return Ok(if is_uncertain { Answer::Retry } else { Answer::Delegated });
        }
        memory.progress.ask_for(run + 1);
        // A first page takes as long as its whole group. A process that begins to run touches only a few pages of each.
        let is_located = memory.lazy.source.is_located(memory.contents.page_of(unit));
        if !is_located && self.restore.queue.is_filling() && memory.progress.take(run) {
            memory.progress.set_urgent(unit);
            self.fill_run(memory, run);
            return Ok(done(!memory.lazy.states.is_wanted(unit)));
        }
        let units = self.served[at].streams.record_fault(unit);
        let end = memory.contents.runs[run].units.end.min(unit + units);
        let call_end = end.min(unit + FAULT_CALL_UNITS);
        let put = self.fill_units(memory, unit..call_end)?;
        if put > 0 && call_end < end {
            self.plan_block(at, call_end..end);
        }
        Ok(done(put > 0))
    }

    /// Fills a run that was taken, and reads events where that is necessary to go on.
    fn fill_run(&mut self, memory: &ProcessMemory, run: usize) {
        let (restore, mut buffer) = (self.restore, std::mem::take(&mut self.buffer));
        Filler { restore, memory, wait: &mut || self.catch_up() }.fill_run(run, &mut buffer);
        self.buffer = buffer;
    }

    /// Fills units that follow each other in the source, from the first on. Returns how many, at least the first, unless the
    /// process is changing its memory.
    fn fill_units(&mut self, memory: &ProcessMemory, units: Range<usize>) -> Result<usize, Stop> {
        self.buffer.resize(RUN_PAGES, [0; PAGE_SIZE]);
        // Page by page: the first one is what a thread waits for, and the others may be damaged.
        let mut count = 0;
        while count < units.len() {
            match memory.read(units.start + count, slice::from_mut(&mut self.buffer[count])) {
                Ok(()) => count += 1,
                Err(_) if count > 0 => break,
                Err(error) => {
                    let restore = self.restore;
                    Filler { restore, memory, wait: &mut || self.catch_up() }.poison_or_fail(units.start, error)?;
                    return Ok(1);
                }
            }
        }
        let mut done = 0;
        for (content, in_run) in Content::runs_of(&self.buffer[..count]) {
            let put = memory.put(units.start + done, content)?;
            done += put;
            if put < in_run {
                break;
            }
        }
        Ok(done)
    }

    fn plan_block(&mut self, at: usize, units: Range<usize>) {
        let blocks = &mut self.served[at].blocks;
        blocks.push(units);
        let surplus = blocks.len().saturating_sub(MAX_BLOCKS);
        blocks.drain(..surplus);
    }

    /// Fills the start of a block, and keeps the rest for later: a fault may come first. Returns `false` if there is none.
    fn fill_block(&mut self) -> bool {
        let Some(at) = self.served.iter().position(|served| !served.blocks.is_empty()) else { return false };
        let Some(block) = self.served[at].blocks.pop() else { return false };
        let memory = Arc::clone(&self.served[at].memory);
        let call_end = block.end.min(block.start + FAULT_CALL_UNITS);
        // Pages that cannot be filled now are filled by workers, or when they are touched.
        if self.fill_units(&memory, block.start..call_end).is_ok() && call_end < block.end {
            self.plan_block(at, call_end..block.end);
        }
        true
    }

    /// Stops serving processes that have ended or are complete.
    fn finish(&mut self) {
        for at in 0..self.served.len() {
            if self.served[at].memory.has_ended() {
                self.settle_children(at);
            }
        }
        for mut served in std::mem::take(&mut self.served) {
            let memory = &Arc::clone(&served.memory);
            // It is still needed while its changes may concern a child.
            let is_done = !memory.progress.has_unfinished()
                && !self.restore.proofs.is_awaited(&memory.lazy.source)
                && memory.is_complete()
                && !served.has_unsettled_children();
            if is_done {
                // The last proof may have failed a moment ago.
                self.restore.check_proofs(memory, &mut served.proofs);
            }
            if memory.has_ended() || is_done {
                self.restore.remove_dependent(memory);
                self.restore.queue.remove(memory);
                memory.lazy.counters.add_to(&mut self.report);
                if memory.lazy.source.is_proof_due() {
                    self.unproven.push(Arc::clone(memory));
                } else {
                    self.restore.add_proofs(memory, &mut self.report);
                }
                self.report.complete &= memory.is_complete() && !memory.is_lost();
                if !memory.has_ended() && !memory.is_lost() {
                    (self.restore.notify)(Notice::Complete);
                }
                continue;
            }
            let is_lost = memory.is_lost() && !memory.progress.has_unfinished() && !served.has_unsettled_children();
            if is_lost && memory.try_poison_missing().is_err() && memory.process.is_none() {
                self.stuck.push(Arc::clone(memory));
                continue;
            }
            self.served.push(served);
        }
    }

    /// Records that the content of units was given back. If it is not known whether they were there, the process is given up.
    fn record_removed(&self, memory: &ProcessMemory, parts: &[UnitSpan]) {
        let layout = memory.layout();
        let (mut removed, mut is_known) = (0, true);
        for unit in parts.iter().flat_map(UnitSpan::unit_range) {
            if layout.is_uncertain(unit) {
                is_known &= !memory.lazy.states.is_wanted(unit);
            } else {
                removed += memory.lazy.states.set_removed(unit..unit + 1);
            }
        }
        drop(layout);
        memory.lazy.counters.removed_bytes.fetch_add(removed * PAGE_SIZE as u64, Ordering::Relaxed);
        if !is_known {
            self.restore.fail(memory, Error::ForkRace);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::RestoreOptions;

    #[test]
    fn a_handler_waits_for_events_unless_faults_must_be_tried_again() {
        let restore = ProcessRestore::new(RestoreOptions::default()).unwrap();
        let mut handler = ProcessHandler::new(&restore);
        assert!(!handler.is_busy());
        handler.retry_faults = true;
        assert!(handler.is_busy());
    }
}
