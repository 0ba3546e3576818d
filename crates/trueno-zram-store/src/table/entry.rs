//! A table entry: one word with the form of a page and its place.

use trueno_zram_core::{FILL_WORD_BYTES, PAGE_SIZE, PageKind};

use crate::slots::geometry::SizeClass;

/// The entry of a page in the table, in 64 bits:
///
/// | bits | meaning |
/// | --- | --- |
/// | 0 | locked |
/// | 1 to 3 | form |
/// | 4 | recompression was tried |
/// | 5 | recompression is at work on the page as it is |
/// | 6 to 13 | idle age in ticks |
/// | 14 to 25 | stored length - 1 |
/// | 26 to 61 | place in units of 64 bytes; the word of an inline fill |
/// | 62, 63 | 0 |
///
/// The word 0 is a page that was never written, or discarded. A change of an entry is one store. So an entry is always
/// either the old one or the new one, also after the process was killed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct TableEntry(u64);

/// The form in which a page is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageForm {
    /// Never written, or discarded: reads as zeros.
    Empty,
    /// A page that repeats these four bytes. Other same-filled pages hold their word in a slot.
    Fill([u8; 4]),
    /// Held in a slot.
    Stored(StoredPage),
}

/// A page in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredPage {
    pub(crate) kind: PageKind,
    pub(crate) len_bytes: u16,
    /// The first unit of the slot.
    pub(crate) place: u64,
}

/// The defect of an entry, for [`Error::CorruptEntry`](crate::Error::CorruptEntry).
pub(crate) type Defect = &'static str;

/// A bit of an entry that says something about the page beside its form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum EntryMark {
    /// A thread uses the slot, or changes the entry.
    Locked = 1,
    /// Recompression was tried. A new entry does not have this mark.
    Tried = 1 << 4,
    /// Recompression works on the page. A new entry does not have this mark, so a page without it was rewritten.
    Pending = 1 << 5,
}

const FORM_SHIFT: u32 = 1;
const FORM_MASK: u64 = 0b111;
const AGE_SHIFT: u32 = 6;
const AGE_MASK: u64 = 0xff;
const LEN_SHIFT: u32 = 14;
const LEN_MASK: u64 = 0xfff;
const PLACE_SHIFT: u32 = 26;
const PLACE_BITS: u32 = 36;
const PLACE_MASK: u64 = (1 << PLACE_BITS) - 1;
const UNUSED: u64 = 0b11 << 62;

const FORM_EMPTY: u64 = 0;
const FORM_FILL: u64 = 1;
/// The first form of a page in a slot. The number of its [`PageKind`] is added.
const FORM_STORED: u64 = 2;

/// Units that an entry can address.
pub(crate) const MAX_UNITS: u64 = 1 << PLACE_BITS;

impl TableEntry {
    pub(crate) const EMPTY: Self = Self(0);

    /// Creates an entry for a page that was just written.
    pub(crate) fn new(form: PageForm) -> Self {
        match form {
            PageForm::Empty => Self::EMPTY,
            PageForm::Fill(word) => Self(FORM_FILL << FORM_SHIFT | u64::from(u32::from_le_bytes(word)) << PLACE_SHIFT),
            PageForm::Stored(StoredPage { kind, len_bytes, place }) => {
                debug_assert!(kind.held_len_bytes().contains(&usize::from(len_bytes)) && place < MAX_UNITS);
                let form = FORM_STORED + u64::from(kind as u8);
                let len = u64::from(len_bytes - 1);
                Self(form << FORM_SHIFT | len << LEN_SHIFT | (place & PLACE_MASK) << PLACE_SHIFT)
            }
        }
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    /// Returns the form in which the page is held, or the defect of an invalid entry. Entries that this process wrote are valid.
    pub(crate) fn form(self) -> Result<PageForm, Defect> {
        let field = self.0 >> PLACE_SHIFT & PLACE_MASK;
        if self.0 & UNUSED != 0 {
            return Err("unused bits are set");
        }
        let kind = match self.0 >> FORM_SHIFT & FORM_MASK {
            FORM_EMPTY => return Ok(PageForm::Empty),
            FORM_FILL => {
                let word = u32::try_from(field).map_err(|_| "the fill has more than 32 bits")?;
                return Ok(PageForm::Fill(word.to_le_bytes()));
            }
            form => {
                let kind = u8::try_from(form - FORM_STORED).ok().and_then(|kind| PageKind::try_from(kind).ok());
                kind.ok_or("the form is unknown")?
            }
        };
        let len_bytes = u16::try_from((self.0 >> LEN_SHIFT & LEN_MASK) + 1).expect("the field has 12 bits");
        if !kind.held_len_bytes().contains(&len_bytes.into()) {
            return Err("the length does not fit the form");
        }
        Ok(PageForm::Stored(StoredPage { kind, len_bytes, place: field }))
    }

    pub(crate) fn has(self, mark: EntryMark) -> bool {
        self.0 & mark as u64 != 0
    }

    pub(crate) fn with(self, mark: EntryMark) -> Self {
        Self(self.0 | mark as u64)
    }

    pub(crate) fn without(self, mark: EntryMark) -> Self {
        Self(self.0 & !(mark as u64))
    }

    /// Returns the ticks since the page was last read or written, at most 255.
    pub(crate) fn age(self) -> u8 {
        u8::try_from(self.0 >> AGE_SHIFT & AGE_MASK).expect("the field has 8 bits")
    }

    pub(crate) fn with_age(self, age: u8) -> Self {
        Self(self.0 & !(AGE_MASK << AGE_SHIFT) | u64::from(age) << AGE_SHIFT)
    }

    /// Returns the entry of the same page in another slot of its class.
    pub(crate) fn moved_to(self, place: u64) -> Self {
        Self(self.0 & !(PLACE_MASK << PLACE_SHIFT) | (place & PLACE_MASK) << PLACE_SHIFT)
    }
}

impl std::fmt::Debug for TableEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TableEntry({:?}, age {}, {:#x})", self.form(), self.age(), self.0)
    }
}

impl StoredPage {
    pub(crate) fn class(self) -> SizeClass {
        SizeClass::of_len(usize::from(self.len_bytes))
    }
}

impl PageForm {
    /// Returns the slot that holds the page, if it has one.
    pub(crate) fn stored(self) -> Option<StoredPage> {
        match self {
            Self::Stored(stored) => Some(stored),
            Self::Empty | Self::Fill(_) => None,
        }
    }

