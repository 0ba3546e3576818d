//! Zstandard for memory pages: one page per warp, frames in the standard format.

mod bits;
mod choices;
mod codes;
mod compress;
mod find;
mod format;
mod frame;
mod fse;
mod huffman;
mod interpret;
mod literals;
mod record;
#[cfg(feature = "internals")]
pub mod reference;
mod sequences;

pub use super::lz4::TableStores;
pub use compress::ZstdWarpCompressKernel;
