//! Pages as Zstandard frames: other decoders read ours, we read frames of every level, and damaged or arbitrary frames get
//! libzstd's verdict. A refused frame leaves nothing of an earlier page behind.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trueno_zram_core::{Algorithm, PAGE_SIZE, Page, PageCodec, PageData, PageKind};
use trueno_zram_fuzz::{damage, page_from};

/// The highest level. From 12 on, libzstd reads tables of function pointers in which the address sanitizer of one compiler sees
/// the stack of the other: its C code and this program are built by two.
const MAX_LEVEL: i32 = 9;
/// The byte that fills buffers before a frame is decoded into them.
const UNTOUCHED: u8 = 0xa5;

fuzz_target!(|data: &[u8]| {
    let (first, second) = data.split_at(data.len() / 2);
    let page = page_from(first);
    let level = i32::from(data.first().copied().unwrap_or(0)) % MAX_LEVEL + 1;
    let mut codec = PageCodec::new(Algorithm::Zstd { level }).expect("a valid level");

    let mut out = [0; PAGE_SIZE];
    let compressed = codec.compress(&page, &mut out).expect("compression does not fail");
    if compressed.kind() == PageKind::Zstd {
        let frame = compressed.bytes().to_vec();
        assert!(libzstd(&frame).as_deref() == Some(page.as_slice()));
        judge(&mut codec, &frame);
        judge(&mut codec, &damage(&frame, second));
    }
    let theirs = zstd::bulk::compress(&page, level).expect("libzstd compresses a page");
    judge(&mut codec, &theirs);
    judge(&mut codec, &damage(&theirs, second));
    judge(&mut codec, data);
});

/// Compares the verdict of the codec with that of libzstd: exactly one page, or an error.
fn judge(codec: &mut PageCodec, frame: &[u8]) {
    // Longer than a page is no compressed page.
    let Ok(compressed) = PageData::new(PageKind::Zstd, frame) else { return };
    let mut page: Page = [UNTOUCHED; PAGE_SIZE];
    let expected = libzstd(frame).filter(|content| content.len() == PAGE_SIZE);
    match (codec.decompress(compressed, &mut page), expected) {
        (Ok(()), Some(expected)) => assert!(page[..] == expected[..]),
        (Ok(()), None) => panic!("libzstd does not restore a page from this frame"),
        (Err(error), Some(_)) => panic!("libzstd restores a page from this frame: {error}"),
        (Err(_), None) => assert!(page.iter().all(|&byte| byte == 0 || byte == UNTOUCHED)),
    }
}

/// The content of a frame by libzstd with a context of its own, if that is at most a page.
fn libzstd(frame: &[u8]) -> Option<Vec<u8>> {
    zstd::bulk::decompress(frame, PAGE_SIZE).ok()
}
