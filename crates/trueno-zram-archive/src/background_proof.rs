//! Proves in a thread of the caller what others have read before it was proven.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::pages::Pages;

/// The pause after a proof that could not be read, which doubles up to the longest one.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The time for which a proof that cannot be read is tried again before that is reported.
const PATIENCE: Duration = Duration::from_secs(10);

/// Proofs that a thread of low priority makes, while others read pages that are due to be [proven](Pages::prove_next).
///
/// It starts no thread: one of the caller runs [`run`](Self::run), and readers call [`notice`](Self::notice).
///
/// ```
/// # use trueno_zram_archive::{Archive, Pages, Verify, WriteOptions, compress};
/// # let mut bytes = Vec::new();
/// # compress(&[7; 40 * 4096][..], &mut bytes, &WriteOptions::default())?;
/// # let archive = Archive::read_from(std::sync::Arc::new(bytes))?.expect("it has an index");
/// use std::sync::Arc;
/// use trueno_zram_archive::{BackgroundProof, ProofEvent};
/// let pages: Arc<dyn Pages> = Arc::new(archive.with_verify(Verify::Touched));
/// let (proof, settled) = (BackgroundProof::new(), std::sync::mpsc::channel());
/// std::thread::scope(|threads| {
///     threads.spawn(|| {
///         let due = || pages.is_proof_due().then(|| Arc::clone(&pages));
///         proof.run(due, |event| match event {
///             ProofEvent::Settled => settled.0.send(()).expect("it is awaited"),
///             failed => panic!("{failed:?}"),
///         });
///     });
///     pages.read(8, &mut [[0; 4096]]).expect("intact");
///     proof.notice(&*pages);
///     settled.1.recv().expect("the thread runs");
///     assert!(!pages.is_proof_due());
///     proof.end();
/// });
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
#[derive(Debug)]
pub struct BackgroundProof {
    state: Mutex<ProofState>,
    changed: Condvar,
    /// The thread waits until something is due.
    is_idle: AtomicBool,
    patience: Duration,
}

#[derive(Debug, Default)]
struct ProofState {
    is_held: bool,
    has_ended: bool,
    /// Something may be due that the thread has not seen.
    is_noticed: bool,
}

/// A result of a [`BackgroundProof`], which has an example.
#[non_exhaustive]
pub enum ProofEvent<'a> {
    /// A proof has failed: [`Error::Disproven`]. All reads of its pages fail.
    Failed {
        /// The source.
        pages: &'a Arc<dyn Pages>,
        /// The error.
        error: Error,
    },
    /// A proof cannot be read, and has been tried again for some time. It stays due, and is still tried. Reported once, until a proof
    /// of this source succeeds.
    Unreadable {
        /// The source.
        pages: &'a Arc<dyn Pages>,
        /// The error.
        error: Error,
    },
    /// Nothing is left to prove.
    Settled,
}

impl std::fmt::Debug for ProofEvent<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Failed { error, .. } => write!(f, "Failed({error})"),
            Self::Unreadable { error, .. } => write!(f, "Unreadable({error})"),
            Self::Settled => f.write_str("Settled"),
        }
    }
}

/// A source whose proofs cannot be read.
struct UnreadableSource {
    pages: Arc<dyn Pages>,
    since: Instant,
    is_reported: bool,
}

impl Default for BackgroundProof {
    fn default() -> Self {
        Self::new()
    }
}

impl BackgroundProof {
    /// Begins without proofs.
    #[must_use]
    pub fn new() -> Self {
        let is_idle = AtomicBool::new(false);
        Self { state: Mutex::default(), changed: Condvar::new(), is_idle, patience: PATIENCE }
    }

    /// Sets the time for which a proof that cannot be read is tried again before that is reported: 10 s by default.
    ///
    /// ```
    /// use std::time::Duration;
    /// let proof = trueno_zram_archive::BackgroundProof::new().with_patience(Duration::from_secs(60));
    /// # drop(proof);
    /// ```
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Wakes the thread if it waits and a proof is due. For a reader that has read pages: it takes no lock while the thread works or
    /// nothing is due.
    pub fn notice(&self, pages: &(impl Pages + ?Sized)) {
        // Either this thread sees that the other one waits, or that one sees that a proof is due.
        fence(Ordering::SeqCst);
        if self.is_idle.load(Ordering::Relaxed) && pages.is_proof_due() {
            self.is_idle.store(false, Ordering::Relaxed);
            self.lock().is_noticed = true;
            self.changed.notify_all();
        }
    }

