//! Finds matches in windows of 32 or 64 positions, with one table lookup per position. Votes and shuffles choose among
//! them.
//!
//! The page lies in shared memory at a multiple of its size, with the table directly after it. Lanes run backwards:
//! lane 31 has the first position of a window. On an H200 the lowest lane wins a store that several lanes make to one
//! place, so the highest position stays in the table, which is the best one to find later. PTX does not guarantee this;
//! see [`TableStores`].

use super::format::{MATCH_END_LIMIT, MATCH_START_LIMIT, MIN_MATCH, PAGE_BYTES};
use super::{Mode, TableStores};
use crate::kernels::match_table::ConflictRule;
use crate::types::Global;
use crate::{Addr, KernelBuilder, Pred, Reg, Var};

/// Bytes of the table. Entries have 16 bits: position in the page below, tag above.
pub(super) const TABLE_BYTES: u32 = 2 << HASH_BITS;
const HASH_BITS: u32 = 11;
/// Knuth's multiplicative hash: 2^32 divided by the golden ratio.
const HASH_MULTIPLIER: u32 = 2_654_435_761;
/// Mask of an entry's byte offset.
const SLOT_MASK: u32 = TABLE_BYTES - 2;
const POSITION_MASK: u32 = 0xfff;
const TAG_MASK: u32 = 0xf000;

/// Bytes that a lane compares by itself; the warp measures longer matches. With 12, the warp measures a third more
/// often, at 0.96 of the speed.
const CAP: u32 = 16;
/// Number of words in these bytes. The first one verifies the match.
const CAP_WORDS: usize = 4;
const _: () = assert!(CAP as usize == 4 * CAP_WORDS);
/// The "length above the minimum" if all bytes up to the cap are equal. No real length comes near it.
const CAPPED: u32 = CAP - 8 + (u32::MAX >> 3);

/// Distance at which every lane compares within its window, where the table does not see earlier positions yet. Arrays
/// of 16-byte records are the most common ones: pairs of pointers, entries of database indexes.
const RECORD_DISTANCE: u32 = 16;

/// Bytes per match record: `(length - 4) << 12 | start`, then the offset.
pub(super) const RECORD_BYTES: u32 = 8;
/// Most records per page. A match covers at least 4 bytes and none starts at 0, so there are at most 1,023.
pub(super) const MAX_RECORDS: u32 = 1024;

/// The memory that a warp works on.
#[derive(Clone, Copy)]
pub(super) struct Lz4Workspace<'k> {
    pub(super) k: &'k KernelBuilder,
    pub(super) lane: Reg<'k, u32>,
    /// Shared address of the page: 4096 bytes, aligned to 4096.
    pub(super) page: Reg<'k, u32>,
    /// Shared address of the table, directly after the page; initially zero.
    pub(super) table: Reg<'k, u32>,
    /// Global memory for the records of one page.
    pub(super) records: Addr<'k, Global, u32>,
}

/// The bytes at one position, loaded as aligned words.
struct OwnBytes<'k> {
    position: Reg<'k, u32>,
    words: [Reg<'k, u32>; CAP_WORDS + 1],
}

/// Two positions that may match.
struct Candidate<'k> {
    /// Holds if the lane has a candidate; `None` if every lane has one.
    there_is: Option<Pred<'k>>,
    /// Address of the earlier bytes.
    source: Reg<'k, u32>,
    /// Address of the bytes to match: the lane's position or the next one.
    at: Reg<'k, u32>,
    /// The bytes at `at`.
    bytes: [Reg<'k, u32>; CAP_WORDS],
}

/// The result of checking a lane's candidate.
struct Match<'k> {
    candidate: Candidate<'k>,
    valid: Pred<'k>,
    /// Length above the minimum, or [`CAPPED`]; -1 if there is no match.
    extra: Reg<'k, i32>,
}

impl<'k> Match<'k> {
    fn above_minimum(&self) -> Pred<'k> {
        self.extra.ne(0)
    }
}

