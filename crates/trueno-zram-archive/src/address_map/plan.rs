//! Finds the bytes of an archive for a range of addresses.

use std::ops::Range;

use trueno_zram_core::PAGE_SIZE;

use super::PageState;
use super::decode::{MappedRun, StoredMap, StoredMapping};

/// The parts of a range of addresses: the spans, one after the other, with the stored ones taken from `content` in order.
///
/// Stored pages are in the archive in the order of their addresses, so one range of its content holds them all.
///
/// ```
/// # use trueno_zram_archive::address_map::{AddressMap, Consistency, Flags, Mapping, PageState, StoredMap};
/// # let mut heap = Mapping::new(0x10000, Flags::anonymous("rw-"), "[heap]");
/// # heap.push(1, PageState::Untouched);
/// # heap.push(2, PageState::Stored);
/// # let (command, consistency) = ("server".into(), Consistency::Stopped);
/// # let map = AddressMap { pid: 4711, command, taken_unix_s: 1_800_000_000, consistency, mappings: vec![heap] };
/// # let map = StoredMap::from_bytes(map.to_bytes()?)?;
/// use trueno_zram_archive::address_map::AddressSpan;
/// let plan = map.plan(0x10000..0x11800, 2 * 4096).expect("all of it is there");
/// let (mut at, mut parts) = (plan.content.start, Vec::new());
/// for span in plan.spans() {
///     match span {
///         AddressSpan::Zeros(len_bytes) => parts.push(format!("{len_bytes} zeros")),
///         AddressSpan::Stored(len_bytes) => {
///             parts.push(format!("bytes {at} to {} of the archive", at + len_bytes));
///             at += len_bytes;
///         }
///     }
/// }
/// assert_eq!(parts, ["4096 zeros", "bytes 0 to 2048 of the archive"]);
/// # Ok::<(), trueno_zram_archive::SnapshotError>(())
/// ```
#[derive(Debug)]
pub struct AddressPlan<'a> {
    map: &'a StoredMap,
    addresses: Range<u64>,
    /// The range of the archive's content that has the stored bytes, all of them wanted.
    pub content: Range<u64>,
}

/// A part of a range of addresses, with its length in bytes.
///
/// ```
/// # use trueno_zram_archive::address_map::{AddressMap, Consistency, Flags, Mapping, PageState, StoredMap};
/// # let mut heap = Mapping::new(0x10000, Flags::anonymous("rw-"), "[heap]");
/// # heap.push(1, PageState::Untouched);
/// # heap.push(2, PageState::Stored);
/// # let (command, consistency) = ("server".into(), Consistency::Stopped);
/// # let map = AddressMap { pid: 4711, command, taken_unix_s: 1_800_000_000, consistency, mappings: vec![heap] };
/// # let map = StoredMap::from_bytes(map.to_bytes()?)?;
/// use trueno_zram_archive::address_map::AddressSpan;
/// let plan = map.plan(0x10ffe..0x11002, 2 * 4096).expect("all of it is there");
/// assert!(plan.spans().eq([AddressSpan::Zeros(2), AddressSpan::Stored(2)]));
/// # Ok::<(), trueno_zram_archive::SnapshotError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressSpan {
    /// The next bytes of the plan's content.
    Stored(u64),
    /// Zero bytes: anonymous memory that the process never touched.
    Zeros(u64),
}

/// The reason why a range of addresses cannot be extracted.
///
/// ```
/// # use trueno_zram_archive::address_map::{AddressMap, Consistency, Flags, Mapping, PageState, StoredMap};
/// # let mut heap = Mapping::new(0x10000, Flags::anonymous("rw-"), "[heap]");
/// # heap.push(1, PageState::Untouched);
/// # heap.push(2, PageState::Stored);
/// # let (command, consistency) = ("server".into(), Consistency::Stopped);
/// # let map = AddressMap { pid: 4711, command, taken_unix_s: 1_800_000_000, consistency, mappings: vec![heap] };
/// # let map = StoredMap::from_bytes(map.to_bytes()?)?;
/// use trueno_zram_archive::address_map::AddressError;
/// assert_eq!(map.plan(0..1, 2 * 4096).unwrap_err(), AddressError::Unmapped(0));
/// # Ok::<(), trueno_zram_archive::SnapshotError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// An address that the process did not have.
    #[error("address {0:#x} is not in any range of the snapshot")]
    Unmapped(u64),
    /// The address of a page that is lost.
    #[error("the page at address {0:#x} could not be read when the snapshot was taken")]
    Unreadable(u64),
    /// The address of a page of a file, and the file's name.
    #[error("the page at address {0:#x} is an unchanged page of {1} and is not in the snapshot")]
    FilePage(u64, String),
    /// The archive is shorter than its map.
    #[error(
        "address {address:#x} is byte {byte} of the content by the address map, but the content has {len_bytes} bytes"
    )]
    PastContent {
        /// The first address whose byte is missing.
        address: u64,
        /// The position of that byte in the content.
        byte: u64,
        /// The length of the content.
        len_bytes: u64,
    },
}

