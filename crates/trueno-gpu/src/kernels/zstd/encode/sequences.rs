//! The sequences section (RFC 8878, section 3.1.1.3.2): tables for the three kinds of codes, then a bitstream of three
//! chains.
//!
//! The chains are serial: a state follows from the one before. 32 sequences at a time, the lanes prepare the steps,
//! three lanes walk the chains, and all lanes put the bits together.

use super::bits::{append, low_bits, or_bits};
use super::choices::{FRAME_LIMIT, LENGTHS_LOG, MANY_SEQUENCES, MIN_DESCRIBED_SEQUENCES, OFFSETS_LOG};
use super::codes::{CodeTable, Coded};
use super::find::Workspace;
use super::format::{
    LENGTHS_DEFAULT_LOG, LITERAL_LENGTHS_DEFAULT, MATCH_LENGTHS_DEFAULT, MODE_FSE, MODE_PREDEFINED, MODE_RLE,
    OFFSETS_DEFAULT, OFFSETS_DEFAULT_LOG,
};
use super::fse::{BySymbol, Fse, SCRATCH_BYTES, STEP_BYTES, TableMemory, step_bits};
use super::record::RecordReader;
use crate::ir::AtomOp;
use crate::kernels::scan::scan;
use crate::{Pred, Reg, ScopeLabel, Var};

/// The kinds of codes, in the order of the format.
const KINDS: u32 = 3;

/// Shared memory where the literals were, in this order. The states and the steps of each kind:
const STATES_BYTES: u32 = 256;
const STEPS_BYTES: u32 = 56 * STEP_BYTES;
const KIND_BYTES: u32 = STATES_BYTES + STEPS_BYTES;
/// Scratch memory for building tables.
const SCRATCH: u32 = KINDS * KIND_BYTES;
/// The steps of 32 sequences, three each, or a table's description.
const PREPARED: u32 = SCRATCH + SCRATCH_BYTES;
const PREPARED_BYTES: u32 = KINDS * STEP_BYTES;
const DESCRIPTION: u32 = PREPARED;
/// The states of 32 sequences: 2 bytes each, in 8 bytes for each sequence.
const CHAIN_STATES: u32 = PREPARED + 32 * PREPARED_BYTES;
/// The number of times that each code occurs, 4 bytes each.
const COUNTS: u32 = CHAIN_STATES + 32 * 8;
/// Codes of each kind that a page can have.
const KIND_CODES: [u32; 3] = [32, 16, 48];
const COUNTS_END: u32 = COUNTS + 4 * (KIND_CODES[0] + KIND_CODES[1] + KIND_CODES[2]);
const _: () = assert!(COUNTS_END <= super::format::PAGE_BYTES);

/// The frame that the section is appended to.
#[derive(Clone, Copy)]
pub(super) struct FrameOutput<'k> {
    /// Shared address of the frame, zeroed from where it ends.
    pub(super) frame: Reg<'k, u32>,
    /// Bytes of the frame so far; uniform.
    pub(super) len: Var<'k, u32>,
    /// Left if the frame becomes too long.
    pub(super) give_up: ScopeLabel<'k>,
}

impl<'k> FrameOutput<'k> {
    /// Gives up if `more` bytes would make the frame too long.
    pub(super) fn check(self, more: Reg<'k, u32>) {
        self.give_up.exit_if((self.len + more).gt(FRAME_LIMIT));
    }

    /// Returns the shared address of the frame's end.
    pub(super) fn end(self) -> Reg<'k, u32> {
        self.frame + self.len
    }
}

/// Writes the sequences section.
pub(super) fn write_sequences<'k>(ws: Workspace<'k>, count: Reg<'k, u32>, out: FrameOutput<'k>) {
    let Workspace { k, lane, .. } = ws;
    k.section("sequences: header");
    k.if_else_uniform(
        count.eq(0),
        // The header is a zero byte, and the frame is zeroed.
        || out.len.set(out.len + 1),
        || {
            let writes = lane.eq(0);
            let short = count.lt(128);
            let header_bytes = short.select(1u32, 2u32);
            out.check(header_bytes + 1);
            let at = out.end().shared::<u8>();
            k.when(writes).store(at, short.select(count, (count >> 8) + 128));
            k.when(writes & !short).store(at.at(1), count);
            let modes_at = (out.end() + header_bytes).shared::<u8>();
            out.len.set(out.len + header_bytes + 1);
            let codes = CodeTable::new(ws);
            count_codes(ws, codes, count);
            let tables = SequenceTables { ws, fse: Fse { k, lane }, log: k.var(0u32), modes: k.var(0u32) };
            tables.choose(count, out);
            k.when(writes).store(modes_at, tables.modes);
            tables.write_bits(codes, count, out);
        },
    );
}

