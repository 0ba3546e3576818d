//! Other LZ4 libraries: C lz4 and lz4_flex.

use std::ffi::{c_char, c_int, c_void};

use crate::{PAGE_SIZE, Page};

unsafe extern "C" {
    // In the static library that lz4-sys builds, but not among its bindings.
    fn LZ4_sizeofState() -> c_int;
    fn LZ4_initStream(buffer: *mut c_void, size: usize) -> *mut c_void;
    fn LZ4_compress_fast_extState_fastReset(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_size: c_int,
        dst_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
}

/// The size of the largest block that any encoder makes of a page. lz4_flex asks for a tenth more than the page.
pub const BLOCK_BOUND: usize = PAGE_SIZE + 512;

const PAGE_LEN: c_int = 4096;
const BLOCK_BOUND_LEN: c_int = 4608;
const _: () = assert!(PAGE_SIZE == 4096 && BLOCK_BOUND == 4608);

fn len_of(slice: &[u8]) -> c_int {
    c_int::try_from(slice.len()).expect("blocks of pages are short")
}

/// C lz4's fast encoder with a reused state, as its authors advise for many small blocks.
#[derive(Debug)]
pub struct CLz4 {
    /// Words of 8 bytes: the state must be aligned.
    state: Vec<u64>,
}

impl CLz4 {
    /// Sets up the state.
    ///
    /// # Panics
    /// If the library refuses it.
    #[must_use]
    pub fn new() -> Self {
        // SAFETY: the function takes no arguments and touches no memory.
        let size = unsafe { LZ4_sizeofState() };
        let size = usize::try_from(size).expect("a size is not negative");
        let mut state = vec![0u64; size.div_ceil(8)];
        // SAFETY: the buffer is aligned to 8 and has at least the `size` bytes it is said to have.
        let stream = unsafe { LZ4_initStream(state.as_mut_ptr().cast(), size) };
        assert!(!stream.is_null(), "the state is large and aligned enough");
        Self { state }
    }

    /// Compresses a page at acceleration 1. Returns the length of the block.
    ///
    /// # Panics
    /// If the library fails.
    #[inline]
    pub fn compress(&mut self, page: &Page, out: &mut [u8; BLOCK_BOUND]) -> usize {
        // SAFETY: the state was set up in `new`; source and destination have the lengths given, and do not overlap.
        let len = unsafe {
            LZ4_compress_fast_extState_fastReset(
                self.state.as_mut_ptr().cast(),
                page.as_ptr().cast(),
                out.as_mut_ptr().cast(),
                PAGE_LEN,
                BLOCK_BOUND_LEN,
                1,
            )
        };
        usize::try_from(len).expect("the destination is large enough for any page")
    }
}

impl Default for CLz4 {
    fn default() -> Self {
        Self::new()
    }
}

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
    // SAFETY: source and destination have the lengths given, and do not overlap.
    let len = unsafe {
        lz4_sys::LZ4_compress_HC(page.as_ptr().cast(), out.as_mut_ptr().cast(), PAGE_LEN, BLOCK_BOUND_LEN, level)
    };
    out.truncate(usize::try_from(len).expect("the destination is large enough for any page"));
    out
}

/// Decodes with `LZ4_decompress_safe`. Returns the number of bytes written, or `None` if it refuses the block.
#[inline]
#[must_use]
pub fn c_lz4_decompress(block: &[u8], page: &mut Page) -> Option<usize> {
    // SAFETY: source and destination have the lengths given, and do not overlap.
    let len = unsafe {
        lz4_sys::LZ4_decompress_safe(block.as_ptr().cast(), page.as_mut_ptr().cast(), len_of(block), PAGE_LEN)
    };
    usize::try_from(len).ok()
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