    /// Returns the inline form of a same-filled page, if its word repeats four bytes.
    pub(crate) fn inline(word: [u8; FILL_WORD_BYTES]) -> Option<Self> {
        let (first, second) = word.split_at(4);
        (first == second).then(|| Self::Fill([word[0], word[1], word[2], word[3]]))
    }
}

/// Returns the fill word that consists of these four bytes twice.
pub(crate) fn fill_word(fill: [u8; 4]) -> [u8; FILL_WORD_BYTES] {
    std::array::from_fn(|at| fill[at % 4])
}

const _: () = assert!(PAGE_SIZE as u64 - 1 <= LEN_MASK);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn forms() -> impl Strategy<Value = PageForm> {
        let stored = |kind: PageKind| {
            (kind.held_len_bytes(), 0..MAX_UNITS).prop_map(move |(len, place)| {
                PageForm::Stored(StoredPage { kind, len_bytes: len.try_into().unwrap(), place })
            })
        };
        prop_oneof![
            Just(PageForm::Empty),
            any::<[u8; 4]>().prop_map(PageForm::Fill),
            stored(PageKind::SameFilled),
            stored(PageKind::Lz4),
            stored(PageKind::Zstd),
            stored(PageKind::Raw),
        ]
    }

    proptest! {
        #[test]
        fn forms_and_marks_do_not_disturb_each_other(form in forms(), age: u8, place in 0..MAX_UNITS) {
            let entry = TableEntry::new(form);
            prop_assert_eq!(entry.form(), Ok(form));
            let marked = entry.with_age(age).with(EntryMark::Pending).with(EntryMark::Locked);
            prop_assert_eq!(marked.form(), Ok(form));
            prop_assert_eq!(marked.age(), age);
            prop_assert!(marked.has(EntryMark::Locked) && marked.has(EntryMark::Pending) && !marked.has(EntryMark::Tried));
            prop_assert_eq!(marked.without(EntryMark::Locked).without(EntryMark::Pending).with_age(0), entry);
            if let PageForm::Stored(stored) = form {
                prop_assert_eq!(marked.moved_to(place).form(), Ok(PageForm::Stored(StoredPage { place, ..stored })));
                prop_assert_eq!(marked.moved_to(place).age(), age);
            }
        }

        #[test]
        fn any_word_is_a_form_or_a_defect(bits: u64) {
            if let Ok(form) = TableEntry::from_bits(bits).form() {
                let again = TableEntry::new(form);
                prop_assert_eq!(again.form(), Ok(form));
            }
        }
    }

    #[test]
    fn only_words_that_repeat_four_bytes_are_inline() {
        assert_eq!(PageForm::inline([0; 8]), Some(PageForm::Fill([0; 4])));
        assert_eq!(PageForm::inline(*b"abcdabcd"), Some(PageForm::Fill(*b"abcd")));
        assert_eq!(PageForm::inline(*b"abcdabce"), None);
        assert_eq!(fill_word(*b"abcd"), *b"abcdabcd");
    }
}
