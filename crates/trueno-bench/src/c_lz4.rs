//! C lz4's fast encoder and its decoder. trueno-bench measures them, and the tests of all crates check against them.
#![allow(unsafe_code, reason = "a C library")]

use std::ffi::{c_char, c_int, c_void};

use trueno_page::{PAGE_SIZE, Page};

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
