//! Recipes of contents: a few words of the manifest stand for all bytes of a file.
//!
//! A recipe is a list of parts, or `nothing`. A part is `SOURCE:ARGUMENT`, then `/BYTES` if it is not as long as a page, then
//! `*TIMES` if it is repeated: `text:7`, `noise:7/100`, `text:7/5000*14`.
//!
//! | source | bytes |
//! | --- | --- |
//! | `zeros:PAGES` | zero pages |
//! | `word:HEX` | eight bytes, repeated |
//! | `text:SEED` | words of a short list |
//! | `table:SEED` | records of 16 bytes: an address, a counter, flags |
//! | `noise:SEED` | bytes that do not compress |
//!
//! Nothing in this file may change what a recipe gives: the manifest has the hashes of all contents.

const PAGE_BYTES: usize = 4096;

const WORDS: [&str; 32] = [
    "page", "block", "frame", "index", "of", "the", "a", "and", "group", "offset", "length", "zero", "is", "in", "to",
    "with", "checksum", "memory", "content", "archive", "run", "entry", "footer", "table", "delta", "base", "map",
    "hash", "image", "reader", "writer", "restore",
];

/// Returns the content that a recipe stands for.
pub(crate) fn content(recipe: &str) -> Vec<u8> {
    let parts = recipe.split_whitespace().filter(|part| *part != "nothing");
    parts.flat_map(|part| content_of_part(part).unwrap_or_else(|| panic!("{part} is not a part of a recipe"))).collect()
}

fn content_of_part(part: &str) -> Option<Vec<u8>> {
    let (part, times) = split_number(part, '*')?;
    let (part, len) = split_number(part, '/')?;
    let (source, argument) = part.split_once(':')?;
    if source == "zeros" {
        let pages: usize = argument.parse().ok()?;
        return Some(vec![0; len.unwrap_or(pages * PAGE_BYTES) * times.unwrap_or(1)]);
    }
    let len = len.unwrap_or(PAGE_BYTES);
    let mut bytes = match source {
        "word" => {
            let word = u64::from_str_radix(argument, 16).ok()?.to_be_bytes();
            word.into_iter().cycle().take(len).collect()
        }
        "text" => text(argument.parse().ok()?, len),
        "table" => table(argument.parse().ok()?, len),
        "noise" => noise(argument.parse().ok()?, len),
        _ => return None,
    };
    bytes.truncate(len);
    Some(bytes.repeat(times.unwrap_or(1)))
}

/// Splits a number off the end of a part.
fn split_number(part: &str, separator: char) -> Option<(&str, Option<usize>)> {
    match part.split_once(separator) {
        Some((rest, number)) => Some((rest, Some(number.parse().ok()?))),
        None => Some((part, None)),
    }
}

fn text(seed: u64, len: usize) -> Vec<u8> {
    let (mut random, mut bytes) = (SplitMix(seed), Vec::new());
    while bytes.len() < len {
        let word = WORDS[usize::from(random.next().to_le_bytes()[7] % 32)];
        bytes.extend_from_slice(word.as_bytes());
        bytes.push(b' ');
    }
    bytes
}

fn table(seed: u64, len: usize) -> Vec<u8> {
    let (mut random, mut bytes, mut count) = (SplitMix(seed), Vec::new(), 0u32);
    while bytes.len() < len {
        let number = random.next();
        bytes.extend((0x7f00_0000_0000 | (number & 0xfff0)).to_le_bytes());
        bytes.extend(count.to_le_bytes());
        bytes.extend([number.to_le_bytes()[7] % 4, 0, 0, 0]);
        count += 1;
    }
    bytes
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut random = SplitMix(seed);
    (0..len.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).collect()
}

/// The generator SplitMix64.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
