//! Decodes the address map that an archive stores: checked once, then decoded as it is walked.

use trueno_zram_core::PAGE_SIZE;

use super::encode::state_of;
use super::{ADDRESS_LIMIT, Consistency, Flags, MAX_BYTES, PageState, SECTION, SECTION_WORDS, StateCounts};
use crate::archive::Archive;
use crate::snapshot_section::{SectionCursor, SnapshotError, check_len};

/// The fewest bytes that a mapping takes: gap, flags, length of the name, number of runs, one run.
const MIN_MAPPING_BYTES: u64 = 5;

/// The address map of an archive. It takes as much memory as its section takes bytes.
///
/// ```
/// # use trueno_zram_archive::address_map::{AddressMap, Consistency, Flags, Mapping, PageState, StoredMap};
/// # let mut heap = Mapping::new(0x10000, Flags::anonymous("rw-"), "[heap]");
/// # heap.push(1, PageState::Untouched);
/// # heap.push(2, PageState::Stored);
/// # let (command, consistency) = ("server".into(), Consistency::Stopped);
/// # let map = AddressMap { pid: 4711, command, taken_unix_s: 1_800_000_000, consistency, mappings: vec![heap] };
/// let map = StoredMap::from_bytes(map.to_bytes()?)?;
/// assert_eq!((map.pid, map.mapping_count, map.pages.stored), (4711, 1, 2));
/// # Ok::<(), trueno_zram_archive::SnapshotError>(())
/// ```
#[derive(Clone, Debug)]
pub struct StoredMap {
    bytes: Vec<u8>,
    /// The position of the first mapping in `bytes`.
    mappings_at: usize,
    /// The process's number.
    pub pid: u32,
    /// The process's short name.
    pub command: String,
    /// When the snapshot was started, in seconds since 1970.
    pub taken_unix_s: u64,
    /// The moments at which its pages were read.
    pub consistency: Consistency,
    /// The number of mappings.
    pub mapping_count: u64,
    /// The pages of all mappings.
    pub pages: StateCounts,
}

/// One range of addresses of a [`StoredMap`].
///
/// ```
/// # use trueno_zram_archive::address_map::{AddressMap, Consistency, Flags, Mapping, PageState, StoredMap};
/// # let mut heap = Mapping::new(0x10000, Flags::anonymous("rw-"), "[heap]");
/// # heap.push(1, PageState::Untouched);
/// # heap.push(2, PageState::Stored);
/// # let (command, consistency) = ("server".into(), Consistency::Stopped);
/// # let map = AddressMap { pid: 4711, command, taken_unix_s: 1_800_000_000, consistency, mappings: vec![heap] };
/// # let map = StoredMap::from_bytes(map.to_bytes()?)?;
/// for mapping in map.mappings() {
///     println!("{:x}-{:x} {} {}", mapping.start, mapping.end(), mapping.flags.permissions(), mapping.name);
/// }
/// # Ok::<(), trueno_zram_archive::SnapshotError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct StoredMapping<'a> {
    /// The first address.
    pub start: u64,
    /// Its permissions and kind.
    pub flags: Flags,
    /// `[heap]`, `[stack]`, the file's name; empty for plain anonymous memory.
    pub name: &'a str,
    /// Number of its first stored page in the archive.
    pub first_page: u64,
    /// Its pages.
    pub pages: StateCounts,
    /// The encoded runs.
    runs: SectionCursor<'a>,
    run_count: u64,
}

/// Adjacent pages in the same state, with their address and their first page in the archive.
///
/// ```
/// # use trueno_zram_archive::address_map::{AddressMap, Consistency, Flags, Mapping, PageState, StoredMap};
/// # let mut heap = Mapping::new(0x10000, Flags::anonymous("rw-"), "[heap]");
/// # heap.push(1, PageState::Untouched);
/// # heap.push(2, PageState::Stored);
/// # let (command, consistency) = ("server".into(), Consistency::Stopped);
/// # let map = AddressMap { pid: 4711, command, taken_unix_s: 1_800_000_000, consistency, mappings: vec![heap] };
/// # let map = StoredMap::from_bytes(map.to_bytes()?)?;
/// let heap = map.mappings().next().expect("it has one");
/// let stored = heap.runs().find(|run| run.state == PageState::Stored).expect("it has some");
/// assert_eq!((stored.start, stored.pages, stored.first_page), (0x11000, 2, 0));
/// # Ok::<(), trueno_zram_archive::SnapshotError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MappedRun {
    /// The first address.
    pub start: u64,
    /// The number of pages.
    pub pages: u64,
    /// The state of all of them.
    pub state: PageState,
    /// Number in the archive of the first page stored at or after `start`.
    pub first_page: u64,
}