/// Counts the codes of each kind.
fn count_codes<'k>(ws: Workspace<'k>, codes: CodeTable<'k>, count: Reg<'k, u32>) {
    let Workspace { k, lane, table, .. } = ws;
    k.section("fse: count the codes");
    for n in (COUNTS..COUNTS_END).step_by(128) {
        (table + n + lane * 4).shared::<u32>().store(0u32);
    }
    k.sync_warp();
    let done = k.var(0u32);
    let records = RecordReader::start(ws, count, k.value(0u32));
    k.do_while_uniform(|| {
        let active = (done + lane).lt(count);
        let record = records.take(done + 32);
        let mut at = COUNTS;
        for (coded, kind_codes) in codes.sequence(record).into_iter().zip(KIND_CODES) {
            k.when(active).reduce((table + at).shared::<u32>().index(coded.code), AtomOp::Add, 1u32);
            at += 4 * kind_codes;
        }
        done.set(done + 32);
        done.lt(count)
    });
    k.sync_warp();
}

/// A predefined table: bit `n` of mask `m` is set if symbol `n` has more than `m` cells. Symbols from 32 on have
/// one cell or none, so one mask suffices.
struct Predefined {
    masks: [u32; 4],
    high_mask: u32,
    improbable: u32,
    log: u32,
}

impl Predefined {
    const fn of(distribution: &[i8], log: u32) -> Self {
        let mut table = Self { masks: [0; 4], high_mask: 0, improbable: 0, log };
        let mut symbol = 0;
        while symbol < distribution.len() {
            let cells = distribution[symbol].unsigned_abs();
            if distribution[symbol] < 0 {
                table.improbable += 1;
            }
            if symbol < 32 {
                let mut m = 0;
                while m < cells as usize {
                    table.masks[m] |= 1 << symbol;
                    m += 1;
                }
            } else {
                assert!(cells == 1);
                table.high_mask |= 1 << (symbol - 32);
            }
            symbol += 1;
        }
        table
    }
}

const PREDEFINED: [Predefined; 3] = [
    Predefined::of(&LITERAL_LENGTHS_DEFAULT, LENGTHS_DEFAULT_LOG),
    Predefined::of(&OFFSETS_DEFAULT, OFFSETS_DEFAULT_LOG),
    Predefined::of(&MATCH_LENGTHS_DEFAULT, LENGTHS_DEFAULT_LOG),
];

/// The three tables, while they are chosen and used.
struct SequenceTables<'k> {
    ws: Workspace<'k>,
    fse: Fse<'k>,
    /// Lane 0 to 2: the table's log.
    log: Var<'k, u32>,
    /// The modes of the tables, as the format packs them.
    modes: Var<'k, u32>,
}

/// The table of one kind of codes.
struct KindTable<'k> {
    kind: Reg<'k, u32>,
    place: TableMemory<'k>,
    mode: Var<'k, u32>,
    log: Var<'k, u32>,
}

