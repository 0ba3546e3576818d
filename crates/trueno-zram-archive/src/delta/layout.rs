//! The layout of a delta: head, table, record of the base, footer. `docs/FORMAT.md` specifies it.

use crate::error::{Error, Result};
use crate::hashes::content_hash::xxh32;
use crate::hashes::page_hash::PAGE_HASH_LEN;
use crate::index::layout::{GROUP_PAGES, LittleEndianFields, pages_of};

use super::identity::{ArchiveIdentity, IDENTITY_LEN, digest};
use super::map::OriginCounts;

/// The first bytes of the file. No LZ4 or Zstandard file starts with them.
pub(crate) const HEAD_MAGIC: [u8; 8] = *b"\x89TZDELTA";
/// The last bytes of the file.
const FOOTER_MAGIC: [u8; 8] = *b"TZ-DELTA";

pub(crate) const HEAD_LEN: usize = 16;
pub(crate) const FOOTER_LEN: usize = 84;

/// The version of a delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// Every page has a hash in the map.
    One,
    /// Stored pages have a hash in the map, once each. Pages of the base have those that the base states, if there is a base.
    Two,
}

impl Version {
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::One => 1,
            Self::Two => 2,
        }
    }

    fn of_number(number: u32) -> Result<Self> {
        match number {
            1 => Ok(Self::One),
            2 => Ok(Self::Two),
            _ => Err(Error::delta(format!("unknown version {number}; this reader knows versions 1 and 2"))),
        }
    }

    /// Length of a group's record in the table.
    pub(crate) fn record_len(self) -> usize {
        match self {
            Self::One => 8,
            Self::Two => 8 + IDENTITY_LEN,
        }
    }
}

/// The longest map of a group: a run of its own and a hash for every page. A run takes up to 2 bytes for its head and
/// 5 for its origin, since pages have numbers below 2^32.
pub(crate) const MAX_GROUP_LEN: usize = GROUP_PAGES * (2 + 5 + PAGE_HASH_LEN);

/// The most content: 2^32 pages.
pub(crate) const MAX_CONTENT_LEN: u64 = 1 << 44;

/// The longest path of a base, and its longest record: identity, number of pages, digest of its hashes, path.
const MAX_PATH_LEN: usize = 4096;
pub(crate) const MAX_RECORD_LEN: usize = 2 * IDENTITY_LEN + 8 + MAX_PATH_LEN;

/// Returns the first bytes of a delta.
pub(crate) fn head(version: Version) -> [u8; HEAD_LEN] {
    let mut head = [0; HEAD_LEN];
    head[..8].copy_from_slice(&HEAD_MAGIC);
    head[8..12].copy_from_slice(&version.number().to_le_bytes());
    let checksum = xxh32(&head[..12]);
    head[12..].copy_from_slice(&checksum.to_le_bytes());
    head
}

/// Decodes the first bytes of a delta.
pub(crate) fn decode_head(bytes: &[u8; HEAD_LEN]) -> Result<Version> {
    let mut fields = LittleEndianFields(&bytes[HEAD_MAGIC.len()..]);
    let (version, checksum) = (fields.u32(), fields.u32());
    if checksum != xxh32(&bytes[..12]) {
        return Err(Error::delta("its head is damaged"));
    }
    Version::of_number(version)
}

/// The map of a group in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MapRecord {
    pub(crate) len_bytes: u32,
    pub(crate) seal: MapSeal,
}

/// The proof that the map of a group is the one that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapSeal {
    /// Version 1: its XXH32.
    Checksum(u32),
    /// Version 2.
    Hash {
        /// The number of stored pages that it names first.
        new_pages: u32,
        /// The start of its BLAKE3 hash.
        hash: [u8; IDENTITY_LEN],
    },
}

impl MapSeal {
    /// Returns `true` if this is the proof of a map.
    pub(crate) fn is_of(&self, map: &[u8]) -> bool {
        match self {
            Self::Checksum(checksum) => xxh32(map) == *checksum,
            Self::Hash { hash, .. } => digest(&[map]) == *hash,
        }
    }
}

