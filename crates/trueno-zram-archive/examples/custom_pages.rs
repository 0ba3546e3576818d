//! A page source of its own: pages that are computed when they are read. `cargo run -p trueno-zram-archive --example custom_pages`
//!
//! Everything that reads [`Pages`] takes it, such as `PagesCursor` here and `LazyRestore` of the crate `trueno-zram-restore`.

use std::io;
use std::sync::Arc;

use trueno_zram_archive::{Archive, Error, Pages, PagesCursor, Result, WriteOptions, compress};

const PAGE_SIZE: usize = 4096;

/// Pages that repeat their own number. The first one is zero.
struct Numbers {
    page_count: u64,
}

impl Pages for Numbers {
    fn len_bytes(&self) -> u64 {
        self.page_count * PAGE_SIZE as u64
    }

    fn read(&self, first: u64, out: &mut [[u8; PAGE_SIZE]]) -> Result<()> {
        let end = first + out.len() as u64;
        if end > self.page_count {
            return Err(Error::PageRange { start: first, end, pages: self.page_count });
        }
        for (number, page) in (first..).zip(out) {
            page.as_chunks_mut().0.fill(number.to_le_bytes());
        }
        Ok(())
    }

    fn is_zero(&self, page: u64) -> Result<bool> {
        Ok(page == 0)
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let source = Arc::new(Numbers { page_count: 1000 });
    let mut bytes = Vec::new();
    let summary = compress(PagesCursor::new(source), &mut bytes, &WriteOptions::default())?;
    println!("1000 pages in {} bytes", summary.archive_len);

    let archive = Archive::read_from(Arc::new(bytes))?.ok_or_else(|| io::Error::other("no index"))?;
    assert_eq!(archive.read_page(777)?[..8], 777u64.to_le_bytes());
    Ok(())
}
