//! `pagemap-PID.img`: the addresses of a process that have pages, and the positions of these in the pages file.

use std::io::{self, Read};
use std::path::Path;

use trueno_zram_core::PAGE_SIZE;

use crate::error::{Error, PagemapProblem};
use crate::wire::{Field, Fields, put_integer};

/// The first two words: the one of all images, and the one of pagemaps.
const MAGIC: [u32; 2] = [0x5456_4319, 0x5608_4025];

/// The longest message, and so the most memory that one takes. Those of CRIU have some 30 bytes.
const MAX_MESSAGE_LEN: u32 = 4096;

/// The pages are in the parent of an incremental dump.
const PARENT: u32 = 1;
/// The pages can be restored when they are touched.
const LAZY: u32 = 1 << 1;
/// The pages are in the pages file of the pagemap.
const PRESENT: u32 = 1 << 2;

/// The memory of a process, by address.
///
/// ```
/// use trueno_zram_criu::{Pagemap, PagemapEntry};
/// let entries = vec![PagemapEntry { address: 0x7000, pages: 2, parent: false, lazy: true, present: true }];
/// let pagemap = Pagemap { pages_id: 1, entries };
/// assert_eq!(Pagemap::parse(&pagemap.encode())?, pagemap);
/// # Ok::<(), trueno_zram_criu::PagemapProblem>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pagemap {
    /// The number of the pages file: N in `pages-N.img`.
    pub pages_id: u32,
    /// Ranges of pages, in the order of their addresses.
    pub entries: Vec<PagemapEntry>,
}

/// A range of pages. [`Pagemap`] has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagemapEntry {
    /// The address of the first page; for shared memory, its offset.
    pub address: u64,
    /// The number of pages, at least 1.
    pub pages: u64,
    /// The pages are in the parent directory of an incremental dump.
    pub parent: bool,
    /// The pages can be restored when they are touched.
    pub lazy: bool,
    /// The pages are in the pages file, after those of the entries before.
    pub present: bool,
}

impl PagemapEntry {
    /// Returns the address after the last page; `None` if it is beyond 64 bits.
    fn end(&self) -> Option<u64> {
        self.pages.checked_mul(PAGE_SIZE as u64).and_then(|len| self.address.checked_add(len))
    }
}

impl Pagemap {
    /// Reads the content of a pagemap file.
    ///
    /// ```
    /// assert!(trueno_zram_criu::Pagemap::parse(b"something else").is_err());
    /// ```
    ///
    /// # Errors
    /// [`PagemapProblem`] if it is malformed, or has fields or flags of an unknown meaning. All entries are ranges of pages
    /// within 64 bits, in the order of their addresses, and do not overlap.
    pub fn parse(bytes: &[u8]) -> Result<Self, PagemapProblem> {
        Self::read(bytes).map_err(|error| match error {
            ReadError::Pagemap(problem) => problem,
            ReadError::Io(error) => unreachable!("reading from memory: {error}"),
        })
    }

    /// Reads a pagemap file, message by message. The file may have any length: nothing is read after the first thing that
    /// is wrong, and memory grows with the entries that were found to be in order.
    pub(crate) fn read(file: impl Read) -> Result<Self, ReadError> {
        let mut messages = Messages { file, at: 0, bytes: Vec::new() };
        let mut found = [0; 2];
        for word in &mut found {
            *word = messages.word()?.ok_or(PagemapProblem::Truncated { at: messages.at })?;
        }
        if found != MAGIC {
            return Err(PagemapProblem::Magic { found }.into());
        }
        let Some(head) = messages.next()? else {
            return Err(PagemapProblem::Truncated { at: messages.at }.into());
        };
        let pages_id = parse_head(head)?;
        let mut entries: Vec<PagemapEntry> = Vec::new();
        while let Some(message) = messages.next()? {
            let entry = parse_entry(message)?;
            if entries.last().and_then(PagemapEntry::end).is_some_and(|end| end > entry.address) {
                return Err(PagemapProblem::Order { at: message.at, address: entry.address }.into());
            }
            entries.push(entry);
        }
        Ok(Self { pages_id, entries })
    }

