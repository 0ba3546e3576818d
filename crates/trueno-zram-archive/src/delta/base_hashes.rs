//! The page hashes that the base of a delta states.

use crate::error::Result;
use crate::hashes::hash_list::{HashList, MAX_SECTION_LEN, SECTION};
use crate::pages::Pages;

use super::identity::{IDENTITY_LEN, digest};
use super::page_archive::PageArchive;

/// The page hashes that a base states, so that a delta need not have them.
pub(super) struct BaseHashes {
    /// Nobody can make another base with the same digest.
    pub(super) digest: [u8; IDENTITY_LEN],
    /// The hashes of a standard archive. Those of a delta are in its map.
    pub(super) list: Option<HashList>,
}

impl BaseHashes {
    /// Reads the hashes of a base; `None` if it has none.
    pub(super) fn of(base: &PageArchive) -> Result<Option<Self>> {
        let archive = match base {
            PageArchive::Delta(delta) => return Ok(Some(Self { digest: delta.own().hashes_digest()?, list: None })),
            PageArchive::Standard(archive) => archive,
        };
        let Some(section) = archive.section(SECTION, MAX_SECTION_LEN)? else { return Ok(None) };
        let digest = digest(&[&section]);
        let list = Some(HashList::decode_section(section, archive.page_count())?);
        Ok(Some(Self { digest, list }))
    }
}
