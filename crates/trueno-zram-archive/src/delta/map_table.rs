//! The table of a delta in memory: the position of each group's map, its proof, and the map once it was read.

use std::sync::OnceLock;

use crate::error::{Error, Result};

use super::identity::IDENTITY_LEN;
use super::layout::{DeltaFooter, MAX_GROUP_LEN, MapRecord, MapSeal};
use super::map::{MapGroup, NewPages};

/// The table of a delta. It takes 32 bytes per group in version 1, and 52 in version 2.
pub(super) struct MapTable {
    groups: Vec<GroupMap>,
    /// One for each group in version 2.
    seals: Vec<HashSeal>,
}

/// The map of a group, which is read when it is needed.
pub(super) struct GroupMap {
    /// Its position in the file.
    pub(super) at: u64,
    pub(super) len_bytes: u32,
    /// Its XXH32 in version 1.
    checksum: u32,
    pub(super) map: OnceLock<Box<MapGroup>>,
}

/// The proof of a map in version 2.
struct HashSeal {
    /// The number of stored pages that the groups before it name.
    first_new: u32,
    new_pages: u32,
    hash: [u8; IDENTITY_LEN],
}

impl MapTable {
    /// Decodes the table of a file with this footer. The maps add up to their length.
    pub(super) fn decode(bytes: &[u8], footer: &DeltaFooter) -> Result<Self> {
        let records = bytes.chunks_exact(footer.version.record_len());
        let (mut groups, mut seals) = (Vec::with_capacity(records.len()), Vec::new());
        let (mut at, mut named) = (footer.map_at(), 0u64);
        for record in records {
            let MapRecord { len_bytes, seal } = MapRecord::decode(record, footer.version);
            if len_bytes as usize > MAX_GROUP_LEN {
                return Err(Error::delta("its table has a group that is too long"));
            }
            let checksum = match seal {
                MapSeal::Checksum(checksum) => checksum,
                MapSeal::Hash { new_pages, hash } => {
                    let first_new = u32::try_from(named).map_err(|_| Error::delta("its table names too many pages"))?;
                    seals.push(HashSeal { first_new, new_pages, hash });
                    named += u64::from(new_pages);
                    0
                }
            };
            groups.push(GroupMap { at, len_bytes, checksum, map: OnceLock::new() });
            at += u64::from(len_bytes);
        }
        if at != footer.table_at() {
            return Err(Error::delta("its table does not add up to its map"));
        }
        Ok(Self { groups, seals })
    }

    pub(super) fn group(&self, number: u64) -> Result<&GroupMap> {
        let group = usize::try_from(number).ok().and_then(|number| self.groups.get(number));
        group.ok_or_else(|| Error::delta("it has no such group"))
    }

    /// Returns `true` if these are the bytes of a group's map.
    pub(super) fn is_map(&self, number: u64, bytes: &[u8]) -> bool {
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        let seal = match (self.seals.get(number), self.groups.get(number)) {
            (Some(seal), _) => MapSeal::Hash { new_pages: seal.new_pages, hash: seal.hash },
            (None, Some(group)) => MapSeal::Checksum(group.checksum),
            (None, None) => return false,
        };
        seal.is_of(bytes)
    }

    /// Returns the stored pages that a group names first; `None` in version 1.
    pub(super) fn new_pages(&self, number: u64) -> Option<NewPages> {
        let seal = self.seals.get(usize::try_from(number).ok()?)?;
        Some(NewPages { first: seal.first_new.into(), count: seal.new_pages })
    }

    /// Returns the number of stored pages that all groups name in version 2.
    pub(super) fn named(&self) -> u64 {
        self.seals.iter().map(|seal| u64::from(seal.new_pages)).sum()
    }

    /// Returns the group that names a stored page first: the last one that starts with it or with one before.
    pub(super) fn naming(&self, stored: u64) -> u64 {
        self.seals.partition_point(|seal| u64::from(seal.first_new) <= stored).saturating_sub(1) as u64
    }
}
