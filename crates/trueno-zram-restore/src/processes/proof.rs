//! The proofs of pages that processes have: the thread that makes them, and what follows when one fails.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use trueno_zram_archive::{BackgroundProof, Pages, ProofEvent};

use super::memory::ProcessMemory;
use super::restore::ProcessRestore;
use crate::disproofs::{HandledDisproofs, prove_remaining, reason};
use crate::error::Error;
use crate::lazy_memory::Stop;
use crate::options::{OnDamage, OnDisproof, RestoreOptions};
use crate::report::{Notice, RestoreReport};

/// The proofs of all sources that processes are restored from.
pub(super) struct SourceProofs {
    pub(super) background: BackgroundProof,
    sources: Mutex<Vec<ProvenSource>>,
    /// Counts failures: the handler acts upon those that are new.
    failures: AtomicU64,
    /// The system has no thread for proofs: the handler makes them, once everything else is done.
    has_no_thread: AtomicBool,
}

/// A source, and whether its proofs can be read.
struct ProvenSource {
    pages: Arc<dyn Pages>,
    is_unreadable: bool,
}

impl SourceProofs {
    pub(super) fn new(options: &RestoreOptions) -> Self {
        let background = BackgroundProof::new().with_patience(options.proof_patience);
        let (sources, failures, has_no_thread) = Default::default();
        Self { background, sources, failures, has_no_thread }
    }

    /// Adds a source, unless it is known.
    pub(super) fn add(&self, pages: &Arc<dyn Pages>) {
        let mut sources = self.lock();
        if !sources.iter().any(|source| Arc::ptr_eq(&source.pages, pages)) {
            sources.push(ProvenSource { pages: Arc::clone(pages), is_unreadable: false });
        }
    }

