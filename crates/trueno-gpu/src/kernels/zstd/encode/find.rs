//! Match finding: windows of 32 positions, one per lane; the sequences of a window are chosen one after the other.
//!
//! The page lies in shared memory at an address that is a multiple of its size, with the table directly after it. Lanes
//! run backwards (lane 31 has a window's first position), so that the leading bits of a ballot are the first positions,
//! and so that the highest position stays in the table where the lowest lane wins a conflicting store (see
//! [`TableStores`]).
//!
//! A repeated offset is compared at all positions of the window at once, by two ballots of byte equality; a lane finds
//! its own match length by counting leading zeros. The two ballots of a new offset also give the match's length, how
//! far it goes back, and the candidates that it makes for the rest of the window.

use super::choices::{
    HASH_BITS, HASH_MULTIPLIER, KIND_MASK, KIND_TABLE, LAST_START, LAZY_MARGIN, MAX_BACKWARD, MIN_SCORE, OFFSET_BIT,
    POSITION_BITS, REPEAT_BONUS, REPEAT_BYTE, SCORE_SHIFT, SECOND_MULTIPLIER, TABLE_BASE, TABLE_BYTE, TABLE_CAP,
    WINDOW, hash_bits,
};
use super::format::{FIRST_OFFSETS, MIN_MATCH, PAGE_BYTES, REPEATED_OFFSETS};
use super::record::{RECORD_BYTES, pack_lengths};
use super::{Mode, TableStores};
use crate::kernels::match_table::ConflictRule;
use crate::kernels::shared_copy::WarpCopy;
use crate::types::{Global, Shared};
use crate::{Addr, KernelBuilder, Pred, Reg, Var};

pub(super) const TABLE_BYTES: u32 = 2 << HASH_BITS;
const POSITION_MASK: u32 = (1 << POSITION_BITS) - 1;
const TAG_MASK: u32 = 0xffff & !POSITION_MASK;

/// One point of score, in a candidate.
const POINT: u32 = 1 << SCORE_SHIFT;
const OFFSET_MASK: u32 = POINT - 1;
/// A repeated offset's match length in a candidate lies above the bonus and the offset.
const LENGTH_SHIFT: u32 = SCORE_SHIFT + REPEAT_BYTE.ilog2();
const LENGTH_ONE: u32 = 1 << LENGTH_SHIFT;
const _: () = assert!(REPEAT_BYTE.is_power_of_two() && REPEAT_BONUS[0] < REPEAT_BYTE);

/// Sequences wait in lanes until this many are ready to be stored; at most 11 begin in one window.
const STORED_TOGETHER: u32 = 21;
const _: () = assert!(STORED_TOGETHER - 1 + WINDOW.div_ceil(MIN_MATCH) <= 32);

/// The value of bytes past the page's end, which differs from every byte.
const NO_BYTE: u32 = 256;

/// The memory that a warp works in.
#[derive(Clone, Copy)]
pub(super) struct Workspace<'k> {
    pub(super) k: &'k KernelBuilder,
    pub(super) lane: Reg<'k, u32>,
    /// Shared address of the page: 4096 bytes, at a multiple of 4096.
    pub(super) page: Reg<'k, u32>,
    /// Shared address of the table, directly after the page.
    pub(super) table: Reg<'k, u32>,
    /// Global memory for the sequences of one page.
    pub(super) records: Addr<'k, Global, u32>,
    pub(super) copy: WarpCopy<'k>,
}

/// Finds the sequences of the page; leaves them as records and returns their number. The table must be zeroed.
pub(super) fn find_sequences<'k>(ws: Workspace<'k>, mode: Mode, stores: TableStores) -> Var<'k, u32> {
    let k = ws.k;
    k.section("find: prepare");
    let place = 31 - ws.lane;
    let finder = SequenceFinder {
        ws,
        mode,
        conflicts: ConflictRule { k, stores, position_mask: POSITION_MASK },
        place,
        first: (ws.page + place).named("first"),
        second_half: ws.lane.lt(WINDOW / 2),
        start: k.var(0u32).named("start"),
        anchor: k.var(0i32).named("anchor"),
        // The first window compares itself with itself, and forgets what it found: no byte before the page is read.
        repeats: [0, 1, 2].map(|rank| k.var(repeat_base(rank, 0))),
        earlier: [(); EARLIER_WORDS].map(|()| k.var_arbitrary::<u32>()),
        count: k.var(0u32).named("count"),
        waiting: k.var(0u32).named("waiting"),
        record: [k.var(0u32), k.var(0u32)],
    };
    k.do_while_uniform(|| {
        finder.window();
        finder.start.le(LAST_START)
    });
    k.section("find: store the last sequences");
    finder.store_waiting();
    finder.count
}

