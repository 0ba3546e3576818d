//! Zstandard frames of pages: those that libzstd writes, crafted ones, and damaged ones.

#[path = "zstd_craft.rs"]
mod craft;

pub(crate) use craft::{most_sequences, random_sequences};

use trueno_test_pages::generate::Generator;
use trueno_test_pages::{PAGE_SIZE, Page, corpus, edge_pages};
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::CParameter;

/// The levels that tests use, from the fastest to the strongest.
pub(crate) const LEVELS: [i32; 15] = [-7, -3, -1, 1, 2, 3, 5, 7, 9, 13, 16, 19, 20, 21, 22];

/// Returns one frame with libzstd's default parameters.
pub(crate) fn compress(page: &[u8], level: i32) -> Vec<u8> {
    Compressor::new(level).expect("the level exists").compress(page).expect("the buffer is large enough")
}

/// Returns one frame, with or without content size and checksum.
pub(crate) fn compress_with(page: &[u8], level: i32, content_size: bool, checksum: bool) -> Vec<u8> {
    let mut compressor = Compressor::new(level).expect("the level exists");
    for parameter in [CParameter::ContentSizeFlag(content_size), CParameter::ChecksumFlag(checksum)] {
        compressor.set_parameter(parameter).expect("every version has the parameter");
    }
    compressor.compress(page).expect("the buffer is large enough")
}

/// Returns the frame of a stream that was flushed before its end: its last block is empty.
pub(crate) fn compress_flushed(page: &[u8], level: i32) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), level).expect("the level exists");
    encoder.include_checksum(true).expect("every version has the parameter");
    encoder.write_all(page).expect("writing to a vector cannot fail");
    encoder.flush().expect("writing to a vector cannot fail");
    encoder.finish().expect("writing to a vector cannot fail")
}

/// Returns the page that libzstd restores, if it is one.
pub(crate) fn libzstd(frame: &[u8]) -> Option<Page> {
    let mut page = vec![0; PAGE_SIZE];
    let mut decompressor = Decompressor::new().expect("memory for a context");
    let len = decompressor.decompress_to_buffer(frame, &mut page[..]).ok()?;
    if len == PAGE_SIZE { page.try_into().ok() } else { None }
}

/// Every `step`-th page of the corpus, every `step`-th edge page and as many generated pages.
pub(crate) fn pages(step: usize, seed: u64) -> Vec<Page> {
    let mut generator = Generator::new(seed);
    let edges = edge_pages::all().into_iter().step_by(step).map(|edge| *edge.page);
    let pages = corpus::all_pages().step_by(step).copied().chain(edges);
    pages.chain((0..200 / step).map(|_| generator.page())).collect()
}

/// The places of a compressed block's parts in its frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts {
    pub(crate) block_header: usize,
    pub(crate) literals: usize,
    /// Tree and streams, or the literals themselves.
    pub(crate) literals_held: usize,
    pub(crate) sequences: usize,
    pub(crate) end: usize,
    pub(crate) literals_kind: u8,
}

impl Parts {
    /// Finds the parts of a frame that libzstd wrote; `None` if its block is not compressed.
    pub(crate) fn of(frame: &[u8]) -> Option<Self> {
        let number = |at: usize, len: usize| {
            (0..len).map(|i| frame.get(at + i).map_or(0, |byte| usize::from(*byte)) << (8 * i)).sum::<usize>()
        };
        let descriptor = *frame.get(4)?;
        let content_bytes = [usize::from(descriptor & 0x20 != 0), 2, 4, 8][usize::from(descriptor >> 6)];
        let block_header = 5 + usize::from(descriptor & 0x20 == 0) + content_bytes;
        let block = number(block_header, 3);
        let literals = block_header + 3;
        let head = number(literals, 5);
        let (kind, format) = (head & 3, head >> 2 & 3);
        let (head_bytes, held) = match (kind, format) {
            (0 | 1, 1) => (2, head >> 4 & 0xfff),
            (0 | 1, 3) => (3, head >> 4 & 0xf_ffff),
            (0 | 1, _) => (1, head >> 3 & 31),
            (_, 0 | 1) => (3, head >> 14 & 0x3ff),
            (_, 2) => (4, head >> 18 & 0x3fff),
            (_, _) => (5, head >> 22 & 0x3_ffff),
        };
        let literals_held = literals + head_bytes;
        let sequences = literals_held + if kind == 1 { 1 } else { held };
        let end = literals + (block >> 3);
        let literals_kind = u8::try_from(kind).expect("two bits");
        let parts = Self { block_header, literals, literals_held, sequences, end, literals_kind };
        (block >> 1 & 3 == 2 && sequences < end && end <= frame.len()).then_some(parts)
    }
}

