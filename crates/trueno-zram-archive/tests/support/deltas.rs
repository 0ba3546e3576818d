//! Deltas for tests: made in memory, read with their bases, and taken apart to be forged.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::sync::Arc;

use trueno_zram_archive::{
    Delta, DeltaPart, DeltaSummary, DeltaWriter, Error, Format, PageArchive, PageHash, PageHashes, Pages, WriteOptions,
};
use trueno_zram_core::{Algorithm, PAGE_SIZE, Page, PageCodec};
use xxhash_rust::xxh32::xxh32;

/// A delta of `content`, made in parts of `part_pages` pages.
pub(crate) fn delta_of(
    content: &[u8],
    base: &PageArchive,
    format: Format,
    part_pages: usize,
) -> (Vec<u8>, DeltaSummary) {
    let hashes = PageHashes::stored(base).unwrap();
    let hashes = hashes.map_or_else(|| PageHashes::compute(base), Ok).unwrap();
    let base = base.record(b"base.lz4").unwrap();
    write(DeltaWriter::new(Vec::new(), base, options(format)).unwrap(), content, Some(&hashes), format, part_pages)
}

/// A delta of `content` without a base, made in parts of `part_pages` pages.
pub(crate) fn deduplicated(content: &[u8], format: Format, part_pages: usize) -> (Vec<u8>, DeltaSummary) {
    write(DeltaWriter::new(Vec::new(), None, options(format)).unwrap(), content, None, format, part_pages)
}

fn options(format: Format) -> WriteOptions {
    WriteOptions::default().with_format(format)
}

/// Writes all of a delta. Some copies are found before they are compressed, as if by another thread.
pub(crate) fn write(
    mut delta: DeltaWriter<Vec<u8>>,
    content: &[u8],
    base: Option<&PageHashes>,
    format: Format,
    part_pages: usize,
) -> (Vec<u8>, DeltaSummary) {
    let algorithm = match format {
        Format::Lz4 => Algorithm::Lz4,
        Format::Zstd => Algorithm::Zstd { level: 1 },
    };
    let (mut codec, mut out) = (PageCodec::new(algorithm).unwrap(), [0; PAGE_SIZE]);
    let pages: Vec<Page> = padded(content);
    let (mut part, stored) = (DeltaPart::new(), delta.stored_pages());
    for (number, pages) in pages.chunks(part_pages).enumerate() {
        part.start(delta.block_shape());
        for (page, plain) in ((number * part_pages) as u64..).zip(pages) {
            let hash = PageHash::of(plain);
            if *plain == [0; PAGE_SIZE] {
                part.push_zeros(1);
            } else if let Some(same) = base.and_then(|base| base.find(page, &hash)) {
                part.push_base(same, hash);
            } else if let Some(copied) = stored.read().find(&hash).filter(|_| page % 3 > 0) {
                part.push_stored(copied, hash);
            } else {
                part.push_page(codec.compress(plain, &mut out).unwrap(), plain, hash).unwrap();
            }
        }
        delta.push(&mut part).unwrap();
    }
    delta.add_section("note", b"of a test").unwrap();
    delta.finish(content.len() as u64).unwrap()
}

/// The pages of some content, the last one filled up with zeros.
pub(crate) fn padded(content: &[u8]) -> Vec<Page> {
    let (pages, tail) = content.as_chunks::<PAGE_SIZE>();
    let mut last = [0; PAGE_SIZE];
    last[..tail.len()].copy_from_slice(tail);
    pages.iter().copied().chain((!tail.is_empty()).then_some(last)).collect()
}

pub(crate) fn standard(bytes: &[u8]) -> PageArchive {
    PageArchive::standard(Arc::new(bytes.to_vec())).unwrap().unwrap()
}

/// Opens a delta that has no base.
pub(crate) fn open_alone(delta: &[u8]) -> Result<PageArchive, Error> {
    let opened = Delta::open(Arc::new(delta.to_vec()), |base| panic!("{base} is not needed"))?;
    Ok(PageArchive::Delta(Box::new(opened.expect("it starts like a delta"))))
}

