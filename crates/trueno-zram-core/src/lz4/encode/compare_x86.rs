//! The encoder with AVX2.
#![cfg(target_arch = "x86_64")]
#![allow(unsafe_code)]

use std::arch::x86_64::{_mm256_cmpeq_epi8, _mm256_loadu_si256, _mm256_movemask_epi8};

use super::Scratch;
use super::block::BlockWriter;
use super::compare::{BLOCK, Compare};
use super::padded::Padded;
use super::search::{Appended, Match, Search, append};
use super::sketch::Sketch;
use super::strategy::Strategy;
use crate::cpu::Avx2;
use crate::page::Page;

/// [`Search::encode`] compiled for AVX2, so that the compare is inlined.
pub(super) fn encode<S: Strategy>(avx2: Avx2, scratch: &mut Scratch, out: &mut Page) -> Option<usize> {
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
    fn encode<S: Strategy>(avx2: Avx2, scratch: &mut Scratch, out: &mut Page) -> Option<usize> {
        Search::new(avx2, scratch, out).encode::<S>()
    }
    // SAFETY: an Avx2 token exists only on a CPU with these features (`Avx2::detect` is its only constructor).
    unsafe { encode::<S>(avx2, scratch, out) }
}

/// [`Padded::load`] compiled for AVX2.
pub(super) fn load(avx2: Avx2, padded: &mut Padded, page: &Page) -> Sketch {
    #[target_feature(enable = "avx2,popcnt")]
    fn load(avx2: Avx2, padded: &mut Padded, page: &Page) -> Sketch {
        padded.load(avx2, page)
    }
    // SAFETY: an Avx2 token exists only on a CPU with AVX2, and every such CPU has POPCNT.
    unsafe { load(avx2, padded, page) }
}

impl Compare for Avx2 {
    #[inline(always)]
    fn equal_mask(self, a: &[u8; BLOCK], b: &[u8; BLOCK]) -> u32 {
        #[inline]
        #[target_feature(enable = "avx2")]
        fn equal_mask(a: &[u8; BLOCK], b: &[u8; BLOCK]) -> u32 {
            // SAFETY: the array is 32 readable bytes, and the load needs no alignment.
            let a = unsafe { _mm256_loadu_si256(a.as_ptr().cast()) };
            // SAFETY: as above.
            let b = unsafe { _mm256_loadu_si256(b.as_ptr().cast()) };
            _mm256_movemask_epi8(_mm256_cmpeq_epi8(a, b)).cast_unsigned()
        }
        // SAFETY: an Avx2 token exists only on a CPU with AVX2 (`Avx2::detect` is its only constructor).
        unsafe { equal_mask(a, b) }
    }

    #[inline(always)]
    fn opaque(self, mut word: u64) -> u64 {
        // SAFETY: a comment is no instruction, so the word keeps its value and nothing else changes.
        unsafe { std::arch::asm!("/* {0} */", inout(reg) word, options(pure, nomem, nostack, preserves_flags)) };
        word
    }

    #[inline(always)]
    fn append(self, block: BlockWriter<'_>, page: &Padded, literals_start: usize, found: Match) -> Appended {
        // `cold` keeps it out of line. `inline(never)` does not: the compiler drops it from functions with target features.
        #[cold]
        #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
        fn out_of_line(
            avx2: Avx2,
            block: BlockWriter<'_>,
            page: &Padded,
            literals_start: usize,
            found: Match,
        ) -> Appended {
            append(avx2, block, page, literals_start, found)
        }
        // SAFETY: an Avx2 token exists only on a CPU with these features (`Avx2::detect` is its only constructor).
        unsafe { out_of_line(self, block, page, literals_start, found) }
    }
}
