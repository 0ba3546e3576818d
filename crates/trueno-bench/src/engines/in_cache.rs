//! A codec alone: one page at a time on one thread, with no memory outside the cache.

use std::hint::black_box;
use std::time::{Duration, Instant};

use trueno_zram_core::{PAGE_SIZE, Page};

use super::codec::{BLOCK_BOUND, Block, BlockCodec};
use crate::engine::Engine;
use crate::error::Result;

/// Encodes every page into one buffer, and decodes every block into one page.
pub(crate) struct InCache {
    name: String,
    encoder: Box<dyn BlockCodec>,
    /// `None` if the encoder decodes, too.
    decoder: Option<Box<dyn BlockCodec>>,
    blocks: Vec<Vec<u8>>,
}

impl InCache {
    pub(crate) fn new(codec: Box<dyn BlockCodec>) -> Self {
        Self { name: codec.name(), encoder: codec, decoder: None, blocks: Vec::new() }
    }

    /// One codec's decoder on another's blocks.
    pub(crate) fn on_blocks_of(encoder: Box<dyn BlockCodec>, decoder: Box<dyn BlockCodec>) -> Self {
        let name = format!("{} of {}", decoder.name(), encoder.name());
        Self { name, encoder, decoder: Some(decoder), blocks: Vec::new() }
    }

    fn decode(&mut self, mut done: impl FnMut(usize, &Page)) -> bool {
        let decoder = self.decoder.as_mut().unwrap_or(&mut self.encoder);
        let mut page = [0; PAGE_SIZE];
        let mut all = true;
        for (number, block) in self.blocks.iter().enumerate() {
            all &= decoder.decode_or_copy(block, &mut page);
            done(number, &page);
        }
        all
    }
}

impl Engine for InCache {
    fn name(&self) -> &str {
        &self.name
    }

    fn threads(&self) -> usize {
        1
    }

    fn load(&mut self, pages: &[Page]) -> Result<()> {
        let mut out: Block = [0; BLOCK_BOUND];
        self.blocks.clear();
        for page in pages {
            let len_bytes = self.encoder.encode_or_copy(page, &mut out);
            self.blocks.push(out[..len_bytes].to_vec());
        }
        Ok(())
    }

    fn compress(&mut self, pages: &[Page]) -> Result<Duration> {
        let mut out: Block = [0; BLOCK_BOUND];
        let start = Instant::now();
        black_box(pages.iter().map(|page| self.encoder.encode(page, &mut out)).sum::<usize>());
        Ok(start.elapsed())
    }

    fn held_bytes(&self) -> Result<u64> {
        Ok(self.blocks.iter().map(|block| block.len() as u64).sum())
    }

    fn decompress(&mut self, _: &mut [Page]) -> Result<Duration> {
        let start = Instant::now();
        black_box(self.decode(|_, page| {
            black_box(page);
        }));
        Ok(start.elapsed())
    }

    fn fetch(&mut self, pages: &mut [Page]) -> Result<()> {
        self.decode(|number, page| pages[number] = *page);
        Ok(())
    }
}
