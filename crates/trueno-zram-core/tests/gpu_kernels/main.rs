//! The kernels on a real device: `cargo test --release --test gpu_kernels -- --ignored`.
//!
//! Run with `--ignored` on a machine without a GPU, these tests fail: a pass always means that a device ran them. Tests
//! that are not ignored need no device.
#![allow(clippy::unwrap_used)]

mod compress;
mod decompress;
mod harness;
mod instructions;
// The kernels' reference: the interpreter, as the kernels' own tests run it.
#[allow(dead_code, unused_imports)]
#[path = "../../../trueno-gpu/tests/support/zstd.rs"]
mod frames;
#[allow(dead_code)]
#[path = "../../../trueno-gpu/tests/support/lz4.rs"]
mod interpreter;
mod no_leak;
#[allow(dead_code)]
#[path = "../../../trueno-gpu/tests/support/reaching.rs"]
mod reaching;
mod zstd_decompress;
mod zstd_groups;
