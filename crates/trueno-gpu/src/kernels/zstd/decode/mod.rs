//! The Zstandard decompressors.
//!
//! A warp reads the frame from global memory and works in shared memory: one page, with the literals waiting behind its
//! end, and 4 KiB for tables, which hold the Huffman table first and the sequence tables later.
//!
//! - Serial parts run in all lanes alike, so that every branch is uniform: counts of FSE tables, Huffman weights,
//!   states of the sequences.
//! - Everything else uses one lane per stream of literals, table cell, sequence (32 at a time) or output byte.
//! - The effect of a sequence on the three repeated offsets fits one register, and a prefix scan composes the effects
//!   of 32 sequences (`offsets`).
//! - The page is written by gathering, as for LZ4 (`execute`).
//! - Forms that libzstd does not write for a page get the status
//!   [`Unsupported`](crate::kernels::packed::PageStatus::Unsupported). The CPU restores such pages.
//!
//! `groups` restores the same frames in groups of pages, for large batches.

mod checksum;
mod constants;
mod execute;
mod format;
mod frame;
mod fse;
mod groups;
mod header;
mod huffman;
mod kernel;
mod literals;
mod offsets;
mod restore;
mod sequences;
mod weights;

use crate::kernels::packed::PAGE_BYTES;

pub use groups::{ZstdGroupDecompressKernel, ZstdGroupOrderKernel};
pub(super) use kernel::DECOMPRESS;
pub use kernel::ZstdWarpDecompressKernel;
