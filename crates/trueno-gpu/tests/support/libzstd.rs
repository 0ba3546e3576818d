//! libzstd as the judge of Zstandard frames.

use trueno_test_pages::{PAGE_SIZE, Page};

pub(crate) fn is_same_filled(page: &Page) -> bool {
    page.chunks(8).all(|word| *word == page[..8])
}

/// Asserts that libzstd restores exactly this page from the frame.
pub(crate) fn assert_decodes(frame: &[u8], page: &Page, name: &str) {
    match zstd::bulk::decompress(frame, PAGE_SIZE) {
        Ok(restored) => assert!(restored == page, "{name}: libzstd restores another page"),
        Err(error) => panic!("{name}: libzstd refuses the frame: {error}"),
    }
}

/// Returns the bytes that pages take when libzstd compresses them one by one; those that do not shrink are stored raw.
pub(crate) fn libzstd_bytes<'p>(pages: impl Iterator<Item = &'p Page>, level: i32) -> usize {
    let mut compressor = zstd::bulk::Compressor::new(level).expect("a level of libzstd");
    pages.map(|page| compressor.compress(page).expect("memory for a page").len().min(PAGE_SIZE)).sum()
}