impl StoredMap {
    /// Reads the map of an archive, or of the pages that a delta stores; `None` if it is not a snapshot of a process.
    ///
    /// ```
    /// # use trueno_zram_archive::address_map::{AddressMap, Consistency, Flags, Mapping, PageState, StoredMap};
    /// # let mut heap = Mapping::new(0x10000, Flags::anonymous("rw-"), "[heap]");
    /// # heap.push(1, PageState::Untouched);
    /// # heap.push(2, PageState::Stored);
    /// # let (command, consistency) = ("server".into(), Consistency::Stopped);
    /// # let map = AddressMap { pid: 4711, command, taken_unix_s: 1_800_000_000, consistency, mappings: vec![heap] };
    /// use trueno_zram_archive::address_map::SECTION;
    /// use trueno_zram_archive::{Archive, ArchiveWriter, WriteOptions};
    /// let mut writer = ArchiveWriter::new(Vec::new(), WriteOptions::default())?;
    /// writer.write_zero_pages(2)?;
    /// writer.add_section(SECTION, &map.to_bytes()?)?;
    /// let archive = Archive::read_from(std::sync::Arc::new(writer.finish(None)?.0))?.expect("it has an index");
    /// assert_eq!(StoredMap::read(&archive)?.map(|map| map.pid), Some(4711));
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Snapshot`](crate::Error::Snapshot); those of [`Archive::section`].
    pub fn read(archive: &Archive) -> crate::Result<Option<Self>> {
        let bytes = archive.section(SECTION, MAX_BYTES)?;
        Ok(bytes.map(Self::from_bytes).transpose()?)
    }

    /// Returns the bytes of the section.
    ///
    /// ```
    /// # use trueno_zram_archive::address_map::{AddressMap, Consistency, Flags, Mapping, PageState, StoredMap};
    /// # let mut heap = Mapping::new(0x10000, Flags::anonymous("rw-"), "[heap]");
    /// # heap.push(1, PageState::Untouched);
    /// # heap.push(2, PageState::Stored);
    /// # let (command, consistency) = ("server".into(), Consistency::Stopped);
    /// # let map = AddressMap { pid: 4711, command, taken_unix_s: 1_800_000_000, consistency, mappings: vec![heap] };
    /// let bytes = map.to_bytes()?;
    /// assert_eq!(StoredMap::from_bytes(bytes.clone())?.into_bytes(), bytes); // to copy it to another archive
    /// # Ok::<(), trueno_zram_archive::SnapshotError>(())
    /// ```
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Checks the bytes of a section. The map is complete and in order, or this is an error.
    ///
    /// ```
    /// # use trueno_zram_archive::address_map::{AddressMap, Consistency, Flags, Mapping, PageState, StoredMap};
    /// # let mut heap = Mapping::new(0x10000, Flags::anonymous("rw-"), "[heap]");
    /// # heap.push(1, PageState::Untouched);
    /// # heap.push(2, PageState::Stored);
    /// # let (command, consistency) = ("server".into(), Consistency::Stopped);
    /// # let map = AddressMap { pid: 4711, command, taken_unix_s: 1_800_000_000, consistency, mappings: vec![heap] };
    /// let bytes = map.to_bytes()?;
    /// assert!(StoredMap::from_bytes(bytes[1..].to_vec()).is_err());
    /// assert_eq!(StoredMap::from_bytes(bytes)?.pid, 4711);
    /// # Ok::<(), trueno_zram_archive::SnapshotError>(())
    /// ```
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, SnapshotError> {
        check_len(SECTION_WORDS, bytes.len(), MAX_BYTES)?;
        let mut cursor = SectionCursor { section: SECTION_WORDS, bytes: &bytes, at: 0 };
        let version = cursor.varint("version")?;
        cursor.check_version(version)?;
        let pid = cursor.varint("process number")?.try_into().map_err(|_| cursor.invalid("process number"))?;
        let taken_unix_s = cursor.varint("time")?;
        let consistency = match cursor.varint("consistency")? {
            0 => Consistency::Live,
            1 => Consistency::Stopped,
            _ => return Err(cursor.invalid("consistency")),
        };
        let command = text(&mut cursor, "command")?.to_owned();
        let mapping_count = cursor.varint("number of mappings")?;
        if mapping_count > cursor.left() / MIN_MAPPING_BYTES {
            return Err(cursor.invalid("number of mappings"));
        }
        let mappings_at = cursor.at;
        let (mut end, mut pages) = (0, StateCounts::default());
        for _ in 0..mapping_count {
            let mapping = StoredMapping::decode(&mut cursor, end, pages.stored)?;
            end = mapping.end();
            pages.untouched += mapping.pages.untouched;
            pages.stored += mapping.pages.stored;
            pages.unreadable += mapping.pages.unreadable;
        }
        cursor.check_end()?;
        Ok(Self { mappings_at, pid, command, taken_unix_s, consistency, mapping_count, pages, bytes })
    }

