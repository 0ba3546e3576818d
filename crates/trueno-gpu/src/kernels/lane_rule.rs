//! Probes which lane wins when several lanes store to the same place in shared memory.
//!
//! The compressors' output depends on that lane, and PTX does not define it. See [`TableStores`].

use super::lz4::TableStores;
use super::{Kernel, ResourceBudget};
use crate::addr::Addr;
use crate::builder::KernelBuilder;
use crate::ir::AtomOp;
use crate::types::{Global, Shared};
use crate::validate::ValidKernel;
use crate::value::{Pred, Reg, Var};

const WARPS_PER_BLOCK: u32 = 4;
/// Number of table entries, as in the compressor, so that the conflicting entries are as far apart.
const ENTRIES: u32 = 2048;
const ENTRY_BYTES: u32 = 2;
/// A value that no lane stores.
const CLEARED: u32 = 0xffff;

/// The value that a lane derives its entry from.
#[derive(Clone, Copy)]
enum EntrySource {
    /// The lane's number without its lowest bits.
    LaneOver(u32),
    /// Random bits, different in each lane.
    Random,
}

/// A pattern of conflicts: `(source & mask) << spread`, plus a random offset that all lanes share.
#[derive(Clone, Copy)]
struct ConflictPattern {
    source: EntrySource,
    mask: u32,
    spread: u32,
}

const fn lanes_over(bits: u32, mask: u32, spread: u32) -> ConflictPattern {
    ConflictPattern { source: EntrySource::LaneOver(bits), mask, spread }
}

const fn random(mask: u32, spread: u32) -> ConflictPattern {
    ConflictPattern { source: EntrySource::Random, mask, spread }
}

/// The patterns to try. 64 entries span all 32 banks once, so a spread of 6 puts different words into one bank.
const PATTERNS: [ConflictPattern; 12] = [
    lanes_over(0, 0, 0),    // all lanes, one entry
    lanes_over(1, 15, 0),   // neighbouring lanes, adjacent entries, two per word
    lanes_over(1, 15, 6),   // neighbouring lanes, all in one bank
    lanes_over(0, 15, 1),   // lanes 16 apart, one word each
    lanes_over(2, 7, 3),    // four neighbours
    lanes_over(0, 1, 6),    // odd and even lanes, one bank
    random(1, 0),           // both halves of one word
    random(3, 6),           // four words of one bank
    random(7, 0),           // four adjacent words
    random(15, 5),          // few entries, two banks
    random(63, 0),          // all banks once
    random(ENTRIES - 1, 0), // like the compressor's hashes
];

/// Counts how often the lowest lane wins when several lanes make a 16-bit store to the same place in shared memory.
///
/// PTX guarantees that one of them wins, but not which. The compressor is faster where it is always the lowest lane
/// ([`TableStores::LowestLaneWins`]), so each device is probed once. Every round tries a dozen patterns, first with all
/// lanes and then with a random subset.
///
/// Parameters: `counts` (device pointer to the two `u32` of [`LaneRuleCounts`], initially zero), `rounds` (`u32`).
///
/// ```
/// use trueno_gpu::kernels::{Kernel, LaneRuleKernel};
/// assert_eq!(LaneRuleKernel::new().name(), "lane_rule");
/// ```
#[derive(Debug, Clone)]
pub struct LaneRuleKernel {
    ir: ValidKernel,
}

/// The result of the probe.
///
/// ```
/// use trueno_gpu::kernels::{LaneRuleCounts, lz4::TableStores};
/// let seen = LaneRuleCounts { conflicts: 2_000_000, lowest_lane_won: 2_000_000 };
/// assert_eq!(seen.table_stores(), TableStores::LowestLaneWins);
/// let once_not = LaneRuleCounts { lowest_lane_won: 1_999_999, ..seen };
/// assert_eq!(once_not.table_stores(), TableStores::ReadBack);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneRuleCounts {
    /// Number of times that several lanes stored to the same place.
    pub conflicts: u32,
    /// Number of these that the lowest lane won.
    pub lowest_lane_won: u32,
}

impl LaneRuleCounts {
    /// Number of conflicts below which the result is not conclusive.
    const ENOUGH_CONFLICTS: u32 = 100_000;

    /// Returns the rule that the compressor may rely on.
    ///
    /// ```
    /// use trueno_gpu::kernels::{LaneRuleCounts, lz4::{Lz4WarpCompressKernel, TableStores}};
    /// let too_few = LaneRuleCounts { conflicts: 12, lowest_lane_won: 12 };
    /// assert_eq!(too_few.table_stores(), TableStores::ReadBack);
    /// let kernel = Lz4WarpCompressKernel::new(1000).with_table_stores(too_few.table_stores());
    /// # let _ = kernel;
    /// ```
    #[must_use]
    pub fn table_stores(self) -> TableStores {
        if self.conflicts >= Self::ENOUGH_CONFLICTS && self.lowest_lane_won == self.conflicts {
            TableStores::LowestLaneWins
        } else {
            TableStores::ReadBack
        }
    }
}