/// Opens a delta with a base that is given.
pub(crate) fn open(delta: &[u8], base: PageArchive) -> Result<PageArchive, Error> {
    let opened = Delta::open(Arc::new(delta.to_vec()), |_| Ok(base))?;
    Ok(PageArchive::Delta(Box::new(opened.expect("it starts like a delta"))))
}

/// Checks that all ways to read an archive return this content.
pub(crate) fn assert_reads(archive: &PageArchive, content: &[u8]) {
    assert_eq!(archive.len_bytes(), content.len() as u64);
    let pages = padded(content);
    assert_eq!(archive.page_count(), pages.len() as u64);
    for (number, page) in pages.iter().enumerate() {
        let mut found = [0xff; PAGE_SIZE];
        archive.read(number as u64, std::slice::from_mut(&mut found)).unwrap();
        assert!(found == *page, "page {number}");
        assert_eq!(archive.page_len(number as u64), (content.len() - number * PAGE_SIZE).min(PAGE_SIZE));
        assert!(!archive.is_zero(number as u64).unwrap() || *page == [0; PAGE_SIZE], "page {number}");
    }
    for start in (0..pages.len()).step_by(50) {
        let mut found = vec![[0xff; PAGE_SIZE]; (pages.len() - start).min(70)];
        archive.read(start as u64, &mut found).unwrap();
        assert!(found == pages[start..start + found.len()], "pages from {start} on");
    }
    let mut bytes = vec![0xff; content.len().min(10_000)];
    for start in [0, 1, 4095, content.len() / 2, content.len().saturating_sub(5000)] {
        let len = archive.read_at(start as u64, &mut bytes).unwrap();
        let end = content.len().min(start + bytes.len());
        assert!(bytes[..len] == content[start.min(end)..end], "bytes from {start} on");
    }
    let past = pages.len() as u64;
    assert!(matches!(archive.read(past, &mut [[0; PAGE_SIZE]]), Err(Error::PageRange { .. })));
}

/// The parts of a delta by `docs/FORMAT.md`, to be changed and put together with all checksums made right.
#[derive(Clone, Debug)]
pub(crate) struct ForgedDelta {
    pub(crate) stored: Vec<u8>,
    pub(crate) groups: Vec<Vec<u8>>,
    /// In version 2, the number of stored pages that each group names first.
    pub(crate) new_pages: Vec<u32>,
    pub(crate) base: Vec<u8>,
    pub(crate) content_len: u64,
    /// Zero pages, pages of the base, pages that are stored.
    pub(crate) counts: [u64; 3],
    pub(crate) versions: [u32; 2],
    /// Added to the length of the stored pages in the footer, and taken from that of the map.
    pub(crate) shift: u64,
}