/// The matches chosen in a window.
struct Choice<'k> {
    /// Holds if the lane's match was chosen.
    chosen: Pred<'k>,
    /// Position in the page of the lane's match.
    start: Reg<'k, u32>,
    extra: Reg<'k, i32>,
    offset: Reg<'k, u32>,
    /// Position in the page after the last chosen match; uniform.
    end: Reg<'k, u32>,
}

/// Finds the matches of the page, stores them as records, and returns their number.
pub(super) fn find_matches<'k>(ws: Lz4Workspace<'k>, mode: Mode, stores: TableStores) -> Var<'k, u32> {
    let k = ws.k;
    let finder = MatchFinder {
        ws,
        mode,
        conflicts: ConflictRule { k, stores, position_mask: POSITION_MASK },
        // Kept in registers for all windows.
        first: (31 - ws.lane).mad(mode.positions_per_lane(), ws.page).named("first"),
        later_lanes: k.lanemask_gt(),
        earlier: [(); CAP_WORDS + 1].map(|()| k.var_arbitrary::<u32>()),
        p: k.var(1u32).named("p"),
        count: k.var(0u32).named("count"),
        last_offset: k.var(1u32).named("last_offset"),
        misses: k.var(0u32).named("misses"),
    };
    k.section("find matches: windows that the page's end does not touch");
    // A lane at the window's last position must not compare bytes past the end limit by itself.
    let untouched = MATCH_END_LIMIT - CAP - (mode.window() - 1);
    k.do_while_uniform(|| {
        finder.window(PageEnd::Far);
        finder.p.le(untouched)
    });
    k.section("find matches: the last windows");
    k.while_uniform(|| finder.p.le(MATCH_START_LIMIT), || finder.window(PageEnd::Near));
    finder.count
}

/// The distance of a window from the last bytes of the page.
#[derive(Clone, Copy, PartialEq)]
enum PageEnd {
    Far,
    Near,
}

/// The state that all windows of a page share.
struct MatchFinder<'k> {
    ws: Lz4Workspace<'k>,
    mode: Mode,
    conflicts: ConflictRule<'k>,
    /// The lane's first position, in a window that starts at 0.
    first: Reg<'k, u32>,
    later_lanes: Reg<'k, u32>,
    /// Words of the candidate, kept between windows so that lanes without a candidate need not set them.
    earlier: [Var<'k, u32>; CAP_WORDS + 1],
    /// Start of the window; uniform.
    p: Var<'k, u32>,
    /// Number of recorded matches; uniform.
    count: Var<'k, u32>,
    /// Offset of the last match.
    last_offset: Var<'k, u32>,
    /// Number of windows since the last match; uniform.
    misses: Var<'k, u32>,
}

impl<'k> MatchFinder<'k> {
    /// Finds, chooses and records the matches of one window, and advances to the next.
    fn window(&self, end: PageEnd) {
        let Self { ws, mode, p, count, misses, .. } = *self;
        let k = ws.k;
        let position = self.first + p;
        // Positions past the limit must not enter the table: the bytes after the page are not part of it.
        let own = OwnBytes::load(match end {
            PageEnd::Far => position,
            PageEnd::Near => position.min(ws.page + MATCH_START_LIMIT),
        });
        let found = match mode {
            Mode::Ratio => {
                let [repeated, other] = self.one_position(&own);
                longer(self.measure(repeated), self.measure(other))
            }
            Mode::Fast => self.measure(self.two_positions(&own)),
        };
        let found = match end {
            PageEnd::Far => found,
            PageEnd::Near => {
                let unlimited_at = position + (found.candidate.at - own.position);
                self.clip_at_page_end(found, unlimited_at)
            }
        };

        k.section("give way to longer matches close by");
        let next = found.extra.shfl_up(1u32);
        let next_but_one = found.extra.shfl_up(2u32);
        let slack = mode.positions_per_lane().cast_signed();
        let gives_way = next_but_one.gt(found.extra + slack);
        let gives_way = match mode {
            Mode::Ratio => gives_way,
            // Two lanes on are four positions: a match of minimum length ends before.
            Mode::Fast => gives_way & found.above_minimum(),
        };
        let wanted = found.valid & next.le(found.extra) & !gives_way;
        let wanted = wanted.ballot().named("wanted");
        k.if_else_uniform(
            wanted.eq(0),
            || {
                // Skip faster where nothing matches: after 256 or 512 bytes without a match, skip one window each time,
                // then two, and in ratio mode more. Records after a long array of other data are missed while skipping.
                misses.set(misses + 1);
                let passed_over = match mode {
                    Mode::Fast => ((misses & !3u32) << 4).min(2 * mode.window()),
                    Mode::Ratio => (misses & !15u32) << 1,
                };
                p.set(p + passed_over + mode.window());
            },
            || {
                let choice = self.choose(&found, wanted);
                k.section("record the chosen matches");
                let all_chosen = choice.chosen.ballot();
                let place = count + (all_chosen & self.later_lanes).popc();
                let head = (choice.extra.as_u32() << 12) + choice.start;
                k.when(choice.chosen).store_vec(ws.records.step(place, RECORD_BYTES), [head, choice.offset]);
                count.set(count + all_chosen.popc());
                misses.set(0u32);
                p.set((p + mode.window()).max(choice.end));
            },
        );
    }

