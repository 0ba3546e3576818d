//! Chunks of pages files, restored by workers before a client asks for them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use trueno_zram_core::{PAGE_SIZE, Page};

use crate::memory::Memory;

/// Pages restored at a time: a group of an archive, which is checked once, and what `criu lazy-pages` asks for at most.
pub(crate) const CHUNK_PAGES: u64 = trueno_zram_archive::GROUP_PAGES as u64;

/// Chunks restored ahead.
pub(crate) const AHEAD_CHUNKS: u64 = 4;

/// Chunks kept: those ahead, and twice as many that were sent or had a fault, for faults near them. 48 MiB.
const KEPT_CHUNKS: usize = 12;

/// A chunk: the process, and the chunk's number in its pages.
pub(crate) type ChunkId = (u64, u64);

/// The content of a chunk. The last one of a file is shorter.
pub(crate) type Chunk = Arc<Vec<Page>>;

/// What is known of a chunk.
#[derive(Clone, Debug)]
enum Slot {
    Queued,
    InWork,
    Ready(Chunk),
    /// A page of it is damaged. The others are read one by one.
    Damaged,
}

#[derive(Debug, Default)]
struct State {
    slots: BTreeMap<ChunkId, Slot>,
    queue: VecDeque<ChunkId>,
    /// Chunks that are done, the oldest first.
    done: VecDeque<ChunkId>,
    /// Memory of chunks that were dropped.
    spare: Vec<Vec<Page>>,
    ended: bool,
}

/// Restores chunks of pages files for one connection.
#[derive(Debug)]
pub(crate) struct ReadAhead<'a> {
    memory: &'a Memory,
    state: Mutex<State>,
    /// A chunk was queued, or all is over.
    queued: Condvar,
    /// A chunk is done.
    done: Condvar,
}

impl<'a> ReadAhead<'a> {
    pub(crate) fn new(memory: &'a Memory) -> Self {
        Self { memory, state: Mutex::default(), queued: Condvar::new(), done: Condvar::new() }
    }

    /// Asks for the chunks of a process from `first` on, as far as there are any. What was asked for before and not begun is
    /// given up.
    pub(crate) fn plan(&self, pid: u64, first: u64) {
        let pages = self.memory.pages(pid).len_bytes() / PAGE_SIZE as u64;
        let end = pages.div_ceil(CHUNK_PAGES).min(first + AHEAD_CHUNKS);
        let mut state = self.lock();
        let State { slots, queue, .. } = &mut *state;
        queue.drain(..).for_each(|id| drop(slots.remove(&id)));
        for id in (first..end).map(|chunk| (pid, chunk)) {
            slots.entry(id).or_insert_with(|| {
                queue.push_back(id);
                Slot::Queued
            });
        }
        if !queue.is_empty() {
            self.queued.notify_all();
        }
    }

    /// Returns a chunk if it is there already.
    pub(crate) fn get_ready(&self, id: ChunkId) -> Option<Chunk> {
        match self.lock().slots.get(&id) {
            Some(Slot::Ready(chunk)) => Some(Arc::clone(chunk)),
            _ => None,
        }
    }

    /// Returns a chunk, after restoring it on this thread if no worker has begun to. `None` if a page of it is damaged.
    pub(crate) fn get(&self, id: ChunkId) -> Option<Chunk> {
        let mut state = self.lock();
        loop {
            match state.slots.get(&id) {
                Some(Slot::Ready(chunk)) => return Some(Arc::clone(chunk)),
                Some(Slot::Damaged) => return None,
                Some(Slot::InWork) => state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(Slot::Queued) | None => {
                    state.queue.retain(|queued| *queued != id);
                    state.slots.insert(id, Slot::InWork);
                    return self.restore(state, id).1;
                }
            }
        }
    }

    /// Restores chunks until [`end`](Self::end).
    pub(crate) fn work(&self) {
        let mut state = self.lock();
        while !state.ended {
            state = match state.queue.pop_front() {
                Some(id) => {
                    state.slots.insert(id, Slot::InWork);
                    self.restore(state, id).0
                }
                None => self.queued.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Lets the workers end.
    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.queued.notify_all();
    }

    /// Restores a chunk that is marked as in work, without the lock.
    fn restore<'s>(&'s self, mut state: MutexGuard<'s, State>, id: ChunkId) -> (MutexGuard<'s, State>, Option<Chunk>) {
        let mut content = state.spare.pop().unwrap_or_default();
        drop(state);
        // If reading panics, nobody waits for ever.
        let mut finish = Finish { ahead: self, id, slot: Slot::Damaged };
        let (source, first) = (self.memory.pages(id.0), id.1 * CHUNK_PAGES);
        let pages = (source.len_bytes() / PAGE_SIZE as u64).saturating_sub(first).min(CHUNK_PAGES);
        content.resize(usize::try_from(pages).expect("a few pages"), [0; PAGE_SIZE]);
        let chunk = source.read(first, &mut content).is_ok().then(|| Arc::new(content));
        if let Some(chunk) = &chunk {
            finish.slot = Slot::Ready(Arc::clone(chunk));
        }
        drop(finish);
        (self.lock(), chunk)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Stores the outcome of a chunk when it is dropped.
struct Finish<'a, 'm> {
    ahead: &'a ReadAhead<'m>,
    id: ChunkId,
    slot: Slot,
}

impl Drop for Finish<'_, '_> {
    fn drop(&mut self) {
        let mut state = self.ahead.lock();
        state.slots.insert(self.id, self.slot.clone());
        state.done.push_back(self.id);
        while state.done.len() > KEPT_CHUNKS {
            let oldest = state.done.pop_front().and_then(|oldest| state.slots.remove(&oldest));
            if let Some(Slot::Ready(chunk)) = oldest {
                state.spare.extend(Arc::into_inner(chunk));
            }
        }
        self.ahead.done.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use trueno_zram_archive::PlainPages;

    use super::*;
    use crate::pagemap::{Pagemap, PagemapEntry};

    #[test]
    fn chunks_are_the_same_whoever_restores_them() {
        let pages = 12 * CHUNK_PAGES + 3;
        let content: Vec<u8> = (0..pages).flat_map(|page| vec![(page % 251) as u8; PAGE_SIZE]).collect();
        let entries = vec![PagemapEntry { address: 0, pages, parent: false, lazy: true, present: true }];
        let mut memory = Memory::default();
        let file = Arc::new(PlainPages::new(Arc::new(content.clone())).unwrap());
        memory.add(1, &Pagemap { pages_id: 1, entries }, file, Path::new("p")).unwrap();
        for workers in [0, 1, 3] {
            let ahead = ReadAhead::new(&memory);
            std::thread::scope(|threads| {
                for _ in 0..workers {
                    threads.spawn(|| ahead.work());
                }
                for id in (0..=12).chain([5, 11, 12, 0]) {
                    ahead.plan(1, id + 1);
                    let chunk = ahead.get((1, id)).expect("no damage");
                    let start = usize::try_from(id * CHUNK_PAGES).unwrap() * PAGE_SIZE;
                    assert!(chunk.as_flattened() == &content[start..start + chunk.len() * PAGE_SIZE]);
                    assert_eq!(chunk.len() as u64, if id == 12 { 3 } else { CHUNK_PAGES });
                }
                ahead.end();
            });
            let state = ahead.lock();
            assert!(state.slots.len() <= 2 * KEPT_CHUNKS, "{}", state.slots.len());
        }
    }
}
