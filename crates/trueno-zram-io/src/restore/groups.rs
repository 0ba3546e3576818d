//! What all lanes that restore groups share: the next group, the output, and the doubts.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use trueno_zram_archive::{ContentHash, ContentSpan, GroupTotals, Groups, PageGroup, ReadSummary};
use trueno_zram_core::{Page, is_zero};

use super::{Sink, Way};
use crate::Observer;
use crate::anywhere::{Anywhere, Prepared};
use crate::error::{Error, Operation, Result};
use crate::ordered::{InOrder, lock};
use crate::output::run_bytes;
use crate::positioned::Positioned;
use crate::timeline::{Stage, timed};

/// Zeros, for outputs that are to have no holes.
static ZEROS: [u8; 1 << 20] = [0; 1 << 20];

/// An archive that is being restored.
pub(super) struct Restoring<'a, K: Sink, C> {
    pub(super) groups: Groups,
    file: &'a File,
    next: AtomicU64,
    way: Way,
    /// Hashes the content and gives it to the sink, in order.
    in_order: InOrder<C, Ordered<'a, K>>,
    totals: Mutex<GroupTotals>,
    /// Whether a group is not what the index says.
    in_doubt: AtomicBool,
    /// Whether a lane stopped before the end, for whatever reason.
    has_stopped: AtomicBool,
    error: Mutex<Option<Error>>,
    out_name: String,
    content_done: AtomicU64,
    pub(super) observer: &'a dyn Observer,
}

/// The stage that follows the order of the content.
struct Ordered<'a, K> {
    sink: &'a mut K,
    hash: Option<ContentHash>,
    /// Bytes that the sink has taken.
    taken: u64,
}

/// How the restoring by groups ended.
pub(super) enum Restored {
    /// All content is where it belongs.
    All(Box<ReadSummary>),
    /// The archive has to be read as a stream. The sink has taken this many bytes in order.
    InDoubt { in_order: u64 },
}

/// The content of a group, once its pages are restored.
pub(super) trait GroupContent: Send {
    fn group(&self) -> &PageGroup;
    fn pages(&self) -> &[Page];
}

impl<'a, K: Sink, C: GroupContent> Restoring<'a, K, C> {
    pub(super) fn new(
        groups: Groups,
        file: &'a File,
        sink: &'a mut K,
        threads: usize,
        observer: &'a dyn Observer,
    ) -> Result<Self> {
        let way = sink.way(threads)?;
        let hash = groups.has_content_checksum().then(ContentHash::new);
        Ok(Self {
            groups,
            file,
            next: AtomicU64::new(0),
            way,
            out_name: sink.name().to_owned(),
            in_order: InOrder::new(Ordered { sink, hash, taken: 0 }),
            totals: Mutex::new(GroupTotals::default()),
            in_doubt: AtomicBool::new(false),
            has_stopped: AtomicBool::new(false),
            error: Mutex::new(None),
            content_done: AtomicU64::new(0),
            observer,
        })
    }

    /// Whether the content of a group has to wait for the groups before it.
    pub(super) fn is_ordered(&self) -> bool {
        matches!(self.way, Way::InOrder) || self.groups.has_content_checksum()
    }

