//! Archives whose fields the fuzzer edits, with every checksum made right: a page read by the index is the page of the
//! stream, or an error. Salvaging them ends, and its list of damage lies within the content.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use trueno_zram_archive::{
    Archive, ContentBatch, ContentSpan, Error, FrameReader, IndexVerdict, Pages, SalvageReader, Verify,
};
use trueno_zram_core::PAGE_SIZE;
use trueno_zram_fuzz::{archive_of, use_one_thread};

#[path = "../../crates/trueno-zram-archive/tests/support/forge.rs"]
#[allow(dead_code)]
mod forge;

use forge::Forged;

/// Edits of one archive. More of them leave nothing that a reader would follow.
const MAX_EDITS: usize = 10;

/// Pages of a group.
const GROUP_PAGES: u64 = 1024;

fuzz_target!(init: use_one_thread(), |data: &[u8]| {
    let [mode, sample, data @ ..] = data else { return };
    let (pages, edits) = data.split_at(data.len() / 2);
    let mut forged = Forged::parse(&archive_of(*mode, pages));
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
    let bytes = forged.build();
    match mode >> 6 {
        0 => judge_salvage(&bytes),
        _ => judge_pages(&bytes, forged.content_len, u64::from(*sample)),
    }
});

fn judge_pages(bytes: &[u8], content_len: u64, sample: u64) {
    let (content, verdict) = Content::read(bytes);
    let alone = open(bytes, u64::MAX);
    let proving = open(bytes, u64::MAX);
    let trusting = if verdict == Some(IndexVerdict::Agrees) { open(bytes, 0) } else { None };
    let pages = sampled(content_len.div_ceil(PAGE_SIZE as u64), sample);
    let is_right = |page: u64, read: &[u8]| {
        let there = content.page(page);
        there == read || verdict.is_none() && there.len() < PAGE_SIZE
    };
    if let Some(archive) = open(bytes, u64::MAX).filter(|_| sample & 0x20 != 0) {
        judge_touched(&archive.with_verify(Verify::Touched), &pages, is_right);
    }
    for (turn, page) in (0..).zip(&pages) {
        let read = read_page(proving.as_ref(), *page);
        if sample & 0x40 != 0 && turn == sample % 4 {
            // Remains of other pages in the reader make no difference.
            assert!(read == read_page(open(bytes, u64::MAX).as_ref(), *page), "page {page} depends on those before");
        }
        let one =
            alone.as_ref().and_then(|archive| Some(archive.read_page(*page).ok()?[..archive.page_len(*page)].to_vec()));
        assert!(one == read, "a page alone and among others differs: page {page}");
        assert!(read.is_none_or(|read| is_right(*page, &read)), "page {page} is another one");
        if let Some(read) = read_page(trusting.as_ref(), *page) {
            assert!(content.page(*page).starts_with(&read), "the index agrees, and page {page} is another one");
        }
    }
}

/// Pages that are read before they are proven are the right ones if their proof succeeds. Otherwise they may be any: a block can hide
/// in a stored one. After the proof, no wrong page is read, and none at all of a group whose proof has failed.
fn judge_touched(archive: &Archive, pages: &[u64], is_right: impl Fn(u64, &[u8]) -> bool) {
    let touched: Vec<_> = pages.iter().map(|page| (*page, read_page(Some(archive), *page))).collect();
    loop {
        match archive.prove_next() {
            Ok(true) => {}
            Ok(false) => break,
            Err(Error::Disproven { .. }) => assert!(!archive.disproven().is_empty()),
            Err(other) => panic!("a file in memory can be read: {other}"),
        }
    }
    for (page, before) in touched {
        let is_disproven = archive.disproven().iter().any(|pages| pages.contains(&page));
        if let Some(read) = before {
            assert!(is_disproven || is_right(page, &read), "the proof of page {page} is wrong");
        }
        let after = read_page(Some(archive), page);
        assert!(after.is_none() || !is_disproven, "page {page} was disproven, and is read");
        assert!(after.is_none_or(|read| is_right(page, &read)), "page {page} is another one");
    }
}

fn judge_salvage(bytes: &[u8]) {
    let Ok(mut reader) = SalvageReader::open(Arc::new(bytes.to_vec())) else { return };
    let (mut batch, mut len_bytes) = (ContentBatch::new(), 0);
    while reader.read_batch(&mut batch).unwrap_or(false) {
        len_bytes += batch.len_bytes();
    }
    assert!(reader.damage().iter().all(|damage| damage.content.end <= len_bytes));
}

/// A few pages that the input chooses: some of the first ones, some around the start of a group, and the last one. They are
/// in order, so that each reader sees each group once.
fn sampled(pages: u64, sample: u64) -> Vec<u64> {
    let (first, group) = (sample % 16, GROUP_PAGES * (1 + (sample >> 4 & 1)));
    let mut sampled = vec![first, first + 1, group - 1, group, group + first, pages.saturating_sub(1)];
    sampled.retain(|page| *page < pages.min(2 * GROUP_PAGES + 100));
    sampled.sort_unstable();
    sampled.dedup();
    if sample & 0x80 != 0 {
        sampled.reverse();
    }
    sampled
}

/// The content of a stream, with its zeros left out.
#[derive(Default)]
struct Content {
    len_bytes: u64,
    bytes: Vec<u8>,
    /// Pieces that are not zeros: where each starts in the content, and where it starts and ends in `bytes`.
    pieces: Vec<(u64, usize, usize)>,
}

impl Content {
    /// The content, up to an error if there is one, and the verdict on the index, if there is none.
    fn read(bytes: &[u8]) -> (Self, Option<IndexVerdict>) {
        let mut reader = FrameReader::new(bytes).with_batch_bytes(64 << 10);
        let (mut content, mut batch) = (Self::default(), ContentBatch::new());
        loop {
            match reader.read_batch(&mut batch) {
                Ok(true) => batch.spans().for_each(|span| content.push(span)),
                Ok(false) => return (content, Some(reader.summary().index.clone())),
                Err(_) => return (content, None),
            }
        }
    }

    fn push(&mut self, span: ContentSpan<'_>) {
        if let ContentSpan::Data(bytes) = span {
            self.pieces.push((self.len_bytes, self.bytes.len(), self.bytes.len() + bytes.len()));
            self.bytes.extend_from_slice(bytes);
        }
        self.len_bytes += span.len_bytes();
    }

    /// A page, or what there is of it.
    fn page(&self, number: u64) -> Vec<u8> {
        let start = number * PAGE_SIZE as u64;
        let len = self.len_bytes.saturating_sub(start).min(PAGE_SIZE as u64);
        let mut page = vec![0; usize::try_from(len).expect("at most a page")];
        for (at, from, to) in &self.pieces {
            let (first, last) = (start.max(*at), (start + len).min(at + (to - from) as u64));
            if first < last {
                let within = |at: u64| usize::try_from(at).expect("within a piece or a page");
                let piece = &self.bytes[from + within(first - at)..from + within(last - at)];
                page[within(first - start)..within(last - start)].copy_from_slice(piece);
            }
        }
        page
    }
}

fn open(bytes: &[u8], walk_limit: u64) -> Option<Archive> {
    Some(Archive::read_from(Arc::new(bytes.to_vec())).ok()??.with_walk_limit(walk_limit))
}

fn read_page(archive: Option<&Archive>, page: u64) -> Option<Vec<u8>> {
    let (archive, mut out) = (archive?, [[0xff; PAGE_SIZE]]);
    archive.read_pages(page, &mut out).ok()?;
    Some(out[0][..archive.page_len(page)].to_vec())
}
