//! Archives put together by `docs/FORMAT.md` without the crate: shapes that it allows and that the crate does not write.

use trueno_zram_core::PAGE_SIZE;
use xxhash_rust::xxh32::xxh32;

const ZEROS: u16 = 1 << 13;
const WORD: u16 = 2 << 13;
const PACKED: u16 = 3 << 13;

/// A block or a frame, with the entries of its pages.
struct Piece {
    bytes: Vec<u8>,
    entries: Vec<u16>,
    /// The place of the counter in the footer: zero, word, packed.
    form: usize,
}

/// Returns an archive of one group and of whole pages, without checksums of blocks and content.
///
/// - `lz4-short-runs`, `zst-short-runs`: zero pages in runs of one, two and three.
/// - `lz4-zero-words`, `zst-zero-words`: zero pages in the form of words.
/// - `zst-rle`: pages of one byte in RLE blocks.
pub(crate) fn archive(shape: &str, content: &[u8]) -> Vec<u8> {
    let pages = content.as_chunks::<PAGE_SIZE>().0;
    let mut pieces = Vec::new();
    match shape {
        "lz4-short-runs" | "zst-short-runs" => {
            let mut left = pages.len();
            for run in (1..=3).cycle() {
                let run = left.min(run);
                if run == 0 {
                    break;
                }
                left -= run;
                let bytes = if shape.starts_with("lz4") { lz4_zeros(run) } else { zst_zeros(run) };
                let first = ZEROS | u16::try_from(run).unwrap();
                pieces.push(Piece { bytes, entries: [&[first], &vec![0; run - 1][..]].concat(), form: 0 });
            }
        }
        "lz4-zero-words" => pieces.extend(pages.iter().map(|page| word(lz4_word(page)))),
        "zst-zero-words" => pieces.extend(pages.iter().map(|page| word(zst_word(page)))),
        "zst-rle" => pieces.extend(pages.iter().map(|page| {
            let bytes = [&ZST_PAGE[..], &[0x03, 0x80, 0x00, page[0]]].concat();
            let entries = vec![PACKED | u16::try_from(bytes.len()).unwrap()];
            Piece { bytes, entries, form: 2 }
        })),
        other => panic!("{other} is not a shape of archives"),
    }
    put_together(shape.starts_with("lz4"), &pieces, content.len())
}

fn word(bytes: Vec<u8>) -> Piece {
    Piece { bytes, entries: vec![WORD], form: 1 }
}

/// Magic number and header of a frame with one page and without a checksum.
const ZST_PAGE: [u8; 7] = [0x28, 0xb5, 0x2f, 0xfd, 0x60, 0x00, 0x0f];

fn lz4_zeros(pages: usize) -> Vec<u8> {
    let length = pages * PAGE_SIZE - 25;
    let mut bytes = vec![0x1f, 0, 1, 0];
    bytes.extend(vec![0xff; length / 255]);
    bytes.push(u8::try_from(length % 255).unwrap());
    bytes.extend([0x50, 0, 0, 0, 0, 0]);
    bytes
}

fn lz4_word(page: &[u8; PAGE_SIZE]) -> Vec<u8> {
    [&[0x8f], &page[..8], &[8, 0], &[0xff; 15], &[0xef, 0x50], &page[3..8]].concat()
}

fn zst_zeros(pages: usize) -> Vec<u8> {
    let length = u32::try_from(pages * PAGE_SIZE).unwrap();
    let block = (length << 3 | 3).to_le_bytes();
    [&[0x28, 0xb5, 0x2f, 0xfd, 0x80, 0x38], &length.to_le_bytes()[..], &block[..3], &[0]].concat()
}

fn zst_word(page: &[u8; PAGE_SIZE]) -> Vec<u8> {
    let end = [0x01, 0x54, 0x08, 0x03, 0x2f, 0xf5, 0x5f];
    [&ZST_PAGE[..], &[0x85, 0, 0, 0x40], &page[..8], &end].concat()
}

fn put_together(is_lz4: bool, pieces: &[Piece], content_len: usize) -> Vec<u8> {
    let short = |number: usize| u32::try_from(number).unwrap().to_le_bytes();
    let mut archive = if is_lz4 { vec![0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82] } else { Vec::new() };
    let first_offset = archive.len() as u64;
    let (mut entries, mut counts, mut seek) = (Vec::new(), [0u64; 4], Vec::new());
    for piece in pieces {
        if is_lz4 {
            archive.extend(short(piece.bytes.len()));
        }
        archive.extend(&piece.bytes);
        entries.extend(piece.entries.iter().flat_map(|entry| entry.to_le_bytes()));
        counts[piece.form] += piece.entries.len() as u64;
        seek.extend([short(piece.bytes.len()), short(piece.entries.len() * PAGE_SIZE)]);
    }
    if is_lz4 {
        archive.extend([0; 4]);
    }
    let table = [&first_offset.to_le_bytes()[..], &xxh32(&entries, 0).to_le_bytes()].concat();
    let mut footer = Vec::new();
    for long in [&[content_len as u64, archive.len() as u64][..], &counts].concat() {
        footer.extend(long.to_le_bytes());
    }
    footer.extend([short(entries.len()), [0; 4]].concat());
    footer.extend([xxh32(&table, 0).to_le_bytes(), xxh32(&[], 0).to_le_bytes()].concat());
    footer.extend(short(if is_lz4 { 1 } else { 2 }));
    footer.extend(xxh32(&footer, 0).to_le_bytes());
    footer.extend(b"TZ-PAGES");
    let index = [b"TZ-INDEX", &entries[..], &table, &footer].concat();
    archive.extend([0x5d, 0x2a, 0x4d, 0x18]);
    archive.extend(short(index.len()));
    archive.extend(&index);
    if !is_lz4 {
        seek.extend([short(index.len() + 8), [0; 4]]);
        let seek = seek.concat();
        archive.extend([0x5e, 0x2a, 0x4d, 0x18]);
        archive.extend(short(seek.len() + 9));
        archive.extend(&seek);
        archive.extend(short(seek.len() / 8));
        archive.extend([0, 0xb1, 0xea, 0x92, 0x8f]);
    }
    archive
}
