//! A slow twin of the kernel in plain Rust: one byte, one bit and one symbol at a time, and every check where it
//! arises.
//!
//! It restores exactly the frames that the kernel restores, and refuses all others for the same reason. Tests compare
//! the kernel with it, and it with libzstd.
//!
//! It is stricter than libzstd in a few places. libzstd accepts, and this decoder refuses:
//!
//! | difference | answer |
//! | --- | --- |
//! | Huffman streams that do not end exactly, which libzstd's fast loop does not check | [`RestoreError::Malformed`] |
//! | Huffman codes of 12 bits, which the specification does not allow | [`RestoreError::Unsupported`] |
//! | sequence tables of more than 768 entries together | [`RestoreError::Unsupported`] |
//! | several frames or blocks, windows below one page, a dictionary number of 0 that is spelt out | [`RestoreError::Unsupported`] |

#[path = "../../trueno-gpu/src/kernels/zstd/decode/format.rs"]
mod format;

use crate::PAGE_BYTES;
use format::{
    CODE_KINDS, CodeKind, MAGIC, MAX_CODE_BITS, MAX_FRAME_BYTES, MAX_SEQUENCES, MAX_TABLE_ENTRIES, MIN_FRAME_BYTES,
    TableLimits, WEIGHTS,
};
use trueno_page::{PAGE_SIZE, Page};

/// The reason that a frame is not restored.
///
/// ```
/// use trueno_test_kernels::zstd_restore::{RestoreError, restore};
/// assert_eq!(restore(&[0; 100]), Err(RestoreError::Unsupported)); // not a Zstandard frame
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreError {
    /// The frame does not decode to exactly one page.
    Malformed,
    /// The frame has a form that the kernel does not decode.
    Unsupported,
}
use RestoreError::{Malformed, Unsupported};

/// Restores the page that a frame holds.
///
/// # Errors
/// The reason if the frame is refused.
///
/// ```
/// use trueno_test_kernels::zstd_restore::restore;
/// let magic = [0x28, 0xb5, 0x2f, 0xfd];
/// // One segment of 4096 bytes; the last block, of one byte 4096 times.
/// let frame = [magic.as_slice(), &[0x60, 0x00, 0x0f], &[0x03, 0x80, 0x00], b"x"].concat();
/// assert_eq!(restore(&frame).unwrap(), [b'x'; 4096]);
/// ```
pub fn restore(frame: &[u8]) -> Result<Page, RestoreError> {
    let header = FrameHeaders::read(frame)?;
    let block = &frame[header.block_start..header.block_end];
    let page: Vec<u8> = match header.block_type {
        0 | 1 if header.block_size != PAGE_SIZE => return Err(Malformed),
        0 => block.to_vec(),
        1 => vec![block[0]; PAGE_SIZE],
        _ => compressed_block(block)?,
    };
    let page = Page::try_from(page).map_err(|_| Malformed)?;
    match header.checksum {
        Some(sum) if sum.to_le_bytes() != xxh64(&page).to_le_bytes()[..4] => Err(Malformed),
        _ => Ok(page),
    }
}

/// Returns the little-endian number of up to eight bytes at `at`; bytes past the end count as 0.
fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    (0..len).map(|i| u64::from(bytes.get(at + i).copied().unwrap_or(0)) << (8 * i)).sum()
}

fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// The contents of the frame header and its block header.
struct FrameHeaders {
    block_type: u64,
    block_size: usize,
    block_start: usize,
    block_end: usize,
    checksum: Option<u32>,
}

