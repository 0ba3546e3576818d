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

/// The balance of speed and ratio. Both give standard frames.
///
/// ```
/// use trueno_gpu::kernels::zstd::Mode;
/// assert_eq!(Mode::default(), Mode::Fast);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Matches are looked up by four bytes: a better ratio than libzstd's level 3 on most pages.
    #[default]
    Fast,
    /// Matches are looked up by four and by eight bytes: about 1 % smaller, at about 0.92 of the speed.
    Ratio,
}

impl Mode {
    /// Each table has 2 to this power entries.
    const fn hash_bits(self) -> u32 {
        match self {
            Self::Fast => choices::HASH_BITS,
            Self::Ratio => choices::HASH_BITS - 1,
        }
    }
}
