//! Restores pages from Zstandard frames, one page per warp.

mod format;
#[cfg(feature = "internals")]
pub mod reference;
