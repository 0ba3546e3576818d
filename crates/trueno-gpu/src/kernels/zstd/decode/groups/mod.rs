//! Restores pages from Zstandard frames in groups: serial parts with one page per lane, parallel parts with one page
//! per warp.
//!
//! The states of a frame's sequences follow from each other, bit by bit. A warp that walks them for one page does the
//! same work in all lanes; here it walks up to 32 pages at once. A block takes a group of pages through three stages:
//!
//! 1. Its first warp walks the sequences, one page per lane, and leaves a record of each in the block's scratch memory.
//!    The second warp does the same for the weights of Huffman trees.
//! 2. All warps draw pages of the group. A warp decodes the literals of its page and executes the records.
//! 3. Pages that the first two stages leave (more or larger tables, malformed frames) are restored from the start by
//!    one warp per page, which also decides the status of a refused frame.
//!
//! The stages of different blocks overlap on a multiprocessor, so that the few lanes of the first stage cost little. A
//! lane that is done waits for the one with most sequences, so a small kernel orders the pages of the batch by that
//! number first.
//!
//! This is worth it from 20 pages per block that the device holds: 18,480 pages on an H200.

mod frame;
mod group;
mod interpret;
mod kernel;
mod lookup;
mod order;
mod parse;
mod restore_prepared;
mod ring;
mod tables;
mod walk;
mod weights;

pub use kernel::ZstdGroupDecompressKernel;
pub use order::ZstdGroupOrderKernel;
