//! LZ4 for memory pages: one page per warp, blocks in the standard format.
//!
//! # Compression
//! The warp holds the page in shared memory, with a hash table of 2,048 entries directly after it.
//!
//! 1. `find` searches the page in windows of 64 positions (32 in [`Mode::Ratio`]), two per lane. Each position looks
//!    its word up in the table and enters itself, verifies its candidate and measures up to 16 bytes. The table sees
//!    nothing of the same window, so lanes also compare with the last offset and, by a shuffle, 16 bytes back: many
//!    pages are arrays of such records. Ratio mode measures two candidates and takes the longer one. Votes and shuffles
//!    choose matches from the left, and the whole warp measures the long ones. All branches are uniform.
//! 2. `encode` turns 32 matches at a time into sequences, one per lane, placed by a prefix sum. The block is built
//!    where the table was. A page whose block would not be shorter is stored raw.
//!
//! # Decompression
//! 1. `chain` finds the starts of the block's sequences with all lanes at once, by walking from 32 guesses until they
//!    agree.
//! 2. `gather` marks the starts of literal runs and matches in a bitmap. Then every lane fetches its own output byte.
//!
//! A block that does not decode to exactly one page gets a status, and its place in the output is not written.
//!
//! # Cost
//! Costs are counted as well as timed: `tests/lz4_costs.txt` has the interpreter's counts for sample pages, and a test
//! compares them. For 768 pages of redis, the interpreter counts 11,981 instructions and 2,053 shared-memory wavefronts
//! per page for the fast compressor ([`TableStores::LowestLaneWins`]). `ncu` on an H200 counts 11,251 and 2,692: ptxas
//! folds copies away, and the hardware spends more on 16-bit accesses than 32 banks of 4 bytes explain. Issue slots and
//! the shared-memory pipe are both about three quarters busy, so both bound the kernel.

mod chain;
mod compress;
mod decompress;
mod encode;
mod find;
mod format;
mod gather;

pub use compress::Lz4WarpCompressKernel;
pub use decompress::Lz4WarpDecompressKernel;

pub use super::packed::{Mode, TableStores};

use super::packed::{CompressParts, DecompressParts, KernelFormat};

/// LZ4 blocks, as the format of a kernel.
///
/// ```
/// use trueno_gpu::kernels::{Kernel, lz4::Lz4, packed::WarpDecompressKernel};
/// assert_eq!(WarpDecompressKernel::<Lz4>::new(1000).name(), "lz4_warp_decompress");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lz4;

impl KernelFormat for Lz4 {
    const COMPRESS: CompressParts = compress::COMPRESS;
    const DECOMPRESS: DecompressParts = decompress::DECOMPRESS;
}

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
