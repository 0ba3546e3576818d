//! The crate's errors. Each names the position in the file and, where it is known, the page.

use std::fmt;
use std::io;

use crate::delta::layout::HEAD_MAGIC;
use crate::snapshot_section::SnapshotError;

/// The crate's result type.
///
/// ```
/// fn pages(path: &str) -> trueno_zram_archive::Result<u64> {
///     Ok(trueno_zram_archive::Archive::open(path)?.info().page_count)
/// }
/// ```
pub type Result<T> = std::result::Result<T, Error>;

/// An error of this crate.
///
/// `at` is a byte position from the start of the input. `page` is the number of the page in the content, if the frame
/// consists of pages up to there.
///
/// ```
/// use trueno_zram_archive::{ContentBatch, Error, FrameReader};
/// let error = FrameReader::new(&b"no frame"[..]).read_batch(&mut ContentBatch::new()).unwrap_err();
/// assert!(matches!(error, Error::NotCompressed { .. }));
/// assert_eq!(error.to_string(), "byte 0: not an LZ4 file or Zstandard file: it starts with 6e 6f 20 66");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The output could not be written.
    #[error("cannot write: {0}")]
    Write(#[source] io::Error),
    /// The writer was given something that it cannot accept.
    #[error("{0}")]
    Misuse(String),
    /// The file or archive is in the Zstandard format, which this build was made without.
    #[error("Zstandard files need the feature `{feature}`, which this build lacks")]
    MissingFeature {
        /// The missing Cargo feature.
        feature: &'static str,
    },
    /// The input could not be read.
    #[error("cannot read at byte {at}: {source}")]
    Read {
        /// Position of the read.
        at: u64,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The input is a pipe, a device or a directory. Callers that need a regular file report it, such as `ArchiveOpener` of
    /// the crate `trueno-zram-io`; this crate reads from any [`ReadAt`](crate::ReadAt).
    #[error("is not a regular file")]
    NotRegular,
    /// The input is empty.
    #[error("the input is empty: an LZ4 file or Zstandard file has at least a frame header")]
    Empty,
    /// The input does not start with a frame.
    #[error("byte 0: not an LZ4 file or Zstandard file: {}", start_of(*magic))]
    NotCompressed {
        /// The first bytes of the input.
        magic: [u8; 4],
    },
    /// The last frame is followed by bytes that are not a frame. All content before them was returned and is correct.
    #[error("byte {at}: the last frame is followed by bytes that are not a frame")]
    TrailingGarbage {
        /// Position of the first such byte.
        at: u64,
    },
    /// The input ends too early.
    #[error("truncated: the input ends at byte {at}, within {within}{}", of_page(*page))]
    Truncated {
        /// Length of the input.
        at: u64,
        /// The first page that is missing.
        page: Option<u64>,
        /// The part that is cut short.
        within: &'static str,
    },
    /// A frame header is damaged or uses a feature that is not defined.
    #[error("byte {at}: bad frame header: {what}")]
    Header {
        /// Position of the frame.
        at: u64,
        /// The problem.
        what: &'static str,
    },
    /// The frame needs a dictionary.
    #[error("byte {at}: the frame needs dictionary {id:#010x}; dictionaries are not supported")]
    Dictionary {
        /// Position of the frame.
        at: u64,
        /// The dictionary's number.
        id: u32,
    },
    /// A block is longer than its frame allows.
    #[error("{}: a block claims {len_bytes} bytes; the frame allows {max_bytes}", location(*at, *page))]
    BlockTooLarge {
        /// Position of the block.
        at: u64,
        /// The block's page.
        page: Option<u64>,
        /// The length that the block claims.
        len_bytes: u64,
        /// The longest block that the frame allows.
        max_bytes: u64,
    },
    /// A block does not match its checksum.
    #[error("{}: corrupt block: stored checksum {expected:08x}, computed {actual:08x}", location(*at, *page))]
    BlockChecksum {
        /// Position of the block.
        at: u64,
        /// The block's page.
        page: Option<u64>,
        /// The stored checksum.
        expected: u32,
        /// The checksum of the block.
        actual: u32,
    },
    /// A block cannot be decoded.
    #[error("{}: corrupt block: {reason}", location(*at, *page))]
    Block {
        /// Position of the block.
        at: u64,
        /// The block's page.
        page: Option<u64>,
        /// The problem.
        reason: String,
    },
    /// The content of a frame does not have the length that the frame's header announces.
    #[error("byte {at}: the frame holds {actual} bytes of content, but its header announces {announced}")]
    ContentSize {
        /// Position of the frame.
        at: u64,
        /// The announced length.
        announced: u64,
        /// The length found so far, or in total.
        actual: u64,
    },
    /// The content of a frame does not match its checksum.
    #[error("byte {at}: corrupt content: stored checksum {expected:08x}, computed {actual:08x}")]
    ContentChecksum {
        /// Position of the checksum.
        at: u64,
        /// The stored checksum.
        expected: u32,
        /// The checksum of the content.
        actual: u32,
    },
    /// The index is damaged or does not describe this file. The file can still be read from its start.
    #[error("bad index: {0}")]
    Index(String),
    /// The proof of a group of pages has failed: it is not what the index says. Pages of it that were returned before, with
    /// [`Verify::Touched`](crate::Verify::Touched), may be other ones.
    #[error("pages {start} to {end} failed their proof: {reason}")]
    Disproven {
        /// The first page of the group.
        start: u64,
        /// The page after the last.
        end: u64,
        /// The problem.
        reason: String,
    },
    /// A delta is damaged.
    #[error("bad delta: {0}")]
    Delta(String),
    /// The base of a delta is missing, is another archive, or cannot be read.
    #[error("base {base}: {reason}{}", for_page(*page))]
    Base {
        /// Its path.
        base: String,
        /// The problem. Pages are those of the base.
        reason: String,
        /// The page of the delta that is read from there, if it is known.
        page: Option<u64>,
    },
    /// A chain has more deltas than are read, or would have them if another one were made.
    #[error("the chain has more than {max_deltas} deltas, the most that are read; `trueno-zram flatten` shortens it")]
    ChainTooLong {
        /// The most deltas of a chain.
        max_deltas: usize,
    },
    /// A page of a delta is not the one that was hashed when the delta was made.
    #[error("page {page}: {origin} is not the page that the delta was made from: its hash differs")]
    PageHash {
        /// The page of the delta.
        page: u64,
        /// Its origin.
        origin: String,
    },
    /// A page does not have the hash that its own archive states for it.
    #[error("page {page} does not match the hash that its archive states")]
    StatedHash {
        /// The page.
        page: u64,
    },
    /// The archive does not have these pages.
    #[error("pages {start} to {end} requested, but the archive has {pages}")]
    PageRange {
        /// The first page requested.
        start: u64,
        /// The page after the last.
        end: u64,
        /// The number of pages.
        pages: u64,
    },
    /// A section of the index is longer than the caller allows.
    #[error("section {name:?} has {len_bytes} bytes; at most {max_bytes} are allowed")]
    SectionTooLarge {
        /// The section's name.
        name: String,
        /// Its length.
        len_bytes: u64,
        /// The limit.
        max_bytes: u64,
    },
    /// The file has no index at its end. It may still be readable as a stream.
    #[error("it has no index: pages cannot be read by number, only the whole file as a stream")]
    NoIndex,
    /// A source of pages that is not part of this crate failed.
    #[error(transparent)]
    Source(Box<dyn std::error::Error + Send + Sync>),
    /// The address map or the process state of a snapshot cannot be read or written.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The page decoder failed for a reason that is not in the data.
    #[error("the page decoder failed: {0}")]
    Decoder(trueno_zram_core::Error),
}

impl Error {
    pub(crate) fn index(reason: impl Into<String>) -> Self {
        Self::Index(reason.into())
    }

    pub(crate) fn delta(reason: impl Into<String>) -> Self {
        Self::Delta(reason.into())
    }

    /// A base that cannot be opened.
    pub(crate) fn base(base: impl fmt::Display, reason: impl fmt::Display) -> Self {
        Self::Base { base: base.to_string(), reason: reason.to_string(), page: None }
    }

    /// The page that the error is about, in the content of the archive that was read.
    pub(crate) fn page(&self) -> Option<u64> {
        match self {
            Self::Truncated { page, .. }
            | Self::BlockTooLarge { page, .. }
            | Self::BlockChecksum { page, .. }
            | Self::Block { page, .. }
            | Self::Base { page, .. } => *page,
            Self::PageHash { page, .. } | Self::StatedHash { page } => Some(*page),
            _ => None,
        }
    }

    /// Turns an error of an archive that lies within a file, from the byte `start` on, into one of the file, where the page has
    /// another number.
    pub(crate) fn within(mut self, start: u64, number: Option<u64>) -> Self {
        if let Some((at, page)) = self.location_mut() {
            (*at, *page) = (at.saturating_add(start), number);
        } else if let Self::Read { at, .. } | Self::Header { at, .. } = &mut self {
            *at = at.saturating_add(start);
        }
        self
    }

    /// Adds the page to an error that does not name one.
    pub(crate) fn in_page(mut self, number: Option<u64>) -> Self {
        if let Some((_, page)) = self.location_mut() {
            *page = page.or(number);
        }
        self
    }

    /// Returns the position and the page of an error that may have both.
    fn location_mut(&mut self) -> Option<(&mut u64, &mut Option<u64>)> {
        match self {
            Self::Truncated { at, page, .. }
            | Self::BlockTooLarge { at, page, .. }
            | Self::BlockChecksum { at, page, .. }
            | Self::Block { at, page, .. } => Some((at, page)),
            _ => None,
        }
    }
}

/// Describes a position, with its page if that is known.
fn location(at: u64, page: Option<u64>) -> String {
    page.map_or_else(|| format!("byte {at}"), |page| format!("page {page} (byte {at})"))
}

/// Describes the page that a truncation starts with.
fn of_page(page: Option<u64>) -> String {
    page.map_or_else(String::new, |page| format!(" of page {page}"))
}

/// Describes the page of a delta that needs another archive.
fn for_page(page: Option<u64>) -> String {
    page.map_or_else(String::new, |page| format!("; it is needed for page {page}"))
}

/// Describes the first bytes of a file that is not compressed.
fn start_of(magic: [u8; 4]) -> String {
    if HEAD_MAGIC.starts_with(&magic) {
        return "it is a delta, which can only be read from a file, with its base".to_owned();
    }
    let [a, b, c, d] = magic;
    format!("it starts with {a:02x} {b:02x} {c:02x} {d:02x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(error: &Error) -> Vec<String> {
        let text = error.to_string();
        text.split(|letter: char| !letter.is_ascii_digit()).filter(|part| !part.is_empty()).map(str::to_owned).collect()
    }

    #[test]
    fn errors_name_the_position_and_the_page_if_it_is_known() {
        let block = |page| Error::Block { at: 4711, page, reason: String::new() };
        assert_eq!(numbers(&block(None)), ["4711"]);
        assert_eq!(numbers(&block(Some(12))), ["12", "4711"]);
        let cut = |page| Error::Truncated { at: 4711, page, within: "a block" };
        assert_eq!(
            (numbers(&cut(None)), numbers(&cut(Some(12)))),
            (vec!["4711".into()], vec!["4711".into(), "12".into()])
        );
        let base = |page| Error::Base { base: "monday.lz4".into(), reason: "gone".into(), page };
        assert_eq!((numbers(&base(None)).len(), numbers(&base(Some(12)))), (1, vec!["4".into(), "12".into()]));
    }

    #[test]
    fn errors_move_with_the_archive_that_they_are_about() {
        let error = Error::Block { at: 100, page: Some(3), reason: String::new() }.within(16, Some(70));
        assert!(matches!(error, Error::Block { at: 116, page: Some(70), .. }));
        let error = Error::Header { at: 100, what: "" }.within(16, Some(70));
        assert!(matches!(error, Error::Header { at: 116, .. }));
        let error = Error::Truncated { at: 100, page: None, within: "" }.in_page(Some(7));
        assert!(matches!(error, Error::Truncated { at: 100, page: Some(7), .. }));
        assert!(matches!(error.in_page(Some(8)), Error::Truncated { page: Some(7), .. }), "a page that is named stays");
    }

    #[test]
    fn a_delta_is_named_as_such() {
        let [a, b, c, d, ..] = HEAD_MAGIC;
        assert_ne!(start_of([a, b, c, d]), start_of([a, b, c, d + 1]));
        assert!(start_of([0x89, 0, 0xff, 1]).ends_with("89 00 ff 01"));
    }
}
