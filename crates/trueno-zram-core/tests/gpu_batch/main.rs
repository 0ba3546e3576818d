//! Batches through a real GPU: `cargo test --release --test gpu_batch -- --ignored`.
//!
//! Asked for on a machine without a GPU these tests fail: a pass always means that a device ran them. Each has the device
//! to itself. `TRUENO_SOAK_SECONDS` says how long `soak` runs (600 if it says nothing).
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