/// Words that hold any [`TABLE_CAP`] bytes.
const EARLIER_WORDS: usize = TABLE_CAP as usize / 4 + 1;

/// Returns the table entry of a position: the position, with bits of the hash above it.
fn new_entry<'k>(position: Reg<'k, u32>, product: Reg<'k, u32>) -> Reg<'k, u32> {
    position.k.value(POSITION_MASK).bit_select(position, product)
}

/// Returns the candidate of a match of at least four bytes: `whole_word` is the score of the next four if they are
/// equal, `top` the highest bit of the byte that differs in the word after.
fn table_score<'k>(top: Reg<'k, u32>, whole_word: Reg<'k, u32>, offset: Reg<'k, u32>) -> Reg<'k, u32> {
    const EIGHTH: u32 = TABLE_BYTE * POINT / 8;
    let score = top.mad(EIGHTH.wrapping_neg(), whole_word) + 31 * EIGHTH;
    let score = offset.bfind().mad((OFFSET_BIT * POINT).wrapping_neg(), score);
    score + (offset + ((4 * TABLE_BYTE + TABLE_BASE) * POINT + REPEATED_OFFSETS))
}

/// Returns the candidate of a repeated offset, without the match length.
const fn repeat_base(rank: usize, offset: u32) -> u32 {
    REPEAT_BONUS[rank] * POINT + offset + REPEATED_OFFSETS
}

