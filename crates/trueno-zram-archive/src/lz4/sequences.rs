//! The sequences of an LZ4 block, walked without decoding: the length of its content, and the rules for its end.

use crate::lz4::constant_pages::{LAST_LITERALS, MIN_MATCH};

/// Returns the length of the content of an LZ4 block, or `None` if its sequences are cut short. Offsets are not
/// checked, and nothing is decoded.
pub(crate) fn decoded_len(block: &[u8]) -> Option<usize> {
    sequences(block).map(|sequences| sequences.content_len)
}

/// Returns `true` if the block's last bytes are literals, as the format demands of every block with a match. C lz4
/// refuses other blocks, `lz4_flex` accepts them.
pub(crate) fn ends_in_literals(block: &[u8]) -> bool {
    // The last token of such a block counts the bytes after it. Most blocks have no such token.
    let suspicious = (0..LAST_LITERALS).any(|literals| {
        let token = block.len().checked_sub(literals + 1).and_then(|at| block.get(at));
        token.is_some_and(|token| usize::from(token >> 4) == literals)
    });
    !suspicious
        || sequences(block).is_none_or(|sequences| !sequences.has_match || sequences.last_literals >= LAST_LITERALS)
}

/// Totals of the sequences of a block.
struct Sequences {
    content_len: usize,
    last_literals: usize,
    has_match: bool,
}

fn sequences(block: &[u8]) -> Option<Sequences> {
    let (mut rest, mut content_len, mut has_match) = (block, 0usize, false);
    loop {
        let (&token, after) = rest.split_first()?;
        rest = after;
        let literals = length(usize::from(token >> 4), &mut rest)?;
        rest = rest.get(literals..)?;
        content_len = content_len.checked_add(literals)?;
        if rest.is_empty() {
            return Some(Sequences { content_len, last_literals: literals, has_match });
        }
        rest = rest.get(2..)?;
        let matched = length(usize::from(token & 15), &mut rest)? + MIN_MATCH;
        content_len = content_len.checked_add(matched)?;
        has_match = true;
    }
}

/// Adds the length bytes that follow a field of 15.
fn length(field: usize, rest: &mut &[u8]) -> Option<usize> {
    if field < 15 {
        return Some(field);
    }
    let full = rest.iter().position(|byte| *byte != 255)?;
    let length = 15 + 255 * full + usize::from(rest[full]);
    *rest = &rest[full + 1..];
    Some(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use trueno_test_pages::generate::Generator;
    use trueno_zram_core::PAGE_SIZE;

    #[test]
    fn lengths_are_those_that_decoding_gives() {
        let mut random = Generator::new(1);
        let mut out = vec![0; 1 << 20];
        for _ in 0..2000 {
            let mut content = random.page().to_vec();
            content.truncate(random.below(PAGE_SIZE + 1));
            let mut block = lz4_flex::block::compress(&content);
            assert_eq!(decoded_len(&block), Some(content.len()));
            assert!(ends_in_literals(&block));
            random.corrupt(&mut block);
            if let Ok(len) = lz4_flex::block::decompress_into(&block, &mut out) {
                assert_eq!(decoded_len(&block), Some(len));
            }
        }
    }

    #[test]
    fn a_block_that_ends_in_a_match_is_refused() {
        // Four literals and a match; then a token with too few literals.
        for last in [&[0x00][..], &[0x10, b'a'], &[0x40, b'a', b'b', b'c', b'd']] {
            let block = [&[0x44, b'a', b'b', b'c', b'd', 4, 0], last].concat();
            assert!(lz4_flex::block::decompress(&block, 100).is_ok(), "the library takes it");
            assert!(!ends_in_literals(&block), "{last:?}");
        }
        assert!(ends_in_literals(&[0x44, b'a', b'b', b'c', b'd', 4, 0, 0x50, 1, 2, 3, 4, 5]));
        assert!(ends_in_literals(&[0x10, b'a']), "no match, no condition");
    }
}