    /// Looks a word up in the table and stores its own position there. Returns the previous entry.
    fn swap_in(&self, position: Reg<'k, u32>, product: Reg<'k, u32>) -> Reg<'k, u32> {
        let ws = self.ws;
        let k = ws.k;
        let slot = (product >> (31 - HASH_BITS)).and_or(SLOT_MASK, ws.table).shared::<u16>();
        let before = slot.load();
        k.sync_warp();
        let entry = k.value(POSITION_MASK).bit_select(position, product);
        slot.store_conflicting(entry);
        k.sync_warp();
        self.conflicts.resolve(slot, entry, position, None);
        before
    }

    /// Returns a predicate that holds if the word one last offset earlier is equal, and the address of that word.
    fn at_last_offset(&self, own: &OwnBytes<'k>, word: Reg<'k, u32>) -> (Pred<'k>, Reg<'k, u32>) {
        let source = own.position - self.last_offset;
        let aligned = (source & !3u32).shared::<u32>();
        (aligned.load().funnel_shr(aligned.at(1).load(), source << 3).eq(word), source)
    }

    /// Returns a predicate that holds if the word equals the one [`RECORD_DISTANCE`] earlier in the window.
    fn at_record_distance(&self, word: Reg<'k, u32>) -> Pred<'k> {
        let (earlier, in_window) = word.shfl_down_checked(RECORD_DISTANCE / self.mode.positions_per_lane());
        in_window & earlier.eq(word)
    }

    /// Returns two candidates of a lane with one position: record distance or last offset, and distance 1 or table. In
    /// arrays of records that change slowly, the last offset often has the shorter match of the two.
    fn one_position(&self, own: &OwnBytes<'k>) -> [Candidate<'k>; 2] {
        let ws = self.ws;
        let k = ws.k;
        k.section("candidates: one position a lane");
        let position = own.position;
        let bytes = [0, 1, 2, 3].map(|i| own.word(i));
        let product = bytes[0] * HASH_MULTIPLIER;
        let entry = self.swap_in(position, product);
        let by_table = tags_agree(entry, product);
        let (word_before, in_window) = bytes[0].shfl_down_checked(1u32);
        let by_run = in_window & word_before.eq(bytes[0]);
        let distance = self.at_record_distance(bytes[0]).select(RECORD_DISTANCE, *self.last_offset);
        let source = k.value(POSITION_MASK).bit_select(entry, ws.page);
        let source = by_run.select(position - 1, source);
        [
            Candidate { there_is: None, source: position - distance, at: position, bytes },
            Candidate { there_is: Some(by_table | by_run), source, at: position, bytes },
        ]
    }

    /// Returns the candidate of a lane with two positions. In order: record distance at the first, last offset at the
    /// first, distance 1 at the second, table at the first, table at the second. The second lookup sees the entries of
    /// the first.
    fn two_positions(&self, own: &OwnBytes<'k>) -> Candidate<'k> {
        let ws = self.ws;
        let k = ws.k;
        k.section("candidate: two positions a lane");
        let position = own.position;
        let words = [0, 1, 2, 3, 4].map(|i| own.word(i));
        let second_word = words[0].funnel_shr(words[1], 8u32);
        let first_product = words[0] * HASH_MULTIPLIER;
        let first_entry = self.swap_in(position, first_product);
        let first_by_table = tags_agree(first_entry, first_product);
        let second_product = second_word * HASH_MULTIPLIER;
        let second_entry = self.swap_in(position + 1, second_product);
        let second_by_table = tags_agree(second_entry, second_product);

        let (by_last_offset, repeated) = self.at_last_offset(own, words[0]);
        let by_run = words[0].eq(second_word);
        let by_record = self.at_record_distance(words[0]);
        let take_first = by_record | by_last_offset | (first_by_table & !by_run);
        let entry = first_by_table.select(first_entry, second_entry);
        let source = k.value(POSITION_MASK).bit_select(entry, ws.page);
        let source = by_run.select(position, source);
        let source = by_last_offset.select(repeated, source);
        let source = by_record.select(position - RECORD_DISTANCE, source);
        let shift = take_first.select(0u32, 8u32);
        Candidate {
            there_is: Some(take_first | second_by_table | by_run),
            source,
            at: take_first.select(position, position + 1),
            bytes: [
                take_first.select(words[0], second_word),
                words[1].funnel_shr(words[2], shift),
                words[2].funnel_shr(words[3], shift),
                words[3].funnel_shr(words[4], shift),
            ],
        }
    }

    /// Verifies a candidate and compares up to [`CAP`] bytes.
    fn measure(&self, candidate: Candidate<'k>) -> Match<'k> {
        let Self { ws: Lz4Workspace { k, .. }, earlier, .. } = *self;
        k.section("verify and measure");
        let source = candidate.source;
        let aligned = (source & !3u32).shared::<u32>();
        for (word, i) in earlier.into_iter().zip(0..) {
            match candidate.there_is {
                Some(there_is) => k.when(there_is).load(word, aligned.at(i)),
                None => word.set(aligned.at(i).load()),
            }
        }
        let bits = source << 3;
        let word = |i: usize| earlier[i].funnel_shr(earlier[i + 1], bits);
        let equal = word(0).eq(candidate.bytes[0]);
        let valid = equal & source.lt(candidate.at);
        let valid = candidate.there_is.map_or(valid, |there_is| there_is & valid);
        // The first word that differs, and the number of bytes before it.
        let differences = [1, 2, 3].map(|i| candidate.bytes[i] ^ word(i));
        let in_second = differences[1].ne(0);
        let later = in_second.select(differences[1], differences[2]);
        let base = in_second.select(4u32, 8u32);
        let in_first = differences[0].ne(0);
        let difference = in_first.select(differences[0], later);
        let base = in_first.select(0u32, base);
        // Equal bytes from the low end: the zeros below the lowest set bit, divided by 8. Without a set bit the number
        // is huge.
        let extra = (difference.brev().bfind_shiftamt() >> 3) + base;
        Match { candidate, valid, extra: valid.select(extra.as_i32(), -1) }
    }

    /// Drops matches that start past the limit and shortens those that end past theirs. `unlimited_at` is the start of
    /// the match if the lane's position had not been limited.
    fn clip_at_page_end(&self, found: Match<'k>, unlimited_at: Reg<'k, u32>) -> Match<'k> {
        let page = self.ws.page;
        let valid = found.valid & unlimited_at.le(page + MATCH_START_LIMIT);
        let room = (page + (MATCH_END_LIMIT - MIN_MATCH)).as_i32() - found.candidate.at.as_i32();
        let clipped = room.lt((CAP - MIN_MATCH).cast_signed()) & room.lt(found.extra);
        Match { valid, extra: valid.select(clipped.select(room, found.extra), -1), ..found }
    }

    /// Chooses matches from the left among the `wanted` lanes: the first match, then the next one that starts at or
    /// after its end.
    fn choose(&self, found: &Match<'k>, wanted: Reg<'k, u32>) -> Choice<'k> {
        let Self { ws, mode, p, last_offset, .. } = *self;
        let Lz4Workspace { k, lane, page, .. } = ws;
        let candidate = &found.candidate;
        k.section("choose from the left");
        let all = k.value(u32::MAX);
        let round_up = mode.positions_per_lane() - 1;
        // Lanes that start at or after a position of the page. A shift by 32 or more leaves none.
        let lanes_from = |end: Reg<'k, u32>| all >> ((end - p + round_up) >> round_up);
        let extra = k.var(found.extra);
        let start = candidate.at - page;
        let end = start + extra.as_u32() + MIN_MATCH;
        let offset = candidate.at - candidate.source;
        let after = lanes_from(end);
        let remembered = match mode {
            Mode::Ratio => offset,
            // A match of minimum length does not end an array of records.
            Mode::Fast => found.above_minimum().select(offset, *last_offset),
        };

        let mask = k.var(wanted).named("mask");
        let chosen = k.var(false).named("chosen");
        let leader = k.var(0u32).named("leader");
        let last_end = k.var(0u32).named("last_end");
        k.loop_uniform(|extending| {
            k.do_while_uniform(|| {
                leader.set(mask.bfind());
                chosen.set(*chosen | lane.eq(leader));
                mask.set(mask & after.shfl(leader));
                mask.ne(0)
            });
            last_end.set(end.shfl(leader));
            last_offset.set(remembered.shfl(leader));
            extending.break_if(last_end.lt(2 * PAGE_BYTES));

            k.section("extend a long match, 32 bytes at a time");
            last_end.set(last_end - (CAPPED + MIN_MATCH - CAP));
            let more = extend(ws, last_end, last_offset);
            k.when(lane.eq(leader)).set(extra, (more + (CAP - MIN_MATCH)).as_i32());
            last_end.set(last_end + more);
            mask.set(wanted & lanes_from(*last_end));
            extending.break_if(mask.eq(0));
        });
        Choice { chosen: *chosen, start, extra: *extra, offset, end: *last_end }
    }
}