impl<'k> SequenceTables<'k> {
    /// Returns the constant of a kind; uniform.
    fn of_kind(&self, kind: Reg<'k, u32>, [first, second, third]: [u32; 3]) -> Reg<'k, u32> {
        kind.eq(0).select(first, kind.eq(1).select(second, third))
    }

    /// Returns the cells of the lane's symbols in the predefined table of a kind.
    fn predefined_cells(&self, kind: Reg<'k, u32>) -> BySymbol<'k> {
        let lane = self.ws.lane;
        let bit = |mask: Reg<'k, u32>| (mask >> lane) & 1;
        let masks = (0..4).map(|m| self.of_kind(kind, PREDEFINED.each_ref().map(|table| table.masks[m])));
        let low = masks.map(bit).reduce(|a, b| a + b).expect("four masks");
        let high = bit(self.of_kind(kind, PREDEFINED.each_ref().map(|table| table.high_mask)));
        [low, high]
    }

    /// Chooses, describes and builds the tables.
    fn choose(&self, count: Reg<'k, u32>, out: FrameOutput<'k>) {
        let Workspace { k, lane, table, .. } = self.ws;
        let kind = k.var(0u32).named("kind");
        k.do_while_uniform(|| {
            k.section("fse: choose a table");
            let at = self.of_kind(*kind, [0, 4 * KIND_CODES[0], 4 * (KIND_CODES[0] + KIND_CODES[1])]);
            let codes = self.of_kind(*kind, KIND_CODES);
            let own = (table + COUNTS + at + lane * 4).shared::<u32>();
            let counts =
                [k.when(lane.lt(codes)).load_or(own, 0u32), k.when((lane + 32).lt(codes)).load_or(own.at(32), 0u32)];
            let present = counts.map(|count| count.ne(0).ballot());
            let base = table + kind * KIND_BYTES;
            let place = TableMemory { states: base, steps: base + STATES_BYTES, scratch: table + SCRATCH };
            let mode = k.var(MODE_RLE);
            let log = k.var(0u32);
            k.if_else_uniform(
                (present[0].popc() + present[1].popc()).eq(1),
                || {
                    let symbol = present[0].ne(0).select(present[0].bfind(), present[1].bfind() + 32);
                    self.use_one_symbol(symbol, place, out);
                },
                || self.use_distribution(KindTable { kind: *kind, place, mode, log }, counts, count, out),
            );
            self.modes.set(self.modes | (mode << (6 - (kind << 1))));
            k.when(lane.eq(kind)).set(self.log, log);
            k.sync_warp();
            kind.set(kind + 1);
            kind.lt(KINDS)
        });
    }

    /// Uses a table of one symbol: its number is the description, and no bits are written.
    fn use_one_symbol(&self, symbol: Reg<'k, u32>, place: TableMemory<'k>, out: FrameOutput<'k>) {
        let Workspace { k, lane, .. } = self.ws;
        let writes = lane.eq(0);
        out.check(k.value(1u32));
        k.when(writes).store(out.end().shared::<u8>(), symbol);
        out.len.set(out.len + 1);
        k.when(writes).store(place.states.shared::<u16>(), 0u32);
        let step = (place.steps + symbol * STEP_BYTES).shared::<u32>();
        k.when(writes).store_vec(step, [k.value(0u32), place.states]);
    }

    /// Uses the predefined table or a described one, whichever takes fewer bits.
    fn use_distribution(&self, chosen: KindTable<'k>, counts: BySymbol<'k>, count: Reg<'k, u32>, out: FrameOutput<'k>) {
        let Self { ws: Workspace { k, lane, table, .. }, fse, .. } = *self;
        let KindTable { kind, place, mode, log } = chosen;
        let predefined = self.predefined_cells(kind);
        let cells = predefined.map(|cells| k.var(cells));
        let predefined_log = self.of_kind(kind, PREDEFINED.each_ref().map(|table| table.log));
        mode.set(MODE_PREDEFINED);
        log.set(predefined_log);
        let improbable = k.var(self.of_kind(kind, PREDEFINED.each_ref().map(|table| table.improbable)));
        k.if_uniform(count.ge(MIN_DESCRIBED_SEQUENCES), || {
            let predefined_cost = fse.cost(counts, predefined, predefined_log) >> 8;
            let many = count.ge(MANY_SEQUENCES).to_u32();
            let own_log = many + self.of_kind(kind, [LENGTHS_LOG[0], OFFSETS_LOG[0], LENGTHS_LOG[0]]);
            let own_cells = fse.distribute(counts, count, own_log);
            let own_cells = own_cells.map(|cells| *cells);
            k.section("fse: describe");
            let description = table + DESCRIPTION;
            (description + lane * 4).shared::<u32>().store(0u32);
            k.sync_warp();
            let bits = fse.describe(own_cells, own_log, description, 0);
            let own_cost = (fse.cost(counts, own_cells, own_log) >> 8) + bits;
            k.sync_warp();
            k.if_uniform(own_cost.lt(predefined_cost), || {
                let bytes = (bits + 7) >> 3;
                out.check(bytes);
                self.ws.copy.copy(description, out.end(), bytes);
                out.len.set(out.len + bytes);
                mode.set(MODE_FSE);
                log.set(own_log);
                improbable.set(0u32);
                cells[0].set(own_cells[0]);
                cells[1].set(own_cells[1]);
            });
        });
        k.section("fse: build a table");
        fse.build(cells.map(|cells| *cells), *log, *improbable, place);
    }

    /// Writes the bitstream, from the last sequence to the first.
    fn write_bits(&self, codes: CodeTable<'k>, count: Reg<'k, u32>, out: FrameOutput<'k>) {
        let Self { ws, fse, .. } = *self;
        let Workspace { k, lane, table, .. } = ws;
        k.section("sequences: prepare the chains");
        let bit = k.var(out.len << 3).named("bit");
        let state = k.var(0u32).named("state");
        let chain = lane.min(KINDS - 1);
        let chain_steps = table + PREPARED + chain * STEP_BYTES;
        let chain_states = table + CHAIN_STATES + (chain << 1);
        let first = k.var((count - 1) & !31u32);
        let is_last_group = k.var(true);
        let records = RecordReader::start(ws, count, *first);
        k.loop_uniform(|groups| {
            k.section("sequences: prepare the chains");
            let active = (first + lane).lt(count);
            let record = records.take(first - 32);
            let coded = codes.sequence(record);
            let prepared = (table + PREPARED + lane * PREPARED_BYTES).shared::<u32>();
            let mut kind_steps = table + STATES_BYTES;
            let steps = coded.map(|coded| {
                let words = [k.var(0u32), k.var(0u32)];
                k.when(active).load_vec(words, (kind_steps + coded.code * STEP_BYTES).shared::<u32>());
                kind_steps = kind_steps + KIND_BYTES;
                words.map(|word| *word)
            });
            for (step, n) in steps.iter().zip(0..) {
                prepared.at(2 * n).store_vec(*step);
            }
            k.sync_warp();

            k.section("sequences: walk the chains");
            let left = k.var((count - first).min(32u32));
            let step_at = k.var((left - 1).mad(PREPARED_BYTES, chain_steps));
            let state_at = k.var((left - 1).mad(8, chain_states));
            k.if_uniform(*is_last_group, || {
                state.set(fse.first_state(step_at.shared::<u32>().load_vec()));
                step_at.set(step_at - PREPARED_BYTES);
                state_at.set(state_at - 8);
                left.set(left - 1);
            });
            let walks = lane.lt(KINDS);
            let advance = |n: i32| {
                let step = step_at.shared::<u32>().byte_offset(-n * PREPARED_BYTES.cast_signed()).load_vec();
                k.when(walks).store(state_at.shared::<u16>().byte_offset(-n * 8), state);
                state.set(fse.next_state(step, *state));
            };
            let move_on = |n: u32| {
                step_at.set(step_at - n * PREPARED_BYTES);
                state_at.set(state_at - n * 8);
                left.set(left - n);
            };
            k.while_uniform(
                || (left & 3).ne(0),
                || {
                    advance(0);
                    move_on(1);
                },
            );
            k.while_uniform(
                || left.ne(0),
                || {
                    (0..4).for_each(advance);
                    move_on(4);
                },
            );
            k.sync_warp();

            k.section("sequences: write the bits");
            // The last sequence only sets the states.
            let has_states = active & !(*is_last_group & (first + lane).eq(count - 1));
            let [low, high] = (table + CHAIN_STATES + lane * 8).shared::<u32>().load_vec();
            let states = [low & 0xffff, low >> 16, high & 0xffff];
            let (bits, bit_count) = sequence_bits(coded, &steps, states, active, has_states);
            let through = scan(k, bit_count, |a, b| a + b);
            let total = through.shfl(31u32);
            out.give_up.exit_if((bit + total).gt(8 * FRAME_LIMIT));
            or_bits(k, out.frame, bit + total - through, bits);
            bit.set(bit + total);
            is_last_group.set(false);
            groups.break_if(first.eq(0));
            first.set(first - 32);
            k.sync_warp();
        });
        k.section("sequences: the last states");
        let (value, count) = (k.var(0u32), k.var(0u32));
        for kind in [2u32, 1, 0] {
            let log = self.log.shfl(kind);
            value.set(value | (low_bits(state.shfl(kind), log) << count));
            count.set(count + log);
        }
        let value = value | (1u32 << count);
        or_bits(k, out.frame, *bit, [lane.eq(0).select(value, 0u32), k.value(0u32)]);
        out.len.set((bit + count + 1 + 7) >> 3);
        k.sync_warp();
    }
}

/// Returns the bits of a lane's sequence and their number: states of offset, match length and literal length, then the
/// extra bits of literal length, match length and offset.
fn sequence_bits<'k>(
    [literal_length, offset, match_length]: [Coded<'k>; 3],
    steps: &[[Reg<'k, u32>; 2]; 3],
    states: [Reg<'k, u32>; 3],
    active: Pred<'k>,
    has_states: Pred<'k>,
) -> ([Reg<'k, u32>; 2], Reg<'k, u32>) {
    let k = active.k;
    // At most 6, 7 and 7 bits of states and 11 of the literal length; then at most 11 and 12.
    let (first, first_count) = (k.var(0u32), k.var(0u32));
    for kind in [1, 2, 0] {
        let bits = has_states.select(step_bits(steps[kind][0], states[kind]), 0u32);
        first.set(first | (low_bits(states[kind], bits) << first_count));
        first_count.set(first_count + bits);
    }
    let extra = |coded: Coded<'k>| low_bits(coded.value, coded.extra_bits);
    first.set(first | (extra(literal_length) << first_count));
    first_count.set(first_count + literal_length.extra_bits);
    let second = extra(match_length) | (extra(offset) << match_length.extra_bits);
    let second_count = match_length.extra_bits + offset.extra_bits;
    let [low, high] = append(*first, *first_count, second);
    let bits = [active.select(low, 0u32), active.select(high, 0u32)];
    (bits, active.select(first_count + second_count, 0u32))
}
