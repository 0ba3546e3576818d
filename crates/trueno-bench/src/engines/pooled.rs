//! Any codec on several threads: batches into one arena and back, as our own batches go.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rayon::prelude::*;
use trueno_zram_core::{PAGE_SIZE, Page};

use super::codec::{BLOCK_BOUND, Block, BlockCodec, MakeCodec};
use super::cpu::{CHUNK_PAGES, Pool};
use crate::engine::Engine;
use crate::error::{Error, Result};

/// Chunks per thread between two moves to the arena, as in `CpuBatchCompressor`.
const CHUNKS_PER_THREAD: usize = 64;

/// One codec per thread, and the arena that their blocks are packed into.
///
/// It does the same work as `CpuBatchCompressor`, so that codecs are compared and not harnesses: the same chunks, blocks
/// moved to one arena in page order, an index.
pub(crate) struct Pooled {
    name: String,
    pool: Pool,
    codecs: Vec<Mutex<Box<dyn BlockCodec>>>,
    chunks: Vec<Chunk>,
    /// Storage kept from batch to batch; the blocks are where the index says.
    arena: Vec<u8>,
    index: Vec<BlockRange>,
}

/// The range of a block in the arena; as long as a page if it is the page itself.
#[derive(Clone, Copy)]
struct BlockRange {
    offset: usize,
    len_bytes: usize,
}

/// Blocks that wait for their place in the arena.
struct Chunk {
    bytes: Vec<u8>,
    used: usize,
    lens: Vec<usize>,
}

impl Pooled {
    /// Makes a codec for each thread of the pool.
    pub(crate) fn new(pool: &Pool, make: &MakeCodec) -> Result<Self> {
        let codecs = (0..pool.current_num_threads()).map(|_| make()).collect::<Result<Vec<_>>>()?;
        let name = codecs[0].name();
        let codecs = codecs.into_iter().map(Mutex::new).collect();
        Ok(Self { name, pool: Pool::clone(pool), codecs, chunks: Vec::new(), arena: Vec::new(), index: Vec::new() })
    }

    /// Gives the chunks of a wave their places, and moves them there on all threads.
    fn append(&mut self, chunks: usize, pages_in_all: usize) {
        let used = self.index.last().map_or(0, |place| place.offset + place.len_bytes);
        let mut offset = used;
        for chunk in &self.chunks[..chunks] {
            for len_bytes in &chunk.lens {
                self.index.push(BlockRange { offset, len_bytes: *len_bytes });
                offset += len_bytes;
            }
        }
        if offset > self.arena.len() {
            // Fresh memory comes zeroed from the system and is first touched by the threads that fill it.
            let mut larger = vec![0; pages_in_all * PAGE_SIZE];
            larger[..used].copy_from_slice(&self.arena[..used]);
            self.arena = larger;
        }
        let mut rest = &mut self.arena[used..offset];
        let mut moves = Vec::with_capacity(chunks);
        for chunk in &self.chunks[..chunks] {
            let (place, after) = std::mem::take(&mut rest).split_at_mut(chunk.used);
            rest = after;
            moves.push((place, &chunk.bytes[..chunk.used]));
        }
        self.pool.install(|| moves.into_par_iter().for_each(|(place, bytes)| place.copy_from_slice(bytes)));
    }
}

impl Engine for Pooled {
    fn name(&self) -> &str {
        &self.name
    }

    fn threads(&self) -> usize {
        self.codecs.len()
    }

    fn compress(&mut self, pages: &[Page]) -> Result<Duration> {
        let start = Instant::now();
        self.index.clear();
        for wave in pages.chunks(self.threads() * CHUNKS_PER_THREAD * CHUNK_PAGES) {
            let count = wave.len().div_ceil(CHUNK_PAGES);
            while self.chunks.len() < count {
                self.chunks.push(Chunk::new());
            }
            let (codecs, chunks) = (&self.codecs, &mut self.chunks[..count]);
            self.pool.install(|| {
                chunks.par_iter_mut().zip(wave.par_chunks(CHUNK_PAGES)).for_each(|(chunk, pages)| {
                    with_own(codecs, |codec| chunk.compress(codec, pages));
                });
            });
            self.append(count, pages.len());
        }
        Ok(start.elapsed())
    }

    fn held_bytes(&self) -> Result<u64> {
        Ok(self.index.iter().map(|place| place.len_bytes as u64).sum())
    }

    fn decompress(&mut self, pages: &mut [Page]) -> Result<Duration> {
        let start = Instant::now();
        let (codecs, arena, index) = (&self.codecs, &self.arena, &self.index);
        let restored = self.pool.install(|| {
            pages.par_chunks_mut(CHUNK_PAGES).zip(index.par_chunks(CHUNK_PAGES)).all(|(pages, places)| {
                with_own(codecs, |codec| {
                    let block = |place: &BlockRange| &arena[place.offset..place.offset + place.len_bytes];
                    places.iter().zip(pages).all(|(place, page)| codec.decode_or_copy(block(place), page))
                })
            })
        });
        let taken = start.elapsed();
        match restored {
            true => Ok(taken),
            false => Err(Error::engine(&self.name)("refuses its own block")),
        }
    }
}

impl Chunk {
    fn new() -> Self {
        // Every block before took at most a page, so the last has the room that any encoder asks for.
        Self { bytes: vec![0; CHUNK_PAGES * PAGE_SIZE + BLOCK_BOUND - PAGE_SIZE], used: 0, lens: Vec::new() }
    }

    fn compress(&mut self, codec: &mut dyn BlockCodec, pages: &[Page]) {
        self.lens.clear();
        self.used = 0;
        for page in pages {
            let out: &mut Block =
                self.bytes[self.used..].first_chunk_mut().expect("a chunk has room for all its pages");
            let len_bytes = codec.encode_or_copy(page, out);
            self.lens.push(len_bytes);
            self.used += len_bytes;
        }
    }
}

fn with_own<T>(codecs: &[Mutex<Box<dyn BlockCodec>>], work: impl FnOnce(&mut dyn BlockCodec) -> T) -> T {
    let thread = rayon::current_thread_index().expect("work runs on threads of the pool");
    work(codecs[thread].lock().unwrap_or_else(PoisonError::into_inner).as_mut())
}

#[cfg(all(test, feature = "rivals"))]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::c_lz4::{BLOCK_BOUND, CLz4};
    use crate::engine::verify;
    use crate::engines::codec::{C_LZ4, RIVALS};
    use crate::engines::cpu::pool;

    #[test]
    fn waves_are_packed_in_page_order() {
        let page =
            |n: usize| std::array::from_fn(|i| (n.wrapping_mul(i / 7) ^ i.wrapping_mul(n | 1) >> 3).to_le_bytes()[0]);
        let pages: Vec<Page> = (0..2500).map(page).collect(); // two waves and a part of a chunk
        for threads in [1, 2] {
            let pool = pool(NonZeroUsize::new(threads).unwrap()).unwrap();
            let mut engine = Pooled::new(&pool, &C_LZ4.unwrap()).unwrap();
            verify(&mut engine, &pages).unwrap();
            let mut c_lz4 = CLz4::new();
            let lens = pages.iter().map(|page| c_lz4.compress(page, &mut [0; BLOCK_BOUND]).min(PAGE_SIZE));
            assert_eq!(engine.held_bytes().unwrap(), lens.sum::<usize>() as u64);
            // A smaller batch afterwards finds nothing of the larger one.
            verify(&mut engine, &pages[..5]).unwrap();
            for rival in RIVALS {
                verify(&mut Pooled::new(&pool, rival).unwrap(), &pages[..100]).unwrap();
            }
        }
    }
}