impl StoredMap {
    /// Finds the bytes at `addresses` in an archive with `content_len` bytes of content.
    ///
    /// ```
    /// # use trueno_zram_archive::address_map::{AddressMap, Consistency, Flags, Mapping, PageState, StoredMap};
    /// # let mut heap = Mapping::new(0x10000, Flags::anonymous("rw-"), "[heap]");
    /// # heap.push(1, PageState::Untouched);
    /// # heap.push(2, PageState::Stored);
    /// # let (command, consistency) = ("server".into(), Consistency::Stopped);
    /// # let map = AddressMap { pid: 4711, command, taken_unix_s: 1_800_000_000, consistency, mappings: vec![heap] };
    /// # let map = StoredMap::from_bytes(map.to_bytes()?)?;
    /// let plan = map.plan(0x11000..0x11010, 2 * 4096).expect("all of it is there");
    /// assert_eq!(plan.content, 0..16);
    /// # Ok::<(), trueno_zram_archive::SnapshotError>(())
    /// ```
    ///
    /// # Errors
    /// [`AddressError`] if one of the bytes is not there.
    pub fn plan(&self, addresses: Range<u64>, content_len: u64) -> Result<AddressPlan<'_>, AddressError> {
        let mut at = addresses.start;
        let mut content: Option<Range<u64>> = None;
        for (mapping, run, part) in self.parts(&addresses) {
            if part.start != at {
                break;
            }
            match run.state {
                PageState::Stored => {
                    let first_byte = run.first_page * PAGE_SIZE as u64 + (part.start - run.start);
                    let end = first_byte + (part.end - part.start);
                    if end > content_len {
                        let byte = first_byte.max(content_len);
                        let address = part.start + (byte - first_byte);
                        return Err(AddressError::PastContent { address, byte, len_bytes: content_len });
                    }
                    content = Some(content.map_or(first_byte, |content| content.start)..end);
                }
                PageState::Untouched if mapping.flags.is_anonymous() => {}
                PageState::Untouched => return Err(AddressError::FilePage(part.start, mapping.name.to_owned())),
                PageState::Unreadable => return Err(AddressError::Unreadable(part.start)),
            }
            at = part.end;
        }
        if at < addresses.end {
            return Err(AddressError::Unmapped(at));
        }
        Ok(AddressPlan { map: self, addresses, content: content.unwrap_or(0..0) })
    }

    /// Returns the runs that overlap `addresses`, each with its mapping and the addresses that overlap.
    fn parts(&self, addresses: &Range<u64>) -> impl Iterator<Item = (StoredMapping<'_>, MappedRun, Range<u64>)> {
        let Range { start, end } = *addresses;
        let overlap = move |run: MappedRun| start.max(run.start)..end.min(run.end());
        self.mappings()
            .skip_while(move |mapping| mapping.end() <= start)
            .take_while(move |mapping| mapping.start < end)
            .flat_map(|mapping| mapping.runs().map(move |run| (mapping, run)))
            .map(move |(mapping, run)| (mapping, run, overlap(run)))
            .filter(|(_, _, part)| !part.is_empty())
    }
}