    /// Returns the content of the pagemap's file.
    ///
    /// ```
    /// let pagemap = trueno_zram_criu::Pagemap { pages_id: 7, entries: Vec::new() };
    /// assert_eq!(pagemap.encode().len(), 14);
    /// ```
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.map(u32::to_le_bytes).concat();
        let mut message = Vec::new();
        put_integer(&mut message, 1, self.pages_id.into());
        put_message(&mut bytes, &message);
        for entry in &self.entries {
            message.clear();
            put_integer(&mut message, 1, entry.address);
            // The count before CRIU 4.2 is a required field. It is 0 beside the one that replaced it.
            put_integer(&mut message, 2, 0);
            put_integer(&mut message, 4, flags_of(entry).into());
            put_integer(&mut message, 5, entry.pages);
            put_message(&mut bytes, &message);
        }
        bytes
    }

    /// Checks that a pages file of this length has all pages that the pagemap says it has. `path` is the pagemap's, for errors.
    pub(crate) fn check_pages(&self, len_bytes: u64, path: &Path) -> Result<(), Error> {
        // Ranges that do not overlap have at most 2^52 pages in all; those of a caller may have more.
        let present = self.entries.iter().filter(|entry| entry.present);
        let pages = present.fold(0, |sum: u64, entry| sum.saturating_add(entry.pages));
        if pages > len_bytes / PAGE_SIZE as u64 {
            return Err(Error::PagesShort { path: path.into(), pages, len_bytes });
        }
        Ok(())
    }
}

fn flags_of(entry: &PagemapEntry) -> u32 {
    [(entry.parent, PARENT), (entry.lazy, LAZY), (entry.present, PRESENT)]
        .into_iter()
        .filter_map(|(is_set, flag)| is_set.then_some(flag))
        .sum()
}

/// The reason why a pagemap file cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Pagemap(#[from] PagemapProblem),
}

/// The messages of a file, each after its length.
struct Messages<R> {
    file: R,
    /// Position in the file.
    at: u64,
    /// The message that was read last.
    bytes: Vec<u8>,
}

/// A message, and its position in the file.
#[derive(Clone, Copy)]
struct Message<'a> {
    bytes: &'a [u8],
    at: u64,
}

impl<R: Read> Messages<R> {
    /// Reads this many bytes; returns `None` at the end of the file.
    fn take(&mut self, len_bytes: u32) -> Result<Option<Message<'_>>, ReadError> {
        let at = self.at;
        self.bytes.clear();
        let read = self.file.by_ref().take(len_bytes.into()).read_to_end(&mut self.bytes)?;
        if read < len_bytes as usize {
            return if read == 0 { Ok(None) } else { Err(PagemapProblem::Truncated { at }.into()) };
        }
        self.at += u64::from(len_bytes);
        Ok(Some(Message { bytes: &self.bytes, at }))
    }

    /// Reads a word; returns `None` at the end of the file.
    fn word(&mut self) -> Result<Option<u32>, ReadError> {
        let word = self.take(4)?.and_then(|message| message.bytes.first_chunk().copied());
        Ok(word.map(u32::from_le_bytes))
    }

    fn next(&mut self) -> Result<Option<Message<'_>>, ReadError> {
        let Some(len_bytes) = self.word()? else { return Ok(None) };
        let at = self.at;
        if len_bytes > MAX_MESSAGE_LEN {
            return Err(PagemapProblem::MessageLen { at, len_bytes }.into());
        }
        self.take(len_bytes)?.ok_or(PagemapProblem::Truncated { at }.into()).map(Some)
    }
}

fn put_message(bytes: &mut Vec<u8>, message: &[u8]) {
    let len = u32::try_from(message.len()).expect("a few integers");
    bytes.extend_from_slice(&len.to_le_bytes());
    bytes.extend_from_slice(message);
}

fn parse_head(Message { bytes, at }: Message<'_>) -> Result<u32, PagemapProblem> {
    let (mut fields, mut pages_id) = (Fields::new(bytes, at), None);
    while let Some(field) = fields.next()? {
        match field {
            Field { number: 1, integer: Some(value) } => pages_id = Some(narrow(at, 1, value)?),
            Field { number, .. } => return Err(PagemapProblem::Field { at, field: number }),
        }
    }
    pages_id.ok_or(PagemapProblem::Missing { at, field: 1 })
}

