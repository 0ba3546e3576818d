//! Pages that a thread of their own proves after they were read.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use trueno_zram_archive::{BackgroundProof, Error, Page, Pages, ProofEvent, Result, Visit};

/// Pages, such as those of an archive with [`Verify::Touched`], and a thread of the lowest priority that proves those that were
/// read. It ends when this is dropped.
///
/// [`Verify::Touched`]: trueno_zram_archive::Verify::Touched
///
/// ```no_run
/// use trueno_zram_archive::{Archive, Verify};
/// use trueno_zram_serve::{ArchiveExport, ProvenPages};
/// let archive = Archive::open("before-upgrade.lz4")?.with_verify(Verify::Touched);
/// let pages = ProvenPages::start(archive, |error| eprintln!("before-upgrade.lz4: {error}"))?;
/// let export = ArchiveExport::new(pages);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ProvenPages {
    pages: Arc<dyn Pages>,
    proof: Arc<BackgroundProof>,
    thread: Option<JoinHandle<()>>,
}

impl ProvenPages {
    /// Starts the thread. It calls `notify` once with each proof that fails: from then on all reads of these pages fail. A proof that
    /// cannot be read is reported as well, once, and tried again.
    ///
    /// # Errors
    /// If the system has no more threads.
    pub fn start(pages: impl Pages + 'static, notify: impl Fn(&Error) + Send + 'static) -> io::Result<Self> {
        let (pages, proof): (Arc<dyn Pages>, _) = (Arc::new(pages), Arc::new(BackgroundProof::new()));
        let work = {
            let (pages, proof) = (Arc::clone(&pages), Arc::clone(&proof));
            move || {
                // Clients come first. If the priority cannot be lowered, proofs share the cores with them evenly.
                let _ = rustix::process::setpriority_process(None, 19);
                let next = || pages.is_proof_due().then(|| Arc::clone(&pages));
                proof.run(next, |event| match event {
                    ProofEvent::Failed { error, .. } | ProofEvent::Unreadable { error, .. } => notify(&error),
                    _ => {}
                });
            }
        };
        let thread = thread::Builder::new().name("proof".to_owned()).spawn(work)?;
        Ok(Self { pages, proof, thread: Some(thread) })
    }

    /// Returns a result of the pages, after the thread has taken note of what was read.
    fn noticed<T>(&self, result: T) -> T {
        self.proof.notice(&*self.pages);
        result
    }
}

impl Pages for ProvenPages {
    fn len_bytes(&self) -> u64 {
        self.pages.len_bytes()
    }

    fn read(&self, first: u64, out: &mut [Page]) -> Result<()> {
        self.noticed(self.pages.read(first, out))
    }

    fn visit(&self, pages: Range<u64>, buffer: &mut [Page], visit: &mut Visit<'_>) {
        self.pages.visit(pages, buffer, visit);
        self.proof.notice(&*self.pages);
    }

    fn is_zero(&self, page: u64) -> Result<bool> {
        self.noticed(self.pages.is_zero(page))
    }

    fn is_located(&self, page: u64) -> bool {
        self.pages.is_located(page)
    }

    fn is_proof_due(&self) -> bool {
        self.pages.is_proof_due()
    }

    fn prove_next(&self) -> Result<bool> {
        self.pages.prove_next()
    }

    fn disproven(&self) -> Vec<Range<u64>> {
        self.pages.disproven()
    }

    fn zero_run(&self, page: u64) -> Result<u64> {
        self.noticed(self.pages.zero_run(page))
    }

    fn max_readers(&self) -> usize {
        self.pages.max_readers()
    }
}

impl Drop for ProvenPages {
    fn drop(&mut self) {
        self.proof.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for ProvenPages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ProvenPages({} bytes)", self.pages.len_bytes())
    }
}
