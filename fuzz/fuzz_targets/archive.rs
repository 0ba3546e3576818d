//! Arbitrary bytes, frames of arbitrary blocks, and damaged archives as input of the readers: no panic, bounded memory, and
//! what C lz4's frame library takes as well is the same content. Pages by the index are those of the stream.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use trueno_test_pages::frames;
use trueno_zram_archive::{
    Archive, ArchiveWriter, ContentBatch, ContentHash, ContentSpan, Format, FrameReader, IndexVerdict, WriteOptions,
};
use trueno_zram_core::PAGE_SIZE;
use trueno_zram_fuzz::{compress, damage, frame_of_blocks, page_from, use_one_thread};

/// No input of the fuzzer's length holds more: LZ4 makes at most 255 bytes of one.
const MAX_CONTENT: usize = 64 << 20;

fuzz_target!(init: use_one_thread(), |data: &[u8]| {
    let Some((mode, data)) = data.split_first() else { return };
    match mode % 3 {
        0 => judge(data),
        1 => judge(&frame_of_blocks(*mode, data)),
        _ => {
            let (first, second) = data.split_at(data.len() / 2);
            judge(&damage(&archive(*mode, first), second));
        }
    }
});

fn judge(bytes: &[u8]) {
    let stream = read_stream(bytes);
    if let (Some((content, _)), Some(theirs)) = (&stream, frames::decompress_up_to(bytes, MAX_CONTENT)) {
        assert!(*content == theirs, "C lz4 reads something else");
    }
    let by_index = read_by_index(bytes);
    if let (Some((content, IndexVerdict::Agrees)), Some(pages)) = (stream, by_index) {
        assert!(content == pages, "the index leads to something else");
    }
}

fn read_stream(bytes: &[u8]) -> Option<(Vec<u8>, IndexVerdict)> {
    let mut reader = FrameReader::new(bytes).with_batch_bytes(64 << 10);
    let (mut content, mut batch) = (Vec::new(), ContentBatch::new());
    while reader.read_batch(&mut batch).ok()? {
        append(&mut content, &batch);
    }
    assert_eq!(reader.summary().input_len, bytes.len() as u64, "the end is the end");
    Some((content, reader.summary().index.clone()))
}

/// All pages; `None` if there is no index, or any error.
fn read_by_index(bytes: &[u8]) -> Option<Vec<u8>> {
    let archive = Archive::read_from(Arc::new(bytes.to_vec())).ok()??;
    let names: Vec<String> =
        archive.sections().into_iter().flatten().map_while(|section| Some(section.ok()?.name)).collect();
    for name in names {
        let _ = archive.section(&name, 1 << 20);
    }
    let (page_count, content_len) = (archive.info().page_count, archive.info().content_len);
    let mut content = Vec::new();
    for first in (0..page_count).step_by(1024) {
        let mut pages =
            vec![[0xff; PAGE_SIZE]; usize::try_from(page_count - first).map_or(1024, |left| left.min(1024))];
        archive.read_pages(first, &mut pages).ok()?;
        content.extend_from_slice(pages.as_flattened());
    }
    let behind = content.split_off(usize::try_from(content_len).expect("all of it was read"));
    assert!(behind.iter().all(|byte| *byte == 0), "the last page is filled up with zeros");
    Some(content)
}

fn append(content: &mut Vec<u8>, batch: &ContentBatch) {
    for span in batch.spans() {
        match span {
            ContentSpan::Data(bytes) => content.extend_from_slice(bytes),
            ContentSpan::Zeros(len) => content.resize(content.len() + usize::try_from(len).expect("small"), 0),
        }
    }
    assert!(content.len() <= MAX_CONTENT, "more content than LZ4 can hold in so few bytes");
}

/// An archive of a few pages and a tail.
fn archive(mode: u8, data: &[u8]) -> Vec<u8> {
    let options = WriteOptions::default()
        .with_format(Format::Lz4)
        .with_block_checksums(mode & 4 != 0)
        .with_content_checksum(mode & 8 != 0);
    let (pages, tail) =
        ([page_from(data), [0; 4096], page_from(&data[data.len() / 2..])], &data[..data.len().min(100)]);
    let write = || {
        let mut archive = ArchiveWriter::new(Vec::new(), options)?;
        let mut content = ContentHash::new();
        content.update(pages.as_flattened());
        content.update_zeros(40 * 4096);
        content.update(tail);
        archive.write_batch(&compress(Format::Lz4, &pages))?;
        archive.write_zero_pages(40)?;
        archive.write_tail(tail)?;
        archive.add_section("fuzz", &data[..data.len().min(20)])?;
        archive.finish(Some(content))
    };
    write().expect("a vector takes it all").0
}
