//! Compares an index in a stream with the frame before it, entry by entry, in little memory.

use std::io::Read;

use crate::error::Result;
use crate::hashes::content_hash::ContentHash;
use crate::index::builder::BuiltIndex;
use crate::index::layout::{ENTRY_LEN, FOOTER_LEN, GROUP_PAGES, GROUP_RECORD_LEN, INDEX_MAGIC, IndexFooter};
use crate::stream::input::InputWindow;
use crate::stream::reader::IndexVerdict;

const WITHIN: &str = "the index";

/// A frame that an index may describe.
#[derive(Debug)]
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
    let table = index.table();
    let fixed_len = (INDEX_MAGIC.len() + table.len() + FOOTER_LEN) as u64 + index.entries_len;
    let (Some(sections_len), Ok(entries_len)) = (payload.left.checked_sub(fixed_len), u32::try_from(index.entries_len))
    else {
        return differs("it is too short for its frame");
    };
    let Ok(sections_len_short) = u32::try_from(sections_len) else {
        return differs("it is too long for its frame");
    };
    if !payload.is(&INDEX_MAGIC)? {
        return differs("its magic number is wrong");
    }
    let pages = index.counts.pages();
    for (number, group) in (0u64..).zip(&index.groups).filter(|(_, group)| !group.all_zeros) {
        let first_page = number * GROUP_PAGES as u64;
        let entries = (pages - first_page).min(GROUP_PAGES as u64);
        if payload.hash(entries * ENTRY_LEN as u64)? != group.checksum {
            return Ok(Some(format!("its entries from page {first_page} on do not describe the frame")));
        }
    }
    let sections_checksum = payload.hash(sections_len)?;
    for (number, record) in (0u64..).zip(table.as_chunks::<GROUP_RECORD_LEN>().0) {
        if !payload.is(record)? {
            let first = number * GROUP_PAGES as u64;
            return Ok(Some(format!(
                "its table does not describe pages {} to {} of the frame",
                first,
                first + GROUP_PAGES as u64 - 1
            )));
        }
    }
    let expected = IndexFooter {
        format: index.layout.format(),
        frame_checksums: index.frame_checksums(),
        content_len: frame.content_len,
        frame_len: frame.frame_len,
        pages: index.counts,
        entries_len,
        sections_len: sections_len_short,
        table_checksum: crate::hashes::content_hash::xxh32(&table),
        sections_checksum,
    };
    if !payload.is(&expected.encode())? {
        return differs("its footer does not describe the frame");
    }
    Ok(None)
}

/// The part of the index that is not read yet.
struct Payload<'a, R> {
    input: &'a mut InputWindow<R>,
    left: u64,
}

impl<R: Read> Payload<'_, R> {
    /// Reads the next few bytes and compares them. The caller has made sure that they belong to the index.
    fn is(&mut self, expected: &[u8]) -> Result<bool> {
        self.input.release();
        let equal = self.input.require(expected.len(), WITHIN)? == expected;
        self.input.consume(expected.len());
        self.left -= expected.len() as u64;
        Ok(equal)
    }

    /// Returns the XXH32 of the next bytes.
    fn hash(&mut self, len: u64) -> Result<u32> {
        let mut hash = ContentHash::new();
        while hash.len_bytes() < len {
            self.input.release();
            self.input.require(1, WITHIN)?;
            let available = self.input.available();
            let wanted = usize::try_from(len - hash.len_bytes()).unwrap_or(usize::MAX);
            let step = available.len().min(wanted);
            hash.update(&available[..step]);
            self.input.consume(step);
            self.left -= step as u64;
        }
        Ok(hash.digest())
    }
}