impl FrameHeaders {
    fn read(frame: &[u8]) -> Result<Self, RestoreError> {
        if frame.len() < MIN_FRAME_BYTES as usize || frame.len() > MAX_FRAME_BYTES as usize {
            return Err(Malformed);
        }
        if number(frame, 0, 4) != u64::from(MAGIC) {
            return Err(Unsupported);
        }
        let descriptor = frame[4];
        let single_segment = descriptor & 0x20 != 0;
        let content_bytes = [0, 2, 4, 8][usize::from(descriptor >> 6)];
        let content_at = 5 + usize::from(!single_segment);
        let block_at = content_at + content_bytes;
        if block_at + 3 > frame.len() || descriptor & 0x08 != 0 {
            return Err(Malformed);
        }
        let content = match content_bytes {
            0 if single_segment => return Err(Unsupported), // one byte: fewer than 256
            0 => PAGE_SIZE as u64,                          // not stated
            2 => number(frame, content_at, 2) + 256,
            bytes => number(frame, content_at, bytes),
        };
        let window_log = frame[5] >> 3;
        let bad_window = !single_segment && !(2..=21).contains(&window_log);
        if descriptor & 0x03 != 0 || bad_window || content != PAGE_SIZE as u64 {
            return Err(Unsupported);
        }

        let block = number(frame, block_at, 3);
        let (is_last, block_type, block_size) = (block & 1 != 0, block >> 1 & 3, size(block >> 3));
        if block_type == 3 {
            return Err(Malformed);
        }
        if block_size > PAGE_SIZE {
            return Err(Unsupported);
        }
        let block_start = block_at + 3;
        let block_end = block_start + if block_type == 1 { 1 } else { block_size };
        let checksum_bytes = if descriptor & 0x04 != 0 { 4 } else { 0 };
        let checksum_at = block_end + if is_last { 0 } else { 3 };
        if checksum_at + checksum_bytes > frame.len() {
            return Err(Malformed);
        }
        // An empty raw block may be the last one.
        let other_blocks = !is_last && number(frame, block_end, 3) != 1;
        if other_blocks || checksum_at + checksum_bytes < frame.len() {
            return Err(Unsupported);
        }
        let checksum = u32::try_from(number(frame, checksum_at, checksum_bytes)).expect("at most four bytes");
        let checksum = (checksum_bytes > 0).then_some(checksum);
        Ok(Self { block_type, block_size, block_start, block_end, checksum })
    }
}

fn compressed_block(block: &[u8]) -> Result<Vec<u8>, RestoreError> {
    let (literals, sequences_at) = literals_section(block)?;
    let mut at = sequences_at;
    let mut byte = || {
        at += 1;
        block.get(at - 1).map(|byte| usize::from(*byte)).ok_or(Malformed)
    };
    let count = match byte()? {
        255 => byte()? + (byte()? << 8) + 0x7f00,
        high @ 128.. => ((high - 128) << 8) + byte()?,
        low => low,
    };
    if count > MAX_SEQUENCES as usize {
        return Err(Malformed);
    }
    if count == 0 {
        return if at == block.len() { Ok(literals) } else { Err(Malformed) };
    }
    sequences_section(block, at, count, &literals)
}

/// Returns the literals and the start of the sequences section.
fn literals_section(block: &[u8]) -> Result<(Vec<u8>, usize), RestoreError> {
    if block.len() < 2 {
        return Err(Malformed);
    }
    let head = number(block, 0, 5);
    let (kind, format) = (head & 3, head >> 2 & 3);
    let bits = |from: u32, count: u32| size(head >> from & ((1 << count) - 1));
    let (head_bytes, len, held_bytes) = match (kind, format) {
        (3, _) => return Err(Unsupported), // the tree of a block before
        (0 | 1, 1) => (2, bits(4, 12), None),
        (0 | 1, 3) => (3, bits(4, 20), None),
        (0 | 1, _) => (1, bits(3, 5), None),
        (_, 0 | 1) => (3, bits(4, 10), Some(bits(14, 10))),
        (_, 2) => (4, bits(4, 14), Some(bits(18, 14))),
        (_, _) => (5, bits(4, 18), Some(bits(22, 18))),
    };
    let held_bytes = held_bytes.unwrap_or(if kind == 0 { len } else { 1 });
    let end = head_bytes + held_bytes;
    // At least one byte of the sequences section follows.
    if len > PAGE_SIZE || end >= block.len() {
        return Err(Malformed);
    }
    let held = &block[head_bytes..end];
    let literals = match kind {
        0 => held.to_vec(),
        1 => vec![held[0]; len],
        _ => huffman_literals(held, len, format != 0)?,
    };
    Ok((literals, end))
}

fn huffman_literals(held: &[u8], len: usize, four_streams: bool) -> Result<Vec<u8>, RestoreError> {
    let (mut weights, streams_at) = huffman_weights(held)?;
    let log = complete_weights(&mut weights)?;
    // Entry `i` is for codes that start with the bits of `i`: lighter symbols first, then by number.
    let mut table = Vec::new();
    for weight in 1..=log {
        for (symbol, _) in weights.iter().enumerate().filter(|(_, own)| **own == weight) {
            table.resize(table.len() + (1 << (weight - 1)), (symbol, log + 1 - weight));
        }
    }
    let streams = &held[streams_at..];
    if !four_streams {
        return huffman_stream(streams, &table, log, len);
    }
    if len < 6 || streams.len() < 10 {
        return Err(Malformed);
    }
    let part = len.div_ceil(4);
    let (mut literals, mut at) = (Vec::new(), 6);
    for stream in 0..4 {
        let (end, count) = match stream {
            3 => (streams.len(), len - 3 * part),
            _ => (at + size(number(streams, 2 * stream, 2)), part),
        };
        let bytes = streams.get(at..end).ok_or(Malformed)?;
        literals.extend(huffman_stream(bytes, &table, log, count)?);
        at = end;
    }
    Ok(literals)
}

