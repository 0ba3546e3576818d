//! Deltas of both versions, with and without a base, whose parts the fuzzer edits, with every checksum made right: a page that is
//! returned has the hash that the delta or its base states, or is zero as the delta states. Without edits, all pages come back.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use trueno_zram_archive::{
    ArchiveWriter, Delta, Error, Format, PageArchive, PageHash, PageHashes, PageOrigin, Pages, WriteOptions,
};
use trueno_zram_core::{PAGE_SIZE, Page};
use trueno_zram_fuzz::{compress, page_from, use_one_thread};

#[path = "../../crates/trueno-zram-archive/tests/support/deltas.rs"]
mod deltas;

use deltas::{ForgedDelta, assert_reads, deduplicated, delta_of, standard};

/// Edits of one delta. More of them leave nothing that a reader would follow.
const MAX_EDITS: usize = 10;

/// Pages that the bytes of one image describe.
const MAX_PAGES: usize = 6;

fuzz_target!(init: use_one_thread(), |data: &[u8]| {
    let Some((&mode, data)) = data.split_first() else { return };
    let (pages, edits) = data.split_at(data.len() / 2);
    let (before, after) = pages.split_at(pages.len() / 2);
    let format = if mode & 1 == 0 { Format::Lz4 } else { Format::Zstd };
    let base = match mode >> 1 & 3 {
        0 => None,
        kind => Some(archive(&image(before, mode), kind == 1)),
    };
    let content = [image(before, mode >> 1), image(after, mode >> 2)].concat();
    let len = content.as_flattened().len() - usize::from(mode >> 4);
    let content = &content.as_flattened()[..len];
    let part_pages = 1 + usize::from(mode);
    let delta = match &base {
        Some(base) => delta_of(content, &standard(base), format, part_pages).0,
        None => deduplicated(content, format, part_pages).0,
    };
    if edits.is_empty() {
        assert_reads(&open(delta, base.as_deref()).expect("not edited"), content);
        return;
    }
    let mut forged = ForgedDelta::parse(&delta);
    let mut choices = edits.iter();
    let mut next = || choices.next().map(|choice| usize::from(*choice));
    for _ in 0..MAX_EDITS {
        let Some(first) = next() else { break };
        let mut first = Some(first);
        forged.edit(&mut |n| {
            let (high, low) = (first.take().or_else(&mut next).unwrap_or(0), next().unwrap_or(0));
            if n <= 256 { high % n } else { (high << 8 | low) % n }
        });
    }
    judge(forged.build(), base.as_deref());
});

/// Opens a delta with its base, or without one.
fn open(delta: Vec<u8>, base: Option<&[u8]>) -> Result<PageArchive, Error> {
    let base = base.map(standard).ok_or(Error::NoIndex);
    let opened = Delta::open(Arc::new(delta), |_| base)?;
    Ok(PageArchive::Delta(Box::new(opened.expect("it starts like a delta"))))
}

fn judge(delta: Vec<u8>, base: Option<&[u8]>) {
    let Ok(archive) = open(delta, base) else { return };
    let delta = archive.as_delta().expect("opened as a delta");
    for number in 0..archive.page_count().min(3000) {
        let mut page = [0xff; PAGE_SIZE];
        if archive.read(number, std::slice::from_mut(&mut page)).is_err() {
            continue;
        }
        let len = archive.page_len(number);
        let (origin, hash) = delta.origin(number).expect("the page was found by it");
        match hash {
            Some(hash) => assert!(len < PAGE_SIZE || PageHash::of(&page) == hash, "page {number} is another one"),
            None => assert!(origin == PageOrigin::Zero && page == [0; PAGE_SIZE], "page {number} is not zero"),
        }
    }
    let _ = PageHashes::stored(&archive);
}

/// A few pages that the bytes describe, and pages of repeated bytes and zeros between them.
fn image(bytes: &[u8], mode: u8) -> Vec<Page> {
    let mut pages = vec![[0; PAGE_SIZE], [mode; PAGE_SIZE]];
    pages.extend(bytes.chunks(40).take(MAX_PAGES).map(page_from));
    pages
}

fn archive(pages: &[Page], page_hashes: bool) -> Vec<u8> {
    let options = WriteOptions::default().with_page_hashes(page_hashes);
    let mut archive = ArchiveWriter::new(Vec::new(), options).expect("vectors can be written to");
    archive.write_batch_of(&compress(Format::Lz4, pages), pages).expect("vectors can be written to");
    archive.finish(None).expect("vectors can be written to").0
}
