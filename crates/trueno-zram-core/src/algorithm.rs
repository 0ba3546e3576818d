//! The compression algorithms.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// The algorithm that compresses pages.
///
/// Same-filled pages are detected first with every algorithm, and pages that would not shrink are held raw.
///
/// ```
/// use trueno_zram_core::Algorithm;
/// assert_eq!("zstd:3".parse(), Ok(Algorithm::Zstd { level: 3 }));
/// assert_eq!(Algorithm::default(), Algorithm::Lz4);
/// assert_eq!(Algorithm::Zstd { level: 1 }.to_string(), "zstd:1");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// No compression: a page is held raw unless it is same-filled.
    None,
    /// The LZ4 block format: fast in both directions.
    #[default]
    Lz4,
    /// One Zstandard frame per page: a better ratio at several times the cost.
    Zstd {
        /// From -131072 (fastest) to 22 (smallest). Levels 1 to 3 suit pages.
        ///
        /// On the CPU this is libzstd's level. On a GPU, levels up to 3 use the kernel's fast mode and levels 4 to 9 its
        /// ratio mode, which reach ratios between those of libzstd's levels 3 and 9. Higher levels run on the CPU.
        level: i32,
    },
}

impl Algorithm {
    /// The level of `"zstd"` without a number.
    const DEFAULT_ZSTD_LEVEL: i32 = 1;
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Lz4 => f.write_str("lz4"),
            Self::Zstd { level } => write!(f, "zstd:{level}"),
        }
    }
}

impl FromStr for Algorithm {
    type Err = Error;

    /// Parses `none`, `lz4`, `zstd` or `zstd:LEVEL`.
    fn from_str(name: &str) -> Result<Self> {
        match name {
            "none" => Ok(Self::None),
            "lz4" => Ok(Self::Lz4),
            "zstd" => Ok(Self::Zstd { level: Self::DEFAULT_ZSTD_LEVEL }),
            _ => name
                .strip_prefix("zstd:")
                .and_then(|level| level.parse().ok())
                .map(|level| Self::Zstd { level })
                .ok_or_else(|| Error::UnknownAlgorithm { name: name.to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_and_from_str_round_trip() {
        for algorithm in [Algorithm::None, Algorithm::Lz4, Algorithm::Zstd { level: 1 }, Algorithm::Zstd { level: -7 }]
        {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
        }
    }

    #[test]
    fn rejects_unknown_names_and_non_numeric_levels() {
        for name in ["", "LZ4", "zstd:", "zstd:fast", "lzo"] {
            assert_eq!(name.parse::<Algorithm>(), Err(Error::UnknownAlgorithm { name: name.to_owned() }));
        }
    }
}
