//! Other LZ4 libraries: C lz4 and lz4_flex.

use std::ffi::c_int;

use crate::{PAGE_SIZE, Page};

pub use crate::c_lz4::{BLOCK_BOUND, CLz4, c_lz4_decompress};

/// Compresses a page to a block with C lz4.
#[must_use]
pub fn c_lz4_compress(page: &Page) -> Vec<u8> {
    let mut out = [0; BLOCK_BOUND];
    let len = CLz4::new().compress(page, &mut out);
    out[..len].to_vec()
}

/// Compresses a page to a block with C lz4's slow encoder, at level 3 to 12.
///
/// # Panics
/// If the library fails.
#[must_use]
pub fn c_lz4_hc_compress(page: &Page, level: i32) -> Vec<u8> {
    let mut out = vec![0u8; BLOCK_BOUND];
    let [page_len, bound] = [page.len(), out.len()].map(|len| c_int::try_from(len).expect("a few thousand bytes"));
    // SAFETY: source and destination have the lengths given, and do not overlap.
    let len =
        unsafe { lz4_sys::LZ4_compress_HC(page.as_ptr().cast(), out.as_mut_ptr().cast(), page_len, bound, level) };
    out.truncate(usize::try_from(len).expect("the destination is large enough for any page"));
    out
}

/// Compresses a page to a block with lz4_flex.
#[must_use]
pub fn flex_compress(page: &Page) -> Vec<u8> {
    lz4_flex::block::compress(page)
}

/// Decodes with lz4_flex. Returns the number of bytes written, or `None` if it refuses the block.
#[must_use]
pub fn flex_decompress(block: &[u8], page: &mut Page) -> Option<usize> {
    lz4_flex::block::decompress_into(block, page).ok()
}

/// Blocks of a page from every other encoder, with the encoder's name.
#[must_use]
pub fn foreign_blocks(page: &Page) -> [(&'static str, Vec<u8>); 4] {
    [
        ("C lz4", c_lz4_compress(page)),
        ("C lz4 HC 4", c_lz4_hc_compress(page, 4)),
        ("C lz4 HC 12", c_lz4_hc_compress(page, 12)),
        ("lz4_flex", flex_compress(page)),
    ]
}

/// Checks that every other decoder restores `page` from `block`.
///
/// # Panics
/// If one does not.
pub fn assert_decodes(block: &[u8], page: &Page) {
    let mut decoded = [0xa5; PAGE_SIZE];
    assert_eq!(c_lz4_decompress(block, &mut decoded), Some(PAGE_SIZE), "C lz4 decodes a whole page");
    assert!(decoded == *page, "C lz4 decodes the page that was compressed");
    let mut decoded = [0x5a; PAGE_SIZE];
    assert_eq!(flex_decompress(block, &mut decoded), Some(PAGE_SIZE), "lz4_flex decodes a whole page");
    assert!(decoded == *page, "lz4_flex decodes the page that was compressed");
}