fn parse_entry(Message { bytes, at }: Message<'_>) -> Result<PagemapEntry, PagemapProblem> {
    let (mut address, mut old_pages, mut in_parent, mut flags, mut pages) = (None, None, None, None, None);
    let mut fields = Fields::new(bytes, at);
    while let Some(field) = fields.next()? {
        match field {
            Field { number: 1, integer: Some(value) } => address = Some(value),
            Field { number: 2, integer: Some(value) } => old_pages = Some(u64::from(narrow(at, 2, value)?)),
            Field { number: 3, integer: Some(value) } => in_parent = Some(value != 0),
            Field { number: 4, integer: Some(value) } => flags = Some(narrow(at, 4, value)?),
            Field { number: 5, integer: Some(value) } => pages = Some(value),
            Field { number, .. } => return Err(PagemapProblem::Field { at, field: number }),
        }
    }
    let address = address.ok_or(PagemapProblem::Missing { at, field: 1 })?;
    let pages = pages.or(old_pages).ok_or(PagemapProblem::Missing { at, field: 2 })?;
    // Before there were flags, pages were in the parent or present.
    let flags = match (in_parent, flags) {
        (Some(true), flags) => flags.unwrap_or(0) | PARENT,
        (_, Some(flags)) => flags,
        (_, None) => PRESENT,
    };
    if flags & !(PARENT | LAZY | PRESENT) != 0 {
        return Err(PagemapProblem::Flags { at, flags });
    }
    let [parent, lazy, present] = [PARENT, LAZY, PRESENT].map(|flag| flags & flag != 0);
    let entry = PagemapEntry { address, pages, parent, lazy, present };
    if pages == 0 || !address.is_multiple_of(PAGE_SIZE as u64) || entry.end().is_none() {
        return Err(PagemapProblem::Range { at, address, pages });
    }
    Ok(entry)
}

