//! Writes the files of the manifest as the crate writes them today, and by hand those that other writers may write.

use std::fs;
use std::path::Path;

use trueno_zram_archive::{
    ArchiveWriter, BaseRecord, ContentHash, DeltaPart, DeltaWriter, Format, PageHash, PageHashes, WriteOptions,
};
use trueno_zram_core::{Algorithm, CpuBatchCompressor, PAGE_SIZE, Page, PageCodec};

use crate::by_hand;
use crate::manifest::{Golden, folder};
use crate::read;

/// Writes a file as its line of the manifest says:
///
/// - `archive FORMAT OPTION...`: a page archive.
/// - `delta FORMAT of BASE OPTION...`: a delta of version 1. The base is a file of the same folder.
/// - `delta-2 FORMAT of BASE OPTION...`: a delta of version 2, whose base has page hashes.
/// - `dedup FORMAT OPTION...`: a delta of version 2 without a base.
/// - `frame of FILE`: the frame of an archive of the same folder, without its index.
/// - `join FILE FILE`: two archives of the same folder, one behind the other.
/// - `by hand SHAPE`: an archive that the format allows and this writer does not write.
///
/// Options are `block-checksums`, `content-checksum`, `content-size`, `page-hashes`, `level=N`, and `section=NAME`.
pub(crate) fn write(file: &Golden) -> Vec<u8> {
    let words: Vec<&str> = file.made.split_whitespace().collect();
    let sister = |name: &str| folder().join(file.writer()).join(name);
    let content = file.content();
    match words[..] {
        ["archive", format, ref options @ ..] => archive(&content, format, options),
        ["delta", format, "of", base, ref options @ ..] => {
            let (record, hashes) = base_of(&sister(base));
            // Without the digest of its hashes, as if the base had none.
            delta(&content, format, Some((BaseRecord { hashes: None, ..record }, hashes)), options)
        }
        ["delta-2", format, "of", base, ref options @ ..] => {
            let base = base_of(&sister(base));
            assert!(base.0.hashes.is_some(), "{}: its base has no page hashes", file.name);
            delta(&content, format, Some(base), options)
        }
        ["dedup", format, ref options @ ..] => delta(&content, format, None, options),
        ["frame", "of", archive] => read::frame_of(&fs::read(sister(archive)).unwrap()).to_vec(),
        ["join", ref archives @ ..] => archives.iter().flat_map(|name| fs::read(sister(name)).unwrap()).collect(),
        ["by", "hand", shape] => by_hand::archive(shape, &content),
        _ => panic!("{}: unknown way to make a file: {}", file.name, file.made),
    }
}

/// Returns the sections that a file has, without its page hashes: their names and data.
pub(crate) fn sections(file: &Golden) -> Vec<(String, Vec<u8>)> {
    file.made.split_whitespace().filter_map(|word| word.strip_prefix("section=")).map(section).collect()
}

fn archive(content: &[u8], format: &str, options: &[&str]) -> Vec<u8> {
    let (pages, tail) = content.as_chunks::<PAGE_SIZE>();
    let mut archive = ArchiveWriter::new(Vec::new(), write_options(content, format, options)).unwrap();
    let mut compressor = CpuBatchCompressor::new(algorithm(format, options)).unwrap();
    archive.write_batch_of(&compressor.compress(pages).unwrap(), pages).unwrap();
    archive.write_tail(tail).unwrap();
    for (name, data) in named_sections(options) {
        archive.add_section(&name, &data).unwrap();
    }
    let mut hash = ContentHash::new();
    hash.update(content);
    archive.finish(Some(hash)).unwrap().0
}

fn base_of(path: &Path) -> (BaseRecord, PageHashes) {
    let base = read::open(path);
    let hashes = PageHashes::stored(&base).unwrap().unwrap_or_else(|| PageHashes::compute(&base).unwrap());
    // The path in the delta is relative: the base lies beside it.
    (base.record(path.file_name().unwrap().as_encoded_bytes()).unwrap(), hashes)
}

