//! The options that the compressors of all algorithms share.

/// The balance of speed and ratio. Both modes write the algorithm's standard format.
///
/// LZ4 searches windows of 64 positions in fast mode, with about the ratio of C lz4, and of 32 positions in ratio mode,
/// with a better ratio at about 0.8 of the speed. Zstandard looks matches up by four bytes in fast mode, with a better
/// ratio than libzstd's level 3 on most pages, and by four and eight bytes in ratio mode: about 1 % smaller at about
/// 0.92 of the speed.
///
/// ```
/// use trueno_gpu::kernels::packed::Mode;
/// assert_eq!(Mode::default(), Mode::Fast);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Favours speed.
    #[default]
    Fast,
    /// Favours ratio.
    Ratio,
}

/// The rule for which lane's entry stays when several lanes store to the same place in the table.
///
/// The output depends on it, and PTX does not specify it. [`LaneRuleKernel`](crate::kernels::LaneRuleKernel) probes a
/// device. Both choices give the same bytes wherever the lowest lane wins.
///
/// ```
/// use trueno_gpu::kernels::packed::TableStores;
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
