//! The table of groups, read and checked record by record.

use crate::error::{Error, Result};
use crate::format::Layout;
use crate::hashes::content_hash::ContentHash;
use crate::index::layout::{ENTRY_LEN, GROUP_PAGES, GROUP_RECORD_LEN, GroupRecord, IndexFooter, pages_of};
use crate::read_at::{ReadAt, read_at};

/// Records read at a time.
const CHUNK_RECORDS: usize = 4096;

/// Groups between two stored counts.
const CHECKPOINT_GROUPS: usize = 64;

/// The table of groups, as it is in the file: 12 bytes per group.
#[derive(Debug)]
pub(crate) struct GroupTable {
    records: Vec<[u8; GROUP_RECORD_LEN]>,
    /// Groups with entries before every 64th group.
    stored_before: Vec<u64>,
}

impl GroupTable {
    /// Reads the table. Memory grows with the records that were read and found in order, not with the number that the
    /// footer claims.
    pub(crate) fn read(file: &dyn ReadAt, footer: &IndexFooter, layout: &Layout, start: u64) -> Result<Self> {
        let disorder = || Error::index("its table is not in order");
        let frame_end = footer.frame_len.checked_sub(layout.end_len()).ok_or_else(disorder)?;
        let groups = usize::try_from(footer.groups()).map_err(|_| Error::index("its table is too long"))?;
        let mut table = Self { records: Vec::new(), stored_before: Vec::new() };
        let (mut hash, mut stored, mut least, mut last_stored) = (ContentHash::new(), 0u64, start, false);
        let mut chunk = vec![[0; GROUP_RECORD_LEN]; groups.min(CHUNK_RECORDS)];
        while table.records.len() < groups {
            let done = table.records.len();
            let count = (groups - done).min(CHUNK_RECORDS);
            read_at(file, footer.table_at() + (done * GROUP_RECORD_LEN) as u64, chunk[..count].as_flattened_mut())?;
            hash.update(chunk[..count].as_flattened());
            for (number, record) in (done..).zip(&chunk[..count]) {
                let group = GroupRecord::decode(*record);
                let in_order = if number == 0 { group.offset == start } else { group.offset >= least };
                if !in_order || group.offset >= frame_end {
                    return Err(disorder());
                }
                if number % CHECKPOINT_GROUPS == 0 {
                    table.stored_before.push(stored);
                }
                least = group.offset + layout.min_group_len();
                last_stored = !group.all_zeros;
                stored += u64::from(last_stored);
                table.records.push(*record);
            }
        }
        if hash.digest() != footer.table_checksum {
            return Err(Error::index("the checksum of its table is wrong"));
        }
        if groups == 0 && frame_end != start {
            return Err(disorder());
        }
        let missing = if last_stored { footer.groups() * GROUP_PAGES as u64 - pages_of(footer.content_len) } else { 0 };
        if u64::from(footer.entries_len) != (stored * GROUP_PAGES as u64 - missing) * ENTRY_LEN as u64 {
            return Err(Error::index("it does not have as many entries as its table says"));
        }
        Ok(table)
    }

    /// Returns a group, or `None` after the last one.
    pub(crate) fn get(&self, number: u64) -> Option<GroupRecord> {
        self.records.get(usize::try_from(number).ok()?).map(|record| GroupRecord::decode(*record))
    }

    /// Returns the memory that the table takes, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val(&self.records[..]) + size_of_val(&self.stored_before[..])
    }

    /// Returns the number of groups with entries before a group.
    pub(crate) fn stored_before(&self, number: u64) -> u64 {
        let number = usize::try_from(number).unwrap_or(usize::MAX).min(self.records.len());
        let checkpoint = number / CHECKPOINT_GROUPS;
        let Some(before) = self.stored_before.get(checkpoint) else { return 0 };
        let after = &self.records[checkpoint * CHECKPOINT_GROUPS..number];
        before + after.iter().filter(|record| !GroupRecord::decode(**record).all_zeros).count() as u64
    }
}
