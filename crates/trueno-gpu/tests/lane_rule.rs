//! The lane rule probe in the interpreter, with lanes that store in a chosen order.

use trueno_gpu::interp::{DeviceMemory, LaneOrder, Launch};
use trueno_gpu::kernels::lz4::TableStores;
use trueno_gpu::kernels::{Kernel, LaneRuleCounts, LaneRuleKernel};

fn probe(order: LaneOrder) -> LaneRuleCounts {
    let kernel = LaneRuleKernel::new();
    let mut memory = DeviceMemory::new();
    let counts = memory.add("counts", &[0; 8]);
    let launch = Launch::new(kernel.ir()).grid(2).arg(counts).arg(256u32).lane_order(order);
    launch.run(&mut memory).unwrap_or_else(|fault| panic!("{fault}"));
    let bytes = memory.bytes(counts).expect("initially zero");
    let [conflicts, lowest_lane_won] =
        [0, 4].map(|at| u32::from_le_bytes(*bytes[at..].first_chunk().expect("two words")));
    LaneRuleCounts { conflicts, lowest_lane_won }
}

#[test]
fn descending_lanes_pass() {
    let seen = probe(LaneOrder::Descending);
    println!("{} conflicts per round and warp", seen.conflicts / (2 * 4 * 256));
    assert!(seen.conflicts >= 100_000, "{seen:?}");
    assert_eq!(seen.lowest_lane_won, seen.conflicts);
    assert_eq!(seen.table_stores(), TableStores::LowestLaneWins);
}

#[test]
fn other_orders_fail() {
    let ascending = probe(LaneOrder::Ascending);
    assert!(ascending.conflicts >= 100_000 && ascending.lowest_lane_won == 0, "{ascending:?}");
    assert_eq!(ascending.table_stores(), TableStores::ReadBack);
    let shuffled = probe(LaneOrder::Shuffled { seed: 5 });
    assert!(shuffled.lowest_lane_won > 0 && shuffled.lowest_lane_won < shuffled.conflicts, "{shuffled:?}");
    assert_eq!(shuffled.table_stores(), TableStores::ReadBack);
}

#[test]
fn few_conflicts_prove_nothing() {
    let seen = LaneRuleCounts { conflicts: 99_999, lowest_lane_won: 99_999 };
    assert_eq!(seen.table_stores(), TableStores::ReadBack);
}