    /// Checks that the archive has as many pages as the map places in it.
    ///
    /// ```
    /// # use trueno_zram_archive::address_map::{AddressMap, Consistency, Flags, Mapping, PageState, StoredMap};
    /// # let mut heap = Mapping::new(0x10000, Flags::anonymous("rw-"), "[heap]");
    /// # heap.push(1, PageState::Untouched);
    /// # heap.push(2, PageState::Stored);
    /// # let (command, consistency) = ("server".into(), Consistency::Stopped);
    /// # let map = AddressMap { pid: 4711, command, taken_unix_s: 1_800_000_000, consistency, mappings: vec![heap] };
    /// # let map = StoredMap::from_bytes(map.to_bytes()?)?;
    /// assert!(map.check_pages(2).is_ok() && map.check_pages(1).is_err());
    /// # Ok::<(), trueno_zram_archive::SnapshotError>(())
    /// ```
    ///
    /// # Errors
    /// [`SnapshotError::TooManyPages`].
    pub fn check_pages(&self, archive_pages: u64) -> Result<(), SnapshotError> {
        let claimed = self.pages.stored;
        if claimed > archive_pages {
            return Err(SnapshotError::TooManyPages { claimed, pages: archive_pages });
        }
        Ok(())
    }

    /// Walks the mappings in order of their addresses.
    ///
    /// ```
    /// # use trueno_zram_archive::address_map::{AddressMap, Consistency, Flags, Mapping, PageState, StoredMap};
    /// # let mut heap = Mapping::new(0x10000, Flags::anonymous("rw-"), "[heap]");
    /// # heap.push(1, PageState::Untouched);
    /// # heap.push(2, PageState::Stored);
    /// # let (command, consistency) = ("server".into(), Consistency::Stopped);
    /// # let map = AddressMap { pid: 4711, command, taken_unix_s: 1_800_000_000, consistency, mappings: vec![heap] };
    /// # let map = StoredMap::from_bytes(map.to_bytes()?)?;
    /// let names: Vec<_> = map.mappings().map(|mapping| mapping.name).collect();
    /// assert_eq!(names, ["[heap]"]);
    /// # Ok::<(), trueno_zram_archive::SnapshotError>(())
    /// ```
    pub fn mappings(&self) -> impl Iterator<Item = StoredMapping<'_>> {
        let mut cursor = SectionCursor { section: SECTION_WORDS, bytes: &self.bytes, at: self.mappings_at };
        let (mut end, mut first_page) = (0, 0);
        (0..self.mapping_count).map(move |_| {
            let mapping = StoredMapping::decode(&mut cursor, end, first_page).expect("checked by from_bytes");
            (end, first_page) = (mapping.end(), first_page + mapping.pages.stored);
            mapping
        })
    }
}

