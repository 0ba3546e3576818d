//! Decodes gathered blocks lot by lot; the content's hash over one lot runs beside the decoding of the next.

use rayon::prelude::*;
use trueno_zram_core::{Error as PageError, PAGE_SIZE, Page, PageData, PageKind};

use crate::block::Block;
use crate::content::{ContentBatch, Piece, Stretch};
use crate::decoder::{CpuPageDecoder, PageDecoder};
use crate::entry::Entry;
use crate::error::{Error, Result};
use crate::hash::ContentHash;

/// Blocks that are worth a second thread.
const PARALLEL_BLOCKS: usize = 32;

/// Bytes of blocks that were thought to be pages and are not, in one batch: so many, and the rest is taken up anew.
const EXTRA_BYTES: usize = 4 << 20;

/// How far back a linked block can refer.
const HISTORY: usize = 64 << 10;

/// Blocks to decode, and how.
pub(crate) struct Lots<'a> {
    pub(crate) window: &'a [u8],
    pub(crate) blocks: &'a [Block],
    pub(crate) checksummed: bool,
    pub(crate) max_block: usize,
    /// Takes in the content, if somebody wants its hash.
    pub(crate) hash: Option<&'a mut ContentHash>,
}

/// What became of the blocks.
#[derive(Debug, Default)]
pub(crate) struct Decoded {
    /// Blocks decoded, from the first on: all, or fewer for want of room.
    pub(crate) blocks: usize,
    /// For each: its entry in an index, and the bytes that it holds. Pages only.
    pub(crate) entries: Vec<(Entry, u64)>,
    /// Those that are no pages.
    pub(crate) odd: usize,
}

