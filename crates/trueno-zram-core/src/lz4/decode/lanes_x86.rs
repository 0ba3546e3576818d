//! The decoder's operations with AVX2: 16-byte shuffles.
#![cfg(target_arch = "x86_64")]
#![allow(unsafe_code)]

use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_shuffle_epi8, _mm_storeu_si128};

use super::decode_with;
use super::lanes::{LANE, LaneOperations};
use crate::cpu::Avx2;
use crate::page::Page;

/// [`decode_with`] compiled for AVX2, so that the shuffle is inlined.
///
/// Only 16 bytes of a register are used. Keeping the last 16 bytes of the page in a register (AVX-512 `vpermi2b`)
/// instead of loading them back gives 0.93 to 0.97 of the speed.
pub(super) fn decode_avx2(avx2: Avx2, block: &[u8], page: &mut Page) -> Option<()> {
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
    fn decode(avx2: Avx2, block: &[u8], page: &mut Page) -> Option<()> {
        decode_with(avx2, block, page)
    }
    // SAFETY: an Avx2 token exists only on a CPU with these features (`Avx2::detect` is its only constructor).
    unsafe { decode(avx2, block, page) }
}

/// Returns the bytes of `lane` in the given order.
#[inline(always)]
fn shuffle(avx2: Avx2, lane: __m128i, order: &[u8; LANE]) -> __m128i {
    let order = avx2.load(order);
    // SAFETY: `avx2` exists, so this CPU has AVX2 and with it SSSE3 (`Avx2::detect` is the only constructor).
    unsafe { _mm_shuffle_epi8(lane, order) }
}

/// A source index that the shuffle turns into a zero byte.
const ZERO: u8 = 0x80;

/// `REPEAT[offset]` lists the source index of each byte of a repeated lane.
static REPEAT: [[u8; LANE]; LANE + 1] = repeat_orders();

const fn repeat_orders() -> [[u8; LANE]; LANE + 1] {
    let mut orders = [[0; LANE]; LANE + 1];
    let mut offset: u8 = 1;
    while (offset as usize) <= LANE {
        let mut byte: u8 = 0;
        while (byte as usize) < LANE {
            orders[offset as usize][byte as usize] = byte % offset;
            byte += 1;
        }
        offset += 1;
    }
    orders
}

/// A window of 16 bytes from byte `n` shifts a lane down by `n`.
static SKIP: [u8; 2 * LANE] = skip_orders();

const fn skip_orders() -> [u8; 2 * LANE] {
    let mut orders = [ZERO; 2 * LANE];
    let mut byte: u8 = 0;
    while (byte as usize) < LANE {
        orders[byte as usize] = byte;
        byte += 1;
    }
    orders
}

/// Returns the 16 bytes of `table` from `at` on.
#[inline(always)]
fn window(table: &[u8], at: usize) -> &[u8; LANE] {
    table[at..].first_chunk().expect("a lane shifts by at most 16 bytes")
}

impl LaneOperations for Avx2 {
    type Lane = __m128i;

    #[inline(always)]
    fn load(self, from: &[u8; LANE]) -> __m128i {
        // SAFETY: `from` is a reference to 16 readable bytes, and the load needs no alignment.
        unsafe { _mm_loadu_si128(from.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store(self, lane: __m128i, to: &mut [u8; LANE]) {
        // SAFETY: `to` is a reference to 16 writable bytes, and the store needs no alignment.
        unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), lane) }
    }

    #[inline(always)]
    fn repeat(self, lane: __m128i, offset: usize) -> __m128i {
        shuffle(self, lane, &REPEAT[offset.min(LANE)])
    }

    #[inline(always)]
    fn skip(self, lane: __m128i, count: usize) -> __m128i {
        shuffle(self, lane, window(&SKIP, count))
    }
}
