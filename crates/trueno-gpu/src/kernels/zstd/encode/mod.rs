//! The compressor: finds sequences, codes literals and sequences, and writes one frame per page.

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

use super::TableStores;
pub use compress::ZstdWarpCompressKernel;
