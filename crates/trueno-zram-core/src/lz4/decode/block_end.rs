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
        copy_run(page.get_mut(made..made + literals)?, rest.get(..literals)?)?;
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
        match STEP.get(offset) {
            Some(&step) => {
                let pattern = lanes.repeat(load_clamped(lanes, page, made - offset)?, offset);
                while made + LANE <= end {
                    lanes.store(pattern, page.get_mut(made..)?.first_chunk_mut()?);
                    made += usize::from(step);
                }
                // Fewer bytes than a lane, and the pattern starts again.
                if made < end {
                    let mut bytes = [0; LANE];
                    lanes.store(pattern, &mut bytes);
                    copy_run(page.get_mut(made..end)?, bytes.get(..end - made)?)?;
                }
            }
            None if length < LANE => {
                // The source ends before the match starts.
                let (before, match_on) = page.split_at_mut_checked(made)?;
                copy_run(match_on.get_mut(..length)?, before.get(made - offset..)?.get(..length)?)?;
            }
            None => {
                while made + LANE < end {
                    copy_lane(lanes, page, made, offset)?;
                    made += LANE;
                }
                // Over bytes that are there already, so that nothing is written behind the match.
                copy_lane(lanes, page, end - LANE, offset)?;
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

/// Copies 16 bytes of the page to `to`, from `offset` bytes before, at least 16.
#[inline(always)]
fn copy_lane<L: LaneOperations>(lanes: L, page: &mut Page, to: usize, offset: usize) -> Option<()> {
    let lane = lanes.load(page.get(to - offset..)?.first_chunk()?);
    lanes.store(lane, page.get_mut(to..)?.first_chunk_mut()?);
    Some(())
}

/// Copies a run. Short ones as two words that overlap: without a loop, and without reading the bytes around it, which were stored just
/// before in other portions.
#[inline(always)]
fn copy_run(to: &mut [u8], from: &[u8]) -> Option<()> {
    match from.len() {
        0..4 => to.iter_mut().zip(from).for_each(|(to, from)| *to = *from),
        4..8 => copy_ends::<4>(to, from)?,
        8..=LANE => copy_ends::<8>(to, from)?,
        _ => to.copy_from_slice(from),
    }
    Some(())
}

/// Copies the first and the last `N` bytes.
#[inline(always)]
fn copy_ends<const N: usize>(to: &mut [u8], from: &[u8]) -> Option<()> {
    let (first, last) = (*from.first_chunk::<N>()?, *from.last_chunk::<N>()?);
    *to.first_chunk_mut()? = first;
    *to.last_chunk_mut()? = last;
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
