//! LZ4 for memory pages: one page per warp, blocks in the standard format.

mod chain;
mod compress;
mod decompress;
mod encode;
mod find;
mod format;
mod gather;
mod interpret;

pub use compress::Lz4WarpCompressKernel;
pub use decompress::Lz4WarpDecompressKernel;

pub use super::packed::{Mode, TableStores};

impl Mode {
    const fn positions_per_lane(self) -> u32 {
        match self {
            Self::Fast => 2,
            Self::Ratio => 1,
        }
    }

    /// Returns the number of positions that a warp searches together.
    const fn window(self) -> u32 {
        32 * self.positions_per_lane()
    }
}