/// Returns the stored weights and the offset of the streams.
fn huffman_weights(held: &[u8]) -> Result<(Vec<u32>, usize), RestoreError> {
    let head = usize::from(*held.first().ok_or(Malformed)?);
    let direct = head.checked_sub(127);
    let end = 1 + direct.map_or(head, |count| count.div_ceil(2));
    if head == 0 || end >= held.len() {
        return Err(Malformed);
    }
    if let Some(count) = direct {
        let nibble = |i: usize| u32::from(held[1 + i / 2] >> (4 - 4 * (i % 2)) & 15);
        return Ok(((0..count).map(nibble).collect(), end));
    }
    let (counts, log, stream_at) = fse_counts(&held[..end], 1, WEIGHTS)?;
    let cells = fse_table(&counts, log);
    let mut bits = BitsBackward::new(&held[stream_at..end])?;
    let mut states = [bits.take(log).ok_or(Malformed)?, bits.take(log).ok_or(Malformed)?];
    let mut weights = Vec::new();
    for turn in 0.. {
        // Two more must fit, as the last two come together.
        if weights.len() > 253 {
            return Err(Malformed);
        }
        let cell = cells[states[turn % 2]];
        weights.push(cell.symbol);
        match bits.take(cell.bits) {
            Some(more) => states[turn % 2] = cell.base + more,
            None => {
                weights.push(cells[states[(turn + 1) % 2]].symbol);
                break;
            }
        }
    }
    Ok((weights, end))
}

/// Adds the last weight, which is not written. Returns the length of the longest code.
fn complete_weights(weights: &mut Vec<u32>) -> Result<u32, RestoreError> {
    if weights.iter().any(|weight| *weight > MAX_CODE_BITS + 1) {
        return Err(Malformed);
    }
    let total: u32 = weights.iter().map(|weight| 1 << weight >> 1).sum();
    if total == 0 {
        return Err(Malformed);
    }
    let log = total.ilog2() + 1;
    let rest = (1 << log) - total;
    if log > MAX_CODE_BITS + 1 || !rest.is_power_of_two() {
        return Err(Malformed);
    }
    weights.push(rest.ilog2() + 1);
    let longest = weights.iter().filter(|weight| **weight == 1).count();
    if longest < 2 || longest % 2 == 1 {
        return Err(Malformed);
    }
    if log > MAX_CODE_BITS { Err(Unsupported) } else { Ok(log) }
}

fn huffman_stream(stream: &[u8], table: &[(usize, u32)], log: u32, count: usize) -> Result<Vec<u8>, RestoreError> {
    let mut bits = BitsBackward::new(stream)?;
    let mut literals = Vec::new();
    for _ in 0..count {
        let (symbol, used) = table[bits.peek(log)];
        bits.take(used).ok_or(Malformed)?;
        literals.push(symbol.to_le_bytes()[0]);
    }
    if bits.left == 0 { Ok(literals) } else { Err(Malformed) }
}

/// Reads a stream from its last bit to its first.
struct BitsBackward<'a> {
    stream: &'a [u8],
    /// Number of bits not read yet.
    left: usize,
}

impl<'a> BitsBackward<'a> {
    /// The highest set bit of the last byte marks the end of the stream.
    fn new(stream: &'a [u8]) -> Result<Self, RestoreError> {
        let mark = stream.last().and_then(|byte| byte.checked_ilog2()).ok_or(Malformed)?;
        Ok(Self { stream, left: 8 * (stream.len() - 1) + mark as usize })
    }

    /// Returns the next bits; those before the stream's start count as 0.
    fn peek(&self, count: u32) -> usize {
        (0..count as usize).fold(0, |value, i| {
            let bit = (self.left).checked_sub(i + 1).map_or(0, |at| self.stream[at / 8] >> (at % 8) & 1);
            value << 1 | usize::from(bit)
        })
    }

    /// Consumes the next bits; `None` if there are fewer.
    fn take(&mut self, count: u32) -> Option<usize> {
        let value = self.peek(count);
        self.left = self.left.checked_sub(count as usize)?;
        Some(value)
    }
}

