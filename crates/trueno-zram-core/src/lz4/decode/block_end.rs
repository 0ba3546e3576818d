//! Decodes the end of a block without reading past the block or writing past the page. No unsafe code.
#![forbid(unsafe_code)]

use super::super::format::{FIELD_MAX, MATCH_END_LIMIT, MATCH_START_LIMIT, MIN_MATCH};
use super::lanes::{LANE, LaneOperations, STEP};
use crate::page::{PAGE_SIZE, Page};

/// Decodes the rest of a block, starting with the token at `at`, without writing past the page.
///
/// `block` has at least 16 bytes.
#[inline(always)]
pub(super) fn finish<L: LaneOperations>(
    lanes: L,
    block: &[u8],
    at: usize,
    page: &mut Page,
    mut made: usize,
) -> Option<()> {
    let mut rest = block.get(at..)?;
    loop {
        let (&token, input) = rest.split_first()?;
        rest = input;
        let mut literals = usize::from(token >> 4);
        if literals == FIELD_MAX {
            literals += read_length(&mut rest)?;
        }
        if literals > rest.len() || literals > PAGE_SIZE - made {
            return None;
        }
        if literals <= LANE {
            let run = load_clamped(lanes, block, block.len() - rest.len())?;
            store_clamped(lanes, page, made, run)?;
        } else {
            page.get_mut(made..made + literals)?.copy_from_slice(rest.get(..literals)?);
        }
        rest = rest.get(literals..)?;
        made += literals;
        if rest.is_empty() {
            return (made == PAGE_SIZE).then_some(());
        }
        let (&offset, input) = rest.split_first_chunk()?;
        rest = input;
        let offset = usize::from(u16::from_le_bytes(offset));
        let mut length = usize::from(token & 15) + MIN_MATCH;
        if length == FIELD_MAX + MIN_MATCH {
            length += read_length(&mut rest)?;
        }
        let end = made + length;
        if offset.wrapping_sub(1) >= made || made > MATCH_START_LIMIT || end > MATCH_END_LIMIT {
            return None;
        }
        let step = STEP.get(offset).map_or(LANE, |&step| usize::from(step));
        let mut pattern = lanes.repeat(load_clamped(lanes, page, made - offset)?, offset);
        // Only the end of a long match needs care. Nearly empty pages mostly end with a long match.
        while made + 2 * LANE < end {
            lanes.store(pattern, page.get_mut(made..)?.first_chunk_mut()?);
            made += step;
            if offset >= LANE {
                pattern = lanes.load(page.get(made - offset..)?.first_chunk()?);
            }
        }
        loop {
            store_clamped(lanes, page, made, pattern)?;
            made += step;
            if made >= end {
                break;
            }
            if offset >= LANE {
                pattern = load_clamped(lanes, page, made - offset)?;
            }
        }
        made = end;
    }
}

/// Loads the 16 bytes at `at`; those past the end are unspecified. Returns `None` if `bytes` is shorter than a lane.
#[inline(always)]
fn load_clamped<L: LaneOperations>(lanes: L, bytes: &[u8], at: usize) -> Option<L::Lane> {
    let from = at.min(bytes.len().checked_sub(LANE)?);
    Some(lanes.skip(lanes.load(bytes.get(from..)?.first_chunk()?), at - from))
}

/// Stores as many bytes of `lane` at `at` as fit in the page.
#[inline(always)]
fn store_clamped<L: LaneOperations>(lanes: L, page: &mut Page, at: usize, lane: L::Lane) -> Option<()> {
    let to = at.min(PAGE_SIZE - LANE);
    let target = page.get_mut(to..)?.first_chunk_mut()?;
    lanes.store(lanes.join(lanes.load(target), at - to, lane), target);
    Some(())
}

/// Removes the length bytes at the start of `rest` and returns their sum.
#[inline(always)]
pub(super) fn read_length(rest: &mut &[u8]) -> Option<usize> {
    let mut length = 0;
    loop {
        let (&byte, tail) = rest.split_first()?;
        *rest = tail;
        length += usize::from(byte);
        if byte != u8::MAX {
            return Some(length);
        }
        // No length within a page is this large. Without this check a long chain could overflow.
        if length > PAGE_SIZE {
            return None;
        }
    }
}
