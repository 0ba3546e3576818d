//! Hashes of pages and of whole content: computed, stored in a section of the archive, compared and searched.

pub(crate) mod content_hash;
pub(crate) mod hash_check;
pub(crate) mod hash_list;
pub(crate) mod page_finder;
pub(crate) mod page_hash;
pub(crate) mod slot_hasher;
