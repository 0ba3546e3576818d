//! The encoder's compare with AVX2.
#![cfg(target_arch = "x86_64")]
#![allow(unsafe_code)]

use std::arch::x86_64::{_mm256_cmpeq_epi8, _mm256_loadu_si256, _mm256_movemask_epi8};

use super::compare::{BLOCK, Compare};
use super::{Scratch, encode_with};
use crate::cpu::Avx2;
use crate::page::Page;

/// [`encode_with`] compiled for AVX2, so that the compare is inlined.
pub(super) fn encode_avx2(avx2: Avx2, scratch: &mut Scratch, page: &Page) -> Option<usize> {
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
    fn encode(avx2: Avx2, scratch: &mut Scratch, page: &Page) -> Option<usize> {
        encode_with(avx2, scratch, page)
    }
    // SAFETY: an Avx2 token exists only on a CPU with these features (`Avx2::detect` is its only constructor).
    unsafe { encode(avx2, scratch, page) }
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
}
