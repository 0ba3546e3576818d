//! Decodes gathered blocks on all threads, step by step: the content of one step is hashed while the next is decoded.

use rayon::prelude::*;
use trueno_zram_core::{Error as PageError, PAGE_SIZE, Page};

use crate::block::Block;
use crate::error::{Error, Result};
use crate::hashes::content_hash::ContentHash;
use crate::index::entry::PageEntry;
use crate::stream::content::{ContentBatch, ContentSpan, SpanRef};
use crate::stream::decoder::PageDecoders;
use crate::stream::history::History;

/// Blocks that are worth a second thread.
pub(crate) const PARALLEL_BLOCKS: usize = 32;

/// The most bytes of blocks in one batch that looked like pages and are not. The blocks after them go to the next batch.
const EXTRA_BYTES: usize = 4 << 20;

/// Decodes the blocks of a batch on all threads.
pub(crate) struct ParallelDecoder<'a> {
    pub(crate) window: &'a [u8],
    pub(crate) blocks: &'a [Block],
    pub(crate) checksummed: bool,
    pub(crate) max_block_len: usize,
    /// Hashes the content, if the frame has a checksum of it.
    pub(crate) hash: Option<&'a mut ContentHash>,
}

/// The result of decoding blocks that look like pages.
#[derive(Debug, Default)]
pub(crate) struct DecodedPages {
    /// Blocks decoded, from the first on: all of them, or fewer if room ran out.
    pub(crate) blocks: usize,
    /// For each of them its entry in an index and the length of its content.
    pub(crate) entries: Vec<(PageEntry, u64)>,
    /// Blocks that are not pages.
    pub(crate) not_pages: usize,
}

impl ParallelDecoder<'_> {
    /// Decodes blocks that look like pages. Blocks that are something else are decoded as well.
    pub(crate) fn decode_pages(
        mut self,
        decoders: &mut PageDecoders<'_>,
        out: &mut ContentBatch,
    ) -> Result<DecodedPages> {
        out.start(self.blocks.iter().filter(|block| block.zero_pages == 0).count());
        let step_pages = decoders.step_pages();
        let mut decoded = DecodedPages::default();
        let mut unhashed = Vec::new();
        let mut slot = 0;
        while decoded.blocks < self.blocks.len() && out.extra.len() < EXTRA_BYTES {
            let step = first_pages(&self.blocks[decoded.blocks..], step_pages);
            let pages: Vec<_> = step.iter().filter(|block| block.zero_pages == 0).collect();
            let data: Option<Vec<_>> = pages.iter().map(|block| block.as_page(self.window)).collect();
            let (before, rest) = out.main.split_at_mut(slot);
            let target = &mut rest[..pages.len()];
            let (window, checksummed) = (self.window, self.checksummed);
            let decode = || {
                verify(step, window, checksummed)?;
                match data {
                    Some(data) if data.is_empty() => Ok(None),
                    Some(data) => match decoders.decode(&data, target) {
                        Ok(()) => Ok(None),
                        Err(PageError::InPage { .. }) => Ok(Some(try_each(decoders, &pages, window, target))),
                        Err(error) => Err(Error::Decoder(error)),
                    },
                    None => Ok(Some(try_each(decoders, &pages, window, target))),
                }
            };
            let mut hash = || hash_spans(self.hash.as_deref_mut(), &unhashed, before.as_flattened(), &out.extra);
            let ((), tried) = if step.len() < PARALLEL_BLOCKS { (hash(), decode()) } else { rayon::join(hash, decode) };
            unhashed = self.append_step(step, tried?, slot, out, &mut decoded)?;
            slot += pages.len();
        }
        hash_spans(self.hash, &unhashed, out.main.as_flattened(), &out.extra);
        Ok(decoded)
    }

    /// Appends a decoded step to the batch, in order. `tried` says which blocks are pages; without it, all are.
    fn append_step(
        &self,
        step: &[Block],
        tried: Option<Vec<bool>>,
        first_slot: usize,
        out: &mut ContentBatch,
        decoded: &mut DecodedPages,
    ) -> Result<Vec<SpanRef>> {
        let mut span_refs = Vec::new();
        let mut page = 0;
        for block in step {
            if out.extra.len() >= EXTRA_BYTES {
                break;
            }
            let span_ref = if block.zero_pages > 0 {
                SpanRef::Zeros((block.zero_pages * PAGE_SIZE) as u64)
            } else if tried.as_ref().is_none_or(|tried| tried[page]) {
                page += 1;
                SpanRef::Main { start: (first_slot + page - 1) * PAGE_SIZE, len: PAGE_SIZE }
            } else {
                page += 1;
                decoded.not_pages += 1;
                decode_extra(block, self.window, &[], self.max_block_len, &mut out.extra)?
            };
            decoded.blocks += 1;
            decoded.entries.push((block.entry(self.window), span_ref.len_bytes()));
            out.push(span_ref);
            span_refs.push(span_ref);
        }
        Ok(span_refs)
    }

    /// Decodes blocks of any length that the frame allows: independent ones side by side; linked ones one by one, with
    /// the `history` that is given.
    pub(crate) fn decode_blocks(mut self, mut history: Option<&mut History>, out: &mut ContentBatch) -> Result<usize> {
        let slot_pages = self.max_block_len / PAGE_SIZE;
        out.start(self.blocks.len() * slot_pages);
        let step_blocks = if history.is_some() { 1 } else { rayon::current_num_threads() };
        let mut unhashed: Vec<SpanRef> = Vec::new();
        let mut slot = 0;
        for step in self.blocks.chunks(step_blocks) {
            let (before, rest) = out.main.split_at_mut(slot * slot_pages);
            let targets = rest[..step.len() * slot_pages].par_chunks_mut(slot_pages);
            let (window, checksummed) = (self.window, self.checksummed);
            let dictionary = history.as_deref().map_or(&[][..], History::bytes);
            let decode_one = |(block, target): (&Block, &mut [Page])| {
                verify(std::slice::from_ref(block), window, checksummed)?;
                block.decode(window, dictionary, target.as_flattened_mut())
            };
            let decode = || step.par_iter().zip(targets).map(decode_one).collect::<Vec<_>>();
            let hash = || hash_spans(self.hash.as_deref_mut(), &unhashed, before.as_flattened(), &[]);
            let ((), lens) = rayon::join(hash, decode);
            unhashed.clear();
            for len in lens {
                let span_ref = SpanRef::Main { start: slot * slot_pages * PAGE_SIZE, len: len? };
                let span = span_ref.find(out.main.as_flattened(), &[]);
                if let (Some(history), ContentSpan::Data(bytes)) = (&mut history, span) {
                    history.push(bytes);
                }
                out.push(span_ref);
                unhashed.push(span_ref);
                slot += 1;
            }
        }
        hash_spans(self.hash, &unhashed, out.main.as_flattened(), &[]);
        Ok(self.blocks.len())
    }
}

