//! Zstandard for memory pages: one page per warp, frames in the standard format.

mod choices;
mod format;
#[cfg(feature = "internals")]
pub mod reference;
