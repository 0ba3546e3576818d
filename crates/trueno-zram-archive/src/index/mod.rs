//! The index of an archive: its layout, and how it is built, read and kept in memory. `docs/FORMAT.md` specifies it.

pub(crate) mod blocks;
pub(crate) mod builder;
pub(crate) mod entry;
pub(crate) mod layout;
pub(crate) mod resident;
pub(crate) mod sections;
pub(crate) mod table;
