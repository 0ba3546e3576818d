//! The slots that hold compressed pages: size classes, slabs, and the allocator that hands them out within the memory limit.
//!
//! The content of slots, and the entries that name them, are the concern of the store and its table.

pub(crate) mod allocator;
pub(crate) mod budget;
pub(crate) mod free_slabs;
pub(crate) mod geometry;
pub(crate) mod slab;
pub(crate) mod slab_table;
pub(crate) mod spare_slots;