impl<'a> StoredMapping<'a> {
    /// Reads the mapping at the cursor. `end` is where the one before it ends.
    fn decode(cursor: &mut SectionCursor<'a>, end: u64, first_page: u64) -> Result<Self, SnapshotError> {
        let gap = cursor.varint("gap before a mapping")?.checked_mul(PAGE_SIZE as u64);
        let start = gap.and_then(|gap| end.checked_add(gap)).ok_or_else(|| cursor.invalid("gap before a mapping"))?;
        let flags = Flags(cursor.take(1, "mapping's flags")?[0]);
        let name = text(cursor, "mapping's name")?;
        let run_count = cursor.varint("number of runs")?;
        if run_count == 0 || run_count > cursor.left() {
            return Err(cursor.invalid("number of runs"));
        }
        let runs = *cursor;
        let mut mapping = Self { start, flags, name, first_page, pages: StateCounts::default(), runs, run_count };
        let max_pages = ADDRESS_LIMIT.saturating_sub(start) / PAGE_SIZE as u64;
        let mut before = None;
        for _ in 0..run_count {
            let number = cursor.varint("run")?;
            let (pages, state) = (number >> 2, state_of(number & 3).ok_or_else(|| cursor.invalid("run"))?);
            let fits = pages > 0 && pages <= max_pages - mapping.pages.total();
            if !fits || before.replace(state) == Some(state) {
                return Err(cursor.invalid("run"));
            }
            mapping.pages.add(pages, state);
        }
        Ok(mapping)
    }

    /// Returns the first address after the mapping.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.start + self.pages.total() * PAGE_SIZE as u64
    }

    /// Walks the runs in order of their addresses.
    ///
    /// ```
    /// # use trueno_zram_archive::address_map::{AddressMap, Consistency, Flags, Mapping, PageState, StoredMap};
    /// # let mut heap = Mapping::new(0x10000, Flags::anonymous("rw-"), "[heap]");
    /// # heap.push(1, PageState::Untouched);
    /// # heap.push(2, PageState::Stored);
    /// # let (command, consistency) = ("server".into(), Consistency::Stopped);
    /// # let map = AddressMap { pid: 4711, command, taken_unix_s: 1_800_000_000, consistency, mappings: vec![heap] };
    /// # let map = StoredMap::from_bytes(map.to_bytes()?)?;
    /// let heap = map.mappings().next().expect("it has one");
    /// let pages: Vec<_> = heap.runs().map(|run| (run.pages, run.state)).collect();
    /// assert_eq!(pages, [(1, PageState::Untouched), (2, PageState::Stored)]);
    /// # Ok::<(), trueno_zram_archive::SnapshotError>(())
    /// ```
    pub fn runs(self) -> impl Iterator<Item = MappedRun> + use<'a> {
        let (mut cursor, mut start, mut first_page) = (self.runs, self.start, self.first_page);
        (0..self.run_count).map(move |_| {
            let number = cursor.varint("run").expect("checked by from_bytes");
            let state = state_of(number & 3).expect("checked by from_bytes");
            let run = MappedRun { start, pages: number >> 2, state, first_page };
            start = run.end();
            if state == PageState::Stored {
                first_page += run.pages;
            }
            run
        })
    }
}

impl MappedRun {
    /// Returns the first address after the run.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.start + self.pages * PAGE_SIZE as u64
    }
}

