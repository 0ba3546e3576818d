//! Compression on the CPU: instruction sets, single pages, batches on all cores.
//!
//! ```
//! use trueno_zram_core::{Algorithm, PAGE_SIZE, cpu};
//! let mut compressor = cpu::CpuBatchCompressor::new(Algorithm::Lz4)?;
//! let batch = compressor.compress(&[[0; PAGE_SIZE]; 64])?;
//! println!("{:.0} : 1 with {}", batch.stats().ratio(), cpu::InstructionSet::detect());
//! # Ok::<(), trueno_zram_core::Error>(())
//! ```

mod cpu_batch_compressor;
mod instruction_set;
mod page_codec;
#[cfg_attr(not(feature = "zstd"), path = "zstd_absent.rs")]
mod zstd;

pub use cpu_batch_compressor::CpuBatchCompressor;
#[cfg(target_arch = "x86_64")]
pub(crate) use instruction_set::Avx2;
pub use instruction_set::InstructionSet;
pub(crate) use instruction_set::{Scalar, Token};
pub use page_codec::{PageCodec, restore_page};
