//! The algorithm and the level of commands that write archives: `compress`, `snapshot`, `flatten`, `criu compress`.

use std::env;
use std::ffi::OsStr;

use clap::ValueEnum;
use trueno_gpu::kernels::lz4::Mode;
use trueno_zram_archive::Format;
use trueno_zram_core::Algorithm;

use crate::failure::Failure;

/// The level of `zstd` unless the user gives one: that of the `zstd` command.
const DEFAULT_ZSTD_LEVEL: i32 = 3;

/// The highest levels: those of the `lz4` and `zstd` commands.
const MAX_LZ4_LEVEL: i32 = 12;
const MAX_ZSTD_LEVEL: i32 = 22;

/// The level of `--best` for `zstd`, unless `--ultra` was given: those above take much more time and memory.
const BEST_ZSTD_LEVEL: i32 = 19;

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
    #[arg(long, visible_alias = "format", value_enum, default_value_t, value_name = "ALGORITHM")]
    algorithm: AlgorithmName,
    /// The same as --algorithm zstd.
    #[arg(long, conflicts_with = "algorithm")]
    zstd: bool,
    /// The level, also written -1 to -22. For lz4 up to 12: the GPU is faster at 1 and 2 (the default) and compresses better
    /// from 3 on; the CPU has one encoder, which all levels use. For zstd (default 3): the CPU uses the level of libzstd;
    /// the GPU has a fast mode up to 3 and compresses better up to 9; higher levels run on the CPU. The environment variables
    /// LZ4_CLEVEL and ZSTD_CLEVEL set the default, as for lz4 and zstd.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=22), overrides_with_all = ["fast", "best"])]
    level: Option<i32>,
    /// Less compression than at level 1, as with zstd, where levels go on below 0: --fast=5 is level -5. For lz4, level 1.
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    #[arg(value_parser = clap::value_parser!(i32).range(1..=131_072), overrides_with_all = ["level", "best"])]
    fast: Option<i32>,
    /// The highest level: 12 for lz4; 19 for zstd, 22 with --ultra.
    #[arg(long, overrides_with_all = ["level", "fast"])]
    best: bool,
    /// Let --best reach the levels of zstd above 19. They can be given as numbers without it.
    #[arg(long)]
    ultra: bool,
}

impl CompressionArgs {
    /// The format of the archive.
    pub(crate) fn format(self) -> Format {
        match self.name() {
            AlgorithmName::Lz4 => Format::Lz4,
            AlgorithmName::Zstd => Format::Zstd,
        }
    }

    fn name(self) -> AlgorithmName {
        if self.zstd { AlgorithmName::Zstd } else { self.algorithm }
    }

    /// The codec's algorithm.
    pub(crate) fn algorithm(self) -> Result<Algorithm, Failure> {
        let level = self.level();
        match self.name() {
            AlgorithmName::Lz4 if self.ultra => {
                Err(Failure::usage("--ultra is for zstd: give --zstd, or --best alone"))
            }
            AlgorithmName::Lz4 => match level {
                Some(level) if level > MAX_LZ4_LEVEL => Err(Failure::usage(format!(
                    "the levels of lz4 are 1 to {MAX_LZ4_LEVEL}, not {level}; zstd has more: --zstd"
                ))),
                _ => Ok(Algorithm::Lz4),
            },
            AlgorithmName::Zstd => Ok(Algorithm::Zstd { level: level.unwrap_or(DEFAULT_ZSTD_LEVEL) }),
        }
    }

    /// The mode of the GPU's kernel for LZ4. `lz4` too has fast compression at 1 and 2, and searches longer from 3 on. For
    /// Zstandard, the level decides.
    pub(crate) fn mode(self) -> Mode {
        let searches_longer = self.level().is_some_and(|level| level > 2);
        if self.name() == AlgorithmName::Lz4 && searches_longer { Mode::Ratio } else { Mode::Fast }
    }

    /// The level that an option or the environment sets.
    fn level(self) -> Option<i32> {
        let zstd = self.name() == AlgorithmName::Zstd;
        match (self.fast, self.best, self.level) {
            (Some(steps), ..) => Some(if zstd { -steps } else { 1 }),
            (None, true, _) if self.ultra => Some(MAX_ZSTD_LEVEL),
            (None, true, _) => Some(if zstd { BEST_ZSTD_LEVEL } else { MAX_LZ4_LEVEL }),
            (None, false, Some(level)) => Some(level),
            // One that is no level is ignored.
            (None, false, None) => self.level_of_environment().unwrap_or(None),
        }
    }

