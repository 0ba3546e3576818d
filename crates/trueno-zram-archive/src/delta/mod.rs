//! Deltas: archives that store only the pages in which an image differs from another archive, its base, and equal pages once.
//!
//! A delta without a base stores all pages of its image.
//!
//! A delta is a file of its own kind, so that LZ4 and Zstandard tools refuse it instead of restoring other content. It holds
//! a standard archive of the pages that are stored, each once, and a map with the origin and the hash of every page
//! of the image.

mod base_hashes;
pub(crate) mod chain_location;
pub(crate) mod file;
pub(crate) mod identity;
pub(crate) mod layout;
pub(crate) mod map;
mod map_table;
pub(crate) mod open;
pub(crate) mod page_archive;
pub(crate) mod part;
pub(crate) mod reader;
pub(crate) mod stored_pages;
pub(crate) mod writer;

pub use file::DeltaFile;
pub use identity::ArchiveIdentity;
pub use layout::BaseRecord;
pub use map::{OriginCounts, PageOrigin};
pub use page_archive::PageArchive;
pub use part::DeltaPart;
pub use reader::Delta;
pub use stored_pages::{StoredPages, StoredPagesReader};
pub use writer::{DeltaSummary, DeltaWriter};
