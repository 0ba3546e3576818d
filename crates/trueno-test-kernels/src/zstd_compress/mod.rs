//! The slow twin of the compression kernel: the same frames, made in plain code, one page at a time.
//!
//! The kernel's tests compare its bytes with these. The algorithm is described here and in the files below; the
//! kernel's own files explain how a warp does the same.

mod bits;
#[path = "../../../trueno-gpu/src/kernels/zstd/encode/choices.rs"]
mod choices;
#[path = "../../../trueno-gpu/src/kernels/zstd/encode/format.rs"]
mod format;
mod fse;
mod huffman;
mod parse;
mod sequences;

use crate::PAGE_BYTES;
use choices::{FRAME_LIMIT, MIN_CODED_LITERALS};
use format::{
    CONTENT_SIZE_BASE, FRAME_DESCRIPTOR, HEADERS_BYTES, LAST_COMPRESSED_BLOCK, LITERALS_COMPRESSED, LITERALS_RAW,
    LITERALS_RLE, MAGIC,
};
use huffman::LiteralsPlan;
use parse::Sequence;
use trueno_gpu::kernels::zstd::Mode;
use trueno_page::Page;

/// Compresses a page to a Zstandard frame; `None` if it does not shrink.
///
/// ```
/// use trueno_gpu::kernels::zstd::Mode;
/// use trueno_test_kernels::zstd_compress;
/// let text: trueno_page::Page = std::array::from_fn(|i| b"to be or not to be; "[i % 20]);
/// let frame = zstd_compress::compress(&text, Mode::Fast).expect("text shrinks");
/// assert_eq!(frame[..4], [0x28, 0xb5, 0x2f, 0xfd]);
/// ```
#[must_use]
pub fn compress(page: &Page, mode: Mode) -> Option<Vec<u8>> {
    let sequences = parse::parse(page, mode);
    let literals = gather_literals(page, &sequences);
    let mut frame = vec![0; HEADERS_BYTES as usize];
    write_literals(&mut frame, &literals)?;
    sequences::write(&mut frame, &sequences)?;
    write_headers(&mut frame);
    Some(frame)
}

/// Returns the number of sequences and of literals that a page is parsed to.
///
/// ```
/// use trueno_gpu::kernels::zstd::Mode;
/// use trueno_test_kernels::zstd_compress;
/// let page = std::array::from_fn(|i| b"pattern!"[i % 8]);
/// assert_eq!(zstd_compress::parsed(&page, Mode::Fast), (1, 8));
/// ```
#[must_use]
pub fn parsed(page: &Page, mode: Mode) -> (usize, usize) {
    let sequences = parse::parse(page, mode);
    (sequences.len(), gather_literals(page, &sequences).len())
}

/// Returns `None` if a part of the frame must not end here.
fn fits(end: usize) -> Option<()> {
    (end <= FRAME_LIMIT as usize).then_some(())
}

fn gather_literals(page: &Page, sequences: &[Sequence]) -> Vec<u8> {
    let (mut literals, mut at) = (Vec::new(), 0);
    for sequence in sequences {
        literals.extend_from_slice(&page[at..at + sequence.literals]);
        at += sequence.literals + sequence.length;
    }
    literals.extend_from_slice(&page[at..]);
    literals
}

/// Appends the literals section: coded, one repeated byte, or raw.
fn write_literals(frame: &mut Vec<u8>, literals: &[u8]) -> Option<()> {
    let count = literals.len();
    let plan = if count < MIN_CODED_LITERALS as usize { LiteralsPlan::Raw } else { huffman::plan(literals) };
    match plan {
        LiteralsPlan::Coded(code) if code.section_bytes_at_most(count) < count => {
            fits(frame.len() + code.section_bytes_at_most(count))?;
            let streams = code.streams(literals);
            let compressed_bytes = code.description.len() + streams.len();
            let (size_format, size_bits, header_bytes) = if count < 1024 { (1, 10, 3) } else { (2, 14, 4) };
            let header =
                LITERALS_COMPRESSED as usize | size_format << 2 | count << 4 | compressed_bytes << (4 + size_bits);
            frame.extend_from_slice(&header.to_le_bytes()[..header_bytes]);
            frame.extend_from_slice(&code.description);
            frame.extend_from_slice(&streams);
        }
        LiteralsPlan::Repeated(byte) => {
            write_plain_header(frame, LITERALS_RLE, count);
            frame.push(byte);
        }
        LiteralsPlan::Raw | LiteralsPlan::Coded(_) => {
            fits(frame.len() + plain_header_bytes(count) + count)?;
            write_plain_header(frame, LITERALS_RAW, count);
            frame.extend_from_slice(literals);
        }
    }
    Some(())
}

/// Bytes of the header of raw or repeated literals.
fn plain_header_bytes(count: usize) -> usize {
    match count {
        0..32 => 1,
        32..4096 => 2,
        _ => 3,
    }
}

fn write_plain_header(frame: &mut Vec<u8>, block_type: u32, count: usize) {
    let header_bytes = plain_header_bytes(count);
    let header = match header_bytes {
        1 => count << 3,
        2 => 1 << 2 | count << 4,
        _ => 3 << 2 | count << 4,
    };
    frame.extend_from_slice(&(block_type as usize | header).to_le_bytes()[..header_bytes]);
}

fn write_headers(frame: &mut [u8]) {
    let block_bytes = frame.len() - HEADERS_BYTES as usize;
    frame[..4].copy_from_slice(&MAGIC.to_le_bytes());
    frame[4] = FRAME_DESCRIPTOR.to_le_bytes()[0];
    frame[5..7].copy_from_slice(&(PAGE_BYTES - CONTENT_SIZE_BASE).to_le_bytes()[..2]);
    frame[7..10].copy_from_slice(&(LAST_COMPRESSED_BLOCK as usize | block_bytes << 3).to_le_bytes()[..3]);
}
