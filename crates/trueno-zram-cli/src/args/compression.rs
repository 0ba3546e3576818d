//! The algorithm and the level of commands that write archives: `compress`, `snapshot`, `flatten`, `criu compress`.

use clap::ValueEnum;
use trueno_gpu::kernels::lz4::Mode;
use trueno_zram_archive::Format;
use trueno_zram_core::Algorithm;

use crate::failure::Failure;

/// The level of `zstd` unless the user gives one: that of the `zstd` command.
const DEFAULT_ZSTD_LEVEL: i32 = 3;

/// The highest level of `lz4`, as of the `lz4` command.
const MAX_LZ4_LEVEL: i32 = 9;

/// The format of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum AlgorithmName {
    /// Standard .lz4 files: fast in both directions.
    #[default]
    Lz4,
    /// Standard .zst files: about two thirds of the size, several times the work on the CPU, about as fast as lz4 on a GPU,
    /// where the bus is the limit.
    Zstd,
}

/// The algorithm and the level.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct CompressionArgs {
    /// The format to write.
    #[arg(long, value_enum, default_value_t, value_name = "ALGORITHM")]
    pub(crate) algorithm: AlgorithmName,
    /// The level, also written -1 to -22. For lz4 up to 9: the GPU is faster at 1 and 2 (the default) and compresses better
    /// from 3 on; the CPU has one encoder, which all levels use. For zstd (default 3): the CPU uses the level of libzstd;
    /// the GPU has a fast mode up to 3 and compresses better up to 9; higher levels run on the CPU.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=22))]
    pub(crate) level: Option<i32>,
}

impl CompressionArgs {
    /// The format of the archive.
    pub(crate) fn format(self) -> Format {
        match self.algorithm {
            AlgorithmName::Lz4 => Format::Lz4,
            AlgorithmName::Zstd => Format::Zstd,
        }
    }

    /// The codec's algorithm.
    pub(crate) fn algorithm(self) -> Result<Algorithm, Failure> {
        match (self.algorithm, self.level) {
            (AlgorithmName::Lz4, Some(level)) if level > MAX_LZ4_LEVEL => Err(Failure::usage(format!(
                "the levels of lz4 are 1 to {MAX_LZ4_LEVEL}, not {level}; zstd has more: --algorithm zstd"
            ))),
            (AlgorithmName::Lz4, _) => Ok(Algorithm::Lz4),
            (AlgorithmName::Zstd, level) => Ok(Algorithm::Zstd { level: level.unwrap_or(DEFAULT_ZSTD_LEVEL) }),
        }
    }

    /// The mode of the GPU's kernel for LZ4. `lz4` too has fast compression at 1 and 2, and searches longer from 3 on. For
    /// Zstandard, the level decides.
    pub(crate) fn mode(self) -> Mode {
        match self.algorithm {
            AlgorithmName::Lz4 if self.level.is_some_and(|level| level > 2) => Mode::Ratio,
            _ => Mode::Fast,
        }
    }
}

/// The algorithm whose kernels restore archives of this format. The level plays no part.
pub(crate) fn decoding(format: Format) -> Algorithm {
    match format {
        Format::Lz4 => Algorithm::Lz4,
        Format::Zstd => Algorithm::Zstd { level: DEFAULT_ZSTD_LEVEL },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_those_of_the_algorithm() {
        let of = |algorithm, level| CompressionArgs { algorithm, level };
        assert_eq!(of(AlgorithmName::Lz4, None).algorithm().unwrap(), Algorithm::Lz4);
        assert_eq!(of(AlgorithmName::Lz4, Some(9)).algorithm().unwrap(), Algorithm::Lz4);
        assert!(matches!(of(AlgorithmName::Lz4, Some(10)).algorithm(), Err(Failure::Usage(_))));
        assert_eq!(of(AlgorithmName::Zstd, None).algorithm().unwrap(), Algorithm::Zstd { level: 3 });
        assert_eq!(of(AlgorithmName::Zstd, Some(19)).algorithm().unwrap(), Algorithm::Zstd { level: 19 });
        assert_eq!(of(AlgorithmName::Lz4, Some(3)).mode(), Mode::Ratio);
        assert_eq!(of(AlgorithmName::Lz4, Some(2)).mode(), Mode::Fast);
    }
}
