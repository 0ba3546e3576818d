//! The address map of a process snapshot: which page of the archive came from which address.
//!
//! [`AddressMap`] is what a snapshot builds. It is stored in the archive's index as a section of its own ([`SECTION`]).
//! [`StoredMap`] is such a section as it was read: checked once, and decoded again each time it is walked, because the
//! archive is untrusted and a decoded map can be thirty times as large as its bytes.
//!
//! ```
//! use trueno_zram_archive::address_map::{AddressMap, AddressSpan, Consistency, Flags, Mapping, PageState, SECTION, StoredMap};
//! use trueno_zram_archive::{Archive, ArchiveWriter, WriteOptions};
//! let mut heap = Mapping::new(0x10000, Flags::anonymous("rw-"), "[heap]");
//! heap.push(1, PageState::Untouched);
//! heap.push(2, PageState::Stored);
//! let map = AddressMap {
//!     pid: 4711,
//!     command: "server".into(),
//!     taken_unix_s: 1_800_000_000,
//!     consistency: Consistency::Stopped,
//!     mappings: vec![heap],
//! };
//! let mut writer = ArchiveWriter::new(Vec::new(), WriteOptions::default())?;
//! writer.write_zero_pages(2)?;
//! writer.add_section(SECTION, &map.to_bytes()?)?;
//! let archive = Archive::read_from(std::sync::Arc::new(writer.finish(None)?.0))?.expect("it has an index");
//!
//! let map = StoredMap::read(&archive)?.expect("it is a snapshot");
//! let plan = map.plan(0x10000..0x11800, archive.info().content_len).expect("all of it is there");
//! assert_eq!(plan.content, 0..0x800);
//! assert!(plan.spans().eq([AddressSpan::Zeros(0x1000), AddressSpan::Stored(0x800)]));
//! # Ok::<(), trueno_zram_archive::Error>(())
//! ```
//!
//! Numbers are LEB128, texts are a length and UTF-8:
//!
//! ```text
//! version (1), pid, seconds since 1970, stopped (0 or 1), command
//! number of mappings, and for each:
//!   pages between the end of the one before and its start, flags (1 r, 2 w, 4 x, 8 anonymous), name
//!   number of runs, and for each: pages << 2 | state (0 untouched, 1 stored, 2 unreadable)
//! ```
//!
//! The runs of a mapping cover it. Stored pages are in the archive in this order, without gaps. Untouched pages are not in
//! the archive: in anonymous mappings they are zero pages, in others they are pages of the file. Unreadable pages are lost.

mod decode;
mod encode;
mod plan;

use trueno_zram_core::PAGE_SIZE;

pub use decode::{MappedRun, StoredMap, StoredMapping};
pub use plan::{AddressError, AddressPlan, AddressSpan};

/// The section's name in the archive's index.
pub const SECTION: &str = "address-map";

/// The name of the section in errors.
const SECTION_WORDS: &str = "address map";

/// The most bytes of a section. Larger ones are rejected before they are read: archives are untrusted, and a map is kept in
/// memory. A process of 256 GiB in which every second page is touched just fits.
pub const MAX_BYTES: u64 = 64 << 20;

/// The first address that a mapping cannot reach: higher ones belong to the kernel on every 64-bit system.
const ADDRESS_LIMIT: u64 = 1 << 63;

/// The addresses that the pages of a snapshot had.
///
/// ```
/// use trueno_zram_archive::address_map::{AddressMap, Consistency, Flags, Mapping, PageState, StoredMap};
/// let mut heap = Mapping::new(0x10000, Flags::anonymous("rw-"), "[heap]");
/// heap.push(2, PageState::Stored);
/// let map = AddressMap {
///     pid: 4711,
///     command: "server".into(),
///     taken_unix_s: 1_800_000_000,
///     consistency: Consistency::Stopped,
///     mappings: vec![heap],
/// };
/// assert_eq!(StoredMap::from_bytes(map.to_bytes()?)?.pages.stored, 2);
/// # Ok::<(), trueno_zram_archive::SnapshotError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressMap {
    /// The process's number.
    pub pid: u32,
    /// The process's short name.
    pub command: String,
    /// When the snapshot was started, in seconds since 1970.
    pub taken_unix_s: u64,
    /// The moments at which its pages were read.
    pub consistency: Consistency,
    /// The ranges of addresses, sorted.
    pub mappings: Vec<Mapping>,
}