impl MapRecord {
    /// Returns the record of a map. `new_pages` is for version 2.
    pub(crate) fn of(map: &[u8], new_pages: u32, version: Version) -> Self {
        let len_bytes = u32::try_from(map.len()).expect("a group is short");
        let seal = match version {
            Version::One => MapSeal::Checksum(xxh32(map)),
            Version::Two => MapSeal::Hash { new_pages, hash: digest(&[map]) },
        };
        Self { len_bytes, seal }
    }

    pub(crate) fn encode(self, out: &mut Vec<u8>) {
        out.extend(self.len_bytes.to_le_bytes());
        match self.seal {
            MapSeal::Checksum(checksum) => out.extend(checksum.to_le_bytes()),
            MapSeal::Hash { new_pages, hash } => {
                out.extend(new_pages.to_le_bytes());
                out.extend(hash);
            }
        }
    }

    /// Decodes a record of [`Version::record_len`] bytes.
    pub(crate) fn decode(record: &[u8], version: Version) -> Self {
        let mut fields = LittleEndianFields(record);
        let (len_bytes, second) = (fields.u32(), fields.u32());
        let seal = match version {
            Version::One => MapSeal::Checksum(second),
            Version::Two => MapSeal::Hash { new_pages: second, hash: fields.take() },
        };
        Self { len_bytes, seal }
    }
}

