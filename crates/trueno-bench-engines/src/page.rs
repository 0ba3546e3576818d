//! Codecs behind one face, a page at a time.

use trueno_test_pages::oracle::{self, BLOCK_BOUND};
use trueno_zram_core::cpu::InstructionSet;
use trueno_zram_core::{PAGE_SIZE, Page, lz4};

use crate::error::{Error, Result};

/// A block as an engine leaves it; as long as a page, or longer, if the page did not shrink.
pub type Block = [u8; BLOCK_BOUND];

/// A codec with the state that one thread needs.
///
/// ```
/// use trueno_bench_engines::{CLz4, PageEngine};
/// let (mut engine, mut block, mut back) = (CLz4::new(), [0; _], [0; 4096]);
/// let len = engine.compress(&[7; 4096], &mut block);
/// assert!(engine.decompress(&block[..len], &mut back) && back == [7; 4096]);
/// ```
pub trait PageEngine: Send {
    /// The name in all rows.
    fn name(&self) -> String;
    /// The length of the block; at least a page's if it did not shrink.
    fn compress(&mut self, page: &Page, out: &mut Block) -> usize;
    /// Whether the block was decoded to a page. Blocks of pages that did not shrink are not given.
    fn decompress(&mut self, block: &[u8], page: &mut Page) -> bool;
}

/// C lz4, with a state that is used again.
#[derive(Debug, Default)]
pub struct CLz4(oracle::CLz4);

impl CLz4 {
    /// Sets up the state.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl PageEngine for CLz4 {
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

/// Our own codec.
#[derive(Debug)]
pub struct TruenoPage(lz4::Codec);

impl TruenoPage {
    /// On a back end that this CPU has.
    ///
    /// # Errors
    /// If it has not.
    pub fn new(backend: InstructionSet) -> Result<Self> {
        lz4::Codec::new(backend).map(Self).map_err(Error::engine("trueno-cpu"))
    }
}

impl PageEngine for TruenoPage {
    fn name(&self) -> String {
        let backend = self.0.instruction_set();
        if backend == InstructionSet::detect() { "trueno-cpu".into() } else { format!("trueno-{backend}") }
    }

    fn compress(&mut self, page: &Page, out: &mut Block) -> usize {
        let out = out.first_chunk_mut().expect("a block has room for a page");
        self.0.encode(page, out).unwrap_or(PAGE_SIZE)
    }

    fn decompress(&mut self, block: &[u8], page: &mut Page) -> bool {
        self.0.decode(block, page).is_ok()
    }
}

/// lz4_flex in its safe form, through its block interface (a new table for each block).
#[derive(Debug)]
pub struct Flex;

impl PageEngine for Flex {
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

/// Zstandard at level 1, with contexts that are used again.
pub struct Zstd {
    compressor: zstd::bulk::Compressor<'static>,
    decompressor: zstd::bulk::Decompressor<'static>,
}

impl Zstd {
    /// Sets up the contexts.
    ///
    /// # Errors
    /// If Zstandard cannot get memory.
    pub fn new() -> Result<Self> {
        let say = Error::engine("zstd-1");
        let compressor = zstd::bulk::Compressor::new(1).map_err(&say)?;
        let decompressor = zstd::bulk::Decompressor::new().map_err(&say)?;
        Ok(Self { compressor, decompressor })
    }
}

impl PageEngine for Zstd {
    fn name(&self) -> String {
        "zstd-1".into()
    }

    fn compress(&mut self, page: &Page, out: &mut Block) -> usize {
        self.compressor.compress_to_buffer(page, &mut out[..]).unwrap_or(PAGE_SIZE)
    }

    fn decompress(&mut self, block: &[u8], page: &mut Page) -> bool {
        self.decompressor.decompress_to_buffer(block, &mut page[..]).is_ok_and(|len| len == PAGE_SIZE)
    }
}

/// The limit within the cache: a page moved as it is. It counts as raw, so that it is moved back as raw pages are.
#[derive(Debug)]
pub struct MemcpyPage;

impl PageEngine for MemcpyPage {
    fn name(&self) -> String {
        "memcpy".into()
    }

    fn compress(&mut self, page: &Page, out: &mut Block) -> usize {
        out[..PAGE_SIZE].copy_from_slice(page);
        PAGE_SIZE
    }

    fn decompress(&mut self, _: &[u8], _: &mut Page) -> bool {
        false // no page of this engine shrinks
    }
}
