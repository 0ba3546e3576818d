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

use super::{Mode, TableStores};
pub use compress::ZstdWarpCompressKernel;

impl Mode {
    /// Each table has 2 to this power entries.
    const fn hash_bits(self) -> u32 {
        match self {
            Self::Fast => choices::HASH_BITS,
            Self::Ratio => choices::HASH_BITS - 1,
        }
    }
}