impl AddressPlan<'_> {
    /// Returns the spans, in order of their addresses.
    ///
    /// ```
    /// # use trueno_zram_archive::address_map::{AddressMap, Consistency, Flags, Mapping, PageState, StoredMap};
    /// # let mut heap = Mapping::new(0x10000, Flags::anonymous("rw-"), "[heap]");
    /// # heap.push(1, PageState::Untouched);
    /// # heap.push(2, PageState::Stored);
    /// # let (command, consistency) = ("server".into(), Consistency::Stopped);
    /// # let map = AddressMap { pid: 4711, command, taken_unix_s: 1_800_000_000, consistency, mappings: vec![heap] };
    /// # let map = StoredMap::from_bytes(map.to_bytes()?)?;
    /// use trueno_zram_archive::address_map::AddressSpan;
    /// let plan = map.plan(0x11000..0x13000, 2 * 4096).expect("all of it is there");
    /// assert!(plan.spans().eq([AddressSpan::Stored(2 * 4096)]));
    /// # Ok::<(), trueno_zram_archive::SnapshotError>(())
    /// ```
    pub fn spans(&self) -> impl Iterator<Item = AddressSpan> {
        self.map.parts(&self.addresses).map(|(_, run, part)| {
            let len_bytes = part.end - part.start;
            match run.state {
                PageState::Stored => AddressSpan::Stored(len_bytes),
                // `plan` lets no unreadable page through.
                PageState::Untouched | PageState::Unreadable => AddressSpan::Zeros(len_bytes),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    const PAGE: u64 = PAGE_SIZE as u64;
    /// The seven pages that the sample stores.
    const CONTENT_LEN: u64 = 7 * PAGE;

    fn map() -> StoredMap {
        StoredMap::from_bytes(sample().to_bytes().unwrap()).unwrap()
    }

    fn plan(addresses: Range<u64>) -> Result<(Range<u64>, Vec<AddressSpan>), AddressError> {
        let map = map();
        let plan = map.plan(addresses, CONTENT_LEN)?;
        Ok((plan.content.clone(), plan.spans().collect()))
    }

    #[test]
    fn addresses_lead_to_the_pages_in_the_archive() {
        use AddressSpan::{Stored, Zeros};
        // See `sample`: 3 pages stored, 2 untouched, 1 stored from 0x10000 on; then 2 stored right after.
        assert_eq!(plan(0x10000..0x10001), Ok((0..1, vec![Stored(1)])));
        assert_eq!(
            plan(0x10000 + 2 * PAGE + 5..0x10000 + 8 * PAGE),
            Ok((2 * PAGE + 5..6 * PAGE, vec![Stored(PAGE - 5), Zeros(2 * PAGE), Stored(PAGE), Stored(2 * PAGE)]))
        );
        assert_eq!(plan(0x10000 + 3 * PAGE..0x10000 + 4 * PAGE), Ok((0..0, vec![Zeros(PAGE)])), "untouched alone");
        assert_eq!(plan(0x7000_0000..0x7000_0000), Ok((0..0, vec![])), "an empty range has no bytes");
    }

    #[test]
    fn what_is_not_there_is_named_by_its_address() {
        assert_eq!(plan(0..1), Err(AddressError::Unmapped(0)));
        let behind = 0x10000 + 8 * PAGE;
        assert_eq!(plan(behind - 1..behind + 1), Err(AddressError::Unmapped(behind)));
        assert_eq!(plan(behind - 1..0x7000_0001), Err(AddressError::Unmapped(behind)), "a gap between two mappings");
        assert_eq!(plan(0x7000_0000..0x7000_0000 + PAGE + 1), Err(AddressError::Unreadable(0x7000_0000 + PAGE)));
        let file_page = 0x7000_0000 + 2 * PAGE;
        assert_eq!(plan(file_page..file_page + 1), Err(AddressError::FilePage(file_page, "/lib/x.so".into())));
    }

    #[test]
    fn addresses_past_the_content_are_an_error_that_names_the_first() {
        let map = map();
        // The page at 0x16000 is the fifth; the content ends 100 bytes into it.
        let content_len = 4 * PAGE + 100;
        assert!(map.plan(0x16000..0x16000 + 100, content_len).is_ok());
        let error = map.plan(0x16000..0x16000 + PAGE, content_len).unwrap_err();
        assert_eq!(error, AddressError::PastContent { address: 0x16064, byte: content_len, len_bytes: content_len });
        let error = map.plan(0x17000..0x17001, content_len).unwrap_err();
        assert_eq!(error, AddressError::PastContent { address: 0x17000, byte: 5 * PAGE, len_bytes: content_len });
    }
}
