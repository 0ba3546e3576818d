//! Pages filled with one repeated 8-byte word, most often zero.

use crate::{FILL_WORD_BYTES, PAGE_SIZE, Page};

/// Returns the 8-byte word, in memory order, that fills the whole page, or `None` if no word does.
///
/// ```
/// use trueno_page::{PAGE_SIZE, same_filled};
/// let mut page = [0u8; PAGE_SIZE];
/// assert_eq!(same_filled(&page), Some([0; 8]));
/// page[4095] = 1;
/// assert_eq!(same_filled(&page), None);
/// ```
#[must_use]
#[inline]
pub fn same_filled(page: &Page) -> Option<[u8; FILL_WORD_BYTES]> {
    let (word, _) = page.split_first_chunk().expect("a page is longer than a word");
    // Most pages differ in their first two words. Compare those before setting up the wide comparison.
    if page[FILL_WORD_BYTES..2 * FILL_WORD_BYTES] != *word {
        return None;
    }
    // A page equals itself shifted by one word exactly if all words are equal. This is one `memcmp`.
    (page[..PAGE_SIZE - FILL_WORD_BYTES] == page[FILL_WORD_BYTES..]).then_some(*word)
}

/// Fills the page with a word, so that [`same_filled`] finds it.
///
/// ```
/// use trueno_page::{PAGE_SIZE, fill_page, same_filled};
/// let mut page = [0u8; PAGE_SIZE];
/// fill_page(&mut page, *b"deadbeef");
/// assert_eq!(same_filled(&page), Some(*b"deadbeef"));
/// ```
#[inline]
pub fn fill_page(page: &mut Page, word: [u8; FILL_WORD_BYTES]) {
    let (words, _) = page.as_chunks_mut();
    words.fill(word);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_byte_different_anywhere_is_not_same_filled() {
        for word in [[0; 8], [0xff; 8], *b"pattern!"] {
            let mut page = [0; PAGE_SIZE];
            fill_page(&mut page, word);
            assert_eq!(same_filled(&page), Some(word));
            for at in 0..PAGE_SIZE {
                page[at] ^= 0x40;
                assert_eq!(same_filled(&page), None, "byte {at}");
                page[at] ^= 0x40;
            }
        }
    }

    #[test]
    fn shorter_periods_are_words_too_and_longer_ones_are_not() {
        let period_of = |n: usize| std::array::from_fn(|i| u8::try_from(i % n).expect("small"));
        for n in [1, 2, 4, 8] {
            assert!(same_filled(&period_of(n)).is_some(), "period {n}");
        }
        for n in [3, 5, 16, 24] {
            assert!(same_filled(&period_of(n)).is_none(), "period {n}");
        }
    }
}