/// Writes the block's length into its header.
fn set_block_len(frame: &mut [u8], parts: &Parts, len: usize) {
    let low = frame[parts.block_header] & 7;
    let header = (len << 3).to_le_bytes();
    frame[parts.block_header] = header[0] | low;
    frame[parts.block_header + 1..parts.block_header + 3].copy_from_slice(&header[1..3]);
}

/// Damages one part of a frame that libzstd wrote, so that the lie is in its content and not in its outer lengths.
pub(crate) fn damage(generator: &mut Generator, frame: &mut Vec<u8>) {
    let Some(parts) = Parts::of(frame) else { return generator.corrupt(frame) };
    let mut change = |frame: &mut Vec<u8>, from: usize, to: usize| {
        let at = from + generator.below(to.max(from + 1) - from);
        let at = at.min(frame.len() - 1);
        match generator.below(3) {
            0 => frame[at] = generator.byte(),
            1 => frame[at] ^= 1 << generator.below(8),
            _ => frame[at] = [0, 1, 0x7f, 0x80, 0xff][generator.below(5)],
        }
    };
    let table_end = (parts.sequences + 12).min(parts.end);
    match (frame.len() + usize::from(frame[parts.end - 1])) % 9 {
        // Lengths of the literals.
        0 => change(frame, parts.literals, parts.literals_held),
        // Tree: its head, its table, its weights.
        1 => change(frame, parts.literals_held, parts.literals_held + 2),
        2 => change(frame, parts.literals_held, parts.literals_held + 60),
        // Lengths and ends of the streams.
        3 => change(frame, parts.literals_held, parts.sequences),
        // Number of sequences, modes and tables.
        4 => change(frame, parts.sequences, parts.sequences + 3),
        5 => change(frame, parts.sequences, table_end),
        // Stream of the sequences, and its end.
        6 => change(frame, table_end, parts.end),
        7 => change(frame, parts.end - 1, parts.end),
        // A block that ends early, or goes on.
        _ => {
            let less = 1 + generator.below(3);
            let len = if generator.below(2) == 0 {
                frame.drain(parts.end - less..parts.end);
                (parts.end - parts.literals).saturating_sub(less)
            } else {
                let more: Vec<u8> = (0..less).map(|_| generator.byte()).collect();
                frame.splice(parts.end..parts.end, more);
                parts.end - parts.literals + less
            };
            set_block_len(frame, &parts, len);
        }
    }
}

/// Bits of a stream that is read backward, in the order of reading.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bits(Vec<bool>);

impl Bits {
    pub(crate) fn put(&mut self, value: usize, count: usize) {
        self.0.extend((0..count).rev().map(|i| value >> i & 1 == 1));
    }

    /// Returns the stream with its end mark.
    pub(crate) fn stream(&self) -> Vec<u8> {
        let mut bits: Vec<bool> = self.0.iter().rev().copied().collect();
        bits.push(true);
        bits.chunks(8).map(|byte| byte.iter().enumerate().fold(0, |sum, (i, bit)| sum | u8::from(*bit) << i)).collect()
    }
}

/// Returns a frame with one compressed block.
pub(crate) fn frame_of(block: &[u8]) -> Vec<u8> {
    let header = (block.len() << 3 | 2 << 1 | 1).to_le_bytes();
    [&[0x28, 0xb5, 0x2f, 0xfd, 0x60, 0x00, 0x0f], &header[..3], block].concat()
}

/// Returns a raw literals section.
pub(crate) fn raw_literals(literals: &[u8]) -> Vec<u8> {
    let header = (literals.len() << 4 | 3 << 2).to_le_bytes();
    [&header[..3], literals].concat()
}

/// Returns a literals section of one byte repeated, which leaves room in a block for other things.
pub(crate) fn same_literals(len: usize) -> Vec<u8> {
    let header = (len << 4 | 3 << 2 | 1).to_le_bytes();
    [&header[..3], b"x"].concat()
}

/// Returns a section of `count` sequences that all have the same three codes, with extra bits by `extra`, which gets
/// the number of each sequence and puts offset, match length and literal length.
pub(crate) fn uniform_sequences(count: usize, codes: [u8; 3], mut extra: impl FnMut(usize, &mut Bits)) -> Vec<u8> {
    let mut bits = Bits::default();
    (0..count).for_each(|i| extra(i, &mut bits));
    let head = match count {
        0..128 => vec![count.to_le_bytes()[0]],
        _ => vec![(count >> 8).to_le_bytes()[0] + 128, count.to_le_bytes()[0]],
    };
    [head, vec![0b0101_0100], codes.to_vec(), bits.stream()].concat()
}