impl Lots<'_> {
    /// Decodes blocks that are thought to be pages; any that are not are decoded all the same.
    pub(crate) fn decode_pages<D: PageDecoder>(
        mut self,
        decoder: &mut D,
        fallback: &CpuPageDecoder,
        out: &mut ContentBatch,
    ) -> Result<Decoded> {
        out.start(self.blocks.iter().filter(|block| block.zero_pages == 0).count());
        let lot_pages = decoder.lot_pages().max(1);
        let mut decoded = Decoded::default();
        let mut unhashed = Vec::new();
        let mut slot = 0;
        while decoded.blocks < self.blocks.len() && out.extra.len() < EXTRA_BYTES {
            let lot = first_pages(&self.blocks[decoded.blocks..], lot_pages);
            let pages: Vec<_> = lot.iter().filter(|block| block.zero_pages == 0).collect();
            let data: Option<Vec<_>> = pages.iter().map(|block| block.as_page(self.window)).collect();
            let (before, rest) = out.main.split_at_mut(slot);
            let place = &mut rest[..pages.len()];
            let (window, checksummed) = (self.window, self.checksummed);
            let decode = || {
                verify(lot, window, checksummed)?;
                match data {
                    Some(data) if data.is_empty() => Ok(None),
                    Some(data) => match decoder.decode(&data, place) {
                        Ok(()) => Ok(None),
                        Err(PageError::InPage { .. }) => Ok(Some(try_each(fallback, &pages, window, place))),
                        Err(error) => Err(Error::Decoder(error)),
                    },
                    None => Ok(Some(try_each(fallback, &pages, window, place))),
                }
            };
            let mut hash = || take_in(self.hash.as_deref_mut(), &unhashed, before.as_flattened(), &out.extra);
            let ((), tried) = if lot.len() < PARALLEL_BLOCKS { (hash(), decode()) } else { rayon::join(hash, decode) };
            unhashed = self.lay_out(lot, tried?, slot, out, &mut decoded)?;
            slot += pages.len();
        }
        take_in(self.hash, &unhashed, out.main.as_flattened(), &out.extra);
        Ok(decoded)
    }

    /// Enters a decoded lot into the batch, in order. `tried` says of each page whether it is one; without it, all are.
    fn lay_out(
        &self,
        lot: &[Block],
        tried: Option<Vec<bool>>,
        first_slot: usize,
        out: &mut ContentBatch,
        decoded: &mut Decoded,
    ) -> Result<Vec<Stretch>> {
        let mut stretches = Vec::new();
        let mut page = 0;
        for block in lot {
            if out.extra.len() >= EXTRA_BYTES {
                break;
            }
            let short = u16::try_from(block.len).unwrap_or(u16::MAX);
            let (stretch, entry) = if block.zero_pages > 0 {
                let pages = u16::try_from(block.zero_pages).expect("a run is short");
                (Stretch::Zeros((block.zero_pages * PAGE_SIZE) as u64), Entry::Zeros(pages))
            } else if tried.as_ref().is_none_or(|tried| tried[page]) {
                let entry = match block.as_page(self.window).map(PageData::kind) {
                    Some(PageKind::SameFilled) => Entry::Word,
                    Some(PageKind::Raw) => Entry::Raw(short),
                    _ => Entry::Lz4(short),
                };
                page += 1;
                (Stretch::Main { start: (first_slot + page - 1) * PAGE_SIZE, len: PAGE_SIZE }, entry)
            } else {
                page += 1;
                decoded.odd += 1;
                let start = out.extra.len();
                out.extra.resize(start + self.max_block, 0);
                let len = block.decode(self.window, &[], &mut out.extra[start..])?;
                out.extra.truncate(start + len);
                (Stretch::Extra { start, len }, if block.raw { Entry::Raw(short) } else { Entry::Lz4(short) })
            };
            decoded.blocks += 1;
            decoded.entries.push((entry, stretch.len_bytes()));
            out.push(stretch);
            stretches.push(stretch);
        }
        Ok(stretches)
    }

    /// Decodes blocks of any length up to the frame's: independent ones side by side, linked ones one by one, with the
    /// `history` that is given.
    pub(crate) fn decode_blocks(mut self, mut history: Option<&mut Vec<u8>>, out: &mut ContentBatch) -> Result<usize> {
        let slot_pages = self.max_block / PAGE_SIZE;
        out.start(self.blocks.len() * slot_pages);
        let lot_blocks = if history.is_some() { 1 } else { rayon::current_num_threads() };
        let mut unhashed: Vec<Stretch> = Vec::new();
        let mut slot = 0;
        for lot in self.blocks.chunks(lot_blocks) {
            let (before, rest) = out.main.split_at_mut(slot * slot_pages);
            let places = rest[..lot.len() * slot_pages].par_chunks_mut(slot_pages);
            let (window, checksummed) = (self.window, self.checksummed);
            let dictionary = history.as_deref().map_or(&[][..], |history| &history[..]);
            let decode_one = |(block, place): (&Block, &mut [Page])| {
                verify(std::slice::from_ref(block), window, checksummed)?;
                block.decode(window, dictionary, place.as_flattened_mut())
            };
            let decode = || lot.par_iter().zip(places).map(decode_one).collect::<Vec<_>>();
            let hash = || take_in(self.hash.as_deref_mut(), &unhashed, before.as_flattened(), &[]);
            let ((), lens) = rayon::join(hash, decode);
            unhashed.clear();
            for len in lens {
                let stretch = Stretch::Main { start: slot * slot_pages * PAGE_SIZE, len: len? };
                if let (Some(history), Piece::Data(bytes)) = (&mut history, stretch.find(out.main.as_flattened(), &[]))
                {
                    remember(history, bytes);
                }
                out.push(stretch);
                unhashed.push(stretch);
                slot += 1;
            }
        }
        take_in(self.hash, &unhashed, out.main.as_flattened(), &[]);
        Ok(self.blocks.len())
    }
}

/// The first blocks, with as many pages as asked for, or all.
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

/// Verifies the blocks' checksums, and reports the first that is wrong.
pub(crate) fn verify(blocks: &[Block], window: &[u8], checksummed: bool) -> Result<()> {
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
fn try_each(decoder: &CpuPageDecoder, blocks: &[&Block], window: &[u8], place: &mut [Page]) -> Vec<bool> {
    let data: Vec<_> = blocks.iter().map(|block| block.as_page(window)).collect();
    decoder.decode_each(&data, place)
}

/// Hashes content that was decoded.
fn take_in(hash: Option<&mut ContentHash>, stretches: &[Stretch], main: &[u8], extra: &[u8]) {
    let Some(hash) = hash else { return };
    for stretch in stretches {
        match stretch.find(main, extra) {
            Piece::Data(bytes) => hash.update(bytes),
            Piece::Zeros(len_bytes) => hash.update_zeros(len_bytes),
        }
    }
}

/// Keeps the last of what was decoded, for blocks that refer to it.
fn remember(history: &mut Vec<u8>, bytes: &[u8]) {
    let kept = &bytes[bytes.len().saturating_sub(HISTORY)..];
    let excess = (history.len() + kept.len()).saturating_sub(HISTORY);
    history.drain(..excess);
    history.extend_from_slice(kept);
}
