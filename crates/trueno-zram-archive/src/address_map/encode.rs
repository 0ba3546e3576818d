//! Encodes an address map. `StoredMap` decodes it.

use trueno_zram_core::PAGE_SIZE;

use super::{ADDRESS_LIMIT, AddressMap, Consistency, MAX_BYTES, PageState, SECTION_WORDS};
use crate::snapshot_section::{SnapshotError, VERSION, check_len};
use crate::varint::put;

impl AddressMap {
    /// Encodes the map as the bytes of a section.
    ///
    /// ```
    /// # use trueno_zram_archive::address_map::{AddressMap, Consistency, Flags, Mapping, PageState, StoredMap};
    /// # let mut heap = Mapping::new(0x10000, Flags::anonymous("rw-"), "[heap]");
    /// # heap.push(1, PageState::Untouched);
    /// # heap.push(2, PageState::Stored);
    /// # let (command, consistency) = ("server".into(), Consistency::Stopped);
    /// # let map = AddressMap { pid: 4711, command, taken_unix_s: 1_800_000_000, consistency, mappings: vec![heap] };
    /// let bytes = map.to_bytes()?; // for `ArchiveWriter::add_section`
    /// assert_eq!(StoredMap::from_bytes(bytes)?.command, "server");
    /// # Ok::<(), trueno_zram_archive::SnapshotError>(())
    /// ```
    ///
    /// # Errors
    /// [`SnapshotError::TooLarge`]; [`SnapshotError::Mapping`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, SnapshotError> {
        let mut out = Vec::new();
        put(VERSION.into(), &mut out);
        put(self.pid.into(), &mut out);
        put(self.taken_unix_s, &mut out);
        put((self.consistency == Consistency::Stopped).into(), &mut out);
        put_text(&self.command, &mut out);
        put(self.mappings.len() as u64, &mut out);
        let mut end_before = 0;
        for mapping in &self.mappings {
            let (start, end) = (mapping.start, mapping.end());
            let gap = start.checked_sub(end_before).filter(|gap| gap.is_multiple_of(PAGE_SIZE as u64));
            let gap = gap.filter(|_| start < end && end <= ADDRESS_LIMIT);
            put(gap.ok_or(SnapshotError::Mapping { start, end })? / PAGE_SIZE as u64, &mut out);
            out.push(mapping.flags.0);
            put_text(&mapping.name, &mut out);
            put(mapping.runs.len() as u64, &mut out);
            mapping.runs.iter().for_each(|run| put(run.pages << 2 | state_code(run.state), &mut out));
            end_before = end;
        }
        check_len(SECTION_WORDS, out.len(), MAX_BYTES)?;
        Ok(out)
    }
}

fn state_code(state: PageState) -> u64 {
    match state {
        PageState::Untouched => 0,
        PageState::Stored => 1,
        PageState::Unreadable => 2,
    }
}

pub(super) fn state_of(code: u64) -> Option<PageState> {
    [PageState::Untouched, PageState::Stored, PageState::Unreadable]
        .into_iter()
        .find(|state| state_code(*state) == code)
}

fn put_text(text: &str, out: &mut Vec<u8>) {
    put(text.len() as u64, out);
    out.extend_from_slice(text.as_bytes());
}