/// Decodes a block to the end of `extra`.
pub(crate) fn decode_extra(
    block: &Block,
    window: &[u8],
    dictionary: &[u8],
    max_block_len: usize,
    extra: &mut Vec<u8>,
) -> Result<SpanRef> {
    let start = extra.len();
    extra.resize(start + block.decoded_bound(max_block_len), 0);
    let decoded = block.decode(window, dictionary, &mut extra[start..]);
    extra.truncate(start + decoded.as_ref().map_or(0, |len| *len));
    decoded.map(|len| SpanRef::Extra { start, len })
}

/// Returns the first blocks, up to the given number of pages that are not zero.
fn first_pages(blocks: &[Block], pages: usize) -> &[Block] {
    let mut left = pages;
    let end = blocks.iter().position(|block| {
        if block.zero_pages == 0 {
            if left == 0 {
                return true;
            }
            left -= 1;
        }
        false
    });
    &blocks[..end.unwrap_or(blocks.len())]
}

/// Verifies the checksums of blocks; reports the first that is wrong.
fn verify(blocks: &[Block], window: &[u8], checksummed: bool) -> Result<()> {
    if !checksummed {
        return Ok(());
    }
    if blocks.len() < PARALLEL_BLOCKS {
        return blocks.iter().try_for_each(|block| block.verify(window));
    }
    let wrong = |block: &Block| block.verify(window).err();
    blocks.par_iter().with_min_len(PARALLEL_BLOCKS / 2).find_map_first(wrong).map_or(Ok(()), Err)
}

/// Finds out which blocks are pages, and restores those.
fn try_each(decoders: &PageDecoders<'_>, blocks: &[&Block], window: &[u8], target: &mut [Page]) -> Vec<bool> {
    let data: Vec<_> = blocks.iter().map(|block| block.as_page(window)).collect();
    decoders.decode_each(&data, target)
}

/// Hashes decoded content.
fn hash_spans(hash: Option<&mut ContentHash>, span_refs: &[SpanRef], main: &[u8], extra: &[u8]) {
    if let Some(hash) = hash {
        span_refs.iter().for_each(|span_ref| hash.update_span(span_ref.find(main, extra)));
    }
}