impl LaneRuleKernel {
    /// Builds the kernel.
    ///
    /// # Panics
    /// Never. The kernel is always the same, and tests cover it.
    ///
    /// ```
    /// let kernel = trueno_gpu::kernels::LaneRuleKernel::new();
    /// # let _ = kernel;
    /// ```
    #[must_use]
    pub fn new() -> Self {
        let k = KernelBuilder::new("lane_rule").with_warps_per_block(WARPS_PER_BLOCK);
        let counts = k.param_ptr::<u32>("counts");
        let rounds = k.param_u32("rounds");
        let table = k.shared_per_warp("table", ENTRIES * ENTRY_BYTES, 4).base::<u16>(k.warp_id());
        let probe = ConflictProbe {
            k: &k,
            lane: k.lane_id().named("lane"),
            lower_lanes: k.lanemask_lt(),
            table,
            conflicts: k.var(0u32).named("conflicts"),
            lowest_lane_won: k.var(0u32).named("lowest_lane_won"),
        };

        let seed = k.var(k.block_id().mad(WARPS_PER_BLOCK, k.warp_id()) * 0x9e37_79b9).named("seed");
        let round = k.var(0u32).named("round");
        k.while_uniform(
            || round.lt(rounds),
            || {
                for pattern in PATTERNS {
                    seed.set(seed * 1_664_525 + 1_013_904_223);
                    probe.try_pattern(pattern, *seed);
                }
                round.set(round + 1);
            },
        );
        k.section("add up");
        add_to(&k, counts, probe.conflicts);
        add_to(&k, counts.at(1), probe.lowest_lane_won);
        Self { ir: k.finish().expect("the kernel is always the same, and tests cover it") }
    }
}

/// Adds the counts of all lanes to a number in memory.
fn add_to<'k>(k: &'k KernelBuilder, to: Addr<'k, Global, u32>, count: Var<'k, u32>) {
    for distance in [16u32, 8, 4, 2, 1] {
        count.set(count + count.shfl_xor(distance));
    }
    k.when(k.lane_id().eq(0)).reduce(to, AtomOp::Add, count);
}

/// The state that all tries of a warp share.
struct ConflictProbe<'k> {
    k: &'k KernelBuilder,
    lane: Reg<'k, u32>,
    lower_lanes: Reg<'k, u32>,
    table: Addr<'k, Shared, u16>,
    /// The lane's own counts. A lane counts the conflicts in which it is the lowest lane.
    conflicts: Var<'k, u32>,
    lowest_lane_won: Var<'k, u32>,
}

impl<'k> ConflictProbe<'k> {
    /// Stores once with all lanes, and once with about half of them.
    fn try_pattern(&self, pattern: ConflictPattern, seed: Reg<'k, u32>) {
        let k = self.k;
        k.section("places");
        let noise = mix(seed + self.lane * 0x85eb_ca6b);
        let source = match pattern.source {
            EntrySource::LaneOver(bits) => self.lane >> bits,
            EntrySource::Random => noise,
        };
        let place = (((source & pattern.mask) << pattern.spread) + (seed >> 16)) & (ENTRIES - 1);
        let everyone = k.value(1u32).ne(0);
        self.store_and_look(place, everyone);
        self.store_and_look(place, (noise >> 24).lt(128));
    }

    fn store_and_look(&self, place: Reg<'k, u32>, taking_part: Pred<'k>) {
        let Self { k, lane, .. } = *self;
        k.section("store and look");
        let entry = self.table.index(place);
        entry.store_conflicting(CLEARED);
        k.sync_warp();
        k.when(taking_part).store_conflicting(entry, lane);
        k.sync_warp();
        let winner = entry.load();
        k.sync_warp();
        let rivals = place.match_any() & taking_part.ballot();
        let is_lowest = taking_part & (rivals & self.lower_lanes).eq(0) & rivals.popc().gt(1);
        self.conflicts.set(self.conflicts + is_lowest.to_u32());
        self.lowest_lane_won.set(self.lowest_lane_won + (is_lowest & winner.eq(lane)).to_u32());
    }
}

/// Mixes the bits, so that each input bit affects the whole word.
fn mix(v: Reg<'_, u32>) -> Reg<'_, u32> {
    let v = (v ^ (v >> 16)) * 0x7feb_352d;
    let v = (v ^ (v >> 15)) * 0x846c_a68b;
    v ^ (v >> 16)
}

impl Default for LaneRuleKernel {
    fn default() -> Self {
        Self::new()
    }
}

impl Kernel for LaneRuleKernel {
    fn ir(&self) -> &ValidKernel {
        &self.ir
    }

    fn budget(&self) -> ResourceBudget {
        ResourceBudget { registers: 48, shared_bytes: WARPS_PER_BLOCK * ENTRIES * ENTRY_BYTES }
    }
}