/// A cell of an FSE table.
#[derive(Clone, Copy)]
struct FseCell {
    symbol: u32,
    /// The next state is this plus the number in that many bits.
    base: usize,
    bits: u32,
}

/// Reads the counts of an FSE table at `at`. Returns them, the accuracy and the offset of their end.
fn fse_counts(bytes: &[u8], at: usize, limits: TableLimits) -> Result<(Vec<i32>, u32, usize), RestoreError> {
    let mut bit = 8 * at;
    let peek = |bit: usize, count: u32| number(bytes, bit / 8, 4) >> (bit % 8) & ((1 << count) - 1);
    let log = u32::try_from(peek(bit, 4)).expect("four bits") + 5;
    bit += 4;
    if log > limits.max_log {
        return Err(Malformed);
    }
    let mut left = (1i32 << log) + 1;
    let mut counts = Vec::new();
    loop {
        // A count is at most `left`. The low values take one bit less.
        let short_bits = left.ilog2();
        let half = 1i32 << short_bits;
        let short_values = 2 * half - 1 - left;
        let low = i32::try_from(peek(bit, short_bits)).expect("few bits");
        let value = if low < short_values {
            bit += short_bits as usize;
            low
        } else {
            let whole = i32::try_from(peek(bit, short_bits + 1)).expect("few bits");
            bit += short_bits as usize + 1;
            if whole < half { whole } else { whole - short_values }
        };
        let count = value - 1;
        counts.push(count);
        left -= count.abs();
        if left == 1 {
            break;
        }
        if count == 0 {
            loop {
                let zeros = peek(bit, 2);
                bit += 2;
                counts.resize(counts.len() + size(zeros), 0);
                if zeros != 3 || counts.len() > limits.max_symbol as usize {
                    break;
                }
            }
        }
        if counts.len() > limits.max_symbol as usize {
            return Err(Malformed);
        }
    }
    let end = bit.div_ceil(8);
    if end > bytes.len() { Err(Malformed) } else { Ok((counts, log, end)) }
}

/// Builds a table from counts (section 4.1.1).
fn fse_table(counts: &[i32], log: u32) -> Vec<FseCell> {
    let len = 1usize << log;
    let mut symbols = vec![None; len];
    let (mut top, mut position) = (len, 0);
    for (symbol, _) in counts.iter().enumerate().filter(|(_, count)| **count == -1) {
        top -= 1;
        symbols[top] = Some(symbol);
    }
    for (symbol, count) in counts.iter().enumerate() {
        for _ in 0..*count {
            symbols[position] = Some(symbol);
            loop {
                position = (position + len / 2 + len / 8 + 3) % len;
                if position < top {
                    break;
                }
            }
        }
    }
    let mut next: Vec<usize> = counts.iter().map(|count| count.unsigned_abs() as usize).collect();
    let cell = |symbol: Option<usize>| {
        let symbol = symbol.expect("the counts add up to the table's length");
        let number = next[symbol];
        next[symbol] += 1;
        let bits = log - number.ilog2();
        FseCell { symbol: u32::try_from(symbol).expect("few symbols"), base: (number << bits) - len, bits }
    };
    symbols.into_iter().map(cell).collect()
}

fn sequences_section(block: &[u8], modes_at: usize, count: usize, literals: &[u8]) -> Result<Vec<u8>, RestoreError> {
    let modes = *block.get(modes_at).ok_or(Malformed)?;
    let mut at = modes_at + 1;
    if modes & 3 != 0 {
        return Err(Malformed);
    }
    let (mut tables, mut entries) = (Vec::new(), 0);
    for (kind, shift) in CODE_KINDS.iter().zip([6, 4, 2]) {
        let (table, log) = sequence_table(block, modes >> shift & 3, &mut at, kind)?;
        entries += table.len();
        if entries > MAX_TABLE_ENTRIES as usize {
            return Err(Unsupported);
        }
        tables.push((table, log));
    }
    let mut bits = BitsBackward::new(block.get(at..).unwrap_or(&[]))?;
    let mut states = [0; 3];
    for (state, (_, log)) in states.iter_mut().zip(&tables) {
        *state = bits.take(*log).ok_or(Malformed)?;
    }
    let mut output = PageOutput { page: Vec::new(), literals, history: [1, 4, 8] };
    for left in (0..count).rev() {
        let cells: [FseCell; 3] = std::array::from_fn(|i| tables[i].0[states[i]]);
        let mut value = |i: usize| {
            let (base, extra) = CODE_KINDS[i].codes[cells[i].symbol as usize];
            Some(base as usize + bits.take(extra)?)
        };
        let (offset, matched) = (value(1).ok_or(Malformed)?, value(2).ok_or(Malformed)?);
        let literal_len = value(0).ok_or(Malformed)?;
        output.run(literal_len, offset, matched)?;
        if left > 0 {
            // States change in another order than values are read.
            for i in [0, 2, 1] {
                states[i] = cells[i].base + bits.take(cells[i].bits).ok_or(Malformed)?;
            }
        }
    }
    if bits.left > 0 {
        return Err(Malformed);
    }
    output.page.extend_from_slice(output.literals);
    Ok(output.page)
}

