//! Zstandard for memory pages: one page per warp, frames in the standard format (RFC 8878).

mod decode;

#[cfg(feature = "internals")]
pub use decode::reference;
