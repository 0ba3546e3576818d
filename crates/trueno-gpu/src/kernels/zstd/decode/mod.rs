//! Restores pages from Zstandard frames, one page per warp.
//!
//! A warp reads the frame from global memory and works in shared memory: one page, with the literals waiting at its
//! end, and 4 KiB for tables, which hold the Huffman table first and the sequence tables later. Serial parts (counts,
//! weights, states) run in all lanes alike, so that every branch is uniform. Everything else uses one lane per stream,
//! table cell, sequence or output byte.

mod checksum;
mod constants;
mod execute;
mod format;
mod frame;
mod fse;
mod header;
mod huffman;
mod interpret;
mod kernel;
mod literals;
mod offsets;
mod restore;
mod sequences;
mod split;
mod weights;

use crate::kernels::packed::PAGE_BYTES;

pub use kernel::ZstdWarpDecompressKernel;
pub use split::{ZstdGroupDecompressKernel, ZstdGroupOrderKernel};
