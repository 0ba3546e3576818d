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
    /// Reads the table of groups. Memory grows with the records that were read and found in order, not with the number that the
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

#[cfg(test)]
mod tests {
    use trueno_zram_core::{PAGE_SIZE, PageStats};

    use super::*;
    use crate::format::Format;
    use crate::hashes::content_hash::xxh32;
    use crate::index::layout::HEAD_LEN;

    const LAYOUT: Layout = Layout::Zstd { checksums: false };

    /// Opens the table of an archive with groups at these offsets and of these kinds: all zeros, or not.
    fn open(groups: &[(u64, bool)]) -> Result<GroupTable> {
        let record =
            |(offset, all_zeros): &(u64, bool)| GroupRecord { offset: *offset, all_zeros: *all_zeros, checksum: 0 };
        let table: Vec<u8> = groups.iter().flat_map(|group| record(group).encode()).collect();
        let stored = groups.iter().filter(|(_, all_zeros)| !all_zeros).count();
        let frame_len = groups.last().map_or(0, |(offset, _)| offset + 1000);
        let footer = IndexFooter {
            format: Format::Zstd,
            frame_checksums: false,
            content_len: (groups.len() * GROUP_PAGES * PAGE_SIZE) as u64,
            frame_len,
            pages: PageStats::default(),
            entries_len: u32::try_from(stored * GROUP_PAGES * ENTRY_LEN).expect("small"),
            sections_len: 0,
            table_checksum: xxh32(&table),
            sections_checksum: 0,
        };
        let mut file =
            vec![0; usize::try_from(frame_len).expect("small") + HEAD_LEN + stored * GROUP_PAGES * ENTRY_LEN];
        file.extend(table);
        GroupTable::read(&file, &footer, &LAYOUT, 0)
    }

    #[test]
    fn groups_lie_no_nearer_than_the_shortest_group_is_long() {
        let least = LAYOUT.min_group_len();
        assert!(open(&[]).is_ok() && open(&[(0, false)]).is_ok());
        assert!(open(&[(0, false), (least, true), (2 * least, false)]).is_ok());
        assert!(open(&[(1, false)]).is_err(), "the first group is not at the start");
        assert!(open(&[(0, false), (least - 1, false)]).is_err(), "too near");
        assert!(open(&[(0, false), (3 * least, false), (2 * least, false)]).is_err(), "not in order");
    }

    #[test]
    fn groups_with_entries_are_counted() {
        let groups: Vec<(u64, bool)> = (0..300).map(|number| (number * 1000, number % 3 == 0)).collect();
        let table = open(&groups).expect("in order");
        let mut stored = 0;
        for (number, (offset, all_zeros)) in (0..).zip(&groups) {
            let group = table.get(number).expect("it is there");
            assert_eq!((group.offset, group.all_zeros), (*offset, *all_zeros));
            assert_eq!(table.stored_before(number), stored, "group {number}");
            stored += u64::from(!all_zeros);
        }
        assert_eq!((table.get(300), table.stored_before(300)), (None, stored));
        // 12 bytes per group, and 8 for every 64th.
        assert_eq!(table.memory_bytes(), 300 * 12 + 5 * 8);
    }
}
