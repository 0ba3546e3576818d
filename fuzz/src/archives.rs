//! Archives for fuzz targets, made of blocks that were compressed once.

use std::cell::RefCell;
use std::sync::LazyLock;

use trueno_zram_archive::{ArchiveWriter, ContentHash, Error, Format, PageBlocks, WriteOptions};
use trueno_zram_core::{Algorithm, CompressedBatch, PAGE_SIZE, Page, PageCodec, PageData, PageKind};

use crate::page_from;

/// Pages of a group.
const GROUP_PAGES: u64 = 1024;

/// Bytes of the input that stand for pages, one each.
const MAX_STEPS: usize = 12;

/// A page and its compressed form.
struct Held {
    page: Page,
    kind: PageKind,
    bytes: Vec<u8>,
}

/// The same pages in both formats.
static STOCK: LazyLock<[Vec<Held>; 2]> = LazyLock::new(|| {
    [Algorithm::Lz4, Algorithm::Zstd { level: 1 }].map(|algorithm| {
        let mut codec = PageCodec::new(algorithm).expect("a level of Zstandard");
        stock_pages().map(|page| Held::new(&mut codec, page)).collect()
    })
});

thread_local! {
    /// For LZ4 and Zstandard.
    static CODECS: [RefCell<PageCodec>; 2] = [Algorithm::Lz4, Algorithm::Zstd { level: 1 }]
        .map(|algorithm| RefCell::new(PageCodec::new(algorithm).expect("a level of Zstandard")));
}

impl Held {
    fn new(codec: &mut PageCodec, page: Page) -> Self {
        let mut out = [0; PAGE_SIZE];
        let data = codec.compress(&page, &mut out).expect("there is memory");
        Self { page, kind: data.kind(), bytes: data.bytes().to_vec() }
    }

    fn push_to(&self, blocks: &mut PageBlocks) -> Result<(), Error> {
        blocks.push_of(PageData::new(self.kind, &self.bytes).expect("as it was compressed"), &self.page)
    }
}

/// A page that is stored raw, one of a word, and some whose compressed lengths differ.
fn stock_pages() -> impl Iterator<Item = Page> {
    let noise: Page = std::array::from_fn(|i| ((i * i * 31) >> 3).to_le_bytes()[0] ^ (i >> 4).to_le_bytes()[0]);
    let partly = move |noisy: usize| std::array::from_fn(|i| if i < noisy { noise[i] } else { b'a' });
    [noise, partly(300), [7; PAGE_SIZE]].into_iter().chain([40, 1200, 1900, 3600, 20].map(partly))
}

/// An archive of pages of every form, of the format and with the checksums that the mode says. It has one group, two, or
/// three of which the second is all zeros.
pub fn archive_of(mode: u8, data: &[u8]) -> Vec<u8> {
    let format = if mode & 4 == 0 { Format::Lz4 } else { Format::Zstd };
    let block_checksums = mode & 1 != 0;
    let options = WriteOptions::default().with_format(format).with_block_checksums(block_checksums);
    let stock = &STOCK[usize::from(format == Format::Zstd)];
    let (steps, own) = data.split_at(data.len().min(MAX_STEPS));
    let write_steps = |blocks: &mut PageBlocks| {
        stock[..2].iter().try_for_each(|held| held.push_to(blocks))?;
        steps.iter().try_for_each(|step| match usize::from(step >> 3) {
            more if step & 7 < 2 => blocks.push_zeros(1 + more as u64),
            which => stock[which % stock.len()].push_to(blocks),
        })
    };
    let write = || {
        let mut archive = ArchiveWriter::new(Vec::new(), options)?;
        let mut blocks = PageBlocks::new();
        blocks.start(0, archive.block_shape());
        write_steps(&mut blocks)?;
        if !own.is_empty() {
            own_page(format, own).push_to(&mut blocks)?;
        }
        if mode & 2 != 0 {
            // The second group starts among pages that are not zero, or is all zeros.
            let (next_group, before) = if mode & 0x18 != 0x18 { (GROUP_PAGES, 3) } else { (2 * GROUP_PAGES, 0) };
            let pages = blocks.content_len() / PAGE_SIZE as u64;
            blocks.push_zeros(next_group - before - pages)?;
            write_steps(&mut blocks)?;
        }
        blocks.push_tail(&data[..data.len().min(100)])?;
        blocks.finish();
        archive.write_blocks(&blocks)?;
        archive.finish(None)
    };
    write().expect("a vector takes it all").0
}

/// A frame with right checksums around blocks that are the fuzzer's own.
pub fn frame_of_blocks(mode: u8, data: &[u8]) -> Vec<u8> {
    let hash = |bytes: &[u8]| {
        let mut hash = ContentHash::new();
        hash.update(bytes);
        hash.digest().to_le_bytes()
    };
    let (checksums, linked, size_id) = (mode & 4 != 0, mode & 8 != 0, 4 + (mode >> 4) % 4);
    let flags = 0x40 | if linked { 0 } else { 0x20 } | if checksums { 0x10 } else { 0 };
    let mut frame = 0x184d_2204_u32.to_le_bytes().to_vec();
    frame.extend([flags, size_id << 4]);
    frame.push(hash(&frame[4..])[1]);
    let mut rest = data;
    while let Some((&head, after)) = rest.split_first() {
        let (len, raw) = (usize::from(head & 0x7f) * 3, u32::from(head >> 7) << 31);
        let (block, after) = after.split_at(len.min(after.len()));
        rest = after;
        frame.extend((u32::try_from(block.len()).expect("short") | raw).to_le_bytes());
        frame.extend_from_slice(block);
        if checksums {
            frame.extend(hash(block));
        }
    }
    frame.extend([0; 4]);
    frame
}

fn own_page(format: Format, data: &[u8]) -> Held {
    with_codec(format, |codec| Held::new(codec, page_from(data)))
}

/// Compresses pages on the calling thread.
pub fn compress(format: Format, pages: &[Page]) -> CompressedBatch {
    with_codec(format, |codec| {
        let (mut batch, mut out) = (CompressedBatch::new(), [0; PAGE_SIZE]);
        pages.iter().for_each(|page| batch.push(codec.compress(page, &mut out).expect("there is memory")));
        batch
    })
}

fn with_codec<T>(format: Format, work: impl FnOnce(&mut PageCodec) -> T) -> T {
    CODECS.with(|codecs| work(&mut codecs[usize::from(format == Format::Zstd)].borrow_mut()))
}