    /// Proves nothing until [`release`](Self::release): readers need the file for themselves. The proof that is being made is
    /// completed.
    ///
    /// ```
    /// let proof = trueno_zram_archive::BackgroundProof::new();
    /// proof.hold();
    /// // Pages are read that somebody waits for.
    /// proof.release();
    /// ```
    pub fn hold(&self) {
        self.lock().is_held = true;
    }

    /// Goes on after [`hold`](Self::hold).
    pub fn release(&self) {
        self.lock().is_held = false;
        self.changed.notify_all();
    }

    /// Makes [`run`](Self::run) return after the proof that is being made.
    pub fn end(&self) {
        self.lock().has_ended = true;
        self.changed.notify_all();
    }

    /// Proves what `next` returns, which is a source with a proof that is due, until [`end`](Self::end). Waits while `next` returns
    /// `None`.
    pub fn run(&self, mut next: impl FnMut() -> Option<Arc<dyn Pages>>, mut report: impl FnMut(ProofEvent<'_>)) {
        let (mut unreadable, mut is_settled, mut pause) = (Vec::<UnreadableSource>::new(), true, FIRST_PAUSE);
        while self.wait_for_release() {
            let Some(pages) = next() else {
                if !is_settled {
                    is_settled = true;
                    report(ProofEvent::Settled);
                }
                match self.wait_for_due(&mut next) {
                    Some(()) => continue,
                    None => return,
                }
            };
            is_settled = false;
            match pages.prove_next() {
                Ok(_) => {
                    unreadable.retain(|source| !Arc::ptr_eq(&source.pages, &pages));
                    pause = FIRST_PAUSE;
                }
                Err(error @ Error::Disproven { .. }) => report(ProofEvent::Failed { pages: &pages, error }),
                Err(error) => {
                    if self.is_out_of_patience(&mut unreadable, &pages) {
                        report(ProofEvent::Unreadable { pages: &pages, error });
                    }
                    self.wait(pause);
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// Records that a proof could not be read. Returns `true` if that has to be reported.
    fn is_out_of_patience(&self, unreadable: &mut Vec<UnreadableSource>, pages: &Arc<dyn Pages>) -> bool {
        let known = unreadable.iter().position(|source| Arc::ptr_eq(&source.pages, pages));
        let at = known.unwrap_or_else(|| {
            unreadable.push(UnreadableSource { pages: Arc::clone(pages), since: Instant::now(), is_reported: false });
            unreadable.len() - 1
        });
        let source = &mut unreadable[at];
        let is_due = !source.is_reported && source.since.elapsed() >= self.patience;
        source.is_reported |= is_due;
        is_due
    }

    /// Waits while proofs are held. Returns `false` at the end.
    fn wait_for_release(&self) -> bool {
        let state = self.changed.wait_while(self.lock(), |state| state.is_held && !state.has_ended);
        !state.unwrap_or_else(PoisonError::into_inner).has_ended
    }

    /// Waits until something may be due. Returns `None` at the end.
    fn wait_for_due(&self, next: &mut impl FnMut() -> Option<Arc<dyn Pages>>) -> Option<()> {
        self.is_idle.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let mut state = self.lock();
        if next().is_none() {
            let wait = |state: &mut ProofState| !state.is_noticed && !state.has_ended;
            state = self.changed.wait_while(state, wait).unwrap_or_else(PoisonError::into_inner);
        }
        self.is_idle.store(false, Ordering::Relaxed);
        state.is_noticed = false;
        (!state.has_ended).then_some(())
    }

    /// Waits for this long, or until the end.
    fn wait(&self, pause: Duration) {
        let waited = self.changed.wait_timeout_while(self.lock(), pause, |state| !state.has_ended);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    fn lock(&self) -> MutexGuard<'_, ProofState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;

    use trueno_zram_core::Page;

    use super::*;
    use crate::error::Result;

    /// Proofs that are due, and those that fail or cannot be read: the next ones.
    #[derive(Debug, Default)]
    struct Counted {
        due: AtomicU64,
        failing: AtomicU64,
        unreadable: AtomicU64,
    }

    impl Counted {
        /// Takes one if there is one.
        fn take(from: &AtomicU64) -> bool {
            from.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
        }
    }

    impl Pages for Counted {
        fn len_bytes(&self) -> u64 {
            0
        }

        fn read(&self, _: u64, _: &mut [Page]) -> Result<()> {
            Err(Error::NoIndex)
        }

        fn is_zero(&self, _: u64) -> Result<bool> {
            Err(Error::NoIndex)
        }

        fn is_proof_due(&self) -> bool {
            self.due.load(Ordering::SeqCst) > 0
        }

        fn prove_next(&self) -> Result<bool> {
            if Self::take(&self.unreadable) {
                return Err(Error::Read { at: 0, source: std::io::ErrorKind::UnexpectedEof.into() });
            }
            let was_due = Self::take(&self.due);
            if Self::take(&self.failing) {
                return Err(Error::Disproven { start: 0, end: 1, reason: "of the test".into() });
            }
            Ok(was_due)
        }
    }

    /// Runs `test` beside a thread that proves `pages`, with the names of its events.
    fn beside(proof: &BackgroundProof, pages: &Arc<Counted>, test: impl FnOnce(&Receiver<&'static str>)) {
        let (sender, events) = channel();
        let shared: Arc<dyn Pages> = Arc::clone(pages) as _;
        thread::scope(|threads| {
            threads.spawn(|| {
                proof.run(
                    || shared.is_proof_due().then(|| Arc::clone(&shared)),
                    |event| {
                        let name = match event {
                            ProofEvent::Failed { .. } => "failed",
                            ProofEvent::Unreadable { .. } => "unreadable",
                            ProofEvent::Settled => "settled",
                        };
                        sender.send(name).unwrap();
                    },
                );
            });
            test(&events);
            proof.end();
        });
    }

    #[test]
    fn everything_that_is_noticed_is_proven() {
        let (proof, pages) = (BackgroundProof::new(), Arc::new(Counted::default()));
        beside(&proof, &pages, |events| {
            for _ in 0..2000 {
                pages.due.fetch_add(1, Ordering::SeqCst);
                proof.notice(&*pages);
                // A notice that is lost would leave the thread asleep for ever.
                assert_eq!(events.recv(), Ok("settled"));
            }
        });
        assert!(!pages.is_proof_due());
    }

    #[test]
    fn failures_are_reported_and_the_rest_is_proven() {
        let (proof, pages) = (BackgroundProof::new(), Arc::new(Counted::default()));
        pages.failing.store(2, Ordering::SeqCst);
        pages.due.store(5, Ordering::SeqCst);
        beside(&proof, &pages, |events| {
            assert_eq!([(); 3].map(|()| events.recv().unwrap()), ["failed", "failed", "settled"]);
        });
    }

    #[test]
    fn proofs_that_cannot_be_read_are_tried_again_and_reported_once() {
        let (proof, pages) = (BackgroundProof::new().with_patience(Duration::ZERO), Arc::new(Counted::default()));
        pages.unreadable.store(3, Ordering::SeqCst);
        pages.due.store(1, Ordering::SeqCst);
        beside(&proof, &pages, |events| {
            assert_eq!([(); 2].map(|()| events.recv().unwrap()), ["unreadable", "settled"]);
            // After a success it is reported again.
            pages.unreadable.store(1, Ordering::SeqCst);
            pages.due.store(1, Ordering::SeqCst);
            proof.notice(&*pages);
            assert_eq!([(); 2].map(|()| events.recv().unwrap()), ["unreadable", "settled"]);
        });
        // A source that can be read again in time is not reported.
        let (proof, pages) = (BackgroundProof::new(), Arc::new(Counted::default()));
        pages.unreadable.store(2, Ordering::SeqCst);
        pages.due.store(1, Ordering::SeqCst);
        beside(&proof, &pages, |events| assert_eq!(events.recv(), Ok("settled")));
    }

    #[test]
    fn nothing_is_proven_while_it_is_held() {
        let (proof, pages) = (BackgroundProof::new(), Arc::new(Counted::default()));
        proof.hold();
        pages.due.store(3, Ordering::SeqCst);
        beside(&proof, &pages, |events| {
            proof.notice(&*pages);
            assert!(events.recv_timeout(Duration::from_millis(20)).is_err());
            assert_eq!(pages.due.load(Ordering::SeqCst), 3);
            proof.release();
            assert_eq!(events.recv(), Ok("settled"));
        });
    }

    #[test]
    fn it_ends_while_it_waits_is_held_or_cannot_read() {
        for (held, unreadable) in [(false, 0), (true, 0), (false, u64::MAX)] {
            let (proof, pages) = (BackgroundProof::new(), Arc::new(Counted::default()));
            if held {
                proof.hold();
            }
            pages.unreadable.store(unreadable, Ordering::SeqCst);
            pages.due.store(unreadable.min(1), Ordering::SeqCst);
            beside(&proof, &pages, |_| {});
        }
    }
}
