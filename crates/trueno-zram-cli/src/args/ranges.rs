//! Parses ranges and lists of ranges: `7`, `3..9`, `3..=9`, `3..`, `..9`, `1,3,5..9`. Numbers may have suffixes or be
//! hexadecimal.

use std::ops::Range;

/// A range whose end may be open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenRange {
    pub(crate) start: u64,
    /// One past the last; `None` reaches to the end.
    pub(crate) end: Option<u64>,
}

impl OpenRange {
    /// Returns the range within something of length `len`; `None` if it reaches beyond that.
    pub(crate) fn within(self, len: u64) -> Option<Range<u64>> {
        let end = self.end.unwrap_or(len);
        (self.start <= end && end <= len).then_some(self.start..end)
    }
}

impl std::fmt::Display for OpenRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.end {
            Some(end) => write!(f, "{}..{end}", self.start),
            None => write!(f, "{}..", self.start),
        }
    }
}

/// Ranges in the order in which they were given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RangeList(pub(crate) Vec<OpenRange>);

impl RangeList {
    /// Returns `true` if the ranges can be read in one pass: each starts where the one before it ends, or later.
    pub(crate) fn is_ascending(&self) -> bool {
        self.0.is_sorted_by(|before, after| before.end.is_some_and(|end| end <= after.start))
    }
}

impl std::fmt::Display for RangeList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (n, range) in self.0.iter().enumerate() {
            write!(f, "{}{range}", if n == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// Parses ranges that are separated by commas.
pub(crate) fn parse_range_list(text: &str) -> Result<RangeList, String> {
    text.split(',').map(parse_range).collect::<Result<_, _>>().map(RangeList)
}

/// Parses a range. A single number is a range of one.
pub(crate) fn parse_range(text: &str) -> Result<OpenRange, String> {
    let after = |last: &str| parse_number(last)?.checked_add(1).ok_or_else(|| too_large(last));
    let range = match text.split_once("..") {
        None => OpenRange { start: parse_number(text)?, end: Some(after(text)?) },
        Some((start, end)) => {
            let start = if start.trim().is_empty() { 0 } else { parse_number(start)? };
            let end = match end.strip_prefix('=') {
                Some(last) => Some(after(last)?),
                None if end.trim().is_empty() => None,
                None => Some(parse_number(end)?),
            };
            OpenRange { start, end }
        }
    };
    match range.end {
        Some(end) if end < range.start => Err(format!("the range ends at {end}, before its start {}", range.start)),
        _ => Ok(range),
    }
}

/// Parses a number: `4096`, `0x1000`, `4K`, `4KiB`, `1_000`. Suffixes are powers of 1024.
pub(crate) fn parse_number(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let invalid = || format!("{text:?} is not a number; write 4096, 0x1000 or 4K");
    if let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        let digits = digits.replace('_', "");
        let hex = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        return if hex { u64::from_str_radix(&digits, 16).map_err(|_| too_large(text)) } else { Err(invalid()) };
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    let (digits, suffix) = text.split_at(end);
    let shift = match suffix.to_ascii_lowercase().as_str() {
        "" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return Err(invalid()),
    };
    let digits = digits.replace('_', "");
    if digits.is_empty() {
        return Err(invalid());
    }
    let number: u64 = digits.parse().map_err(|_| too_large(text))?;
    number.checked_mul(1 << shift).ok_or_else(|| too_large(text))
}

fn too_large(text: &str) -> String {
    format!("{text} is too large")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: impl Into<Option<u64>>) -> Result<OpenRange, String> {
        Ok(OpenRange { start, end: end.into() })
    }

    #[test]
    fn ranges_are_read_as_rust_writes_them() {
        assert_eq!(parse_range("7"), range(7, 8));
        assert_eq!(parse_range("3..9"), range(3, 9));
        assert_eq!(parse_range("3..=9"), range(3, 10));
        assert_eq!(parse_range("3.."), range(3, None));
        assert_eq!(parse_range("..9"), range(0, 9));
        assert_eq!(parse_range(".."), range(0, None));
        assert_eq!(parse_range("0x10..1K"), range(16, 1024));
        assert_eq!(parse_range("5..5"), range(5, 5));
    }

    #[test]
    fn lists_keep_their_order() {
        let list = parse_range_list("1,3,5..9").unwrap();
        assert_eq!(list.to_string(), "1..2,3..4,5..9");
        assert!(list.is_ascending());
        for (text, ascending) in [("5..9,3", false), ("3,3", false), ("3..5,5..", true), ("3..,7", false), ("7", true)]
        {
            assert_eq!(parse_range_list(text).unwrap().is_ascending(), ascending, "{text}");
        }
        for text in ["", "1,", ",1", "1,,2", "1,a"] {
            assert!(parse_range_list(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn what_is_no_range_is_refused() {
        for text in ["", "a", "9..3", "1..2..3", "-1", "0x", "4Q", "K", "0x+1", "18446744073709551616", "16777216T"] {
            assert!(parse_range(text).is_err(), "{text:?}");
        }
        assert!(parse_range("18446744073709551615").is_err(), "one past it is no number");
    }

    #[test]
    fn suffixes_count_in_powers_of_1024() {
        let numbers = ["1k", "1KiB", "2M", "1g", "1T", "1_000", "0xF_F"].map(|text| parse_number(text).unwrap());
        assert_eq!(numbers, [1 << 10, 1 << 10, 2 << 20, 1 << 30, 1 << 40, 1000, 255]);
    }

    #[test]
    fn a_range_must_lie_within() {
        let open = OpenRange { start: 3, end: None };
        assert_eq!(open.within(10), Some(3..10));
        assert_eq!(open.within(3), Some(3..3));
        assert_eq!(open.within(2), None);
        assert_eq!(OpenRange { start: 0, end: Some(11) }.within(10), None);
    }
}
