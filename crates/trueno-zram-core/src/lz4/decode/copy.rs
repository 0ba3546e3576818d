//! Wide copies within the page. Callers check the bounds beforehand.
#![allow(unsafe_code)]

use super::cursor::BlockCursor;
use super::lanes::{LANE, LaneOperations, STEP};
use crate::page::{PAGE_SIZE, Page};

/// Space that a long copy needs past its end. The copy overruns by less than two lanes, and the match after long
/// literals by one more lane.
pub(super) const LONG_SLACK: usize = 3 * LANE;

/// Copies 16 bytes, from `ahead` bytes past `input`, to position `to` of the page.
///
/// # Safety
///
/// The block has `ahead + 16` bytes from `input` on, and `to + 16 <= PAGE_SIZE`.
#[inline(always)]
pub(super) unsafe fn copy_in<L: LaneOperations>(
    lanes: L,
    input: BlockCursor<'_>,
    ahead: usize,
    page: &mut Page,
    to: usize,
) {
    // SAFETY: the caller guarantees `ahead + 16` bytes.
    let source = unsafe { input.lane(ahead) };
    // SAFETY: the caller bounds `to`.
    lanes.store(lanes.load(source), unsafe { lane_mut(page, to) });
}

/// Writes 16 bytes at `start` of the page, copied from `offset` bytes before.
///
/// # Safety
///
/// `offset <= start` and `start + 16 <= PAGE_SIZE`.
#[inline(always)]
pub(super) unsafe fn copy_match<L: LaneOperations>(lanes: L, page: &mut Page, start: usize, offset: usize) {
    // SAFETY: `start - offset` does not wrap and is no later than `start`, which the caller bounds.
    let source = lanes.load(unsafe { lane(page, start - offset) });
    // SAFETY: the caller bounds `start`.
    lanes.store(lanes.repeat(source, offset), unsafe { lane_mut(page, start) });
}

/// Writes `length` bytes at `start` of the page, copied from `offset` bytes before. Overruns by less than two lanes.
///
/// # Safety
///
/// `0 < offset <= start` and `start + length + LONG_SLACK <= PAGE_SIZE`.
#[inline(always)]
pub(super) unsafe fn copy_long<L: LaneOperations>(
    lanes: L,
    page: &mut Page,
    start: usize,
    offset: usize,
    length: usize,
) {
    if let Some(&step) = STEP.get(offset) {
        let step = usize::from(step);
        // SAFETY: `start - offset` does not wrap, and the caller bounds `start`.
        let source = lanes.load(unsafe { lane(page, start - offset) });
        let pattern = lanes.repeat(source, offset);
        // SAFETY: the caller bounds `start`.
        lanes.store(pattern, unsafe { lane_mut(page, start) });
        // SAFETY: a step is at most one lane, and the caller guarantees `LONG_SLACK`.
        lanes.store(pattern, unsafe { lane_mut(page, start + step) });
        let mut done = 2 * step;
        while done < length {
            // SAFETY: `done < length`, and the caller guarantees `LONG_SLACK`.
            lanes.store(pattern, unsafe { lane_mut(page, start + done) });
            done += step;
        }
    } else {
        let mut done = 0;
        loop {
            for to in [start + done, start + done + LANE] {
                // SAFETY: `done < length` or `done == 0`, so two lanes end within `LONG_SLACK` of the match.
                let source = lanes.load(unsafe { lane(page, to - offset) });
                // SAFETY: as above.
                lanes.store(source, unsafe { lane_mut(page, to) });
            }
            done += 2 * LANE;
            if done >= length {
                break;
            }
        }
    }
}

/// Returns the 16 bytes at `at` of the page.
///
/// # Safety
///
/// `at + 16 <= PAGE_SIZE`.
#[inline(always)]
unsafe fn lane(page: &Page, at: usize) -> &[u8; LANE] {
    debug_assert!(at + LANE <= PAGE_SIZE);
    // SAFETY: the caller upholds the bound; an array of bytes needs no alignment.
    unsafe { &*page.as_ptr().wrapping_add(at).cast() }
}

/// Returns the 16 bytes at `at` of the page, mutably.
///
/// # Safety
///
/// `at + 16 <= PAGE_SIZE`.
#[inline(always)]
unsafe fn lane_mut(page: &mut Page, at: usize) -> &mut [u8; LANE] {
    debug_assert!(at + LANE <= PAGE_SIZE);
    // SAFETY: the caller upholds the bound; an array of bytes needs no alignment.
    unsafe { &mut *page.as_mut_ptr().wrapping_add(at).cast() }
}
