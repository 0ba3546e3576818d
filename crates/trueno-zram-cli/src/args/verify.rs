//! `--verify`: the part of an archive that is proven before its pages are used.

use clap::ValueEnum;
use trueno_zram_archive::Verify;

/// The part of an archive that is compared with its index before a page is used. Damage to the page itself is found by each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum VerifyPolicy {
    /// The page's entry and its block; the rest of its group follows in the background. `group` without block checksums.
    Touched,
    /// All blocks of the page's group of 4 MiB, and of the groups before it up to 16 MiB of the file.
    Group,
    /// All blocks of the page's group, and of all groups before it.
    All,
}

impl From<VerifyPolicy> for Verify {
    fn from(policy: VerifyPolicy) -> Self {
        match policy {
            VerifyPolicy::Touched => Self::Touched,
            VerifyPolicy::Group => Self::Group,
            VerifyPolicy::All => Self::All,
        }
    }
}