/// The moments at which the pages of a snapshot were read.
///
/// ```
/// use trueno_zram_archive::address_map::Consistency;
/// let is_stopped = true; // by SIGSTOP or a cgroup's freezer
/// let consistency = if is_stopped { Consistency::Stopped } else { Consistency::Live };
/// assert_eq!(consistency, Consistency::Stopped);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// The process kept running while it was read: pages may be from different moments.
    Live,
    /// The process was stopped: all pages are from the same moment.
    Stopped,
}

/// One range of addresses.
///
/// ```
/// use trueno_zram_archive::address_map::{Flags, Mapping, PageState};
/// let mut heap = Mapping::new(0x10000, Flags::anonymous("rw-"), "[heap]");
/// heap.push(2, PageState::Stored);
/// heap.push(1, PageState::Untouched);
/// assert_eq!((heap.end(), heap.pages(PageState::Stored), heap.runs().len()), (0x13000, 2, 2));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The first address, a multiple of 4,096.
    pub start: u64,
    /// Its permissions and kind.
    pub flags: Flags,
    /// `[heap]`, `[stack]`, the file's name; empty for plain anonymous memory.
    pub name: String,
    runs: Vec<PageRun>,
}

/// The permissions of a mapping, and whether it is anonymous.
///
/// ```
/// use trueno_zram_archive::address_map::Flags;
/// let (heap, library) = (Flags::anonymous("rw-"), Flags::of_file("r-x"));
/// assert!(heap.is_anonymous() && !library.is_anonymous());
/// assert_eq!((heap.permissions(), library.permissions()), ("rw-".into(), "r-x".into()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags(u8);

/// Adjacent pages in the same state.
///
/// ```
/// use trueno_zram_archive::address_map::{Flags, Mapping, PageRun, PageState};
/// let mut heap = Mapping::new(0x10000, Flags::anonymous("rw-"), "[heap]");
/// heap.push(2, PageState::Stored);
/// assert_eq!(heap.runs(), [PageRun { pages: 2, state: PageState::Stored }]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRun {
    /// The number of pages.
    pub pages: u64,
    /// The state of all of them.
    pub state: PageState,
}

/// The state of a page of the process.
///
/// ```
/// use trueno_zram_archive::address_map::{Flags, Mapping, PageState};
/// let mut stack = Mapping::new(0x7ffe_0000_0000, Flags::anonymous("rw-"), "[stack]");
/// stack.push(32, PageState::Untouched);
/// stack.push(1, PageState::Stored);
/// assert_eq!(stack.pages(PageState::Stored), 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageState {
    /// Not in the archive: the process never touched it.
    Untouched,
    /// In the archive.
    Stored,
    /// Not in the archive: the kernel refused to read it.
    Unreadable,
}

/// Numbers of pages by state.
///
/// ```
/// # use trueno_zram_archive::address_map::{AddressMap, Consistency, Flags, Mapping, PageState, StoredMap};
/// # let mut heap = Mapping::new(0x10000, Flags::anonymous("rw-"), "[heap]");
/// # heap.push(1, PageState::Untouched);
/// # heap.push(2, PageState::Stored);
/// # let (command, consistency) = ("server".into(), Consistency::Stopped);
/// # let map = AddressMap { pid: 4711, command, taken_unix_s: 1_800_000_000, consistency, mappings: vec![heap] };
/// # let map = StoredMap::from_bytes(map.to_bytes()?)?;
/// assert_eq!((map.pages.untouched, map.pages.stored, map.pages.unreadable), (1, 2, 0));
/// # Ok::<(), trueno_zram_archive::SnapshotError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StateCounts {
    /// Pages that the process never touched.
    pub untouched: u64,
    /// Pages in the archive.
    pub stored: u64,
    /// Pages that could not be read.
    pub unreadable: u64,
}

