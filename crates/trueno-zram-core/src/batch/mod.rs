//! Where GPU and CPU meet: batches on the one with the other behind it, and on whichever is faster.

mod adaptive;
mod chooser;
mod gpu;
mod options;
mod pinned;
mod resident;
mod result;
mod stats;
mod stream;
#[cfg(test)]
mod tests;

pub use adaptive::BatchCompressor;
pub use chooser::{Chooser, Placement};
pub use gpu::GpuBatchCompressor;
pub use options::GpuOptions;
pub use result::{BatchResult, BatchTimes, RestoredBatch};
pub use stats::{FallbackStats, GpuBatchStats};
pub use stream::{
    CompressStream, CompressedSlot, DecompressStream, PackedSlot, PageSlot, PageStream, RestoredSlot, SlotStream,
};
