//! Compression on the CPU: back ends, single pages, batches on all cores.

mod backend;
mod batch;
mod codec;

#[cfg(target_arch = "x86_64")]
pub(crate) use backend::Avx2;
pub use backend::Backend;
pub(crate) use backend::{Scalar, Token};
pub use batch::CpuBatchCompressor;
pub use codec::PageCodec;
