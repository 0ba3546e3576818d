//! The proofs of pages that a VM has: the thread that makes them, and what follows when one fails.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use trueno_zram_archive::{BackgroundProof, ProofEvent};

use super::session::Session;
use crate::disproofs::{HandledDisproofs, reason};
use crate::error::Error;
use crate::lazy_memory::Stop;
use crate::options::{OnDamage, OnDisproof, RestoreOptions};
use crate::report::Notice;
use crate::wake::Wake;

/// The proofs of a VM's pages.
#[derive(Debug)]
pub(crate) struct SessionProof {
    pub(crate) background: BackgroundProof,
    /// A proof that cannot be read, until the handler takes note of it.
    unreadable: Mutex<Option<trueno_zram_archive::Error>>,
    is_unreadable: AtomicBool,
}

impl SessionProof {
    pub(crate) fn new(options: &RestoreOptions) -> Self {
        let background = BackgroundProof::new().with_patience(options.proof_patience);
        Self { background, unreadable: Mutex::default(), is_unreadable: AtomicBool::new(false) }
    }

    fn set_unreadable(&self, error: trueno_zram_archive::Error) {
        *self.lock() = Some(error);
        self.is_unreadable.store(true, Ordering::Release);
    }

    fn take_unreadable(&self) -> Option<trueno_zram_archive::Error> {
        if self.is_unreadable.load(Ordering::Acquire) { self.lock().take() } else { None }
    }

    fn lock(&self) -> MutexGuard<'_, Option<trueno_zram_archive::Error>> {
        self.unreadable.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session<'_> {
    /// Proves what the VM has touched, until that is ended. Wakes the handler with each result.
    pub(crate) fn prove(&self, handler: &Wake) {
        // Everybody else comes first. If the priority cannot be lowered, proofs share the cores with the others evenly.
        let _ = rustix::process::setpriority_process(None, 19);
        let source = &self.lazy.source;
        let next = || source.is_proof_due().then(|| Arc::clone(source));
        self.proof.background.run(next, |event| match event {
            ProofEvent::Failed { .. } => {
                self.disproofs.refresh(&**source);
            }
            ProofEvent::Unreadable { error, .. } => {
                self.proof.set_unreadable(error);
                handler.wake();
            }
            _ => handler.wake(),
        });
    }

    /// Acts upon proofs that have failed since the last time. Only for the handler.
    pub(crate) fn follow_proofs(&self, handled: &mut HandledDisproofs) -> Result<(), Stop> {
        if let Some(source) = self.proof.take_unreadable() {
            match self.options.on_disproof {
                OnDisproof::End => return Err(Stop::Failed(Error::Unproven { source })),
                OnDisproof::GoOn => (self.notify)(Notice::Unproven { error: &source }),
            }
        }
        if self.disproofs.known_pages() <= handled.pages() {
            return Ok(());
        }
        let source = &*self.lazy.source;
        let disproven = handled.extend(source);
        // No worker is copying meanwhile, and none copies content of missing units afterwards.
        let restored: Vec<u64> =
            self.lazy.gate.shut(|| disproven.iter().map(|pages| self.bar_missing(pages)).collect());
        for (pages, restored) in disproven.iter().zip(restored) {
            let error = reason(source, pages);
            (self.notify)(Notice::Disproven { pages: pages.clone(), restored, error: &error });
            if restored > 0 && self.options.on_disproof == OnDisproof::End {
                return Err(Stop::Failed(Error::Disproven { restored, source: error }));
            }
        }
        // Otherwise a touch ends the VM.
        if self.options.on_damage == OnDamage::Poison {
            disproven.iter().for_each(|pages| self.poison_missing(pages));
        }
        Ok(())
    }

    /// Returns the number of disproven pages that were restored. No worker fills any more.
    pub(crate) fn restored_disproven(&self) -> u64 {
        self.lazy.source.disproven().iter().map(|pages| self.bar_missing(pages)).sum()
    }

    /// Bars the units of pages that are missing. Returns the number of pages that were restored.
    fn bar_missing(&self, pages: &Range<u64>) -> u64 {
        let units = self.regions.units_of_pages(pages);
        units.map(|(region, units)| self.lazy.states.bar_missing(units) * region.pages_per_unit() as u64).sum()
    }

    /// Poisons missing units of pages that cannot be read any more. Those that cannot be poisoned now are when they are touched.
    fn poison_missing(&self, pages: &Range<u64>) {
        let lazy = &self.lazy;
        for (region, units) in self.regions.units_of_pages(pages) {
            let mut units = units.filter(|unit| lazy.states.is_wanted(*unit)).peekable();
            while let Some(first) = units.next() {
                let mut end = first + 1;
                while units.next_if_eq(&end).is_some() {
                    end += 1;
                }
                let len = (end - first) as u64 * region.unit_len;
                let poisoned = lazy.uffd.poison(region.address_of(first), len).done / region.unit_len;
                lazy.counters.poisoned.fetch_add(poisoned, Ordering::Relaxed);
            }
        }
    }
}
