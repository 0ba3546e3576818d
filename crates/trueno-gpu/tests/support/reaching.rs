//! Blocks and frames whose matches reach before the start of their page. A decoder that followed one would restore what
//! memory held before: here, the page of secrets.

use std::collections::{HashMap, HashSet};

use trueno_test_pages::{PAGE_SIZE, Page, generate::Generator};

/// A byte of literals.
const LITERAL: u8 = b'L';

/// A page that does not compress, of bytes that are in no block and not the fill of buffers.
pub(crate) fn secrets() -> Page {
    let mut generator = Generator::new(26);
    std::array::from_fn(|_| 0x80 | generator.byte() & 0x3f)
}

/// Returns LZ4 blocks that are valid but for one offset, with what is in them: literals, a match that reaches too far
/// and makes the rest of the page, and the last literals. In some, a match that is in order comes first.
pub(crate) fn lz4_blocks() -> Vec<(String, Vec<u8>)> {
    let mut blocks = Vec::new();
    for literals in [0, 1, 14, 15, 16, 33, 300, 4000, 4050] {
        for beyond in [1, 2, 16, 64, PAGE_SIZE, 3 * PAGE_SIZE, 60_000] {
            for first in [None, Some(4), Some(24)] {
                let name = format!("after a match of {first:?}, {literals} literals, an offset {beyond} too large");
                blocks.push((name, lz4_block(first, literals, beyond)));
            }
        }
    }
    blocks
}

fn lz4_block(first: Option<usize>, literals: usize, beyond: usize) -> Vec<u8> {
    let before = first.map_or(Vec::new(), |matched| lz4_sequence(1, 1, matched));
    let made = first.map_or(0, |matched| 1 + matched) + literals;
    let reaching = lz4_sequence(literals, made + beyond, PAGE_SIZE - 5 - made);
    [&before[..], &reaching, &[0x50], &[LITERAL; 5]].concat()
}

fn lz4_sequence(literals: usize, offset: usize, matched: usize) -> Vec<u8> {
    let field = |len: usize| u8::try_from(len.min(15)).expect("four bits");
    let more = |len: usize| -> Vec<u8> {
        let Some(rest) = len.checked_sub(15) else { return Vec::new() };
        [vec![255; rest / 255], vec![u8::try_from(rest % 255).expect("below 255")]].concat()
    };
    let mut sequence = vec![field(literals) << 4 | field(matched - 4)];
    sequence.extend(more(literals));
    sequence.extend(std::iter::repeat_n(LITERAL, literals));
    sequence.extend(u16::try_from(offset).expect("two bytes").to_le_bytes());
    sequence.extend(more(matched - 4));
    sequence
}

/// Returns Zstandard frames that restore a page only with the page of secrets before it: libzstd wrote them with that
/// as their dictionary, which no header mentions.
pub(crate) fn zstd_frames() -> Vec<(String, Vec<u8>)> {
    let secrets = secrets();
    let mut frames = Vec::new();
    for level in [1, 3, 9, 19] {
        for literals in [0, 1, 40, 700, 4000] {
            let mut page = secrets;
            page[..literals].iter_mut().zip(0..).for_each(|(byte, i): (_, usize)| *byte = (i % 61).to_le_bytes()[0]);
            let mut compressor = zstd::bulk::Compressor::with_dictionary(level, &secrets).expect("a level");
            let frame = compressor.compress(&page).expect("there is memory");
            let mut decoder = zstd::bulk::Decompressor::with_dictionary(&secrets).expect("there is memory");
            assert!(decoder.decompress(&frame, PAGE_SIZE).expect("with its dictionary") == page);
            assert!(frame.len() < 200, "the secrets are not in the frame itself: {} bytes", frame.len());
            frames.push((format!("level {level}, {literals} literals"), frame));
        }
    }
    frames
}

/// Returns where the page holds four bytes in a row of the page of secrets, and where these stand in it. Bytes of
/// `held`, a block or frame, do not count.
pub(crate) fn leaks(page: &Page, held: &[u8]) -> Vec<(usize, usize)> {
    let secrets = secrets();
    let known: HashMap<&[u8], usize> = secrets.windows(4).zip(0..).collect();
    let own: HashSet<&[u8]> = held.windows(4).collect();
    let found = page.windows(4).enumerate().filter(|(_, bytes)| !own.contains(bytes));
    found.filter_map(|(at, bytes)| Some((at, *known.get(bytes)?))).collect()
}
