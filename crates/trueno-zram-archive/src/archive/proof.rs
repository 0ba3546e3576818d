//! Proof that blocks lie where the index says: of a page's group, and of the groups before it.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::Archive;
use super::group_proofs::{IsRefused, disproof, pages_of_group};
use crate::archive::group::{GroupBuffer, StreamReach};
use crate::error::{Error, Result};
use crate::index::resident::ResidentGroup;
use crate::pages::Pages;

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
    /// The page's entry and its block: the place, the header and the checksum. A zero page has only an entry. It may be
    /// another page than a stream has there.
    ///
    /// The proof of [`Group`](Self::Group) follows, from [`Pages::prove_next`](crate::Pages::prove_next): it is due once for each
    /// group that was read. Once it has failed, every read of that group is [`Error::Disproven`](crate::Error::Disproven), and
    /// groups after it are proven before their pages are returned.
    ///
    /// Without block checksums, this is [`Group`](Self::Group). The pages of a [`Delta`](crate::Delta) are compared with their
    /// hashes instead, and nothing is left to prove.
    Touched,
    /// All blocks of the page's group and of all groups before it.
    All,
}

impl Archive {
    /// Sets how much is proven before a page is returned.
    ///
    /// ```
    /// # use trueno_zram_archive::{Archive, Pages, Verify, WriteOptions, compress};
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
        self.set_verify(verify);
        self
    }

    pub(crate) fn verify(&self) -> Verify {
        self.verify
    }

    pub(crate) fn set_verify(&mut self, verify: Verify) {
        self.verify = match verify {
            // Nothing else would tell a damaged page from an intact one.
            Verify::Touched if !self.layout.block_checksums() => Verify::Group,
            verify => verify,
        };
    }

    /// Sets how many bytes of the file may be read before a page to prove its position: 16 MiB by default. See
    /// [what is guaranteed](Self#what-is-guaranteed).
    #[must_use]
    pub fn with_walk_limit(mut self, bytes: u64) -> Self {
        self.walk_limit = bytes;
        self
    }

    /// Returns `true` if pages were returned that are not proven, as [`Pages::is_proof_due`] says.
    pub(super) fn has_unproven(&self) -> bool {
        self.verify == Verify::Touched && self.proofs.is_due()
    }

    /// Returns the next group of those that were not proven yet, if [`Verify::All`] goes on with it.
    fn next_of_all(&self) -> Option<u64> {
        let next = self.proven_groups.load(Ordering::Acquire);
        (next < self.footer.groups() && self.proofs.is_before_disproven(next)).then_some(next)
    }

    /// Proves a group: one that was read, or with [`Verify::All`] the next one.
    pub(super) fn prove_one(&self) -> Result<bool> {
        match self.verify {
            Verify::Group => Ok(false),
            Verify::Touched => self.prove_touched(),
            Verify::All => match self.next_of_all() {
                Some(next) => self.prove_or_wait(next).map(|()| true),
                None => Ok(false),
            },
        }
    }

    /// Proves a group that was read: first those groups themselves, then what lies before them.
    fn prove_touched(&self) -> Result<bool> {
        while self.proofs.is_due() {
            let mut others = None;
            for number in self.proofs.due_to_compare() {
                let Some(_guard) = self.in_flight.begin(number) else {
                    others = Some(number);
                    continue;
                };
                if self.proofs.compared(number).is_some() {
                    continue;
                }
                self.proofs.go_on_after(number);
                self.compare_touched(number)?;
                return Ok(true);
            }
            if let Some(number) = self.proofs.first_compared_and_due() {
                match self.next_before(number) {
                    None => self.proofs.set_proven(number),
                    Some(before) => {
                        self.prove_or_wait(before).map_err(|error| self.note_failure(number, error))?;
                        return Ok(true);
                    }
                }
            } else if let Some(number) = others {
                self.in_flight.wait_for(number);
            }
        }
        Ok(false)
    }

    /// Compares a group that was read with the index.
    fn compare_touched(&self, number: u64) -> Result<()> {
        let window_len = self.read_proving(number, self.reach(), |group| Ok(group.window().len()))?;
        // More pages of the group will probably be read.
        self.file.expect_reads(self.offset_of(number)?, window_len);
        if self.next_before(number).is_none() {
            self.proofs.set_proven(number);
        }
        Ok(())
    }

    /// Returns the page numbers of groups whose proof has failed.
    pub(super) fn disproven_ranges(&self) -> Vec<Range<u64>> {
        let mut ranges = Vec::<Range<u64>>::new();
        for number in self.proofs.disproven() {
            let Range { start, end } = pages_of_group(number);
            let end = end.min(self.page_count());
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => ranges.push(start..end),
            }
        }
        ranges
    }

    /// Returns `true` if pages of a group are read without proof of their positions.
    pub(super) fn trusts_index(&self, number: u64) -> bool {
        self.verify == Verify::Touched && self.proofs.is_before_disproven(number)
    }

    /// Returns the index of a group if it is in memory and pages may be read by it. Then its proof is due, unless it was made.
    pub(super) fn known(&self, number: u64) -> Option<&ResidentGroup> {
        let group = self.slot(number)?.get()?;
        if self.proofs.is_proven(number) {
            return Some(group);
        }
        let is_trusted = self.trusts_index(number);
        if is_trusted {
            // The thread that has put the index there may not have come to that yet.
            self.proofs.touch(number);
        }
        is_trusted.then_some(&**group)
    }

    /// Returns the index of a group, in memory; `None` if a block of the group is damaged, so that each page has to be looked at
    /// on its own.
    pub(super) fn locate(&self, number: u64) -> Result<Option<&ResidentGroup>> {
        if let Some(group) = self.known(number) {
            return Ok(Some(group));
        }
        if self.trusts_index(number) {
            let group = self.locate_by_entries(number)?;
            self.proofs.touch(number);
            return Ok(Some(group));
        }
        self.with_group(number, |group| {
            let kept = self.keep_places(number, group);
            if kept.is_some() {
                self.file.expect_reads(self.offset_of(number)?, group.window().len());
            }
            Ok(kept)
        })
    }

    /// Returns the index of a group, in memory, by its entries alone.
    pub(super) fn locate_by_entries(&self, number: u64) -> Result<&ResidentGroup> {
        let slot = self.slot(number).ok_or_else(|| Error::index("it has no such group"))?;
        if let Some(group) = slot.get() {
            return Ok(group);
        }
        let group = Box::new(self.index().resident(number)?);
        Ok(slot.get_or_init(|| group))
    }

    /// Keeps the places of a group that was compared with the index, if all its blocks are intact.
    pub(super) fn keep_places(&self, number: u64, group: &GroupBuffer) -> Option<&ResidentGroup> {
        let (slot, places) = (self.slot(number)?, group.intact_places()?);
        let resident = slot.get_or_init(|| self.resident(places));
        self.proofs.set_proven(number);
        Some(resident)
    }

    /// Reads a group and compares it with the index, after the groups before it as far as the limit allows.
    pub(super) fn with_group<T>(&self, number: u64, work: impl FnOnce(&GroupBuffer) -> Result<T>) -> Result<T> {
        self.proofs.check(number)?;
        let stream = self.prove_before(number).map_err(|error| self.note_failure(number, error))?;
        self.read_proving(number, stream, work)
    }

    /// Reads a group, compares it with the index, and counts it as compared.
    fn read_proving<T>(
        &self,
        number: u64,
        stream: StreamReach,
        work: impl FnOnce(&GroupBuffer) -> Result<T>,
    ) -> Result<T> {
        let mut group = self.take_buffer();
        let read = group.read(number, self.index(), stream);
        if read.is_ok() {
            self.note_compared(number, &group);
        }
        let done = read.map_err(|error| self.note_failure(number, error)).and_then(|()| work(&group));
        self.return_buffer(group);
        done
    }

    /// Compares the groups before `number` with the index, as far as the walk limit reaches. Waits for those that other threads
    /// work on.
    pub(super) fn prove_before(&self, number: u64) -> Result<StreamReach> {
        while let Some(before) = self.next_before(number) {
            // A thread waits for groups before its own only, so the one with the first of them never waits.
            self.prove_or_wait(before)?;
        }
        Ok(self.reach())
    }

    /// Returns the next group to prove of those before `number`; `None` if all are, or the first is too far away.
    fn next_before(&self, number: u64) -> Option<u64> {
        let limit = if self.verify == Verify::All { u64::MAX } else { self.walk_limit };
        let proven = self.proven_groups.load(Ordering::Acquire);
        let target = self.table.get(number).map_or(0, |group| group.offset);
        let next = self.table.get(proven).map_or(0, |group| group.offset);
        (proven < number && target.saturating_sub(next) <= limit).then_some(proven)
    }

    pub(super) fn reach(&self) -> StreamReach {
        match self.proven_groups.load(Ordering::Acquire) {
            u64::MAX => StreamReach::EndsBefore,
            _ => StreamReach::Reaches,
        }
    }

    /// Compares a group with the index, or waits until another thread has done so.
    fn prove_or_wait(&self, number: u64) -> Result<()> {
        self.proofs.check(number)?;
        match self.in_flight.begin(number) {
            Some(_guard) => self.read_proving(number, StreamReach::Reaches, |_| Ok(())),
            None => {
                self.in_flight.wait_for(number);
                Ok(())
            }
        }
    }

    /// Counts a group as compared, and those that follow the proven ones as proven.
    pub(super) fn note_compared(&self, number: u64, group: &GroupBuffer) {
        self.proofs.set_compared(number, if group.is_refused() { IsRefused::Yes } else { IsRefused::No });
        loop {
            let proven = self.proven_groups.load(Ordering::Acquire);
            // A stream ends with an error at a block that it refuses: nothing after it can contradict the stream.
            let next = match self.proofs.compared(proven) {
                None => return,
                Some(IsRefused::No) => proven + 1,
                Some(IsRefused::Yes) => u64::MAX,
            };
            let _ = self.proven_groups.compare_exchange(proven, next, Ordering::AcqRel, Ordering::Acquire);
        }
    }

    /// Notes that the proof of a group has failed, if the error shows that. A file that cannot be read proves nothing.
    pub(super) fn note_failure(&self, number: u64, error: Error) -> Error {
        let reason = match error {
            Error::Index(_) if self.verify != Verify::Group => error.to_string(),
            Error::Disproven { reason, .. } => reason,
            other => return other,
        };
        self.proofs.disprove(number, reason.clone());
        disproof(number, reason)
    }
}