    /// Returns a warning if the environment variable that sets the default level is ignored.
    pub(crate) fn environment_warning(self) -> Option<String> {
        self.level_of_environment().err()
    }

    fn level_of_environment(self) -> Result<Option<i32>, String> {
        let variable = if self.name() == AlgorithmName::Zstd { "ZSTD_CLEVEL" } else { "LZ4_CLEVEL" };
        env::var_os(variable).map_or(Ok(None), |value| parse_level(variable, &value))
    }
}

/// Parses a level from the environment. As for `lz4` and `zstd`, one beyond the range is the nearest within it. Zero and nothing
/// leave the default.
fn parse_level(variable: &str, value: &OsStr) -> Result<Option<i32>, String> {
    if value.is_empty() {
        return Ok(None);
    }
    let level = value.to_str().and_then(|text| text.parse::<i32>().ok());
    let level = level.ok_or_else(|| {
        format!("warning: the environment variable {variable} is ignored: {:?} is no level", value.to_string_lossy())
    })?;
    let (min, max) = if variable == "ZSTD_CLEVEL" { (-131_072, BEST_ZSTD_LEVEL) } else { (1, MAX_LZ4_LEVEL) };
    Ok((level != 0).then(|| level.clamp(min, max)))
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

    const LZ4: CompressionArgs = CompressionArgs {
        algorithm: AlgorithmName::Lz4,
        zstd: false,
        level: None,
        fast: None,
        best: false,
        ultra: false,
    };
    const ZSTD: CompressionArgs = CompressionArgs { zstd: true, ..LZ4 };

    fn level(args: CompressionArgs) -> i32 {
        match args.algorithm().unwrap() {
            Algorithm::Zstd { level } => level,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn levels_are_those_of_the_algorithm() {
        assert_eq!(LZ4.algorithm().unwrap(), Algorithm::Lz4);
        assert_eq!(CompressionArgs { level: Some(12), ..LZ4 }.algorithm().unwrap(), Algorithm::Lz4);
        assert!(matches!(CompressionArgs { level: Some(13), ..LZ4 }.algorithm(), Err(Failure::Usage(_))));
        assert_eq!(level(ZSTD), 3);
        assert_eq!(level(CompressionArgs { algorithm: AlgorithmName::Zstd, ..LZ4 }), 3);
        assert_eq!(level(CompressionArgs { level: Some(19), ..ZSTD }), 19);
        assert_eq!(CompressionArgs { level: Some(3), ..LZ4 }.mode(), Mode::Ratio);
        assert_eq!(CompressionArgs { level: Some(2), ..LZ4 }.mode(), Mode::Fast);
    }

    #[test]
    fn fast_and_best_are_the_ends_of_the_range() {
        assert_eq!(level(CompressionArgs { fast: Some(5), ..ZSTD }), -5);
        assert_eq!(CompressionArgs { fast: Some(5), ..LZ4 }.mode(), Mode::Fast);
        assert_eq!(level(CompressionArgs { best: true, ..ZSTD }), 19);
        assert_eq!(level(CompressionArgs { best: true, ultra: true, ..ZSTD }), 22);
        assert_eq!(CompressionArgs { best: true, ..LZ4 }.mode(), Mode::Ratio);
        assert!(matches!(CompressionArgs { ultra: true, ..LZ4 }.algorithm(), Err(Failure::Usage(_))));
    }

    #[test]
    fn the_environment_is_read_as_by_lz4_and_zstd() {
        let of = |variable, value: &str| parse_level(variable, OsStr::new(value));
        for (variable, value, level) in [
            ("ZSTD_CLEVEL", "7", Some(7)),
            ("ZSTD_CLEVEL", "-5", Some(-5)),
            ("ZSTD_CLEVEL", "+4", Some(4)),
            ("ZSTD_CLEVEL", "25", Some(19)),
            ("ZSTD_CLEVEL", "0", None),
            ("ZSTD_CLEVEL", "", None),
            ("LZ4_CLEVEL", "9", Some(9)),
            ("LZ4_CLEVEL", "99", Some(12)),
            ("LZ4_CLEVEL", "-3", Some(1)),
        ] {
            assert_eq!(of(variable, value).unwrap(), level, "{variable}={value}");
        }
        assert!(of("ZSTD_CLEVEL", "high").unwrap_err().contains("ZSTD_CLEVEL"));
    }
}
