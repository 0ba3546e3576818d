//! Any page engine on several threads: batches into one arena and back, as our own batches go.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rayon::prelude::*;
use trueno_test_pages::oracle::BLOCK_BOUND;
use trueno_zram_core::{PAGE_SIZE, Page};

use crate::batch::BatchEngine;
use crate::error::{Error, Result};
use crate::page::{Block, PageEngine};

/// Pages that a thread takes at a time, as `CpuBatchCompressor` does.
pub(crate) const CHUNK_PAGES: usize = 16;
/// Chunks a thread between two moves to the arena, likewise.
const CHUNKS_PER_THREAD: usize = 64;

/// Threads that all rivals share.
pub type Pool = Arc<rayon::ThreadPool>;

/// A codec of each thread's own, and the arena that their blocks are packed into.
///
/// It does the same work as `CpuBatchCompressor`, so that codecs are compared and not harnesses: the same chunks, blocks
/// moved to one arena in page order, an index.
///
/// ```
/// use std::num::NonZeroUsize;
/// use trueno_bench_engines::{BatchEngine, CLz4, Pooled, verify};
/// let pool = Pooled::pool(NonZeroUsize::MIN)?;
/// let mut engine = Pooled::new(&pool, || Ok(CLz4::new()))?;
/// verify(&mut engine, &[[7; 4096], [8; 4096]])?;
/// assert!(engine.held_bytes()? < 100);
/// # Ok::<(), trueno_bench_engines::Error>(())
/// ```
pub struct Pooled {
    name: String,
    pool: Pool,
    engines: Vec<Mutex<Box<dyn PageEngine>>>,
    chunks: Vec<Chunk>,
    /// Storage kept from batch to batch; the blocks are where the index says.
    arena: Vec<u8>,
    index: Vec<Place>,
}

/// Where a block lies in the arena; as long as a page if it is the page itself.
#[derive(Clone, Copy)]
struct Place {
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
    /// Starts threads for the rivals to share.
    ///
    /// # Errors
    /// If the system cannot.
    pub fn pool(threads: NonZeroUsize) -> Result<Pool> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads.get()).build();
        pool.map(Arc::new).map_err(Error::engine("the threads of the rivals"))
    }

    /// An engine for each thread of the pool.
    ///
    /// # Errors
    /// That of `make`.
    pub fn new<E: PageEngine + 'static>(pool: &Pool, mut make: impl FnMut() -> Result<E>) -> Result<Self> {
        let mut engines: Vec<Mutex<Box<dyn PageEngine>>> = Vec::new();
        for _ in 0..pool.current_num_threads() {
            engines.push(Mutex::new(Box::new(make()?)));
        }
        let name = engines[0].lock().unwrap_or_else(PoisonError::into_inner).name();
        let pool = Arc::clone(pool);
        Ok(Self { name, pool, engines, chunks: Vec::new(), arena: Vec::new(), index: Vec::new() })
    }

    /// Gives the chunks of a wave their places, and moves them there on all threads.
    fn append(&mut self, chunks: usize, pages_in_all: usize) {
        let used = self.index.last().map_or(0, |place| place.offset + place.len_bytes);
        let mut offset = used;
        for chunk in &self.chunks[..chunks] {
            for len_bytes in &chunk.lens {
                self.index.push(Place { offset, len_bytes: *len_bytes });
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

impl BatchEngine for Pooled {
    fn name(&self) -> &str {
        &self.name
    }

    fn threads(&self) -> usize {
        self.engines.len()
    }

    fn compress(&mut self, pages: &[Page]) -> Result<Duration> {
        let start = Instant::now();
        self.index.clear();
        for wave in pages.chunks(self.threads() * CHUNKS_PER_THREAD * CHUNK_PAGES) {
            let count = wave.len().div_ceil(CHUNK_PAGES);
            while self.chunks.len() < count {
                self.chunks.push(Chunk::new());
            }
            let (engines, chunks) = (&self.engines, &mut self.chunks[..count]);
            self.pool.install(|| {
                chunks.par_iter_mut().zip(wave.par_chunks(CHUNK_PAGES)).for_each(|(chunk, pages)| {
                    with_own(engines, |engine| chunk.compress(engine, pages));
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
        let (engines, arena, index) = (&self.engines, &self.arena, &self.index);
        let restored = self.pool.install(|| {
            pages.par_chunks_mut(CHUNK_PAGES).zip(index.par_chunks(CHUNK_PAGES)).all(|(pages, places)| {
                with_own(engines, |engine| {
                    let block = |place: &Place| &arena[place.offset..place.offset + place.len_bytes];
                    places.iter().zip(pages).all(|(place, page)| restore(engine, block(place), page))
                })
            })
        });
        let taken = start.elapsed();
        match restored {
            true => Ok(taken),
            false => Err(Error::Engine { engine: "a rival", reason: format!("{} refuses its own block", self.name) }),
        }
    }
}

impl Chunk {
    fn new() -> Self {
        // Every block before took at most a page, so the last has the room that any encoder asks for.
        Self { bytes: vec![0; CHUNK_PAGES * PAGE_SIZE + BLOCK_BOUND - PAGE_SIZE], used: 0, lens: Vec::new() }
    }

    fn compress(&mut self, engine: &mut dyn PageEngine, pages: &[Page]) {
        self.lens.clear();
        self.used = 0;
        for page in pages {
            let out: &mut Block =
                self.bytes[self.used..].first_chunk_mut().expect("a chunk has room for all its pages");
            let mut len_bytes = engine.compress(page, out);
            if len_bytes >= PAGE_SIZE {
                out[..PAGE_SIZE].copy_from_slice(page);
                len_bytes = PAGE_SIZE;
            }
            self.lens.push(len_bytes);
            self.used += len_bytes;
        }
    }
}

fn restore(engine: &mut dyn PageEngine, block: &[u8], page: &mut Page) -> bool {
    if block.len() == PAGE_SIZE {
        page.copy_from_slice(block);
        return true;
    }
    engine.decompress(block, page)
}

fn with_own<T>(engines: &[Mutex<Box<dyn PageEngine>>], work: impl FnOnce(&mut dyn PageEngine) -> T) -> T {
    let thread = rayon::current_thread_index().expect("work runs on threads of the pool");
    work(engines[thread].lock().unwrap_or_else(PoisonError::into_inner).as_mut())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::verify;
    use crate::page::{CLz4, Flex, Zstd};

    #[test]
    fn waves_are_packed_in_page_order() {
        let page =
            |n: usize| std::array::from_fn(|i| (n.wrapping_mul(i / 7) ^ i.wrapping_mul(n | 1) >> 3).to_le_bytes()[0]);
        let pages: Vec<Page> = (0..2500).map(page).collect(); // two waves and a part of a chunk
        for threads in [1, 2] {
            let pool = Pooled::pool(NonZeroUsize::new(threads).unwrap()).unwrap();
            let mut engine = Pooled::new(&pool, || Ok(CLz4::new())).unwrap();
            verify(&mut engine, &pages).unwrap();
            let lens = pages.iter().map(|page| trueno_test_pages::oracle::c_lz4_compress(page).len().min(PAGE_SIZE));
            assert_eq!(engine.held_bytes().unwrap(), lens.sum::<usize>() as u64);
            // A smaller batch afterwards finds nothing of the larger one.
            verify(&mut engine, &pages[..5]).unwrap();
            verify(&mut Pooled::new(&pool, || Ok(Flex)).unwrap(), &pages[..100]).unwrap();
            verify(&mut Pooled::new(&pool, Zstd::new).unwrap(), &pages[..100]).unwrap();
        }
    }
}