fn delta(content: &[u8], format: &str, base: Option<(BaseRecord, PageHashes)>, options: &[&str]) -> Vec<u8> {
    let (record, hashes) = base.unzip();
    let mut delta = DeltaWriter::new(Vec::new(), record, write_options(content, format, options)).unwrap();
    let (mut codec, mut room) = (PageCodec::new(algorithm(format, options)).unwrap(), [0; PAGE_SIZE]);
    let mut part = DeltaPart::new();
    part.start(delta.block_shape());
    for (number, plain) in (0..).zip(&padded_pages(content)) {
        let hash = PageHash::of(plain);
        if *plain == [0; PAGE_SIZE] {
            part.push_zeros(1);
        } else if let Some(same) = hashes.as_ref().and_then(|hashes| hashes.find(number, &hash)) {
            part.push_base(same, hash);
        } else {
            part.push_page(codec.compress(plain, &mut room).unwrap(), plain, hash).unwrap();
        }
    }
    delta.push(&mut part).unwrap();
    for (name, data) in named_sections(options) {
        delta.add_section(&name, &data).unwrap();
    }
    delta.finish(content.len() as u64).unwrap().0
}

/// Returns the pages of some content, the last one filled up with zeros.
pub(crate) fn padded_pages(content: &[u8]) -> Vec<Page> {
    let mut padded = content.to_vec();
    padded.resize(content.len().next_multiple_of(PAGE_SIZE), 0);
    padded.as_chunks().0.to_vec()
}

fn write_options(content: &[u8], format: &str, options: &[&str]) -> WriteOptions {
    let known = ["block-checksums", "content-checksum", "content-size", "page-hashes"];
    let unknown = options.iter().find(|option| !option.contains('=') && !known.contains(option));
    assert_eq!(unknown, None, "an option of the manifest");
    WriteOptions::default()
        .with_format(if format == "lz4" { Format::Lz4 } else { Format::Zstd })
        .with_content_len(options.contains(&"content-size").then_some(content.len() as u64))
        .with_block_checksums(options.contains(&"block-checksums"))
        .with_content_checksum(options.contains(&"content-checksum"))
        .with_page_hashes(options.contains(&"page-hashes"))
}

fn algorithm(format: &str, options: &[&str]) -> Algorithm {
    let level = options.iter().find_map(|option| option.strip_prefix("level="));
    match format {
        "lz4" => Algorithm::Lz4,
        "zst" => Algorithm::Zstd { level: level.map_or(3, |level| level.parse().unwrap()) },
        other => panic!("{other} is not a format"),
    }
}

fn named_sections(options: &[&str]) -> Vec<(String, Vec<u8>)> {
    options.iter().filter_map(|option| option.strip_prefix("section=")).map(section).collect()
}

/// Returns the name and the data of a section. Nothing here may change.
fn section(name: &str) -> (String, Vec<u8>) {
    let data = match name {
        "address-map" => address_map(),
        "process-state" => process_state(),
        "empty" => Vec::new(),
        // Names that no version knows.
        "note" => b"made for the tests of later versions".to_vec(),
        "größe" => (0..=255).collect(),
        "longest-name" => return ("n".repeat(255), vec![255; 3]),
        other => panic!("{other} is not a section of the tests"),
    };
    (name.to_owned(), data)
}

/// The map of a process with a heap and a file, written out by `docs/FORMAT.md`.
fn address_map() -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    [
        // Version 1, process 4711, 1,800,000,000 seconds since 1970, stopped.
        vec![1, 0xe7, 0x24, 0x80, 0xa4, 0xa7, 0xda, 0x06, 1],
        text("server"),
        vec![2],
        // From page 16 on, readable, writable and anonymous: 3 pages stored, 2 untouched, 1 stored.
        vec![16, 1 | 2 | 8],
        text("[heap]"),
        vec![3, 3 << 2 | 1, 2 << 2, 1 << 2 | 1],
        // 10 pages behind it, readable and executable: 1 page stored, 1 unreadable.
        vec![10, 1 | 4],
        text("/lib/x.so"),
        vec![2, 1 << 2 | 1, 1 << 2 | 2],
    ]
    .concat()
}

/// The state of a process with one thread and one mapped file, written out by `docs/FORMAT.md`.
fn process_state() -> Vec<u8> {
    let mut bytes = Vec::new();
    let short = |bytes: &mut Vec<u8>, number: u32| bytes.extend(number.to_le_bytes());
    let sized = |bytes: &mut Vec<u8>, data: &[u8]| {
        short(bytes, u32::try_from(data.len()).unwrap());
        bytes.extend_from_slice(data);
    };
    short(&mut bytes, 1);
    short(&mut bytes, 62);
    sized(&mut bytes, &[0; 16]);
    short(&mut bytes, 1);
    short(&mut bytes, 4711);
    sized(&mut bytes, &[7; 27 * 8]);
    short(&mut bytes, 1);
    for long in [0x1a000_u64, 0x1c000, 0] {
        bytes.extend(long.to_le_bytes());
    }
    sized(&mut bytes, b"/lib/x.so");
    bytes
}
