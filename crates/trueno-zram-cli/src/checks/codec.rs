//! What is checked: anything that makes blocks of pages, and pages of blocks.

use trueno_zram_core::{CompressedBatch, Page};

/// A codec under test. Errors are those of the codec as a whole, in words.
pub(crate) trait Codec {
    /// Compresses pages.
    fn compress(&mut self, pages: &[Page]) -> Result<CompressedBatch, String>;

    /// Restores pages; none for a block that it refuses.
    fn decompress(&mut self, batch: &CompressedBatch) -> Result<Vec<Option<Page>>, String>;
}
