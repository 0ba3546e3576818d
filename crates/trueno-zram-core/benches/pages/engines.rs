//! The codecs that are compared, behind one face.

use trueno_test_pages::oracle::{self, BLOCK_BOUND};
use trueno_zram_core::cpu::Backend;
use trueno_zram_core::{Algorithm, PAGE_SIZE, Page, lz4};

/// A block as an engine leaves it; as long as a page, or longer, if the page did not shrink.
pub(crate) type Block = [u8; BLOCK_BOUND];

pub(crate) trait Engine {
    fn name(&self) -> String;
    /// The length of the block; at least a page's if it did not shrink.
    fn compress(&mut self, page: &Page, out: &mut Block) -> usize;
    /// Whether the block was decoded to a page. Blocks of pages that did not shrink are not given.
    fn decompress(&mut self, block: &[u8], page: &mut Page) -> bool;
}

/// All engines; the first is the bar that the others are measured against.
pub(crate) fn all() -> Result<Vec<Box<dyn Engine>>, String> {
    let mut engines: Vec<Box<dyn Engine>> = vec![Box::new(CLz4(oracle::CLz4::new()))];
    for backend in Backend::available() {
        let codec = lz4::Codec::new(backend).map_err(|e| e.to_string())?;
        engines.push(Box::new(Trueno { codec, is_default: backend == Backend::detect() }));
    }
    engines.push(Box::new(Flex));
    engines.push(Box::new(Zstd::new(1)?));
    engines.push(Box::new(Memcpy));
    Ok(engines)
}

struct CLz4(oracle::CLz4);

impl Engine for CLz4 {
    fn name(&self) -> String {
        "c-lz4".into()
    }

    fn compress(&mut self, page: &Page, out: &mut Block) -> usize {
        self.0.compress(page, out)
    }

    fn decompress(&mut self, block: &[u8], page: &mut Page) -> bool {
        oracle::c_lz4_decompress(block, page) == Some(PAGE_SIZE)
    }
}

struct Trueno {
    codec: lz4::Codec,
    is_default: bool,
}

impl Engine for Trueno {
    fn name(&self) -> String {
        if self.is_default { "trueno-cpu".into() } else { format!("trueno-{}", self.codec.backend()) }
    }

    fn compress(&mut self, page: &Page, out: &mut Block) -> usize {
        let out = out.first_chunk_mut().expect("a block has room for a page");
        self.codec.encode(page, out).unwrap_or(PAGE_SIZE)
    }

    fn decompress(&mut self, block: &[u8], page: &mut Page) -> bool {
        self.codec.decode(block, page).is_ok()
    }
}

/// lz4_flex in its safe form, through its block interface (a new table for each block).
struct Flex;

impl Engine for Flex {
    fn name(&self) -> String {
        "lz4-flex".into()
    }

    fn compress(&mut self, page: &Page, out: &mut Block) -> usize {
        lz4_flex::block::compress_into(page, out).unwrap_or(PAGE_SIZE)
    }

    fn decompress(&mut self, block: &[u8], page: &mut Page) -> bool {
        lz4_flex::block::decompress_into(block, page).is_ok_and(|len| len == PAGE_SIZE)
    }
}

struct Zstd {
    level: i32,
    compressor: zstd::bulk::Compressor<'static>,
    decompressor: zstd::bulk::Decompressor<'static>,
}

impl Zstd {
    fn new(level: i32) -> Result<Self, String> {
        let compressor = zstd::bulk::Compressor::new(level).map_err(|e| e.to_string())?;
        let decompressor = zstd::bulk::Decompressor::new().map_err(|e| e.to_string())?;
        Ok(Self { level, compressor, decompressor })
    }
}

impl Engine for Zstd {
    fn name(&self) -> String {
        Algorithm::Zstd { level: self.level }.to_string().replace(':', "-")
    }

    fn compress(&mut self, page: &Page, out: &mut Block) -> usize {
        self.compressor.compress_to_buffer(page, &mut out[..]).unwrap_or(PAGE_SIZE)
    }

    fn decompress(&mut self, block: &[u8], page: &mut Page) -> bool {
        self.decompressor.decompress_to_buffer(block, &mut page[..]).is_ok_and(|len| len == PAGE_SIZE)
    }
}

/// The limit: a page moved as it is. It counts as raw, so that it is moved back as raw pages are.
struct Memcpy;

impl Engine for Memcpy {
    fn name(&self) -> String {
        "memcpy".into()
    }

    fn compress(&mut self, page: &Page, out: &mut Block) -> usize {
        out[..PAGE_SIZE].copy_from_slice(page);
        PAGE_SIZE
    }

    fn decompress(&mut self, _: &[u8], _: &mut Page) -> bool {
        unreachable!("raw pages are restored by the caller")
    }
}