    /// The next group's number; none at the end, and if anything failed.
    pub(super) fn claim(&self) -> Option<u64> {
        if self.has_stopped.load(Ordering::Relaxed) {
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        (number < self.groups.count()).then_some(number)
    }

    /// Whether all groups are claimed, or something failed.
    pub(super) fn has_ended(&self) -> bool {
        self.has_stopped.load(Ordering::Relaxed) || self.next.load(Ordering::Relaxed) >= self.groups.count()
    }

    pub(super) fn has_stopped(&self) -> bool {
        self.has_stopped.load(Ordering::Relaxed)
    }

    /// Reads a group and checks it. Returns `false` if it is not what the index says.
    pub(super) fn read(&self, number: u64, group: &mut PageGroup) -> bool {
        let mut file = Positioned::new(self.file);
        match timed(self.observer, Stage::Read, || self.groups.read(&mut file, number, group)) {
            Ok(totals) => {
                *lock(&self.totals) += totals;
                true
            }
            Err(_) => {
                self.doubt();
                false
            }
        }
    }

    /// Has everything read again as a stream.
    pub(super) fn doubt(&self) {
        self.in_doubt.store(true, Ordering::Relaxed);
        self.has_stopped.store(true, Ordering::Relaxed);
    }

    pub(super) fn fail(&self, error: Error) {
        lock(&self.error).get_or_insert(error);
        self.has_stopped.store(true, Ordering::Relaxed);
    }

    /// Stops the lanes, when one panics.
    pub(super) fn stop(&self) {
        self.has_stopped.store(true, Ordering::Relaxed);
    }

    /// Writes the content of a group at its place, or takes it along until its turn comes, or both.
    pub(super) fn give(&self, number: u64, content: C, mut reuse: impl FnMut(C)) -> Result<()> {
        if !matches!(self.way, Way::InOrder) {
            let group = content.group();
            self.write(group.content_start(), group.spans(content.pages()))?;
        }
        if self.is_ordered() {
            return self.deliver(number, content, reuse);
        }
        reuse(content);
        Ok(())
    }

    fn deliver(&self, number: u64, content: C, mut reuse: impl FnMut(C)) -> Result<()> {
        self.in_order.submit(number, content, |ordered, content| {
            let spans = || content.group().spans(content.pages());
            if let Some(hash) = &mut ordered.hash {
                timed(self.observer, Stage::Hash, || {
                    spans().for_each(|span| match span {
                        ContentSpan::Data(bytes) => hash.update(bytes),
                        ContentSpan::Zeros(len_bytes) => hash.update_zeros(len_bytes),
                    });
                });
            }
            if matches!(self.way, Way::InOrder) {
                timed(self.observer, Stage::Write, || {
                    spans().try_for_each(|span| {
                        ordered.sink.take(span)?;
                        ordered.taken += span.len_bytes();
                        Ok::<(), Error>(())
                    })
                })?;
                self.observer.progress(ordered.taken, ordered.taken);
            }
            reuse(content);
            Ok(())
        })
    }

    /// Writes content at its place, or only counts it.
    pub(super) fn write<'s>(&self, start: u64, spans: impl Iterator<Item = ContentSpan<'s>>) -> Result<()> {
        let mut at = start;
        let write = |at: &mut u64| {
            for span in spans {
                match (&self.way, span) {
                    (Way::Anywhere { file, sparse: true }, ContentSpan::Data(bytes)) => write_sparse(file, *at, bytes)?,
                    (Way::Anywhere { file, sparse: false }, ContentSpan::Data(bytes)) => file.write_at(*at, bytes)?,
                    (Way::Anywhere { file, sparse: false }, ContentSpan::Zeros(len_bytes)) => {
                        write_zeros(file, *at, len_bytes)?;
                    }
                    _ => {}
                }
                *at += span.len_bytes();
            }
            Ok(())
        };
        self.writing(|| write(&mut at))?;
        self.count(at - start);
        Ok(())
    }

    /// Prepares the place of pages that are not zero. None: the content is not written at its place.
    pub(super) fn prepare(&self, at: u64, len_bytes: usize) -> Result<Option<Prepared<'_>>> {
        match &self.way {
            Way::Anywhere { file, .. } => self.writing(|| file.prepare(at, len_bytes)).map(Some),
            Way::InOrder | Way::Nowhere => Ok(None),
        }
    }

    /// Writes pages at a place that was prepared, or only counts them.
    pub(super) fn write_prepared(&self, place: Option<&Prepared<'_>>, at: u64, bytes: &[u8]) -> Result<()> {
        if let Some(place) = place {
            self.writing(|| place.write_at(at, bytes))?;
        }
        self.count(bytes.len() as u64);
        Ok(())
    }

    fn writing<T>(&self, write: impl FnOnce() -> io::Result<T>) -> Result<T> {
        timed(self.observer, Stage::Write, write).map_err(|error| Error::io(&self.out_name, Operation::Write, error))
    }

    /// Counts content that is where it belongs.
    fn count(&self, len_bytes: u64) {
        let done = self.content_done.fetch_add(len_bytes, Ordering::Relaxed) + len_bytes;
        self.observer.progress(done, done);
    }

    /// Checks the rest of the archive, once all lanes have stopped.
    pub(super) fn finish(self) -> Result<Restored> {
        if let Some(error) = self.error.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        let content_len = self.groups.content_len();
        let Ordered { sink, hash, taken } = self.in_order.into_stage().expect("no lane failed");
        if !self.in_doubt.into_inner() {
            let totals = self.totals.into_inner().unwrap_or_else(PoisonError::into_inner);
            if let Ok(summary) = self.groups.finish(&mut Positioned::new(self.file), totals, hash.as_ref()) {
                if !matches!(self.way, Way::InOrder) {
                    sink.set_placed(content_len);
                }
                return Ok(Restored::All(Box::new(summary)));
            }
        }
        // What was written at its place is written again.
        drop(self.way);
        sink.restart()?;
        Ok(Restored::InDoubt { in_order: taken })
    }
}

/// Writes `bytes` without the pages of zeros among them.
pub(super) fn write_sparse(file: &Anywhere, at: u64, bytes: &[u8]) -> io::Result<()> {
    let (mut at, mut rest) = (at, bytes);
    while !rest.is_empty() {
        let data_bytes = run_bytes(rest, |page| !is_zero(page));
        file.write_at(at, &rest[..data_bytes])?;
        let zero_bytes = run_bytes(&rest[data_bytes..], is_zero);
        at += (data_bytes + zero_bytes) as u64;
        rest = &rest[data_bytes + zero_bytes..];
    }
    Ok(())
}

fn write_zeros(file: &Anywhere, at: u64, len_bytes: u64) -> io::Result<()> {
    let mut done = 0;
    while done < len_bytes {
        let now = usize::try_from(len_bytes - done).map_or(ZEROS.len(), |left| left.min(ZEROS.len()));
        file.write_at(at + done, &ZEROS[..now])?;
        done += now as u64;
    }
    Ok(())
}