fn sequence_table(
    block: &[u8],
    mode: u8,
    at: &mut usize,
    kind: &CodeKind,
) -> Result<(Vec<FseCell>, u32), RestoreError> {
    match mode {
        0 => {
            let counts: Vec<i32> = kind.predefined.iter().map(|count| i32::from(*count)).collect();
            Ok((fse_table(&counts, kind.predefined_log), kind.predefined_log))
        }
        1 => {
            let symbol = u32::from(*block.get(*at).ok_or(Malformed)?);
            *at += 1;
            let cell = FseCell { symbol, base: 0, bits: 0 };
            if symbol > kind.limits.max_symbol { Err(Malformed) } else { Ok((vec![cell], 0)) }
        }
        2 => {
            let (counts, log, end) = fse_counts(block, *at, kind.limits)?;
            *at = end;
            Ok((fse_table(&counts, log), log))
        }
        _ => Err(Unsupported), // the table of a block before
    }
}

/// The page so far, the literals not used yet, and the last three offsets.
struct PageOutput<'a> {
    page: Vec<u8>,
    literals: &'a [u8],
    history: [usize; 3],
}

impl PageOutput<'_> {
    /// Runs a sequence. `offset` is the value as written: 1 to 3 are repeated offsets.
    fn run(&mut self, literal_len: usize, offset: usize, match_len: usize) -> Result<(), RestoreError> {
        if literal_len > self.literals.len() {
            return Err(Malformed);
        }
        let (now, later) = self.literals.split_at(literal_len);
        self.page.extend_from_slice(now);
        self.literals = later;
        let [first, second, third] = self.history;
        let repeated = if offset > 3 { None } else { Some(offset - 1 + usize::from(literal_len == 0)) };
        self.history = match repeated {
            Some(0) => [first, second, third],
            Some(1) => [second, first, third],
            Some(2) => [third, first, second],
            Some(_) => [first - 1, first, second],
            None => [offset - 3, first, second],
        };
        let distance = self.history[0];
        let room = PAGE_SIZE.saturating_sub(self.page.len() + later.len());
        if distance == 0 || distance > self.page.len() || match_len > room {
            return Err(Malformed);
        }
        for _ in 0..match_len {
            self.page.push(self.page[self.page.len() - distance]);
        }
        Ok(())
    }
}

/// XXH64 with seed 0 of a whole number of 32-byte stripes.
fn xxh64(bytes: &[u8]) -> u64 {
    const PRIME_1: u64 = 0x9e37_79b1_85eb_ca87;
    const PRIME_2: u64 = 0xc2b2_ae3d_27d4_eb4f;
    const PRIME_3: u64 = 0x1656_67b1_9e37_79f9;
    const PRIME_4: u64 = 0x85eb_ca77_c2b2_ae63;
    let mix = |sum: u64, word: u64| sum.wrapping_add(word.wrapping_mul(PRIME_2)).rotate_left(31).wrapping_mul(PRIME_1);
    let mut sums = [PRIME_1.wrapping_add(PRIME_2), PRIME_2, 0, PRIME_1.wrapping_neg()];
    for stripe in bytes.as_chunks::<32>().0 {
        for (sum, word) in sums.iter_mut().zip(stripe.as_chunks().0) {
            *sum = mix(*sum, u64::from_le_bytes(*word));
        }
    }
    let rotated = sums.iter().zip([1, 7, 12, 18]).map(|(sum, by)| sum.rotate_left(by));
    let mut hash = rotated.fold(0, u64::wrapping_add);
    for sum in sums {
        hash = (hash ^ mix(0, sum)).wrapping_mul(PRIME_1).wrapping_add(PRIME_4);
    }
    hash = hash.wrapping_add(bytes.len() as u64);
    hash = (hash ^ hash >> 33).wrapping_mul(PRIME_2);
    hash = (hash ^ hash >> 29).wrapping_mul(PRIME_3);
    hash ^ hash >> 32
}
