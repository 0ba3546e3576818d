//! Compares an index in a stream with the frame before it, entry by entry, in little memory.

use std::io::Read;

use crate::error::Result;
use crate::hashes::content_hash::ContentHash;
use crate::index::builder::BuiltIndex;
use crate::index::layout::{ENTRY_LEN, FOOTER_LEN, GROUP_PAGES, GROUP_RECORD_LEN, INDEX_MAGIC};
use crate::stream::input::InputWindow;
use crate::stream::reader::IndexVerdict;

const WITHIN: &str = "the index";

/// A frame that an index may describe.
pub(crate) struct ExpectedIndex {
    pub(crate) index: BuiltIndex,
    pub(crate) content_len: u64,
    pub(crate) frame_len: u64,
}

/// Reads the payload of an index frame, `payload_len` bytes, and compares it with the index that `frame` should have.
pub(crate) fn check_index<R: Read>(
    input: &mut InputWindow<R>,
    payload_len: u64,
    frame: Option<&ExpectedIndex>,
) -> Result<IndexVerdict> {
    let mut payload = Payload { input, left: payload_len };
    let found = match frame {
        Some(frame) => compare(&mut payload, frame)?,
        None => Some("no frame of pages comes before it".to_owned()),
    };
    payload.input.skip(payload.left, WITHIN)?;
    Ok(found.map_or(IndexVerdict::Agrees, IndexVerdict::Disagrees))
}

/// Returns the first difference in words.
fn compare<R: Read>(payload: &mut Payload<'_, R>, frame: &ExpectedIndex) -> Result<Option<String>> {
    let differs = |what: &str| Ok(Some(what.to_owned()));
    let index = &frame.index;
    let table_len = index.groups.len() * GROUP_RECORD_LEN;
    let fixed_len = (INDEX_MAGIC.len() + table_len + FOOTER_LEN) as u64 + index.entries_len;
    let Some(sections_len) = payload.left.checked_sub(fixed_len) else {
        return differs("it is too short for its frame");
    };
    if !payload.next_is(&INDEX_MAGIC)? {
        return differs("its magic number is wrong");
    }
    let pages = index.counts.pages();
    for (first_page, group) in (0u64..).step_by(GROUP_PAGES).zip(&index.groups).filter(|(_, group)| !group.all_zeros) {
        let entries = (pages - first_page).min(GROUP_PAGES as u64);
        if payload.hash(entries * ENTRY_LEN as u64)? != group.checksum {
            return Ok(Some(format!("its entries from page {first_page} on do not describe the frame")));
        }
    }
    let sections_checksum = payload.hash(sections_len)?;
    for (first, group) in (0u64..).step_by(GROUP_PAGES).zip(&index.groups) {
        if !payload.next_is(&group.encode())? {
            let last = first + GROUP_PAGES as u64 - 1;
            return Ok(Some(format!("its table does not describe pages {first} to {last} of the frame")));
        }
    }
    let footer = index.footer(frame.content_len, frame.frame_len, sections_len, sections_checksum);
    match footer {
        Some(footer) if payload.next_is(&footer.encode())? => Ok(None),
        _ => differs("its footer does not describe the frame"),
    }
}

/// The part of the index that is not read yet.
struct Payload<'a, R> {
    input: &'a mut InputWindow<R>,
    left: u64,
}

impl<R: Read> Payload<'_, R> {
    /// Reads the next few bytes and compares them. The caller has made sure that they belong to the index.
    fn next_is(&mut self, expected: &[u8]) -> Result<bool> {
        self.input.release();
        let equal = self.input.require(expected.len(), WITHIN)? == expected;
        self.input.consume(expected.len());
        self.left -= expected.len() as u64;
        Ok(equal)
    }

    /// Returns the XXH32 of the next bytes.
    fn hash(&mut self, len: u64) -> Result<u32> {
        let mut hash = ContentHash::new();
        self.input.drain(len, WITHIN, |bytes| hash.update(bytes))?;
        self.left -= len;
        Ok(hash.digest())
    }
}
