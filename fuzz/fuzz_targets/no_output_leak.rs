//! Earlier content of the buffers and the codec never shows in the output.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trueno_zram_archive::{ContentBatch, ContentSpan, FrameReader};
use trueno_zram_core::cpu::InstructionSet;
use trueno_zram_core::lz4::Codec;
use trueno_zram_core::{Algorithm, PAGE_SIZE, PageCodec, PageData, PageKind};
use trueno_zram_fuzz::{damage, frame_of_blocks, page_from, use_one_thread};

fuzz_target!(init: use_one_thread(), |data: &[u8]| {
    let Some((choice, data)) = data.split_first() else { return };
    let (first, second) = data.split_at(data.len() / 2);
    match choice % 4 {
        0 | 1 => judge_lz4(first, second),
        2 => judge_zstd(first, second),
        _ => judge_streams(*choice, first, second),
    }
});

/// Frames of one page: damaged ones of libzstd, and arbitrary bytes.
fn judge_zstd(first: &[u8], second: &[u8]) {
    let new = || PageCodec::new(Algorithm::Zstd { level: 1 }).expect("a level of Zstandard");
    let (mut fresh, mut used) = (new(), new());
    let (mut out, mut scratch) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
    let page = page_from(first);
    let other = used.compress(&page, &mut out).expect("there is memory");
    used.decompress(other, &mut scratch).expect("what was compressed here decodes");
    let mut whole = [0; PAGE_SIZE];
    let whole = fresh.compress(&page_from(second), &mut whole).expect("there is memory").bytes().to_vec();
    for frame in [&whole[..], &damage(&whole, first), second] {
        let Ok(frame) = PageData::new(PageKind::Zstd, frame) else { continue };
        let (mut page_a, mut page_b) = ([0x00; PAGE_SIZE], [0xff; PAGE_SIZE]);
        assert_eq!(fresh.decompress(frame, &mut page_a), used.decompress(frame, &mut page_b));
        // After an error, too: both are cleared.
        assert!(page_a == page_b);
    }
}

/// Frames of arbitrary blocks, linked or not, read into new memory and into memory that another stream has used.
fn judge_streams(mode: u8, first: &[u8], second: &[u8]) {
    let (frame, mut used) = (frame_of_blocks(mode, second), ContentBatch::new());
    let _ = read(&frame_of_blocks(mode, first), &mut used);
    assert!(read(&frame, &mut used) == read(&frame, &mut ContentBatch::new()));
}

/// The content, up to an error if there is one.
fn read(bytes: &[u8], batch: &mut ContentBatch) -> (Vec<u8>, bool) {
    let (mut reader, mut content) = (FrameReader::new(bytes).with_batch_bytes(64 << 10), Vec::new());
    loop {
        match reader.read_batch(batch) {
            Ok(true) => {}
            Ok(false) => return (content, true),
            Err(_) => return (content, false),
        }
        for span in batch.spans() {
            match span {
                ContentSpan::Data(bytes) => content.extend_from_slice(bytes),
                ContentSpan::Zeros(len) => content.resize(content.len() + usize::try_from(len).expect("small"), 0),
            }
        }
    }
}

fn judge_lz4(first: &[u8], second: &[u8]) {
    let page = page_from(second);
    for backend in InstructionSet::available() {
        let mut fresh = Codec::new(backend).expect("available");
        let mut used = Codec::new(backend).expect("available");
        let mut scratch = [0; PAGE_SIZE];
        let _ = used.encode(&page_from(first), &mut scratch);
        let _ = used.decode(first, &mut scratch);

        let (mut out_a, mut out_b) = ([0x00; PAGE_SIZE], [0xff; PAGE_SIZE]);
        let (len_a, len_b) = (fresh.encode(&page, &mut out_a), used.encode(&page, &mut out_b));
        assert_eq!(len_a, len_b);
        if let Some(len) = len_a {
            assert!(out_a[..len] == out_b[..len]);
            let (mut page_a, mut page_b) = ([0x00; PAGE_SIZE], [0xff; PAGE_SIZE]);
            assert_eq!(fresh.decode(&out_a[..len], &mut page_a), Ok(()));
            assert_eq!(used.decode(&out_a[..len], &mut page_b), Ok(()));
            assert!(page_a == page && page_b == page);
        }

        let (mut page_a, mut page_b) = ([0x00; PAGE_SIZE], [0xff; PAGE_SIZE]);
        let (a, b) = (fresh.decode(second, &mut page_a), used.decode(second, &mut page_b));
        assert_eq!(a, b);
        assert!(a.is_err() || page_a == page_b);
    }
}
