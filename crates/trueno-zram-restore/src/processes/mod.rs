//! Processes that run while their memory is restored, and move, unmap and fork it meanwhile.

mod contents;
mod fill;
mod handler;
mod layout;
mod memory;
mod proof;
mod restore;
mod run_progress;
mod served;
mod streams;

pub use contents::MemoryExtent;
pub use restore::{MissingMemory, ProcessRestore};
