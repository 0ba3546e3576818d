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

/// The balance of speed and ratio. Both modes write standard blocks.
///
/// ```
/// use trueno_gpu::kernels::lz4::Mode;
/// assert_eq!(Mode::default(), Mode::Fast);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Windows of 64 positions, two per lane, with about the ratio of C lz4.
    #[default]
    Fast,
    /// Windows of 32 positions, one per lane, with a better ratio at about 0.8 of the speed.
    Ratio,
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

/// How the kernel decides which lane's entry stays when several lanes store to the same place in the table.
///
/// The output depends on it, and PTX does not specify it. Both choices give the same bytes wherever the lowest lane
/// wins.
///
/// ```
/// use trueno_gpu::kernels::lz4::TableStores;
/// assert_eq!(TableStores::default(), TableStores::ReadBack);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TableStores {
    /// Reads entries back and stores them again until the highest position is stored. Gives the same bytes on every
    /// GPU.
    #[default]
    ReadBack,
    /// Relies on the hardware to let the lowest lane win, as an H200 does. Faster; only for devices where a probe
    /// confirmed it.
    LowestLaneWins,
}
