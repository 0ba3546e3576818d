//! Turns blocks of pages back into pages: on the CPU, or with a codec of the caller.

use rayon::prelude::*;
use trueno_zram_core::cpu::{InstructionSet, restore_page};
use trueno_zram_core::{BatchCodec, Error, Page, PageData, PageKind, Result, lz4};

use crate::zstd::libzstd::FrameDecoder;

/// Pages that one thread takes at a time; fewer are decoded on the calling thread.
const CHUNK_PAGES: usize = 16;

/// Pages of a step on the CPU: 1 MiB, which is still in the cache when it is hashed.
const STEP_PAGES: usize = 256;

/// The decoders of a reader.
pub(crate) struct PageDecoders<'c> {
    cpu: CpuPages,
    codec: Option<&'c mut dyn BatchCodec>,
}

impl<'c> PageDecoders<'c> {
    pub(crate) fn new(codec: Option<&'c mut dyn BatchCodec>) -> Self {
        Self { cpu: CpuPages::new(), codec }
    }

    /// Pages to decode per step. The content of one step is hashed while the next is decoded.
    pub(crate) fn step_pages(&self) -> usize {
        self.codec.as_ref().map_or(STEP_PAGES, |codec| codec.preferred_batch_pages()).max(1)
    }

    /// Restores `compressed[i]` to `pages[i]`. [`Error::InPage`] names the first block that is not exactly one page.
    pub(crate) fn decode(&mut self, compressed: &[PageData<'_>], pages: &mut [Page]) -> Result<()> {
        match &mut self.codec {
            Some(codec) => codec.decompress_pages(compressed, pages),
            None => self.cpu.decode(compressed, pages),
        }
    }

    /// Restores those blocks that are pages, on the CPU; returns which.
    pub(crate) fn decode_each(&self, blocks: &[Option<PageData<'_>>], pages: &mut [Page]) -> Vec<bool> {
        self.cpu.decode_each(blocks, pages)
    }
}

/// Restores pages on the threads of the rayon pool that it is called in.
#[derive(Debug)]
pub(crate) struct CpuPages {
    codec: lz4::Codec,
}

impl CpuPages {
    pub(crate) fn new() -> Self {
        Self { codec: lz4::Codec::new(InstructionSet::detect()).expect("the detected instruction set is available") }
    }

    fn decode(&self, blocks: &[PageData<'_>], pages: &mut [Page]) -> Result<()> {
        let chunk = |(number, (blocks, pages)): (usize, (&[PageData<'_>], &mut [Page]))| {
            let mut decoder = None;
            for (index, (block, page)) in (number * CHUNK_PAGES..).zip(blocks.iter().zip(pages)) {
                let in_page = |error| Error::InPage { index, error: Box::new(error) };
                self.decode_one(*block, page, &mut decoder).map_err(in_page)?;
            }
            Ok(())
        };
        if blocks.len() <= CHUNK_PAGES {
            return chunk((0, (blocks, pages)));
        }
        blocks.par_chunks(CHUNK_PAGES).zip(pages.par_chunks_mut(CHUNK_PAGES)).enumerate().try_for_each(chunk)
    }

    /// Restores a page. Zstandard uses the decoder, which is made on first use.
    pub(crate) fn decode_one(
        &self,
        block: PageData<'_>,
        page: &mut Page,
        decoder: &mut Option<FrameDecoder>,
    ) -> Result<()> {
        if block.kind() != PageKind::Zstd {
            return restore_page(&self.codec, block, page);
        }
        let decoder = match decoder {
            Some(decoder) => decoder,
            none => none.insert(FrameDecoder::acquire()?),
        };
        decoder.decode_page(block.bytes(), page)
    }

    fn decode_each(&self, blocks: &[Option<PageData<'_>>], pages: &mut [Page]) -> Vec<bool> {
        let restore = |(block, page): (&Option<PageData<'_>>, &mut Page)| {
            block.is_some_and(|block| self.decode_one(block, page, &mut None).is_ok())
        };
        if blocks.len() <= CHUNK_PAGES {
            return blocks.iter().zip(pages).map(restore).collect();
        }
        blocks.par_iter().zip(pages).with_min_len(CHUNK_PAGES).map(restore).collect()
    }
}
