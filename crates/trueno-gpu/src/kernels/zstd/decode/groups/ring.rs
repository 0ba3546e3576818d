//! Prefetches bits of frames to shared memory, one frame per lane.
//!
//! A lane that waits for global memory stalls all 32. So bits are fetched in chunks: a chunk is loaded into registers
//! at one point and stored to shared memory two sequences later, when the load has completed.

use super::frame::LaneFrame;
use crate::{KernelBuilder, Pred, Reg, Var};

const CHUNK_WORDS: u32 = 4;
const CHUNK_BITS_LOG: u32 = 7;
/// Number of chunks that a lane holds.
const CHUNKS: u32 = 4;
/// Bytes of a lane's chunks.
pub(super) const CHUNKS_BYTES: u32 = CHUNKS * CHUNK_WORDS * 4;
/// Bytes of a ring. Word `w` of the frame lies in place `w + 1` modulo 16; place 16 repeats place 0, so that any word
/// and the next lie side by side.
pub(super) const RING_BYTES: u32 = CHUNKS_BYTES + 4;

/// The most bits that may be used between two calls of [`BitRing::refill`]. With the 64 that a window may start and end
/// before, they are never more than what two of four chunks hold.
pub(super) const MAX_BITS_PER_REFILL: u32 = 110;
const _: () = assert!(MAX_BITS_PER_REFILL + 64 <= 2 << CHUNK_BITS_LOG);

impl<'k> LaneFrame<'k> {
    /// Loads a chunk, where `wanted`. It must lie inside the frame.
    fn load_chunk(self, wanted: Pred<'k>, chunk: Reg<'k, u32>) {
        self.k.when(wanted).load_vec(self.loads.chunk, self.words.index(chunk * CHUNK_WORDS));
    }
}

/// The first bytes of a part of the lane's frame, to be read forwards.
#[derive(Clone, Copy)]
pub(super) struct Staged<'k> {
    frame: LaneFrame<'k>,
    base: Reg<'k, u32>,
    /// Index of the first word in the frame.
    first_word: Reg<'k, u32>,
}

impl<'k> Staged<'k> {
    /// Brings [`CHUNKS_BYTES`] from the chunk of byte `at` on to shared address `base`, where `wanted`.
    pub(super) fn bring(frame: LaneFrame<'k>, base: Reg<'k, u32>, wanted: Pred<'k>, at: Reg<'k, u32>) -> Self {
        let k = frame.k;
        let chunk = k.var(at >> 4);
        let last_chunk = frame.last_word >> 2;
        for i in 0..CHUNKS {
            frame.load_chunk(wanted & chunk.le(last_chunk), *chunk);
            for (word, at) in frame.loads.chunk.into_iter().zip(0..) {
                let place = base.shared::<u32>().at((i * CHUNK_WORDS).cast_signed() + at);
                k.when(wanted).store(place, word);
            }
            chunk.set(chunk + 1);
        }
        Self { frame, base, first_word: (at >> 4) * CHUNK_WORDS }
    }

    /// Returns 32 bits from bit `bit` of the frame on, which is not before the first byte. Those past the frame's last
    /// word have no meaning.
    pub(super) fn window(self, wanted: Pred<'k>, bit: Reg<'k, u32>) -> Reg<'k, u32> {
        let Self { frame, .. } = self;
        let k = frame.k;
        let place = (bit >> 5) - self.first_word;
        let is_inside = place.lt(CHUNKS * CHUNK_WORDS - 1);
        let pair = place.mad(4u32, self.base).shared::<u32>();
        for (word, at) in frame.loads.words.into_iter().zip([0, 1]) {
            k.when(wanted & is_inside).load(word, pair.at(at));
        }
        frame.window(wanted & !is_inside, bit)
    }
}

/// The bits of the lane's frame below a position that moves downwards.
#[derive(Clone, Copy)]
pub(super) struct BitRing<'k> {
    frame: LaneFrame<'k>,
    base: Reg<'k, u32>,
    /// The next chunk to load.
    next: Var<'k, i32>,
    /// Holds while the chunk after that is being loaded.
    is_loading: Var<'k, bool>,
}

impl<'k> BitRing<'k> {
    /// Starts at bit `end` of the frame, with a ring at shared address `base`, where `wanted`.
    pub(super) fn start(frame: LaneFrame<'k>, base: Reg<'k, u32>, wanted: Pred<'k>, end: Reg<'k, i32>) -> Self {
        let k: &'k KernelBuilder = frame.k;
        let next = k.var(end >> CHUNK_BITS_LOG).named("next");
        let ring = Self { frame, base, next, is_loading: k.var(false).named("is_loading") };
        for _ in 0..CHUNKS {
            frame.load_chunk(wanted & next.ge(0), next.as_u32());
            // A frame that starts before has other bits here, which are not used.
            ring.store_chunk(wanted, next.as_u32());
            next.set(next - 1);
        }
        ring
    }

    fn store_chunk(self, wanted: Pred<'k>, chunk: Reg<'k, u32>) {
        let k = self.frame.k;
        let slot = chunk & (CHUNKS - 1);
        let place = slot.mad(CHUNK_WORDS * 4, self.base).shared::<u32>();
        for (word, at) in self.frame.loads.chunk.into_iter().zip(1..) {
            k.when(wanted).store(place.at(at), word);
        }
        let [.., last] = self.frame.loads.chunk;
        k.when(wanted & slot.eq(CHUNKS - 1)).store(self.base.shared::<u32>(), last);
    }

    /// Returns the 32 bits below bit `end`, where `wanted`. Before the first bit of the frame they have no meaning.
    pub(super) fn window_below(self, wanted: Pred<'k>, end: Reg<'k, i32>) -> Reg<'k, u32> {
        let Self { frame, base, .. } = self;
        let [low, high] = frame.loads.words;
        let pair = (((end >> 3).as_u32() & (CHUNKS_BYTES - 4)) + base).shared::<u32>();
        frame.k.when(wanted).load(low, pair);
        frame.k.when(wanted).load(high, pair.at(1));
        low.funnel_shr(*high, end.as_u32())
    }

    /// Stores the chunk that was being loaded, and loads the next one if there is room. `end` is the current position.
    pub(super) fn refill(self, wanted: Pred<'k>, end: Reg<'k, i32>) {
        let Self { frame, next, is_loading, .. } = self;
        self.store_chunk(*is_loading, (next + 1).as_u32());
        is_loading.set(wanted & next.ge(0) & (end >> CHUNK_BITS_LOG).lt(next + CHUNKS.cast_signed()));
        frame.load_chunk(*is_loading, next.as_u32());
        frame.k.when(*is_loading).set(next, next - 1);
    }
}
