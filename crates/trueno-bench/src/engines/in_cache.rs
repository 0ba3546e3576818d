//! A codec alone: one page at a time on one thread, in batches that fit into the cache.

use std::hint::black_box;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use trueno_zram_core::{PAGE_SIZE, Page};

use super::codec::{BLOCK_BOUND, Block, BlockCodec};
use crate::engine::Engine;
use crate::error::Result;

/// Pages of a batch: their blocks fit into the second cache of every CPU that matters, and a batch takes several times as long as
/// looking at the clock.
pub(crate) const BATCH_PAGES: usize = 32;

/// Encodes every page into a place of its own, and decodes every block into one page. Times are those that the thread has run, so
/// other programs do not count.
pub(crate) struct InCache {
    name: String,
    encoder: Box<dyn BlockCodec>,
    /// `None` if the encoder decodes, too.
    decoder: Option<Box<dyn BlockCodec>>,
    blocks: Vec<Block>,
    lens: Vec<usize>,
}

impl InCache {
    pub(crate) fn new(codec: Box<dyn BlockCodec>) -> Self {
        Self { name: codec.name(), encoder: codec, decoder: None, blocks: Vec::new(), lens: Vec::new() }
    }

    /// One codec's decoder on another's blocks.
    pub(crate) fn on_blocks_of(encoder: Box<dyn BlockCodec>, decoder: Box<dyn BlockCodec>) -> Self {
        let name = format!("{} of {}", decoder.name(), encoder.name());
        Self { name, decoder: Some(decoder), ..Self::new(encoder) }
    }

    fn decode(&mut self, mut done: impl FnMut(usize, &Page)) -> bool {
        let decoder = self.decoder.as_mut().unwrap_or(&mut self.encoder);
        let mut page = [0; PAGE_SIZE];
        let mut all = true;
        for (number, (block, len_bytes)) in self.blocks.iter().zip(&self.lens).enumerate() {
            all &= decoder.decode_or_copy(&block[..*len_bytes], &mut page);
            done(number, &page);
        }
        all
    }
}

/// Returns how long this thread has run.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

impl Engine for InCache {
    fn name(&self) -> &str {
        &self.name
    }

    fn threads(&self) -> usize {
        1
    }

    fn compress(&mut self, pages: &[Page]) -> Result<Duration> {
        self.lens.resize(pages.len(), 0);
        self.blocks.resize(self.blocks.len().max(pages.len()), [0; BLOCK_BOUND]);
        let start = thread_time();
        for ((page, block), len_bytes) in pages.iter().zip(&mut self.blocks).zip(&mut self.lens) {
            *len_bytes = self.encoder.encode(page, block);
        }
        let taken = thread_time() - start;
        for ((page, block), len_bytes) in pages.iter().zip(&mut self.blocks).zip(&mut self.lens) {
            if *len_bytes >= PAGE_SIZE {
                block[..PAGE_SIZE].copy_from_slice(page);
                *len_bytes = PAGE_SIZE;
            }
        }
        Ok(taken)
    }

    fn held_bytes(&self) -> Result<u64> {
        Ok(self.lens.iter().sum::<usize>() as u64)
    }

    fn decompress(&mut self, _: &mut [Page]) -> Result<Duration> {
        let start = thread_time();
        black_box(self.decode(|_, page| {
            black_box(page);
        }));
        Ok(thread_time() - start)
    }

    fn fetch(&mut self, pages: &mut [Page]) -> Result<()> {
        self.decode(|number, page| pages[number] = *page);
        Ok(())
    }
}
