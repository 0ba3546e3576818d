//! The checksum of a page: the low half of XXH64, which four lanes compute together.

use crate::kernels::packed::PAGE_BYTES;
use crate::{KernelBuilder, Reg};

const PRIME_1: u64 = 0x9e37_79b1_85eb_ca87;
const PRIME_2: u64 = 0xc2b2_ae3d_27d4_eb4f;
const PRIME_3: u64 = 0x1656_67b1_9e37_79f9;
const PRIME_4: u64 = 0x85eb_ca77_c2b2_ae63;

/// Number of bytes that the four sums take in at a time.
const STRIPE_BYTES: u32 = 32;

/// Returns the low 32 bits of XXH64 with seed 0 of the page at shared address `page`; uniform.
pub(super) fn xxh64_low<'k>(k: &'k KernelBuilder, lane: Reg<'k, u32>, page: Reg<'k, u32>) -> Reg<'k, u32> {
    k.section("checksum");
    let quarter = lane & 3;
    let start = |first: u64, second: u64, bit: u32| (quarter & bit).ne(0).select(k.value(second), k.value(first));
    let (low, high) = (start(PRIME_1.wrapping_add(PRIME_2), PRIME_2, 1), start(0, PRIME_1.wrapping_neg(), 1));
    let sum = k.var((quarter & 2).ne(0).select(high, low)).named("sum");
    let at = k.var(page + quarter * 8);
    let done = k.var(0u32);
    k.do_while_uniform(|| {
        let [low, high] = at.shared::<u32>().load_vec();
        sum.set(mix(*sum, low.pack(high)));
        at.set(at + STRIPE_BYTES);
        done.set(done + STRIPE_BYTES);
        done.lt(PAGE_BYTES)
    });
    let sums = [0u32, 1, 2, 3].map(|quarter| sum.shfl(quarter));
    let rotated = sums.into_iter().zip([1u32, 7, 12, 18]).map(|(sum, by)| rotate_left(sum, by));
    let mut hash = rotated.reduce(|a, b| a + b).expect("four sums");
    for sum in sums {
        hash = (hash ^ mix(k.value(0u64), sum)) * PRIME_1 + PRIME_4;
    }
    hash = hash + u64::from(PAGE_BYTES);
    hash = (hash ^ (hash >> 33u32)) * PRIME_2;
    hash = (hash ^ (hash >> 29u32)) * PRIME_3;
    (hash ^ (hash >> 32u32)).lo()
}

fn mix<'k>(sum: Reg<'k, u64>, word: Reg<'k, u64>) -> Reg<'k, u64> {
    rotate_left(sum + word * PRIME_2, 31) * PRIME_1
}

fn rotate_left(value: Reg<'_, u64>, by: u32) -> Reg<'_, u64> {
    (value << by) | (value >> (64 - by))
}