/// Crafted frames with a name each, for cases that libzstd does not write.
pub(crate) fn crafted() -> Vec<(&'static str, Vec<u8>)> {
    let noise = |len: usize| -> Vec<u8> { (0..len).map(|i| (i * 167 + i / 7).to_le_bytes()[0]).collect() };
    let block = |literals: Vec<u8>, sequences: Vec<u8>| frame_of(&[raw_literals(&literals), sequences].concat());
    let long_block = |len: usize, sequences: Vec<u8>| frame_of(&[same_literals(len), sequences].concat());
    // Codes: literal length, offset, match length.
    let mut frames = vec![
        ("the most sequences", most_sequences(&mut Generator::new(1))),
        ("1365 matches without a literal before them", block(noise(1), uniform_sequences(1365, [0, 0, 0], |_, _| {}))),
        (
            "first offset less one, until it is 0",
            block(noise(3000), uniform_sequences(20, [0, 1, 0], |_, bits| bits.put(1, 1))),
        ),
        (
            "offsets from 29 to 60, more than there are bytes at first",
            block(noise(4096 - 33 * 3), uniform_sequences(33, [0, 5, 0], |i, bits| bits.put((i * 7) % 32, 5))),
        ),
        ("one literal and the first offset each time", {
            block(noise(1024), uniform_sequences(1024, [1, 0, 0], |_, _| {}))
        }),
        ("an offset one past the start", long_block(4093, uniform_sequences(1, [13, 4, 0], |_, bits| bits.put(1, 4)))),
        ("an offset to the start", long_block(4093, uniform_sequences(1, [13, 4, 0], |_, bits| bits.put(0, 4)))),
        ("an offset far past the start", long_block(4093, uniform_sequences(1, [0, 13, 0], |_, bits| bits.put(7, 13)))),
        ("the largest offset", {
            let last = |_, bits: &mut Bits| {
                bits.put(0, 12);
                bits.put(4093 - 2048, 11);
            };
            // 4093, to the start.
            long_block(4093, uniform_sequences(1, [30, 12, 0], last))
        }),
        ("three long fields", {
            let long = |_, bits: &mut Bits| {
                bits.put(0, 11);
                bits.put(0, 10);
                bits.put(0, 11);
            };
            block(noise(4096 - 1027), uniform_sequences(1, [30, 11, 46], long))
        }),
        ("four fields too long for one window", {
            let long = |_, bits: &mut Bits| {
                bits.put(1, 12);
                bits.put(0, 16);
                bits.put(0, 16);
            };
            block(noise(3069), uniform_sequences(1, [35, 12, 52], long))
        }),
        ("more literals than there are", block(noise(100), uniform_sequences(1, [22, 0, 0], |_, bits| bits.put(7, 3)))),
        ("more literals than there are, later", { block(noise(40), uniform_sequences(40, [2, 0, 5], |_, _| {})) }),
        ("an output of one byte too many", long_block(4094, uniform_sequences(1, [5, 0, 0], |_, _| {}))),
        ("an output of one byte too few", long_block(4092, uniform_sequences(1, [5, 0, 0], |_, _| {}))),
        ("one bit too many", long_block(4093, uniform_sequences(1, [5, 0, 0], |_, bits| bits.put(0, 1)))),
        ("one bit too few", long_block(4093, uniform_sequences(1, [16, 0, 0], |_, _| {}))),
        (
            "bits run out in the middle",
            block(noise(2000), uniform_sequences(200, [1, 8, 2], |i, bits| bits.put(0, 8 * usize::from(i < 60)))),
        ),
        ("a run of one byte", block(noise(1), uniform_sequences(1, [1, 0, 47], |_, bits| bits.put(4095 - 2051, 11)))),
        ("overlaps of short distances", {
            let each = |i: usize, bits: &mut Bits| bits.put(i % 3, 4);
            block(noise(4096 - 31 * 24), uniform_sequences(31, [15, 4, 21], each))
        }),
        ("1366 sequences", block(noise(1), uniform_sequences(1366, [0, 0, 0], |_, _| {}))),
        ("no sequences", frame_of(&[same_literals(4096), vec![0]].concat())),
        ("no sequences and a byte", frame_of(&[same_literals(4096), vec![0, 0]].concat())),
        ("reserved bits of the modes", frame_of(&[same_literals(4093), vec![1, 0b0101_0101, 5, 0, 0, 1]].concat())),
        ("tables of a block before", frame_of(&[same_literals(4093), vec![1, 0b1111_1100, 1]].concat())),
        ("a code that does not exist", frame_of(&[same_literals(4093), vec![1, 0b0101_0100, 36, 0, 0, 1]].concat())),
        ("no stream", frame_of(&[same_literals(4093), vec![1, 0b0101_0100, 5, 0, 0]].concat())),
        ("a stream without an end mark", frame_of(&[same_literals(4093), vec![1, 0b0101_0100, 5, 0, 0, 0]].concat())),
    ];
    frames.extend(craft::trees());
    frames
}
