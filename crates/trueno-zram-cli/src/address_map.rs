//! The address map of a process snapshot: which page of the archive came from which address.
//!
//! [`AddressMap`] is what a snapshot builds. It is stored in the archive's index as a section of its own ([`SECTION`]).
//! [`StoredMap`] is such a section as it was read: checked once, and decoded again each time it is walked, because the
//! archive is untrusted and a decoded map can be thirty times as large as its bytes.
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

mod codec;
mod plan;
mod stored;

use serde::Serialize;
use trueno_zram_core::PAGE_SIZE;

pub(crate) use plan::AddressSpan;
pub(crate) use stored::{MappedRun, StoredMap, StoredMapping};

/// The section's name in the archive's index.
pub(crate) const SECTION: &str = "address-map";

/// The addresses that the pages of a snapshot had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AddressMap {
    pub(crate) pid: u32,
    /// The process's short name.
    pub(crate) command: String,
    /// When the snapshot was started, in seconds since 1970.
    pub(crate) taken_unix_s: u64,
    pub(crate) consistency: Consistency,
    /// Sorted by address.
    pub(crate) mappings: Vec<Mapping>,
}

/// Whether all pages were read at the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Consistency {
    /// The process kept running while it was read: pages may be from different moments.
    Live,
    /// The process was stopped.
    Stopped,
}

/// One range of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) start: u64,
    pub(crate) flags: Flags,
    /// `[heap]`, `[stack]`, the file's name; empty for plain anonymous memory.
    pub(crate) name: String,
    /// Number of its first stored page in the archive.
    pub(crate) first_page: u64,
    /// The states of its pages, in order. Adjacent runs have different states.
    pub(crate) runs: Vec<Run>,
}

/// The permissions of a mapping, and whether it is anonymous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flags(u8);

/// Adjacent pages in the same state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) pages: u64,
    pub(crate) state: PageState,
}

/// Whether a page of the process is in the archive, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageState {
    /// Not in the archive: the process never touched it.
    Untouched,
    /// In the archive.
    Stored,
    /// Not in the archive: the kernel refused to read it.
    Unreadable,
}

/// Numbers of pages by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StateCounts {
    pub(crate) untouched: u64,
    pub(crate) stored: u64,
    pub(crate) unreadable: u64,
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

    /// Parses the first three letters of the permissions in `/proc/PID/maps`, such as `rwx` or `r--`.
    pub(crate) fn new(permissions: &str, anonymous: bool) -> Self {
        let bit = |letter, bit| if permissions.contains(letter) { bit } else { 0 };
        let anonymous = if anonymous { Self::ANONYMOUS } else { 0 };
        Self(bit('r', Self::READ) | bit('w', Self::WRITE) | bit('x', Self::EXECUTE) | anonymous)
    }

    /// Whether untouched pages are zero pages rather than pages of a file.
    pub(crate) fn is_anonymous(self) -> bool {
        self.0 & Self::ANONYMOUS != 0
    }

    /// Returns the permissions as text: `rw-`.
    pub(crate) fn permissions(self) -> String {
        [(Self::READ, 'r'), (Self::WRITE, 'w'), (Self::EXECUTE, 'x')]
            .map(|(bit, letter)| if self.0 & bit != 0 { letter } else { '-' })
            .iter()
            .collect()
    }
}

impl Mapping {
    /// Counts the pages in one state.
    pub(crate) fn pages(&self, state: PageState) -> u64 {
        self.runs.iter().filter(|run| run.state == state).map(|run| run.pages).sum()
    }

    /// Returns the first address after the mapping.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.runs.iter().map(|run| run.pages).sum::<u64>() * PAGE_SIZE as u64
    }

    /// Appends pages.
    pub(crate) fn push(&mut self, pages: u64, state: PageState) {
        match self.runs.last_mut() {
            _ if pages == 0 => {}
            Some(last) if last.state == state => last.pages += pages,
            _ => self.runs.push(Run { pages, state }),
        }
    }
}

impl AddressMap {
    /// Counts the pages in one state over all mappings.
    pub(crate) fn pages(&self, state: PageState) -> u64 {
        self.mappings.iter().map(|mapping| mapping.pages(state)).sum()
    }
}

/// A map to test with.
#[cfg(test)]
pub(crate) fn sample_map() -> StoredMap {
    StoredMap::from_bytes(tests::sample().encode()).expect("just encoded")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two mappings side by side, and one of a file with an unreadable page.
    pub(super) fn sample() -> AddressMap {
        let mapping = |start, permissions, anonymous, name: &str, first_page, runs: &[(u64, PageState)]| Mapping {
            start,
            flags: Flags::new(permissions, anonymous),
            name: name.into(),
            first_page,
            runs: runs.iter().map(|&(pages, state)| Run { pages, state }).collect(),
        };
        use PageState::{Stored, Unreadable, Untouched};
        AddressMap {
            pid: 4711,
            command: "server".into(),
            taken_unix_s: 1_800_000_000,
            consistency: Consistency::Stopped,
            mappings: vec![
                mapping(0x10000, "rw-", true, "[heap]", 0, &[(3, Stored), (2, Untouched), (1, Stored)]),
                mapping(0x16000, "r--", true, "", 4, &[(2, Stored)]),
                mapping(0x7000_0000, "r-x", false, "/lib/x.so", 6, &[(1, Stored), (1, Unreadable), (300, Untouched)]),
            ],
        }
    }

    #[test]
    fn runs_grow_as_pages_are_added() {
        let mut mapping = Mapping { runs: Vec::new(), ..sample().mappings[0].clone() };
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
            assert_eq!(Flags::new(text, false).permissions(), text);
        }
        assert!(Flags::new("---", true).is_anonymous());
    }
}