impl StateCounts {
    fn add(&mut self, pages: u64, state: PageState) {
        *match state {
            PageState::Untouched => &mut self.untouched,
            PageState::Stored => &mut self.stored,
            PageState::Unreadable => &mut self.unreadable,
        } += pages;
    }

    fn total(self) -> u64 {
        self.untouched + self.stored + self.unreadable
    }
}

impl Flags {
    const READ: u8 = 1;
    const WRITE: u8 = 2;
    const EXECUTE: u8 = 4;
    const ANONYMOUS: u8 = 8;

    /// Returns the flags of a mapping of a file. The permissions are those of `/proc/PID/maps`, such as `rwx` or `r--`.
    ///
    /// ```
    /// use trueno_zram_archive::address_map::Flags;
    /// assert!(!Flags::of_file("r-x").is_anonymous());
    /// ```
    #[must_use]
    pub fn of_file(permissions: &str) -> Self {
        let bit = |letter, bit| if permissions.contains(letter) { bit } else { 0 };
        Self(bit('r', Self::READ) | bit('w', Self::WRITE) | bit('x', Self::EXECUTE))
    }

    /// Returns the flags of anonymous memory. The permissions are those of [`of_file`](Self::of_file).
    ///
    /// ```
    /// use trueno_zram_archive::address_map::Flags;
    /// assert!(Flags::anonymous("rw-").is_anonymous());
    /// ```
    #[must_use]
    pub fn anonymous(permissions: &str) -> Self {
        Self(Self::of_file(permissions).0 | Self::ANONYMOUS)
    }

    /// Returns `true` if untouched pages are zero pages rather than pages of a file.
    #[must_use]
    pub fn is_anonymous(self) -> bool {
        self.0 & Self::ANONYMOUS != 0
    }

    /// Returns the permissions as text: `rw-`.
    ///
    /// ```
    /// use trueno_zram_archive::address_map::Flags;
    /// assert_eq!(Flags::of_file("r-x").permissions(), "r-x");
    /// ```
    #[must_use]
    pub fn permissions(self) -> String {
        [(Self::READ, 'r'), (Self::WRITE, 'w'), (Self::EXECUTE, 'x')]
            .map(|(bit, letter)| if self.0 & bit != 0 { letter } else { '-' })
            .iter()
            .collect()
    }
}

impl Mapping {
    /// Creates a mapping without pages.
    ///
    /// ```
    /// use trueno_zram_archive::address_map::{Flags, Mapping, PageState};
    /// let mapping = Mapping::new(0x10000, Flags::of_file("r-x"), "/usr/bin/server");
    /// assert_eq!(mapping.start, mapping.end());
    /// ```
    #[must_use]
    pub fn new(start: u64, flags: Flags, name: impl Into<String>) -> Self {
        Self { start, flags, name: name.into(), runs: Vec::new() }
    }

    /// Returns the states of its pages, in order. Adjacent runs have different states.
    #[must_use]
    pub fn runs(&self) -> &[PageRun] {
        &self.runs
    }

    /// Counts the pages in one state.
    ///
    /// ```
    /// use trueno_zram_archive::address_map::{Flags, Mapping, PageState};
    /// let mut heap = Mapping::new(0x10000, Flags::anonymous("rw-"), "[heap]");
    /// heap.push(2, PageState::Stored);
    /// assert_eq!((heap.pages(PageState::Stored), heap.pages(PageState::Untouched)), (2, 0));
    /// ```
    #[must_use]
    pub fn pages(&self, state: PageState) -> u64 {
        sum(self.runs.iter().filter(|run| run.state == state).map(|run| run.pages))
    }

