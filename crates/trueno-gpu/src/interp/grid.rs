//! Runs the blocks of a grid in parallel, and the warps of each block in turn.

use super::fault::{Fault, FaultKind, FaultSite, LaneSet, Trap, trap};
use super::program::{Program, ProgramLine};
use super::report::{Counts, LaunchReport, SectionReport, WarpReport};
use super::shared::SharedMemory;
use super::warp::{LaunchContext, Warp, WarpStop};
use crate::inst::CountKind;
use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// The results of one thread.
#[derive(Default)]
struct WorkerTotals {
    warps: Vec<WarpReport>,
    hits: Vec<u64>,
    traffic: Vec<u64>,
}

/// Runs all blocks, at most `threads` at once. If several fault, reports the fault of the lowest block, so that the result
/// does not depend on timing.
pub(super) fn run(cx: &LaunchContext<'_>, threads: Option<usize>) -> Result<LaunchReport, Fault> {
    let blocks = cx.shape.blocks;
    let next_block = AtomicU32::new(0);
    let worst: Mutex<Option<(u32, Fault)>> = Mutex::new(None);
    // Blocks below the lowest faulting one must still run; those above need not.
    let lowest_fault = AtomicU32::new(u32::MAX);
    let worker = || {
        let mut runner = BlockRunner::new(cx);
        loop {
            let block = next_block.fetch_add(1, Ordering::Relaxed);
            if block >= blocks || block > lowest_fault.load(Ordering::Relaxed) {
                return runner.totals;
            }
            if let Err(fault) = runner.block(block) {
                lowest_fault.fetch_min(block, Ordering::Relaxed);
                let mut worst = worst.lock().unwrap_or_else(PoisonError::into_inner);
                if worst.as_ref().is_none_or(|(other, _)| block < *other) {
                    *worst = Some((block, fault));
                }
            }
        }
    };
    let threads = threads.unwrap_or_else(rayon::current_num_threads).min(blocks as usize);
    let all_totals = if threads <= 1 {
        vec![worker()]
    } else {
        (0..threads).into_par_iter().with_max_len(1).map(|_| worker()).collect()
    };
    match worst.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some((_, fault)) => Err(fault),
        None => Ok(report(cx.program, all_totals)),
    }
}

fn report(program: &Program, all_totals: Vec<WorkerTotals>) -> LaunchReport {
    let mut report = LaunchReport::default();
    // Slot 0 is for the code before the first section.
    let mut sections = vec![Counts::default(); program.sections.len() + 1];
    for totals in all_totals {
        for (pc, line) in program.lines.iter().enumerate().filter(|(pc, _)| totals.hits[*pc] > 0) {
            let section = program.origins[line.origin as usize].section.map_or(0, |section| section as usize + 1);
            sections[section].add_line(line, totals.hits[pc], totals.traffic[pc]);
        }
        report.warps.extend(totals.warps);
    }
    report.warps.sort_by_key(|warp| (warp.block, warp.warp));
    sections.iter().for_each(|counts| report.total += counts);
    let names = std::iter::once(None).chain(program.sections.iter().cloned().map(Some));
    report.sections = names
        .zip(sections)
        .map(|(section, counts)| SectionReport { section, counts })
        .filter(|section| section.section.is_some() || section.counts != Counts::default())
        .collect();
    report
}

impl Counts {
    fn add_line(&mut self, line: &ProgramLine, hits: u64, traffic: u64) {
        let Some(kind) = line.kind else { return };
        self.add(kind, hits);
        match kind {
            CountKind::SharedLoad | CountKind::SharedStore | CountKind::SharedAtomic => {
                self.shared_wavefronts += traffic;
            }
            CountKind::GlobalLoad => self.global_sectors_read += traffic,
            CountKind::GlobalStore => self.global_sectors_written += traffic,
            CountKind::GlobalAtomic => self.global_sectors_atomic += traffic,
            _ => {}
        }
    }
}

/// Runs blocks, one after the other, in the same memory.
struct BlockRunner<'a> {
    cx: &'a LaunchContext<'a>,
    shared: SharedMemory,
    /// One per warp of a block; a single one if no barrier makes warps wait for each other.
    warps: Vec<Warp>,
    totals: WorkerTotals,
}

impl<'a> BlockRunner<'a> {
    fn new(cx: &'a LaunchContext<'a>) -> Self {
        let program = cx.program;
        let warps = if program.has_block_barrier { cx.shape.warps_per_block } else { 1 };
        let lines = program.lines.len();
        Self {
            cx,
            shared: SharedMemory::new(program.shared_base, program.shared.bytes),
            warps: (0..warps).map(|_| Warp::new(program)).collect(),
            totals: WorkerTotals { warps: vec![], hits: vec![0; lines], traffic: vec![0; lines] },
        }
    }

    fn block(&mut self, block: u32) -> Result<(), Fault> {
        self.shared.reset();
        if self.warps.len() == 1 {
            for index in 0..self.cx.shape.warps_per_block {
                let warp = &mut self.warps[0];
                warp.reset(self.cx, block, index);
                while warp.run(self.cx, &mut self.shared).map_err(|trap| fault(self.cx, warp, block, *trap))?
                    == WarpStop::BlockBarrier
                {
                    self.shared.block_barrier();
                }
                self.totals.add(self.cx.program, block, warp);
            }
            return Ok(());
        }
        for (index, warp) in (0..).zip(&mut self.warps) {
            warp.reset(self.cx, block, index);
        }
        loop {
            let mut ended = None;
            let mut waiting = None;
            for (index, warp) in self.warps.iter_mut().enumerate() {
                match warp.run(self.cx, &mut self.shared).map_err(|trap| fault(self.cx, warp, block, *trap))? {
                    WarpStop::Ended => ended = ended.or(Some(index)),
                    WarpStop::BlockBarrier => waiting = waiting.or(Some(index)),
                }
            }
            let Some(waiting) = waiting else { break };
            if let Some(ended) = ended {
                let warp = &mut self.warps[waiting];
                // The barrier is the step before the one to continue with.
                warp.pc -= 1;
                let ended_warp = u32::try_from(ended).ok();
                let missed = FaultKind::BlockBarrierMissed { reached: LaneSet::ALL, ended_warp };
                return trap(u32::MAX, missed).map_err(|trap| fault(self.cx, &self.warps[waiting], block, *trap));
            }
            self.shared.block_barrier();
        }
        for warp in &self.warps {
            self.totals.add(self.cx.program, block, warp);
        }
        Ok(())
    }
}

impl WorkerTotals {
    fn add(&mut self, program: &Program, block: u32, warp: &Warp) {
        let mut counts = Counts::default();
        let lines = program.lines.iter().zip(warp.hits.iter().zip(&warp.traffic));
        for ((line, (hits, traffic)), all) in lines.zip(self.hits.iter_mut().zip(&mut self.traffic)) {
            // Most kernels run few of their lines for one page.
            if *hits > 0 {
                counts.add_line(line, *hits, *traffic);
                *all.0 += hits;
                *all.1 += traffic;
            }
        }
        self.warps.push(WarpReport { block, warp: warp.index, counts });
    }
}

fn fault(cx: &LaunchContext<'_>, warp: &Warp, block: u32, trap: Trap) -> Fault {
    let program = cx.program;
    let origin = &program.origins[program.lines[warp.pc].origin as usize];
    let site = FaultSite {
        path: origin.path.clone(),
        section: origin.section.map(|section| program.sections[section as usize].clone()),
        block,
        warp: warp.index,
        lanes: trap.lanes,
    };
    Fault { kernel: program.name.clone(), site: Some(Box::new(site)), kind: trap.kind }
}
