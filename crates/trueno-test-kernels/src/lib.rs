//! Test material for GPU kernels: slow twins in plain Rust, and small kernels with known results.
//!
//! - [`zstd_compress`] makes exactly the frames that the Zstandard compression kernel makes.
//! - [`zstd_restore`] restores exactly the frames that the Zstandard decompression kernels restore.
//! - [`suite`] has a kernel with a known result for each instruction, for the interpreter and for real devices.
//!
//! Nothing here is part of the product. The constants of the Zstandard format and of the encoder are the kernels' own
//! source files.
#![forbid(unsafe_code)]

/// Bytes of a page, as the kernels count them.
const PAGE_BYTES: u32 = 4096;

#[path = "../../trueno-gpu/src/interp/tests/ir_builder.rs"]
mod ir_builder;
pub mod suite;
pub mod zstd_compress;
pub mod zstd_restore;