    /// Returns how often a failure was recorded.
    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Acquire)
    }

    /// Records that a proof has failed, or that a page could not be read because of that.
    pub(super) fn record_failure(&self) {
        self.failures.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns `true` if pages of a source are still to be proven, and can be read.
    pub(super) fn is_awaited(&self, pages: &Arc<dyn Pages>) -> bool {
        pages.is_proof_due() && !self.has_no_thread.load(Ordering::Relaxed) && !self.is_unreadable(pages)
    }

    /// Records that the system has no thread for proofs.
    pub(super) fn set_no_thread(&self) {
        self.has_no_thread.store(true, Ordering::Relaxed);
    }

    fn is_unreadable(&self, pages: &Arc<dyn Pages>) -> bool {
        self.lock().iter().any(|source| source.is_unreadable && Arc::ptr_eq(&source.pages, pages))
    }

    fn set_unreadable(&self, pages: &Arc<dyn Pages>) {
        let mut sources = self.lock();
        sources.iter_mut().filter(|source| Arc::ptr_eq(&source.pages, pages)).for_each(|source| {
            source.is_unreadable = true;
        });
    }

    /// Returns a source with a proof that is due: the one after `last`, so that one that cannot be read does not hold up the others.
    fn next(&self, last: &mut usize) -> Option<Arc<dyn Pages>> {
        let sources = self.lock();
        let mut numbers = (*last + 1..sources.len()).chain(0..sources.len().min(*last + 1));
        *last = numbers.find(|number| sources[*number].pages.is_proof_due())?;
        Some(Arc::clone(&sources[*last].pages))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ProvenSource>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The failed proofs of a process's pages, as the handler follows them.
#[derive(Default)]
pub(super) struct FollowedProofs {
    /// Failures that were acted upon.
    failures: u64,
    handled: HandledDisproofs,
    /// Missing pages are left to poison.
    has_missing: bool,
}

impl FollowedProofs {
    /// Returns `true` if missing pages are left to poison.
    pub(super) fn has_missing(&self) -> bool {
        self.has_missing
    }
}

impl ProcessRestore {
    /// Proves what processes have touched, until that is ended.
    pub(super) fn prove(&self) {
        // Everybody else comes first. If the priority cannot be lowered, proofs share the cores with the others evenly.
        let _ = rustix::process::setpriority_process(None, 19);
        let mut last = 0;
        self.proofs.background.run(
            || self.proofs.next(&mut last),
            |event| {
                match event {
                    ProofEvent::Failed { .. } => self.proofs.record_failure(),
                    ProofEvent::Unreadable { pages, error } => {
                        self.proofs.set_unreadable(pages);
                        (self.notify)(Notice::Unproven { error: &error });
                        self.proofs.record_failure();
                    }
                    _ => {}
                }
                self.wake.wake();
            },
        );
    }

    /// Acts upon proofs of a process's pages that have failed since the last time, or may have. Only for the handler.
    pub(super) fn follow_proofs(&self, memory: &ProcessMemory, followed: &mut FollowedProofs) {
        let failures = self.proofs.failures();
        if failures != followed.failures {
            followed.failures = failures;
            self.check_proofs(memory, followed);
        }
        if followed.has_missing && !memory.is_lost() {
            match memory.try_poison_barred() {
                Ok(is_done) => followed.has_missing = !is_done,
                Err(Stop::Ended) => memory.set_ended(),
                Err(Stop::NoMemory) => {}
                // The kernel cannot poison.
                Err(Stop::Failed(error)) => self.fail(memory, error),
            }
        }
    }

    /// Acts upon proofs that have failed. Only for the handler.
    pub(super) fn check_proofs(&self, memory: &ProcessMemory, followed: &mut FollowedProofs) {
        let source = &memory.lazy.source;
        if self.proofs.has_no_thread.load(Ordering::Relaxed) && !memory.progress.has_unfinished() {
            prove_remaining(&**source, || self.is_shutting_down());
        }
        let disproven = followed.handled.extend(&**source);
        // No worker is copying meanwhile, and none copies content of missing units afterwards.
        let restored: Vec<u64> =
            memory.lazy.gate.shut(|| disproven.iter().map(|pages| memory.bar_missing(pages)).collect());
        for (pages, restored) in disproven.iter().zip(restored) {
            let error = reason(&**source, pages);
            (self.notify)(Notice::Disproven { pages: pages.clone(), restored, error: &error });
            if restored > 0 && self.options.on_disproof == OnDisproof::End {
                self.fail(memory, Error::Disproven { restored, source: error });
            } else if self.options.on_damage == OnDamage::Kill && memory.process.is_some() {
                self.fail(memory, Error::Damaged { page: pages.start, source: error });
            } else {
                followed.has_missing = true;
            }
        }
        let is_ended = self.options.on_disproof == OnDisproof::End && memory.has_restored();
        if is_ended
            && self.proofs.is_unreadable(source)
            && let Err(error) = source.prove_next()
        {
            self.fail(memory, Error::Unproven { source: error });
        }
    }

    /// Adds the outcome of the proofs of a process that has ended or is complete to a report.
    pub(super) fn add_proofs(&self, memory: &ProcessMemory, report: &mut RestoreReport) {
        let source = &memory.lazy.source;
        report.unproven |= source.is_proof_due() && memory.has_restored();
        report.disproven_pages += source.disproven().iter().map(|pages| memory.bar_missing(pages)).sum::<u64>();
    }

    /// Proves what is left of all sources, after the last process has ended.
    pub(super) fn prove_remaining_of_all(&self) {
        let sources: Vec<Arc<dyn Pages>> = self.proofs.lock().iter().map(|source| Arc::clone(&source.pages)).collect();
        for source in sources {
            prove_remaining(&*source, || self.is_shutting_down());
        }
    }
}

impl ProcessMemory {
    /// Bars the units of pages that are missing. Returns the number of those that were restored.
    fn bar_missing(&self, pages: &Range<u64>) -> u64 {
        self.contents.units_of_pages(pages).map(|units| self.lazy.states.bar_missing(units)).sum()
    }

    /// Returns `true` if the process has pages of its source.
    fn has_restored(&self) -> bool {
        let states = &self.lazy.states;
        (0..self.contents.units).any(|unit| states.is_filled(unit) && !states.is_barred(unit))
    }
}
