//! Damage that a salvaging reader has found.

use std::fmt;
use std::ops::Range;

use trueno_zram_core::PAGE_SIZE;

use crate::error::Error;

/// A part of the content that could not be restored.
///
/// ```
/// use trueno_zram_archive::{Damage, DamageKind};
/// let damage = Damage { at: 4711, content: 8192..12_288, kind: DamageKind::Checksum };
/// assert_eq!(damage.pages(), 2..3);
/// assert_eq!(damage.to_string(), "page 2 (byte 4711): the checksum of the block is wrong");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Position in the file where it was found.
    pub at: u64,
    /// The affected bytes of the content. They were replaced by zeros, unless the kind says otherwise.
    pub content: Range<u64>,
    /// The kind of damage.
    pub kind: DamageKind,
}

/// The kind of damage to a part of a file.
///
/// ```
/// use trueno_zram_archive::DamageKind;
/// assert_eq!(DamageKind::Truncated.to_string(), "the file ends too early");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DamageKind {
    /// The checksum of a block is wrong.
    Checksum,
    /// A block does not decode.
    Block,
    /// A block refers to content that was lost.
    LostReference,
    /// A block header or frame header is damaged. Without an index, nothing after it can be found.
    Header,
    /// The file ends too early.
    Truncated,
    /// The content does not have the length or the checksum that its frame stores, although no block is damaged. It was
    /// not replaced by zeros.
    Content,
    /// The index does not describe the blocks: it is damaged, or has other pages than they do. No content is lost by that.
    Index,
}

impl Damage {
    /// Returns the affected pages, whole or in part; an empty range if no content is affected.
    ///
    /// ```
    /// use trueno_zram_archive::{Damage, DamageKind};
    /// let damage = Damage { at: 0, content: 4096..4100, kind: DamageKind::Block };
    /// assert_eq!(damage.pages(), 1..2);
    /// assert!(Damage { content: 5000..5000, ..damage }.pages().is_empty());
    /// ```
    #[must_use]
    pub fn pages(&self) -> Range<u64> {
        let page = PAGE_SIZE as u64;
        let start = self.content.start / page;
        start..if self.content.is_empty() { start } else { self.content.end.div_ceil(page) }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { start, end } = self.pages();
        match end.saturating_sub(start) {
            0 => write!(f, "byte {}: {}", self.at, self.kind),
            1 => write!(f, "page {start} (byte {}): {}", self.at, self.kind),
            _ => write!(f, "pages {start} to {} (byte {}): {}", end - 1, self.at, self.kind),
        }
    }
}

impl fmt::Display for DamageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Checksum => "the checksum of the block is wrong",
            Self::Block => "the block does not decode",
            Self::LostReference => "the block refers to content that was lost",
            Self::Header => "a header is damaged",
            Self::Truncated => "the file ends too early",
            Self::Content => "the content does not have the stored length or checksum",
            Self::Index => "the index does not describe the blocks",
        })
    }
}

impl DamageKind {
    /// Returns the kind of damage that an error reports; `None` if the error is not about the data.
    pub(crate) fn of(error: &Error) -> Option<Self> {
        match error {
            Error::BlockChecksum { .. } => Some(Self::Checksum),
            Error::Block { .. } => Some(Self::Block),
            Error::BlockTooLarge { .. }
            | Error::Header { .. }
            | Error::Dictionary { .. }
            | Error::TrailingGarbage { .. } => Some(Self::Header),
            Error::Truncated { .. } => Some(Self::Truncated),
            Error::ContentSize { .. } | Error::ContentChecksum { .. } => Some(Self::Content),
            _ => None,
        }
    }
}

/// Adds damage to a list, joined with the last one if it is of the same kind and follows it. Damage without content is
/// listed once for each kind and position.
pub(crate) fn record(list: &mut Vec<Damage>, at: u64, content: Range<u64>, kind: DamageKind) {
    // No more than one for each kind, and one with content.
    let mut here = list.iter().rev().take_while(|damage| damage.content.end == content.start);
    if content.is_empty() && here.any(|damage| damage.kind == kind) {
        return;
    }
    match list.last_mut() {
        Some(last) if last.kind == kind && last.content.end == content.start => {
            last.content.end = content.end;
        }
        _ => list.push(Damage { at, content, kind }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_names_its_pages_and_its_position() {
        let damage = |content| Damage { at: 4711, content, kind: DamageKind::Block };
        for (content, pages, named) in [
            (4096..4096, 1..1, &["4711"][..]),
            (8191..8193, 1..3, &["1", "2", "4711"]),
            (12_288..16_384, 3..4, &["3", "4711"]),
            (0..40_960, 0..10, &["0", "9", "4711"]),
        ] {
            let damage = damage(content);
            assert_eq!(damage.pages(), pages);
            let text = damage.to_string();
            let numbers: Vec<_> =
                text.split(|letter: char| !letter.is_ascii_digit()).filter(|n| !n.is_empty()).collect();
            assert_eq!(numbers, named, "{text}");
            assert!(text.ends_with(&damage.kind.to_string()));
        }
    }

    #[test]
    fn kinds_read_differently() {
        let kinds = [
            DamageKind::Checksum,
            DamageKind::Block,
            DamageKind::LostReference,
            DamageKind::Header,
            DamageKind::Truncated,
            DamageKind::Content,
            DamageKind::Index,
        ];
        let texts: std::collections::BTreeSet<_> = kinds.iter().map(ToString::to_string).collect();
        assert!(texts.len() == kinds.len() && !texts.contains(""));
    }

    #[test]
    fn damage_that_follows_damage_of_its_kind_is_joined_with_it() {
        let mut list = Vec::new();
        record(&mut list, 10, 0..100, DamageKind::Block);
        record(&mut list, 20, 100..150, DamageKind::Block);
        record(&mut list, 30, 150..200, DamageKind::Checksum);
        record(&mut list, 40, 300..400, DamageKind::Checksum);
        record(&mut list, 50, 400..400, DamageKind::Index);
        record(&mut list, 60, 400..400, DamageKind::Index);
        record(&mut list, 70, 400..400, DamageKind::Checksum);
        let entry = |at, content, kind| Damage { at, content, kind };
        assert_eq!(
            list,
            [
                entry(10, 0..150, DamageKind::Block),
                entry(30, 150..200, DamageKind::Checksum),
                entry(40, 300..400, DamageKind::Checksum),
                entry(50, 400..400, DamageKind::Index),
            ]
        );
    }
}
