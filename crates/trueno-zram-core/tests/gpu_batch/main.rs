//! Batches through a real GPU: `cargo test --release --test gpu_batch -- --ignored`.
//!
//! Run with `--ignored` on a machine without a GPU, these tests fail: a pass always means that a device ran them. Each
//! test has the device to itself. `TRUENO_SOAK_SECONDS` sets how long `soak` runs (default 600).
#![allow(clippy::unwrap_used)]

mod bounds;
mod corrupt;
mod faults;
mod forms;
mod harness;
#[path = "../support/ptx.rs"]
mod ptx;
mod sharing;
mod snippets;
mod soak;
mod stream;
