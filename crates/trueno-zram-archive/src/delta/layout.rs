//! The layout of a delta: head, table, record of the base, footer. `docs/FORMAT.md` specifies it.

use crate::error::{Error, Result};
use crate::hashes::content_hash::xxh32;
use crate::hashes::page_hash::PAGE_HASH_LEN;
use crate::index::layout::{GROUP_PAGES, LittleEndianFields, pages_of};

use super::identity::{ArchiveIdentity, IDENTITY_LEN};
use super::map::OriginCounts;

/// The first bytes of the file. No LZ4 or Zstandard file starts with them.
pub(crate) const HEAD_MAGIC: [u8; 8] = *b"\x89TZDELTA";
/// The last bytes of the file.
const FOOTER_MAGIC: [u8; 8] = *b"TZ-DELTA";
const VERSION: u32 = 1;

pub(crate) const HEAD_LEN: usize = 16;
pub(crate) const FOOTER_LEN: usize = 84;
pub(crate) const RECORD_LEN: usize = 8;

/// The longest map of a group: a run of its own and a hash for every page. A run takes up to 2 bytes for its head and
/// 5 for its origin, since pages have numbers below 2^32.
pub(crate) const MAX_GROUP_LEN: usize = GROUP_PAGES * (2 + 5 + PAGE_HASH_LEN);

/// The most content: 2^32 pages.
pub(crate) const MAX_CONTENT_LEN: u64 = 1 << 44;

/// The longest path of a base, and its longest record: identity, number of pages, path.
const MAX_PATH_LEN: usize = 4096;
pub(crate) const MAX_RECORD_LEN: usize = IDENTITY_LEN + 8 + MAX_PATH_LEN;

/// Returns the first bytes of a delta.
pub(crate) fn head() -> [u8; HEAD_LEN] {
    let mut head = [0; HEAD_LEN];
    head[..8].copy_from_slice(&HEAD_MAGIC);
    head[8..12].copy_from_slice(&VERSION.to_le_bytes());
    let checksum = xxh32(&head[..12]);
    head[12..].copy_from_slice(&checksum.to_le_bytes());
    head
}

/// The map of a group in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MapRecord {
    pub(crate) len_bytes: u32,
    pub(crate) checksum: u32,
}

impl MapRecord {
    pub(crate) fn encode(self) -> [u8; RECORD_LEN] {
        let mut record = [0; RECORD_LEN];
        record[..4].copy_from_slice(&self.len_bytes.to_le_bytes());
        record[4..].copy_from_slice(&self.checksum.to_le_bytes());
        record
    }

    pub(crate) fn decode(record: [u8; RECORD_LEN]) -> Self {
        let mut fields = LittleEndianFields(&record);
        Self { len_bytes: fields.u32(), checksum: fields.u32() }
    }
}

/// The archive that a delta needs.
///
/// The path is where it was when the delta was made: relative to the delta's directory, or absolute.
///
/// ```
/// use trueno_zram_archive::{ArchiveIdentity, BaseRecord};
/// let identity = ArchiveIdentity::from_bytes([7; 16]);
/// let base = BaseRecord { identity, page_count: 1000, path: b"monday.lz4".to_vec() };
/// assert_eq!(base.to_string(), "monday.lz4");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseRecord {
    /// Tells the archive from all others.
    pub identity: ArchiveIdentity,
    /// The number of its pages.
    pub page_count: u64,
    /// Its path.
    pub path: Vec<u8>,
}

impl BaseRecord {
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        if !(1..=MAX_PATH_LEN).contains(&self.path.len()) {
            let len = self.path.len();
            return Err(Error::Misuse(format!("the path of a base has 1 to {MAX_PATH_LEN} bytes, not {len}")));
        }
        let mut bytes = self.identity.as_bytes().to_vec();
        bytes.extend(self.page_count.to_le_bytes());
        bytes.extend(&self.path);
        Ok(bytes)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let bad = || Error::delta("the record of its base is damaged");
        let (identity, rest) = bytes.split_first_chunk::<IDENTITY_LEN>().ok_or_else(bad)?;
        let (page_count, path) = rest.split_first_chunk().ok_or_else(bad)?;
        if !(1..=MAX_PATH_LEN).contains(&path.len()) || path.contains(&0) {
            return Err(bad());
        }
        let identity = ArchiveIdentity::from_bytes(*identity);
        Ok(Self { identity, page_count: u64::from_le_bytes(*page_count), path: path.to_vec() })
    }
}

impl std::fmt::Display for BaseRecord {
    /// The path as it is recorded, like `Path::display`. It may hold characters that a terminal would act on.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.path))
    }
}

/// The end of a delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeltaFooter {
    pub(crate) content_len: u64,
    /// Length of the archive of stored pages.
    pub(crate) stored_len: u64,
    /// Length of the maps of all groups.
    pub(crate) map_len: u64,
    pub(crate) counts: OriginCounts,
    /// Length of the record of the base.
    pub(crate) base_len: u32,
    /// The start of the BLAKE3 hash of the table and the record of the base.
    pub(crate) digest: [u8; IDENTITY_LEN],
}