    /// Returns the first address after the mapping.
    #[must_use]
    pub fn end(&self) -> u64 {
        let pages = sum(self.runs.iter().map(|run| run.pages));
        self.start.saturating_add(pages.saturating_mul(PAGE_SIZE as u64))
    }

    /// Appends pages of one state to the mapping.
    ///
    /// ```
    /// use trueno_zram_archive::address_map::{Flags, Mapping, PageState};
    /// let mut heap = Mapping::new(0x10000, Flags::anonymous("rw-"), "[heap]");
    /// heap.push(2, PageState::Stored);
    /// heap.push(1, PageState::Stored);
    /// assert_eq!((heap.runs().len(), heap.end()), (1, 0x13000));
    /// ```
    pub fn push(&mut self, pages: u64, state: PageState) {
        match self.runs.last_mut() {
            _ if pages == 0 => {}
            Some(last) if last.state == state => last.pages = last.pages.saturating_add(pages),
            _ => self.runs.push(PageRun { pages, state }),
        }
    }
}

impl AddressMap {
    /// Counts the pages in one state over all mappings.
    ///
    /// ```
    /// # use trueno_zram_archive::address_map::{AddressMap, Consistency, Flags, Mapping, PageState, StoredMap};
    /// # let mut heap = Mapping::new(0x10000, Flags::anonymous("rw-"), "[heap]");
    /// # heap.push(1, PageState::Untouched);
    /// # heap.push(2, PageState::Stored);
    /// # let (command, consistency) = ("server".into(), Consistency::Stopped);
    /// # let map = AddressMap { pid: 4711, command, taken_unix_s: 1_800_000_000, consistency, mappings: vec![heap] };
    /// assert_eq!(map.pages(PageState::Stored), 2);
    /// ```
    #[must_use]
    pub fn pages(&self, state: PageState) -> u64 {
        sum(self.mappings.iter().map(|mapping| mapping.pages(state)))
    }
}

/// Adds up numbers of pages, which may be any.
fn sum(pages: impl Iterator<Item = u64>) -> u64 {
    pages.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two mappings side by side, and one of a file with an unreadable page.
    pub(super) fn sample() -> AddressMap {
        let mapping = |start, flags, name: &str, runs: &[(u64, PageState)]| {
            let mut mapping = Mapping::new(start, flags, name);
            runs.iter().for_each(|&(pages, state)| mapping.push(pages, state));
            mapping
        };
        use PageState::{Stored, Unreadable, Untouched};
        AddressMap {
            pid: 4711,
            command: "server".into(),
            taken_unix_s: 1_800_000_000,
            consistency: Consistency::Stopped,
            mappings: vec![
                mapping(0x10000, Flags::anonymous("rw-"), "[heap]", &[(3, Stored), (2, Untouched), (1, Stored)]),
                mapping(0x16000, Flags::anonymous("r--"), "", &[(2, Stored)]),
                mapping(
                    0x7000_0000,
                    Flags::of_file("r-x"),
                    "/lib/x.so",
                    &[(1, Stored), (1, Unreadable), (300, Untouched)],
                ),
            ],
        }
    }

    #[test]
    fn runs_grow_as_pages_are_added() {
        let mut mapping = Mapping::new(0x10000, Flags::anonymous("rw-"), "[heap]");
        for (pages, state) in [(1, PageState::Stored), (0, PageState::Untouched), (2, PageState::Stored)] {
            mapping.push(pages, state);
        }
        mapping.push(4, PageState::Untouched);
        assert_eq!((mapping.runs.len(), mapping.pages(PageState::Stored)), (2, 3));
        assert_eq!(mapping.end(), 0x10000 + 7 * 4096);
    }

    #[test]
    fn permissions_read_as_they_were_written() {
        for text in ["rwx", "r--", "-w-", "---"] {
            assert_eq!(Flags::of_file(text).permissions(), text);
        }
        assert!(Flags::anonymous("---").is_anonymous() && !Flags::of_file("rwx").is_anonymous());
    }
}
