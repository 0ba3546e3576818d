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
mod sequences;

use super::{Mode, TableStores};
use crate::kernels::packed::PAGE_BYTES;
pub use compress::ZstdWarpCompressKernel;
