//! LZ4 for memory pages: one page a warp, blocks in the standard format.

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

/// The balance of speed and ratio. Both give standard blocks.
///
/// ```
/// use trueno_gpu::kernels::lz4::Mode;
/// assert_eq!(Mode::default(), Mode::Fast);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Windows of 64 positions, two a lane: about C lz4's ratio.
    #[default]
    Fast,
    /// Windows of 32 positions, one a lane: a better ratio at about 0.8 of the speed.
    Ratio,
}

impl Mode {
    const fn positions_per_lane(self) -> u32 {
        match self {
            Self::Fast => 2,
            Self::Ratio => 1,
        }
    }

    /// Positions that a warp looks at together.
    const fn window(self) -> u32 {
        32 * self.positions_per_lane()
    }
}

/// What decides which lane's entry stays when several lanes store to one place of the table.
///
/// The output depends on it, and PTX leaves it open. Both give the same bytes wherever the lowest lane wins.
///
/// ```
/// use trueno_gpu::kernels::lz4::TableStores;
/// assert_eq!(TableStores::default(), TableStores::ReadBack);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TableStores {
    /// Entries are read back and stored again until the highest position stands: the same bytes on every GPU.
    #[default]
    ReadBack,
    /// The hardware is trusted to let the lowest lane win, as an H200 does: faster, for devices where a probe has
    /// shown it.
    LowestLaneWins,
}
