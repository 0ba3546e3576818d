//! Arbitrary Zstandard frames and damaged archives of that format as input of the readers: no panic, and the verdict and the
//! content are libzstd's. Pages by an index that agrees are those of the stream.
#![no_main]

use std::io::Read;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use trueno_zram_archive::{
    Archive, ArchiveWriter, ContentBatch, ContentSpan, Format, FrameReader, IndexVerdict, SalvageReader, WriteOptions,
};
use trueno_zram_core::PAGE_SIZE;
use trueno_zram_fuzz::{compress, damage, page_from, use_one_thread};

/// Content that is compared. A few bytes can stand for much more.
const MAX_CONTENT: usize = 16 << 20;

fuzz_target!(init: use_one_thread(), |data: &[u8]| {
    let Some((mode, data)) = data.split_first() else { return };
    match mode % 3 {
        0 => judge(&[&[0x28, 0xb5, 0x2f, 0xfd], data].concat()),
        1 => {
            // Frames of libzstd around the fuzzer's content, one of them damaged.
            let (first, second) = data.split_at(data.len() / 2);
            let frame = zstd::bulk::compress(first, 1).expect("there is memory");
            let whole = zstd::bulk::compress(&page_from(first), 3).expect("there is memory");
            judge(&[&frame[..], &whole, &damage(&whole, second), &frame].concat());
        }
        _ => {
            let (first, second) = data.split_at(data.len() / 2);
            judge(&damage(&archive(*mode, first), second));
        }
    }
});

fn judge(bytes: &[u8]) {
    let Some(ours) = read_stream(bytes) else { return };
    let theirs = read_by_libzstd(bytes);
    match (&ours, &theirs) {
        (Some((content, _)), Some(theirs)) => assert!(content == theirs, "libzstd reads something else"),
        (None, None) => {}
        // Both know frames without content; only we say that a file without any frame is not one.
        (None, Some(theirs)) => assert!(theirs.is_empty() && bytes.len() < 8, "libzstd takes what we refuse"),
        // Some blocks that are longer than the window are taken if the output lies in one piece, and refused if it does not.
        (Some((content, _)), None) => {
            let whole = zstd::bulk::decompress(bytes, MAX_CONTENT).ok();
            assert!(whole.as_ref() == Some(content), "libzstd refuses what we take");
        }
    }
    if let Some((content, IndexVerdict::Agrees)) = ours
        && let Some(pages) = read_by_index(bytes)
    {
        assert!(content == pages, "the index leads to something else");
    }
    let Ok(mut reader) = SalvageReader::open(Arc::new(bytes.to_vec())) else { return };
    let (mut batch, mut len_bytes) = (ContentBatch::new(), 0);
    while len_bytes < MAX_CONTENT as u64 && reader.read_batch(&mut batch).unwrap_or(false) {
        len_bytes += batch.len_bytes();
    }
}

/// The content, or nothing after an error; `None` if it is too long to compare.
#[allow(clippy::option_option)]
fn read_stream(bytes: &[u8]) -> Option<Option<(Vec<u8>, IndexVerdict)>> {
    let mut reader = FrameReader::new(bytes).with_batch_bytes(64 << 10);
    let (mut content, mut batch) = (Vec::new(), ContentBatch::new());
    loop {
        match reader.read_batch(&mut batch) {
            Ok(true) => append(&mut content, &batch)?,
            Ok(false) => return Some(Some((content, reader.summary().index.clone()))),
            Err(_) => return Some(None),
        }
    }
}

fn read_by_libzstd(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut content = Vec::new();
    zstd::stream::read::Decoder::new(bytes).ok()?.read_to_end(&mut content).ok()?;
    Some(content)
}

fn read_by_index(bytes: &[u8]) -> Option<Vec<u8>> {
    let archive = Archive::read_from(Arc::new(bytes.to_vec())).ok()??;
    let content_len = usize::try_from(archive.info().content_len).ok().filter(|len| *len <= MAX_CONTENT)?;
    let mut pages = vec![[0xff; PAGE_SIZE]; content_len.div_ceil(PAGE_SIZE)];
    archive.read_pages(0, &mut pages).ok()?;
    let mut content = pages.as_flattened().to_vec();
    content.truncate(content_len);
    Some(content)
}

fn append(content: &mut Vec<u8>, batch: &ContentBatch) -> Option<()> {
    if content.len() as u64 + batch.len_bytes() > MAX_CONTENT as u64 {
        return None;
    }
    for span in batch.spans() {
        match span {
            ContentSpan::Data(bytes) => content.extend_from_slice(bytes),
            ContentSpan::Zeros(len) => content.resize(content.len() + usize::try_from(len).expect("small"), 0),
        }
    }
    Some(())
}

/// An archive of a few pages and a tail.
fn archive(mode: u8, data: &[u8]) -> Vec<u8> {
    let options = WriteOptions::default().with_format(Format::Zstd).with_block_checksums(mode & 4 != 0);
    let (pages, tail) =
        ([page_from(data), [0; 4096], page_from(&data[data.len() / 2..])], &data[..data.len().min(100)]);
    let write = || {
        let mut archive = ArchiveWriter::new(Vec::new(), options)?;
        archive.write_batch_of(&compress(Format::Zstd, &pages), &pages)?;
        archive.write_zero_pages(40)?;
        archive.write_tail(tail)?;
        archive.add_section("fuzz", &data[..data.len().min(20)])?;
        archive.finish(None)
    };
    write().expect("a vector takes it all").0
}
