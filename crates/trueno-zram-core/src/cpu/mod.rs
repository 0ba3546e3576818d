//! Compression on the CPU: back ends, single pages, batches on all cores.
//!
//! ```
//! use trueno_zram_core::{Algorithm, PAGE_SIZE, cpu};
//! let mut compressor = cpu::CpuBatchCompressor::new(Algorithm::Lz4)?;
//! let batch = compressor.compress(&[[0; PAGE_SIZE]; 64])?;
//! println!("{:.0} : 1 with {}", batch.stats().ratio(), cpu::Backend::detect());
//! # Ok::<(), trueno_zram_core::Error>(())
//! ```

mod backend;
mod batch;
mod codec;

#[cfg(target_arch = "x86_64")]
pub(crate) use backend::Avx2;
pub use backend::Backend;
pub(crate) use backend::{Scalar, Token};
pub use batch::CpuBatchCompressor;
pub use codec::PageCodec;
