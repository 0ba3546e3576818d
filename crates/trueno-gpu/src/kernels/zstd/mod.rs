//! Zstandard for memory pages: one page per warp, frames in the standard format (RFC 8878).

mod decode;
mod encode;

pub use super::packed::{Mode, TableStores};
pub use decode::{ZstdGroupDecompressKernel, ZstdGroupOrderKernel, ZstdWarpDecompressKernel};
pub use encode::ZstdWarpCompressKernel;