impl<'k> OwnBytes<'k> {
    fn load(position: Reg<'k, u32>) -> Self {
        let aligned = (position & !3u32).shared::<u32>();
        Self { position, words: [0, 1, 2, 3, 4].map(|i| aligned.at(i).load()) }
    }

    /// Returns the word that starts `4 * i` bytes after the position.
    fn word(&self, i: usize) -> Reg<'k, u32> {
        let bits = self.position << 3;
        match self.words.get(i + 1) {
            Some(next) => self.words[i].funnel_shr(*next, bits),
            None => self.words[i].funnel_shr(0u32, bits),
        }
    }
}

/// Returns the longer match of the two, for the same bytes.
fn longer<'k>(a: Match<'k>, b: Match<'k>) -> Match<'k> {
    let better = b.extra.gt(a.extra);
    let source = better.select(b.candidate.source, a.candidate.source);
    Match { candidate: Candidate { source, ..a.candidate }, valid: a.valid | b.valid, extra: a.extra.max(b.extra) }
}

/// Returns a predicate that holds if an entry has the tag of the product, which makes it a candidate.
fn tags_agree<'k>(entry: Reg<'k, u32>, product: Reg<'k, u32>) -> Pred<'k> {
    entry.xor_and(product, TAG_MASK).eq(0)
}

/// Returns the number of bytes from `end` on that equal those one offset earlier, up to the end limit; uniform.
fn extend<'k>(ws: Lz4Workspace<'k>, end: Var<'k, u32>, offset: Var<'k, u32>) -> Var<'k, u32> {
    let Lz4Workspace { k, lane, page, .. } = ws;
    let limit = page + MATCH_END_LIMIT;
    let at = k.var(page + lane + end);
    let more = k.var(0u32);
    let differ = k.var(0u32);
    k.loop_uniform(|l| {
        let inside = at.lt(limit);
        let (own, before) = (k.var_arbitrary::<u32>(), k.var_arbitrary::<u32>());
        k.when(inside).load(own, at.shared::<u8>());
        k.when(inside).load(before, (at - offset).shared::<u8>());
        differ.set((!inside | own.ne(before)).ballot());
        l.break_if(differ.ne(0));
        at.set(at + 32);
        more.set(more + 32);
    });
    more.set(more + differ.brev().bfind_shiftamt());
    more
}
