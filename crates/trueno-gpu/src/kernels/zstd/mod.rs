//! Zstandard for memory pages: one page per warp, frames in the standard format (RFC 8878).

pub mod decode;

pub use decode::ZstdWarpDecompressKernel;