/// The archive that a delta needs.
///
/// The path is where it was when the delta was made: relative to the delta's directory, or absolute.
///
/// ```
/// use trueno_zram_archive::{ArchiveIdentity, BaseRecord};
/// let identity = ArchiveIdentity::from_bytes([7; 16]);
/// let base = BaseRecord { identity, page_count: 1000, hashes: None, path: b"monday.lz4".to_vec() };
/// assert_eq!(base.to_string(), "monday.lz4");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseRecord {
    /// Tells the archive from all others.
    pub identity: ArchiveIdentity,
    /// The number of its pages.
    pub page_count: u64,
    /// The digest of the page hashes that it states, as [`PageArchive::record`](crate::PageArchive::record) returns it. With it, the
    /// delta leaves out the hashes of pages that it takes from the base; without, it has the hashes of all pages.
    pub hashes: Option<[u8; 16]>,
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
        bytes.extend(self.hashes.iter().flatten());
        bytes.extend(&self.path);
        Ok(bytes)
    }

    /// Decodes the record of a base; `None` if there is no base, which version 2 allows.
    pub(crate) fn decode(bytes: &[u8], version: Version) -> Result<Option<Self>> {
        if bytes.is_empty() && version == Version::Two {
            return Ok(None);
        }
        let bad = || Error::delta("the record of its base is damaged");
        let (identity, rest) = bytes.split_first_chunk::<IDENTITY_LEN>().ok_or_else(bad)?;
        let (page_count, rest) = rest.split_first_chunk().ok_or_else(bad)?;
        let (hashes, path) = match version {
            Version::One => (None, rest),
            Version::Two => rest.split_first_chunk().map(|(hashes, path)| (Some(*hashes), path)).ok_or_else(bad)?,
        };
        if !(1..=MAX_PATH_LEN).contains(&path.len()) || path.contains(&0) {
            return Err(bad());
        }
        let identity = ArchiveIdentity::from_bytes(*identity);
        Ok(Some(Self { identity, page_count: u64::from_le_bytes(*page_count), hashes, path: path.to_vec() }))
    }

    /// Returns the version of a delta with this base, or without one.
    pub(crate) fn version_for(base: Option<&Self>) -> Version {
        if base.is_some_and(|base| base.hashes.is_none()) { Version::One } else { Version::Two }
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
    pub(crate) version: Version,
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
        bytes.extend(self.version.number().to_le_bytes());
        bytes.extend(xxh32(&bytes).to_le_bytes());
        bytes.extend(FOOTER_MAGIC);
        bytes.try_into().expect("the fields add up to the footer's length")
    }

    /// Decodes the footer of a file of `file_len` bytes, whose head has this version. All lengths are those of the file then.
    pub(crate) fn decode(bytes: &[u8; FOOTER_LEN], version: Version, file_len: u64) -> Result<Self> {
        if !bytes.ends_with(&FOOTER_MAGIC) {
            return Err(Error::delta("it has no footer: the file is cut short, or something follows it"));
        }
        let mut fields = LittleEndianFields(bytes);
        let [content_len, stored_len, map_len, zero, base, stored] = std::array::from_fn(|_| fields.u64());
        let (base_len, digest, own_version) = (fields.u32(), fields.take(), fields.u32());
        if fields.u32() != xxh32(&bytes[..FOOTER_LEN - 12]) {
            return Err(Error::delta("the checksum of its footer is wrong"));
        }
        if Version::of_number(own_version)? != version {
            return Err(Error::delta("its head and its footer have different versions"));
        }
        let counts = OriginCounts { zero, base, stored };
        let footer = Self { version, content_len, stored_len, map_len, counts, base_len, digest };
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
        self.groups() * self.version.record_len() as u64
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
        for (version, record_len) in [(Version::One, 8), (Version::Two, 24)] {
            let footer = DeltaFooter {
                version,
                content_len: 5000 * 4096 - 1,
                stored_len: 123_456,
                map_len: 80_000,
                counts: OriginCounts { zero: 1000, base: 3999, stored: 1 },
                base_len: 40,
                digest: [9; IDENTITY_LEN],
            };
            let file_len = 16 + 123_456 + 80_000 + 5 * record_len + 40 + 84;
            let bytes = footer.encode();
            assert_eq!(DeltaFooter::decode(&bytes, version, file_len).unwrap(), footer);
            assert!(DeltaFooter::decode(&bytes, version, file_len + 1).is_err());
            for at in 0..FOOTER_LEN {
                let mut damaged = bytes;
                damaged[at] ^= 1;
                assert!(DeltaFooter::decode(&damaged, version, file_len).is_err(), "byte {at}");
            }
        }
    }

    #[test]
    fn heads_read_back_and_unknown_versions_are_named() {
        for version in [Version::One, Version::Two] {
            let bytes = head(version);
            assert_eq!(decode_head(&bytes).unwrap(), version);
            for at in 8..HEAD_LEN {
                let mut damaged = bytes;
                damaged[at] ^= 1;
                assert!(decode_head(&damaged).unwrap_err().to_string().ends_with("its head is damaged"), "byte {at}");
            }
        }
        let mut newer = head(Version::Two);
        newer[8] = 3;
        let checksum = xxh32(&newer[..12]);
        newer[12..].copy_from_slice(&checksum.to_le_bytes());
        let error = decode_head(&newer).unwrap_err().to_string();
        assert_eq!(error, "bad delta: unknown version 3; this reader knows versions 1 and 2");
    }

    #[test]
    fn records_of_bases_read_back() {
        for (version, hashes) in [(Version::One, None), (Version::Two, Some([5; 16]))] {
            let identity = ArchiveIdentity::from_bytes([3; IDENTITY_LEN]);
            let base = BaseRecord { identity, page_count: 77, hashes, path: b"../old\xff.lz4".to_vec() };
            assert_eq!(BaseRecord::version_for(Some(&base)), version);
            let bytes = base.encode().unwrap();
            assert_eq!(BaseRecord::decode(&bytes, version).unwrap().as_ref(), Some(&base));
            assert_eq!(base.to_string(), "../old\u{fffd}.lz4");
            for len in 1..=bytes.len() - base.path.len() {
                assert!(BaseRecord::decode(&bytes[..len], version).is_err(), "{len} bytes");
            }
            assert!(BaseRecord { path: vec![b'x'; 5000], ..base.clone() }.encode().is_err());
            assert!(BaseRecord { path: Vec::new(), ..base }.encode().is_err());
            assert!(BaseRecord::decode(&[0; 50], version).is_err(), "a path has no zero bytes");
        }
        assert!(BaseRecord::decode(&[], Version::One).is_err());
        assert_eq!(BaseRecord::decode(&[], Version::Two).unwrap(), None);
    }
}