fn narrow(at: u64, field: u64, value: u64) -> Result<u32, PagemapProblem> {
    u32::try_from(value).map_err(|_| PagemapProblem::Value { at, field, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(entries: &[&[(u64, u64)]]) -> Vec<u8> {
        let mut bytes = MAGIC.map(u32::to_le_bytes).concat();
        for fields in [&[(1, 3)][..]].iter().chain(entries) {
            let mut message = Vec::new();
            fields.iter().for_each(|(number, value)| put_integer(&mut message, *number, *value));
            put_message(&mut bytes, &message);
        }
        bytes
    }

    /// As written by CRIU 4.2: address, count of older versions, flags, count.
    fn entry(address: u64, flags: u64, pages: u64) -> [(u64, u64); 4] {
        [(1, address), (2, 0), (4, flags), (5, pages)]
    }

    #[test]
    fn entries_of_all_versions_are_understood() {
        let entries: [&[(u64, u64)]; 4] = [
            &entry(0x1000, 6, 2),
            // Before CRIU 4.2.
            &[(1, 0x5000), (2, 3), (4, 4)],
            // Before CRIU 3: no flags.
            &[(1, 0x9000), (2, 1), (3, 1)],
            &[(1, 0xa000), (2, 1)],
        ];
        let pagemap = Pagemap::parse(&file(&entries)).unwrap();
        let found: Vec<_> = pagemap.entries.iter().map(|e| (e.address, e.pages, e.parent, e.lazy, e.present)).collect();
        let expected = [
            (0x1000, 2, false, true, true),
            (0x5000, 3, false, false, true),
            (0x9000, 1, true, false, false),
            (0xa000, 1, false, false, true),
        ];
        assert_eq!((pagemap.pages_id, &found[..]), (3, &expected[..]));
        assert!(pagemap.check_pages(6 * 4096, Path::new("p")).is_ok());
        assert!(matches!(pagemap.check_pages(6 * 4096 - 1, Path::new("p")), Err(Error::PagesShort { pages: 6, .. })));
        assert_eq!(Pagemap::parse(&pagemap.encode()), Ok(pagemap));
    }

    #[test]
    fn what_has_an_unknown_meaning_is_refused() {
        let problem = |fields: &[(u64, u64)]| Pagemap::parse(&file(&[fields])).unwrap_err();
        assert_eq!(problem(&entry(0x1000, 12, 1)), PagemapProblem::Flags { at: 18, flags: 12 });
        assert_eq!(problem(&[(1, 0), (2, 1), (9, 1)]), PagemapProblem::Field { at: 18, field: 9 });
        assert_eq!(problem(&entry(0, 1 << 32, 1)), PagemapProblem::Value { at: 18, field: 4, value: 1 << 32 });
        assert_eq!(problem(&[(2, 1)]), PagemapProblem::Missing { at: 18, field: 1 });
        assert_eq!(problem(&[(1, 0)]), PagemapProblem::Missing { at: 18, field: 2 });
        // The lengths of blocks that CRIU compressed, as a message.
        let mut bytes = file(&[]);
        put_message(&mut bytes, &[0x08, 0, 0x10, 1, 0x32, 1, 0]);
        assert_eq!(Pagemap::parse(&bytes), Err(PagemapProblem::Field { at: 18, field: 6 }));
    }

    #[test]
    fn ranges_are_whole_ordered_and_within_64_bits() {
        let parse = |entries: &[&[(u64, u64)]]| Pagemap::parse(&file(entries));
        for (address, pages) in [(0x1001, 1), (0x1000, 0), (0x1000, u64::MAX), (!0xfff, 1), (0, 1 << 52)] {
            let refused = PagemapProblem::Range { at: 18, address, pages };
            assert_eq!(parse(&[&entry(address, 4, pages)]), Err(refused));
        }
        assert!(parse(&[&entry(!0x1fff, 4, 1)]).is_ok());
        let overlap = parse(&[&entry(0x1000, 4, 2), &entry(0x2000, 4, 1)]);
        assert!(matches!(overlap, Err(PagemapProblem::Order { address: 0x2000, .. })), "{overlap:?}");
    }

    /// A file that never ends is read up to what is wrong with it, and no further.
    #[test]
    fn reading_stops_at_the_first_fault() {
        struct Endless<'a>(&'a [u8], usize);
        impl Read for Endless<'_> {
            fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
                let len = room.len().min(3);
                for (place, byte) in room[..len].iter_mut().enumerate() {
                    *byte = self.0.get(self.1 + place).copied().unwrap_or(0);
                }
                self.1 += len;
                Ok(len)
            }
        }
        let head = file(&[]);
        let with_entry = file(&[&entry(0x1000, 4, 2)]);
        let with_length = [&head[..], &5000u32.to_le_bytes()].concat();
        let missing = |at| PagemapProblem::Missing { at, field: 1 };
        for (start, problem, most) in [
            (&[][..], PagemapProblem::Magic { found: [0, 0] }, 8),
            (&head[..8], missing(12), 12),
            (&head, missing(18), 18),
            (&with_entry, missing(with_entry.len() as u64 + 4), with_entry.len() + 4),
            (&with_length, PagemapProblem::MessageLen { at: 18, len_bytes: 5000 }, 18),
        ] {
            let mut input = Endless(start, 0);
            let read = Pagemap::read(&mut input);
            assert!(matches!(&read, Err(ReadError::Pagemap(found)) if *found == problem), "{read:?}");
            assert_eq!(input.1, most, "{problem:?}");
        }
        assert_eq!(Pagemap::read(&with_entry[..]).unwrap(), Pagemap::parse(&with_entry).unwrap());
    }

    #[test]
    fn every_cut_is_an_error_or_a_shorter_list() {
        let whole = file(&[&entry(0x1000, 4, 2), &entry(0x8000, 6, 300)]);
        let lens: Vec<usize> = (0..whole.len()).filter(|len| Pagemap::parse(&whole[..*len]).is_ok()).collect();
        assert_eq!(lens, [14, 27], "the head, and the head with one entry");
        assert_eq!(Pagemap::parse(&[0; 20]), Err(PagemapProblem::Magic { found: [0, 0] }));
        let huge = [&file(&[])[..], &[0xff; 8]].concat();
        assert_eq!(Pagemap::parse(&huge), Err(PagemapProblem::MessageLen { at: 18, len_bytes: u32::MAX }));
    }
}