/// Reads a text with its length before it.
fn text<'a>(cursor: &mut SectionCursor<'a>, what: &'static str) -> Result<&'a str, SnapshotError> {
    let len = usize::try_from(cursor.varint(what)?).map_err(|_| cursor.invalid(what))?;
    cursor.text(len, what)
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::super::{AddressMap, Mapping};
    use super::*;

    impl StoredMap {
        /// The map as a snapshot would build it.
        pub(in super::super) fn to_map(&self) -> AddressMap {
            let mapping = |stored: StoredMapping<'_>| {
                let mut mapping = Mapping::new(stored.start, stored.flags, stored.name);
                stored.runs().for_each(|run| mapping.push(run.pages, run.state));
                mapping
            };
            AddressMap {
                pid: self.pid,
                command: self.command.clone(),
                taken_unix_s: self.taken_unix_s,
                consistency: self.consistency,
                mappings: self.mappings().map(mapping).collect(),
            }
        }
    }

    fn from_bytes(bytes: &[u8]) -> Result<AddressMap, SnapshotError> {
        StoredMap::from_bytes(bytes.to_vec()).map(|map| map.to_map())
    }

    #[test]
    fn a_map_comes_back() {
        let map = sample();
        assert_eq!(from_bytes(&map.to_bytes().unwrap()), Ok(map));
    }

    #[test]
    fn every_truncation_is_an_error_and_so_is_a_byte_more() {
        let bytes = sample().to_bytes().unwrap();
        for len in 0..bytes.len() {
            assert!(from_bytes(&bytes[..len]).is_err(), "{len} of {} bytes", bytes.len());
        }
        assert!(matches!(from_bytes(&[&bytes[..], &[0]].concat()), Err(SnapshotError::Invalid { what: "end", .. })));
    }

    #[test]
    fn damaged_bytes_give_an_error_or_a_map_that_holds_together() {
        let bytes = sample().to_bytes().unwrap();
        for at in 0..bytes.len() {
            for byte in 0..=255 {
                let mut damaged = bytes.clone();
                damaged[at] = byte;
                if let Ok(map) = from_bytes(&damaged) {
                    assert_eq!(
                        map.to_bytes().unwrap(),
                        damaged,
                        "byte {at} as {byte:#x}: what was read is what was there"
                    );
                    assert!(map.mappings.iter().all(|mapping| mapping.end() <= ADDRESS_LIMIT));
                }
            }
        }
    }

    #[test]
    fn a_map_of_another_version_is_refused_by_its_number() {
        let mut bytes = sample().to_bytes().unwrap();
        bytes[0] = 2;
        assert_eq!(from_bytes(&bytes), Err(SnapshotError::Version { section: SECTION_WORDS, version: 2 }));
    }

    #[test]
    fn what_would_take_much_memory_is_refused_both_ways() {
        let max_bytes = usize::try_from(MAX_BYTES).unwrap();
        let too_large = vec![1; max_bytes + 1];
        assert!(matches!(from_bytes(&too_large), Err(SnapshotError::TooLarge { .. })));
        let mut map = sample();
        map.mappings[2].name = "x".repeat(max_bytes);
        assert!(matches!(map.to_bytes(), Err(SnapshotError::TooLarge { .. })));
    }

    #[test]
    fn mappings_that_no_reader_would_take_are_not_written() {
        let stored = |start, pages| {
            let mut mapping = Mapping::new(start, Flags::anonymous("rw-"), "");
            mapping.push(pages, PageState::Stored);
            mapping
        };
        let write = |mappings| AddressMap { mappings, ..sample() }.to_bytes();
        assert!(write(vec![stored(0x1000, 1), stored(0x2000, (ADDRESS_LIMIT >> 12) - 2)]).is_ok());
        for wrong in [
            stored(0x1000, 1),
            stored(0x2001, 1),
            stored(0x3000, 0),
            stored(0x2000, (ADDRESS_LIMIT >> 12) - 1),
            stored(0x2000, u64::MAX),
            stored(!0xfff, 1),
        ] {
            let (start, end) = (wrong.start, wrong.end());
            assert_eq!(write(vec![stored(0x1000, 1), wrong]), Err(SnapshotError::Mapping { start, end }));
        }
    }

    #[test]
    fn numbers_too_long_for_64_bits_are_refused() {
        for bytes in [&[0x80; 11][..], &[0xff; 10], &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]] {
            assert!(matches!(from_bytes(bytes), Err(SnapshotError::Invalid { what: "version", .. })));
        }
    }

    #[test]
    fn counts_beyond_the_bytes_that_are_there_are_rejected_at_once() {
        let mut map = sample();
        map.mappings.truncate(1);
        let bytes = map.to_bytes().unwrap();
        // The count of mappings stands after "server"; that of runs after "[heap]".
        let after = |text: &[u8]| bytes.windows(text.len()).position(|part| part == text).unwrap() + text.len();
        for (at, what) in [(after(b"server"), "number of mappings"), (after(b"[heap]"), "number of runs")] {
            let mut lying = bytes.clone();
            lying.splice(at..=at, [0xff, 0xff, 0xff, 0xff, 0x7f]);
            let error = from_bytes(&lying).unwrap_err();
            assert!(matches!(error, SnapshotError::Invalid { what: wrong, .. } if wrong == what), "{error}");
        }
    }

    #[test]
    fn a_map_of_more_pages_than_the_archive_has_is_rejected() {
        let map = StoredMap::from_bytes(sample().to_bytes().unwrap()).unwrap();
        assert_eq!(map.check_pages(7), Ok(()));
        assert_eq!(map.check_pages(6), Err(SnapshotError::TooManyPages { claimed: 7, pages: 6 }));
    }
}