impl DeltaFooter {
    pub(crate) fn encode(&self) -> [u8; FOOTER_LEN] {
        let OriginCounts { zero, base, stored } = self.counts;
        let mut bytes = Vec::with_capacity(FOOTER_LEN);
        for long in [self.content_len, self.stored_len, self.map_len, zero, base, stored] {
            bytes.extend(long.to_le_bytes());
        }
        bytes.extend(self.base_len.to_le_bytes());
        bytes.extend(self.digest);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(xxh32(&bytes).to_le_bytes());
        bytes.extend(FOOTER_MAGIC);
        bytes.try_into().expect("the fields add up to the footer's length")
    }

    /// Decodes the footer of a file of `file_len` bytes. All lengths are those of the file then.
    pub(crate) fn decode(bytes: &[u8; FOOTER_LEN], file_len: u64) -> Result<Self> {
        if !bytes.ends_with(&FOOTER_MAGIC) {
            return Err(Error::delta("it has no footer: the file is cut short, or something follows it"));
        }
        let mut fields = LittleEndianFields(bytes);
        let [content_len, stored_len, map_len, zero, base, stored] = std::array::from_fn(|_| fields.u64());
        let (base_len, digest, version) = (fields.u32(), fields.take(), fields.u32());
        if fields.u32() != xxh32(&bytes[..FOOTER_LEN - 12]) {
            return Err(Error::delta("the checksum of its footer is wrong"));
        }
        if version != VERSION {
            return Err(Error::delta(format!("unknown version {version}; this reader knows version {VERSION}")));
        }
        let counts = OriginCounts { zero, base, stored };
        let footer = Self { content_len, stored_len, map_len, counts, base_len, digest };
        if footer.content_len > MAX_CONTENT_LEN {
            return Err(Error::delta("its content is longer than a delta may hold"));
        }
        if footer.counts.pages() != Some(pages_of(footer.content_len)) {
            return Err(Error::delta("its page counts do not add up to its content"));
        }
        if footer.file_len() != Some(file_len) {
            return Err(Error::delta("its parts do not add up to the length of the file"));
        }
        Ok(footer)
    }

    pub(crate) fn groups(&self) -> u64 {
        pages_of(self.content_len).div_ceil(GROUP_PAGES as u64)
    }

    /// Position of the maps.
    pub(crate) fn map_at(&self) -> u64 {
        HEAD_LEN as u64 + self.stored_len
    }

    /// Position of the table.
    pub(crate) fn table_at(&self) -> u64 {
        self.map_at() + self.map_len
    }

    /// Length of the table.
    pub(crate) fn table_len(&self) -> u64 {
        self.groups() * RECORD_LEN as u64
    }

    fn file_len(&self) -> Option<u64> {
        let parts = [self.stored_len, self.map_len, self.table_len(), u64::from(self.base_len)];
        parts.into_iter().try_fold((HEAD_LEN + FOOTER_LEN) as u64, u64::checked_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_footer_reads_back_and_any_other_byte_is_an_error() {
        let footer = DeltaFooter {
            content_len: 5000 * 4096 - 1,
            stored_len: 123_456,
            map_len: 80_000,
            counts: OriginCounts { zero: 1000, base: 3999, stored: 1 },
            base_len: 40,
            digest: [9; IDENTITY_LEN],
        };
        let file_len = 16 + 123_456 + 80_000 + 5 * 8 + 40 + 84;
        let bytes = footer.encode();
        assert_eq!(DeltaFooter::decode(&bytes, file_len).unwrap(), footer);
        assert!(DeltaFooter::decode(&bytes, file_len + 1).is_err());
        for at in 0..FOOTER_LEN {
            let mut damaged = bytes;
            damaged[at] ^= 1;
            assert!(DeltaFooter::decode(&damaged, file_len).is_err(), "byte {at}");
        }
    }

    #[test]
    fn records_of_bases_read_back() {
        let base = BaseRecord {
            identity: ArchiveIdentity::from_bytes([3; IDENTITY_LEN]),
            page_count: 77,
            path: b"../old\xff.lz4".to_vec(),
        };
        let bytes = base.encode().unwrap();
        assert_eq!(BaseRecord::decode(&bytes).unwrap(), base);
        assert_eq!(base.to_string(), "../old\u{fffd}.lz4");
        for len in 0..25 {
            assert!(BaseRecord::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
        assert!(BaseRecord { path: vec![b'x'; 5000], ..base.clone() }.encode().is_err());
        assert!(BaseRecord { path: Vec::new(), ..base }.encode().is_err());
        assert!(BaseRecord::decode(&[0; 30]).is_err(), "a path has no zero bytes");
    }
}
