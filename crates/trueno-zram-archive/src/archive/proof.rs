//! Proof that blocks lie where the index says: of a page's group, and of the groups before it.

use std::sync::atomic::Ordering;

use super::Archive;
use crate::archive::group::{GroupBuffer, StreamReach};
use crate::error::Result;
use crate::index::resident::ResidentGroup;

/// Bytes of the file that are checked before a page to prove its position, by default.
pub(super) const WALK_LIMIT: u64 = 16 << 20;

/// The part of an archive that is compared with its index before a page is returned.
///
/// ```
/// assert_eq!(trueno_zram_archive::Verify::default(), trueno_zram_archive::Verify::Group);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verify {
    /// All blocks of the page's group, and those of the groups before it up to the [walk limit](Archive::with_walk_limit).
    #[default]
    Group,
    /// The block of the page: its entry, its place, its header and its checksum. It may be another page than a stream has
    /// there. The proof comes later, from [`Archive::prove_next`]; once that has failed, no page from the faulty group on is
    /// returned without the proof that [`Verify::Group`] demands.
    Touched,
    /// All blocks of the page's group and of all groups before it.
    All,
}

impl Archive {
    /// Sets how much is proven before a page is returned.
    ///
    /// ```
    /// # use trueno_zram_archive::{Archive, Verify, WriteOptions, compress};
    /// # let mut bytes = Vec::new();
    /// # compress(&[0; 40 * 4096][..], &mut bytes, &WriteOptions::default())?;
    /// # let archive = Archive::read_from(std::sync::Arc::new(bytes))?.expect("it has an index");
    /// let archive = archive.with_verify(Verify::Touched);
    /// archive.read_page(0)?;
    /// while archive.prove_next()? {} // in a thread of its own
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    #[must_use]
    pub fn with_verify(mut self, verify: Verify) -> Self {
        self.verify = verify;
        self
    }

    /// Sets how many bytes of the file may be read before a page to prove its position: 16 MiB by default. See
    /// [what is guaranteed](Self#what-is-guaranteed).
    #[must_use]
    pub fn with_walk_limit(mut self, bytes: u64) -> Self {
        self.walk_limit = bytes;
        self
    }

    /// Compares the next group that is not proven yet with the index: one unit of background proof, about 4 MiB of content.
    /// Returns `false` once all groups are proven, or none that follows needs a proof, because no stream gets past a damaged
    /// block.
    ///
    /// # Errors
    /// [`Error::Index`](crate::Error::Index) if the group is not what the index says; [`Error::Read`](crate::Error::Read).
    pub fn prove_next(&self) -> Result<bool> {
        let next = self.proven_groups.load(Ordering::Acquire);
        if next >= self.footer.groups() {
            return Ok(false);
        }
        match self.in_flight.begin(next) {
            Some(_guard) => self.prove_group(next).inspect_err(|_| {
                // Of several threads, one finds it first.
                let _ = self.disproven.set(next);
            })?,
            None => self.in_flight.wait_for(next),
        }
        Ok(true)
    }

    /// Returns `true` if pages of a group are read without proof of their positions.
    pub(super) fn trusts_index(&self, number: u64) -> bool {
        self.verify == Verify::Touched && self.disproven.get().is_none_or(|first| number < *first)
    }

    /// Returns the index of a group if it is in memory and pages may be read by it.
    pub(super) fn known(&self, number: u64) -> Option<&ResidentGroup> {
        let group = self.slot(number)?.get()?;
        (group.is_proven() || self.trusts_index(number)).then_some(&**group)
    }

    /// Returns the index of a group, in memory; `None` if a block of the group is damaged, so that each page has to be looked at
    /// on its own.
    pub(super) fn locate(&self, number: u64) -> Result<Option<&ResidentGroup>> {
        if let Some(group) = self.known(number) {
            return Ok(Some(group));
        }
        if self.trusts_index(number) {
            let places = self.index().places(number)?;
            return Ok(self.slot(number).map(|slot| &**slot.get_or_init(|| self.resident(&places))));
        }
        self.with_group(number, |group| {
            let kept = self.keep_places(number, group);
            if kept.is_some() {
                self.file.expect_reads(self.offset_of(number)?, group.window().len());
            }
            Ok(kept)
        })
    }

    /// Keeps the places of a group that was compared with the index, if all its blocks are intact.
    pub(super) fn keep_places(&self, number: u64, group: &GroupBuffer) -> Option<&ResidentGroup> {
        let (slot, places) = (self.slot(number)?, group.intact_places()?);
        let resident = slot.get_or_init(|| self.resident(places));
        resident.set_proven();
        Some(resident)
    }

    /// Reads a group and compares it with the index, after the groups before it as far as the limit allows.
    pub(super) fn with_group<T>(&self, number: u64, work: impl FnOnce(&GroupBuffer) -> Result<T>) -> Result<T> {
        let stream = self.prove_before(number)?;
        self.read_proving(number, stream, work)
    }

    /// Reads a group, compares it with the index, and counts it as proven.
    fn read_proving<T>(
        &self,
        number: u64,
        stream: StreamReach,
        work: impl FnOnce(&GroupBuffer) -> Result<T>,
    ) -> Result<T> {
        let mut group = self.take_buffer();
        let read = group.read(number, self.index(), stream);
        if read.is_ok() {
            self.note_proven(number, &group);
        }
        let done = read.and_then(|()| work(&group));
        self.return_buffer(group);
        done
    }

    /// Compares the groups before `number` with the index, as far as the walk limit reaches. Waits for those that other threads
    /// work on.
    pub(super) fn prove_before(&self, number: u64) -> Result<StreamReach> {
        let target = self.offset_of(number)?;
        let limit = if self.verify == Verify::All { u64::MAX } else { self.walk_limit };
        loop {
            let proven = self.proven_groups.load(Ordering::Acquire);
            let next = self.table.get(proven).map_or(0, |group| group.offset);
            if proven >= number || target.saturating_sub(next) > limit {
                return Ok(if proven == u64::MAX { StreamReach::EndsBefore } else { StreamReach::Reaches });
            }
            // A thread waits for groups before its own only, so the one with the first of them never waits.
            match self.in_flight.begin(proven) {
                Some(_guard) => self.prove_group(proven)?,
                None => self.in_flight.wait_for(proven),
            }
        }
    }

    fn prove_group(&self, number: u64) -> Result<()> {
        self.read_proving(number, StreamReach::Reaches, |_| Ok(()))
    }

    /// Counts a group as proven, if all before it are.
    pub(super) fn note_proven(&self, number: u64, group: &GroupBuffer) {
        // A stream ends with an error at a block that it refuses: nothing after it can contradict the stream.
        let next = if group.is_refused() { u64::MAX } else { number + 1 };
        let _ = self.proven_groups.compare_exchange(number, next, Ordering::AcqRel, Ordering::Acquire);
    }
}