impl ForgedDelta {
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let footer = &bytes[bytes.len() - 84..];
        let long = |number: usize| u64::from_le_bytes(*footer[number * 8..].first_chunk().unwrap());
        let short = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().unwrap());
        let versions = [short(8), short(bytes.len() - 16)];
        let record_len = if versions[0] == 1 { 8 } else { 24 };
        let (content_len, stored_len, map_len) = (long(0), index(long(1)), index(long(2)));
        let base_len = index(u64::from(u32::from_le_bytes(*footer[48..].first_chunk().unwrap())));
        let stored = bytes[16..16 + stored_len].to_vec();
        let (mut at, table) = (16 + stored_len, 16 + stored_len + map_len);
        let (mut groups, mut new_pages) = (Vec::new(), Vec::new());
        for number in 0..index(content_len).div_ceil(4096).div_ceil(1024) {
            let len = index(u64::from(short(table + number * record_len)));
            groups.push(bytes[at..at + len].to_vec());
            new_pages.push(if record_len == 8 { 0 } else { short(table + number * record_len + 4) });
            at += len;
        }
        assert_eq!(at, table);
        let base_at = table + groups.len() * record_len;
        let base = bytes[base_at..base_at + base_len].to_vec();
        let counts = [long(3), long(4), long(5)];
        Self { stored, groups, new_pages, base, content_len, counts, versions, shift: 0 }
    }

    pub(crate) fn build(&self) -> Vec<u8> {
        let mut bytes = b"\x89TZDELTA".to_vec();
        bytes.extend(self.versions[0].to_le_bytes());
        bytes.extend(xxh32(&bytes, 0).to_le_bytes());
        bytes.extend(&self.stored);
        self.groups.iter().for_each(|group| bytes.extend(group));
        let mut table = Vec::new();
        let new_pages = self.new_pages.iter().chain(std::iter::repeat(&0));
        for (group, new_pages) in self.groups.iter().zip(new_pages) {
            table.extend(u32::try_from(group.len()).unwrap().to_le_bytes());
            if self.versions[1] == 1 {
                table.extend(xxh32(group, 0).to_le_bytes());
            } else {
                table.extend(new_pages.to_le_bytes());
                table.extend(&blake3::hash(group).as_bytes()[..16]);
            }
        }
        bytes.extend(&table);
        bytes.extend(&self.base);
        let map_len: usize = self.groups.iter().map(Vec::len).sum();
        let stored_len = (self.stored.len() as u64).wrapping_add(self.shift);
        let map_len = (map_len as u64).wrapping_sub(self.shift);
        let mut footer = Vec::new();
        for long in [&[self.content_len, stored_len, map_len][..], &self.counts].concat() {
            footer.extend(long.to_le_bytes());
        }
        footer.extend(u32::try_from(self.base.len()).unwrap().to_le_bytes());
        footer.extend(&blake3::hash(&[&table[..], &self.base].concat()).as_bytes()[..16]);
        footer.extend(self.versions[1].to_le_bytes());
        footer.extend(xxh32(&footer, 0).to_le_bytes());
        footer.extend(b"TZ-DELTA");
        bytes.extend(footer);
        bytes
    }

    /// Changes one thing; `choose(n)` returns a number below `n`.
    pub(crate) fn edit(&mut self, choose: &mut impl FnMut(usize) -> usize) {
        let group = choose(self.groups.len().max(1));
        let known = group < self.groups.len();
        match choose(16) {
            0 | 1 if known && !self.groups[group].is_empty() => {
                let at = choose(self.groups[group].len());
                self.groups[group][at] = u8::try_from(choose(256)).unwrap();
            }
            // The runs come first.
            2 | 3 if known && !self.groups[group].is_empty() => {
                let at = choose(self.groups[group].len().min(24));
                self.groups[group][at] = u8::try_from(choose(256)).unwrap();
            }
            4 if known => {
                let len = choose(self.groups[group].len() + 40);
                self.groups[group].resize(len, 0x05);
            }
            5 if known => {
                let other = choose(self.groups.len());
                self.groups.swap(group, other);
            }
            6 if known => {
                self.groups.remove(group);
            }
            7 => self.groups.push(vec![0x04; choose(30)]),
            8 => self.content_len = self.content_len.wrapping_add(choose(20_000) as u64).wrapping_sub(10_000),
            9 => {
                let count = choose(3);
                self.counts[count] = self.counts[count].wrapping_add(choose(5) as u64).wrapping_sub(2);
                // The pages may still add up.
                let other = choose(3);
                self.counts[other] = self.counts[other].wrapping_sub(choose(3) as u64);
            }
            10 if !self.base.is_empty() => {
                let at = choose(self.base.len());
                self.base[at] = u8::try_from(choose(256)).unwrap();
            }
            11 => {
                let len = choose(5000);
                self.base.resize(len, b'x');
            }
            12 if !self.stored.is_empty() => {
                let at = choose(self.stored.len());
                self.stored[at] = u8::try_from(choose(256)).unwrap();
            }
            13 if known => {
                self.new_pages.resize(self.groups.len(), 0);
                self.new_pages[group] =
                    self.new_pages[group].wrapping_add(u32::try_from(choose(5)).unwrap()).wrapping_sub(2);
                // All together may still be as many as are stored.
                let other = choose(self.groups.len());
                self.new_pages[other] = self.new_pages[other].wrapping_sub(u32::try_from(choose(3)).unwrap());
            }
            14 => match choose(4) {
                0 => self.versions[choose(2)] = u32::try_from(choose(4)).unwrap(),
                1 => self.shift = (choose(100) as u64).wrapping_sub(50),
                2 => self.content_len = u64::MAX - choose(10_000) as u64,
                _ => self.stored.truncate(choose(self.stored.len() + 1)),
            },
            _ => {}
        }
    }
}

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap()
}