/// The state that all windows of a page share.
struct SequenceFinder<'k> {
    ws: Workspace<'k>,
    mode: Mode,
    conflicts: ConflictRule<'k>,
    /// The lane's position in the window.
    place: Reg<'k, u32>,
    /// Shared address of the lane's position in a window that starts at 0.
    first: Reg<'k, u32>,
    /// Holds if the lane's position is in the window's second half.
    second_half: Pred<'k>,
    /// Start of the window; uniform.
    start: Var<'k, u32>,
    /// End of the last match, relative to the window; uniform.
    anchor: Var<'k, i32>,
    /// The candidates of the repeated offsets at the lane's position, the last used first.
    repeats: [Var<'k, u32>; 3],
    /// Words of the candidate, kept between windows so that lanes without a candidate need not set them.
    earlier: [Var<'k, u32>; EARLIER_WORDS],
    /// Sequences stored; uniform.
    count: Var<'k, u32>,
    /// Sequences that wait in lanes; uniform.
    waiting: Var<'k, u32>,
    /// The lane's waiting sequence.
    record: [Var<'k, u32>; 2],
}

/// The lane's position and the bytes there.
struct OwnBytes<'k> {
    position: Reg<'k, u32>,
    words: [Reg<'k, u32>; 3],
    /// The bytes at the position and a window later, to compare repeated offsets with.
    near: Var<'k, u32>,
    far: Var<'k, u32>,
}

/// One bit per position for 64 positions, the first ones leading: set where the byte differs from the one an offset
/// earlier.
#[derive(Clone, Copy)]
struct Differences<'k> {
    near: Reg<'k, u32>,
    far: Reg<'k, u32>,
}

impl<'k> Differences<'k> {
    /// Returns the differences from position `place` of the window on.
    fn from(self, place: Reg<'k, u32>) -> Reg<'k, u32> {
        self.far.funnel_shl(self.near, place)
    }

    /// Returns the differences before position `place` of the window, the nearest leading.
    fn before(self, place: Reg<'k, u32>) -> Reg<'k, u32> {
        self.near.k.value(0u32).funnel_shr(self.near.brev(), place)
    }

    /// Adds to a repeated offset's base the match length at the lane's place, up to 32.
    fn candidate(self, place: Reg<'k, u32>, base: Reg<'k, u32>) -> Reg<'k, u32> {
        self.from(place).bfind_shiftamt().min(WINDOW).mad(LENGTH_ONE, base)
    }
}

impl<'k> SequenceFinder<'k> {
    /// Finds and chooses the sequences of one window, and advances to the next.
    fn window(&self) {
        let Self { ws: Workspace { k, .. }, start, anchor, waiting, .. } = *self;
        k.section("find: own bytes and the table");
        let position = self.first + start;
        let aligned = (position & !3u32).shared::<u32>();
        let words = [0, 1, 2, 3].map(|i| aligned.at(i).load());
        let bits = position << 3;
        let own = OwnBytes {
            position,
            words: [0, 1, 2].map(|i| words[i].funnel_shr(words[i + 1], bits)),
            near: k.var(position.shared::<u8>().load()),
            far: k.var(position.shared::<u8>().at(WINDOW.cast_signed()).load()),
        };
        let product = own.words[0] * HASH_MULTIPLIER;
        let by_table = match self.mode {
            Mode::Fast => {
                let entry = self.swap_in(position, product);
                k.var(self.candidate_by_four(&own, product, entry))
            }
            Mode::Ratio => {
                // The longer hash first: its look-up needs no barriers of its own.
                let long_product = own.words[1].mad(SECOND_MULTIPLIER, product);
                let long_entry = self.swap_in_long(position, long_product);
                let entry = self.swap_in(position, product);
                let by_eight = self.candidate_by_eight(&own, long_product, long_entry);
                k.var(self.candidate_by_four(&own, product, entry).max(by_eight))
            }
        };
        k.section("find: repeated offsets");
        let bases = self.repeats.map(|repeat| repeat & (LENGTH_ONE - 1));
        self.compare_repeats(&own, bases);
        self.correct_at_page_ends(&own, bases, by_table);
        self.choose(&own, by_table);
        k.section("find: move on");
        k.if_uniform(waiting.ge(STORED_TOGETHER), || self.store_waiting());
        let step = anchor.max(WINDOW.cast_signed());
        start.set(start + step.as_u32());
        anchor.set(anchor - step);
    }

    /// Looks the word up in the table and puts its own position there; returns what was there before. The window's
    /// first half enters the table before the second half looks.
    fn swap_in(&self, position: Reg<'k, u32>, product: Reg<'k, u32>) -> Var<'k, u32> {
        let Self { ws: Workspace { k, table, .. }, second_half, .. } = *self;
        let slot = self.slot(product, table);
        let found = k.var(slot.load());
        k.sync_warp();
        let entry = new_entry(position, product);
        self.enter(slot, entry, !second_half);
        k.when(second_half).load(found, slot);
        k.sync_warp();
        self.enter(slot, entry, second_half);
        found
    }

    /// Like [`Self::swap_in`], in the table of eight bytes and for the whole window at once.
    fn swap_in_long(&self, position: Reg<'k, u32>, product: Reg<'k, u32>) -> Reg<'k, u32> {
        let Self { ws: Workspace { k, page, table, .. }, .. } = *self;
        let slot = self.slot(product, table + TABLE_BYTES / 2);
        let found = slot.load();
        k.sync_warp();
        // Only where all eight bytes are the page's.
        self.enter(slot, new_entry(position, product), position.le(page + (PAGE_BYTES - 8)));
        found
    }

    /// Returns the table slot of a hash.
    fn slot(&self, product: Reg<'k, u32>, table: Reg<'k, u32>) -> Addr<'k, Shared, u16> {
        let bits = hash_bits(self.mode);
        (product >> (31 - bits)).and_or((2 << bits) - 2, table).shared::<u16>()
    }

    /// Stores the positions of some lanes in the table; where they conflict, the highest stays.
    fn enter(&self, slot: Addr<'k, Shared, u16>, entry: Reg<'k, u32>, lanes: Pred<'k>) {
        let k = self.ws.k;
        k.when(lanes).store_conflicting(slot, entry);
        k.sync_warp();
        self.conflicts.resolve(slot, entry, entry, Some(lanes));
    }

    /// Returns the table's candidate by eight equal bytes; 0 if the bytes differ.
    fn candidate_by_eight(&self, own: &OwnBytes<'k>, product: Reg<'k, u32>, entry: Reg<'k, u32>) -> Reg<'k, u32> {
        let Self { ws: Workspace { k, page, .. }, earlier, .. } = *self;
        let [word, second, third] = own.words;
        let source = k.value(POSITION_MASK).bit_select(entry, page);
        let tags_agree = entry.xor_and(product, TAG_MASK).eq(0);
        let there_is = tags_agree & source.lt(own.position) & own.position.le(page + (PAGE_BYTES - TABLE_CAP));
        let aligned = (source & !3u32).shared::<u32>();
        for (word, i) in earlier.into_iter().zip(0..) {
            k.when(there_is).load(word, aligned.at(i));
        }
        let bits = source << 3;
        let earlier_word = |i: usize| earlier[i].funnel_shr(earlier[i + 1], bits);
        let valid = there_is & earlier_word(0).eq(word) & earlier_word(1).eq(second);
        let top = (third ^ earlier_word(2)).brev().bfind() | 7;
        valid.select(table_score(top, k.value(4 * TABLE_BYTE * POINT), own.position - source), 0u32)
    }

    /// Returns the table's candidate by four equal bytes, or the position before if all four bytes are the same; 0 if
    /// the bytes differ.
    fn candidate_by_four(&self, own: &OwnBytes<'k>, product: Reg<'k, u32>, entry: Var<'k, u32>) -> Reg<'k, u32> {
        let Self { ws: Workspace { k, page, .. }, earlier, .. } = *self;
        let [word, second, third] = own.words;
        let by_run = word.funnel_shr(word, 8u32).eq(word) & own.position.ne(page);
        let there_is = by_run | entry.xor_and(product, TAG_MASK).eq(0);
        let source = by_run.select(own.position - 1, k.value(POSITION_MASK).bit_select(*entry, page));
        let aligned = (source & !3u32).shared::<u32>();
        for (word, i) in earlier.into_iter().zip(0..) {
            k.when(there_is).load(word, aligned.at(i));
        }
        let bits = source << 3;
        let earlier_word = |i: usize| earlier[i].funnel_shr(earlier[i + 1], bits);
        let valid = there_is & earlier_word(0).eq(word);
        let differences = [second ^ earlier_word(1), third ^ earlier_word(2)];
        let in_second = differences[0].ne(0);
        let difference = in_second.select(differences[0], differences[1]);
        // The highest bit of the byte that differs, counted from the top, is 8 less for each equal byte; no difference
        // at all counts as a byte more than the last.
        let top = difference.brev().bfind() | 7;
        let whole_word = in_second.select(0u32, 4 * TABLE_BYTE * POINT);
        let offset = own.position - source;
        valid.select(table_score(top, whole_word, offset), 0u32)
    }

    /// Compares the bytes at 64 positions with earlier ones. `source` and `far_source` are the addresses that the lane
    /// compares its own bytes with.
    fn differences(&self, own: &OwnBytes<'k>, source: Reg<'k, u32>, far_source: Reg<'k, u32>) -> Differences<'k> {
        Differences {
            near: source.shared::<u8>().load().ne(own.near).ballot(),
            far: far_source.shared::<u8>().load().ne(own.far).ballot(),
        }
    }

    /// Sets the candidates of the repeated offsets, whose bases are given.
    fn compare_repeats(&self, own: &OwnBytes<'k>, bases: [Reg<'k, u32>; 3]) {
        for (rank, base) in bases.into_iter().enumerate() {
            let source = own.position + repeat_base(rank, 0) - base;
            let differences = self.differences(own, source, source + WINDOW);
            self.repeats[rank].set(differences.candidate(self.place, base));
        }
    }

    /// Corrects the candidates of the first and the last windows. The first window has no repeated offsets, and its
    /// first byte has no match. In the last ones, bytes past the page's end equal none.
    fn correct_at_page_ends(&self, own: &OwnBytes<'k>, bases: [Reg<'k, u32>; 3], by_table: Var<'k, u32>) {
        let Self { ws: Workspace { k, .. }, start, place, .. } = *self;
        let sees_end = PAGE_BYTES - 2 * WINDOW + 1;
        k.if_uniform((start - 1).ge(sees_end - 1), || {
            k.section("find: the first and the last windows");
            k.if_else_uniform(
                start.eq(0),
                || {
                    for (rank, offset) in FIRST_OFFSETS.into_iter().enumerate() {
                        self.repeats[rank].set(repeat_base(rank, offset));
                    }
                    k.when(place.eq(0)).set(by_table, 0u32);
                },
                || {
                    let at = start + place;
                    k.when(at.ge(PAGE_BYTES)).set(own.near, NO_BYTE);
                    k.when(at.ge(PAGE_BYTES - WINDOW)).set(own.far, NO_BYTE);
                    self.compare_repeats(own, bases);
                    // Close to the end only the four bytes count, which all lie in the page up to the last start.
                    let offset_value = by_table & OFFSET_MASK;
                    let offset_bits = (offset_value - REPEATED_OFFSETS).bfind();
                    let four = offset_bits
                        .mad((OFFSET_BIT * POINT).wrapping_neg(), offset_value + (4 * TABLE_BYTE + TABLE_BASE) * POINT);
                    let near_end = at.gt(PAGE_BYTES - TABLE_CAP) & by_table.ne(0);
                    k.when(near_end).set(by_table, four);
                    k.when(at.gt(LAST_START)).set(by_table, 0u32);
                },
            );
        });
    }

    /// Chooses from the left: the first position that is good enough, then the first after its match, and so on.
    fn choose(&self, own: &OwnBytes<'k>, by_table: Var<'k, u32>) {
        let Self { ws: Workspace { k, .. }, anchor, repeats: [last, second, third], .. } = *self;
        let uncovered = k.var(u32::MAX).named("uncovered");
        let good = k.var(0u32).named("good");
        let chosen = k.var(0u32).named("chosen");
        let place = k.var(0u32).named("place");
        let literals = k.var(0u32).named("literals");
        k.loop_uniform(|choosing| {
            k.section("find: choose");
            let best = by_table.max(last).max(second).max(third);
            let next = best.shfl_up(1u32);
            let good_enough = best.ge(MIN_SCORE * POINT) & next.le(best + LAZY_MARGIN * POINT);
            good.set(good_enough.ballot() & uncovered);
            choosing.break_if(good.eq(0));
            // The last offset again changes no candidate: the next sequence is chosen from the same positions.
            k.loop_uniform(|again| {
                let leader = good.bfind();
                chosen.set(best.shfl(leader));
                place.set(31 - leader);
                literals.set(place - anchor.as_u32());
                again.break_if((chosen & (KIND_MASK * POINT)).ne(0));
                k.section("find: the last offset again");
                let length = self.repeat_length(chosen, place);
                self.push(pack_lengths(*literals, *length), 1u32);
                anchor.set((place + length).as_i32());
                good.set(good & self.uncovered());
                choosing.break_if(good.eq(0));
            });
            let new = (chosen & (KIND_MASK * POINT)).eq(KIND_TABLE * POINT);
            k.if_else_uniform(
                new,
                || {
                    k.section("find: a new offset");
                    let offset_value = chosen & OFFSET_MASK;
                    let differences = self.push_new(own, offset_value, *place, *literals);
                    uncovered.set(self.uncovered());
                    third.set(second + (REPEAT_BONUS[2] - REPEAT_BONUS[1]) * POINT);
                    second.set(last - (REPEAT_BONUS[0] - REPEAT_BONUS[1]) * POINT);
                    last.set(offset_value + REPEAT_BONUS[0] * POINT);
                    choosing.break_if(uncovered.eq(0));
                    last.set(differences.candidate(self.place, *last));
                },
                || {
                    k.section("find: an offset before the last");
                    let length = self.repeat_length(chosen, place);
                    // Directly after a match the format counts the offsets from the second.
                    let rank = chosen.bfe(SCORE_SHIFT, KIND_MASK.count_ones());
                    let is_third = rank.eq(2);
                    self.push(pack_lengths(*literals, *length), rank + literals.ne(0).to_u32());
                    anchor.set((place + length).as_i32());
                    let was_last = last.get();
                    let up = |rank: usize| (REPEAT_BONUS[0] - REPEAT_BONUS[rank]) * POINT;
                    last.set(is_third.select(third + up(2), second + up(1)));
                    k.when(is_third).set(third, second + (REPEAT_BONUS[2] - REPEAT_BONUS[1]) * POINT);
                    second.set(was_last - up(1));
                    uncovered.set(self.uncovered());
                    choosing.break_if(uncovered.eq(0));
                },
            );
        });
    }

    /// Returns the lanes at or after the end of the last match. A shift by 32 or more leaves none.
    fn uncovered(&self) -> Reg<'k, u32> {
        self.ws.k.value(u32::MAX) >> self.anchor.as_u32()
    }

    /// Returns the whole length of a repeated offset's match.
    fn repeat_length(&self, chosen: Var<'k, u32>, place: Var<'k, u32>) -> Var<'k, u32> {
        let k = self.ws.k;
        let length = k.var(chosen >> LENGTH_SHIFT);
        k.if_uniform(length.ge(WINDOW), || {
            length.set(self.extend(*place, (chosen & OFFSET_MASK) - REPEATED_OFFSETS));
        });
        length
    }

    /// Records a match with a new offset, extended backward; moves the anchor. Returns the offset's differences.
    fn push_new(
        &self,
        own: &OwnBytes<'k>,
        offset_value: Reg<'k, u32>,
        place: Reg<'k, u32>,
        literals: Reg<'k, u32>,
    ) -> Differences<'k> {
        let Self { ws: Workspace { k, page, .. }, start, anchor, .. } = *self;
        let offset = offset_value - REPEATED_OFFSETS;
        // Positions before the match may have no byte an offset earlier; those read the page's first byte.
        let source = own.position - offset;
        let inside = source.as_i32().max(page.as_i32()).as_u32();
        let differences = self.differences(own, inside, source + WINDOW);
        let after = differences.from(place);
        let before = differences.before(place);
        let length = k.var(after.bfind_shiftamt());
        let room = literals.min(start + place - offset);
        let back = k.var(before.bfind_shiftamt().min(room));
        let beyond = before.eq(0) & anchor.lt(0);
        k.if_uniform(after.eq(0) | beyond, || {
            k.section("find: a match beyond the window");
            k.if_uniform(beyond, || back.set(self.extend_backward(place, offset, room)));
            k.if_uniform(after.eq(0), || length.set(self.extend(place, offset)));
        });
        k.section("find: a new offset");
        self.push(pack_lengths(literals - back, length + back), offset_value);
        anchor.set((place + length).as_i32());
        differences
    }

    /// Keeps a sequence in the next free lane.
    fn push(&self, lengths: Reg<'k, u32>, offset_value: impl crate::Operand<'k, u32>) {
        let Self { ws: Workspace { k, lane, .. }, waiting, record, .. } = *self;
        let own = lane.eq(waiting);
        k.when(own).set(record[0], lengths);
        k.when(own).set(record[1], offset_value);
        waiting.set(waiting + 1);
    }

    /// Stores the sequences that wait in lanes.
    fn store_waiting(&self) {
        let Self { ws: Workspace { k, lane, records, .. }, count, waiting, record, .. } = *self;
        k.when(lane.lt(waiting)).store_vec(records.step(count + lane, RECORD_BYTES), record);
        count.set(count + waiting);
        waiting.set(0u32);
    }

    /// Returns the length of a match of at least 32 bytes at a place of the window; uniform.
    fn extend(&self, place: Reg<'k, u32>, offset: Reg<'k, u32>) -> Reg<'k, u32> {
        let Self { ws: Workspace { k, lane, page, .. }, start, .. } = *self;
        let length = k.var(WINDOW);
        let at = k.var(page + start + place + lane + WINDOW);
        let differ = k.var(0u32);
        let limit = page + PAGE_BYTES;
        k.loop_uniform(|l| {
            let inside = at.lt(limit);
            // Bytes past the end differ.
            let own = k.when(inside).load_or(at.shared::<u8>(), 0u32);
            let before = k.when(inside).load_or((at - offset).shared::<u8>(), NO_BYTE);
            differ.set(own.ne(before).ballot());
            l.break_if(differ.ne(0));
            at.set(at + 32);
            length.set(length + 32);
        });
        length + differ.brev().bfind_shiftamt()
    }

    /// Returns the number of bytes before a place of the window that equal those one offset earlier, up to 32 and to
    /// `room`; uniform.
    fn extend_backward(&self, place: Reg<'k, u32>, offset: Reg<'k, u32>, room: Reg<'k, u32>) -> Reg<'k, u32> {
        let Self { ws: Workspace { k, lane, page, .. }, start, .. } = *self;
        let at = page + start + place - lane - 1;
        let inside = lane.lt(room);
        let own = k.when(inside).load_or(at.shared::<u8>(), 0u32);
        let before = k.when(inside).load_or((at - offset).shared::<u8>(), NO_BYTE);
        let differ = own.ne(before).ballot();
        differ.brev().bfind_shiftamt().min(MAX_BACKWARD)
    }
}
