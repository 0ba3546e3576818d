//! Codecs of single pages, ours and the rivals', behind one interface.

use trueno_zram_core::cpu::InstructionSet;
use trueno_zram_core::{PAGE_SIZE, Page, lz4};

use crate::error::{Error, Result};

/// Room for the largest block that any encoder makes of a page: lz4_flex asks for a tenth more than the page.
pub(crate) const BLOCK_BOUND: usize = PAGE_SIZE + 512;

/// A block as a codec leaves it. It is as long as a page, or longer, if the page did not shrink.
pub(crate) type Block = [u8; BLOCK_BOUND];

/// A codec with the state that one thread needs.
pub(crate) trait BlockCodec: Send {
    /// The name in all rows.
    fn name(&self) -> String;
    /// Returns the length of the block; at least a page's if the page did not shrink.
    fn encode(&mut self, page: &Page, out: &mut Block) -> usize;
    /// Returns whether the block was decoded to a page. Blocks of pages that did not shrink are not given.
    fn decode(&mut self, block: &[u8], page: &mut Page) -> bool;

    /// Encodes a page, and keeps it raw if it does not shrink. Returns the length of the block.
    fn encode_or_copy(&mut self, page: &Page, out: &mut Block) -> usize {
        let len_bytes = self.encode(page, out);
        if len_bytes < PAGE_SIZE {
            return len_bytes;
        }
        out[..PAGE_SIZE].copy_from_slice(page);
        PAGE_SIZE
    }

    /// Restores a page from its block, which may be the page itself.
    fn decode_or_copy(&mut self, block: &[u8], page: &mut Page) -> bool {
        if block.len() == PAGE_SIZE {
            page.copy_from_slice(block);
            return true;
        }
        self.decode(block, page)
    }
}

/// Makes a codec for one thread.
pub(crate) type MakeCodec = fn() -> Result<Box<dyn BlockCodec>>;

/// The linked rivals; C lz4 comes first.
#[cfg(feature = "rivals")]
pub(crate) const RIVALS: &[MakeCodec] = &[
    || Ok(Box::<rivals::CLz4>::default()),
    || Ok(Box::new(rivals::Flex)),
    || Ok(Box::new(rivals::Zstd::new(1)?)),
    || Ok(Box::new(rivals::Zstd::new(3)?)),
    || Ok(Box::new(rivals::Zstd::new(9)?)),
];
#[cfg(not(feature = "rivals"))]
pub(crate) const RIVALS: &[MakeCodec] = &[];

/// C lz4, if it is linked.
pub(crate) const C_LZ4: Option<MakeCodec> = match RIVALS {
    [c_lz4, ..] => Some(*c_lz4),
    [] => None,
};

/// libzstd at level 3, if it is linked.
#[cfg(feature = "device")]
pub(crate) const ZSTD_3: Option<MakeCodec> = match RIVALS {
    [_, _, _, zstd_3, ..] => Some(*zstd_3),
    _ => None,
};

/// Our own codec.
pub(crate) struct Trueno(lz4::Codec);

impl Trueno {
    pub(crate) fn new(instructions: InstructionSet) -> Result<Self> {
        lz4::Codec::new(instructions).map(Self).map_err(Error::engine("trueno-cpu"))
    }
}

impl BlockCodec for Trueno {
    fn name(&self) -> String {
        let instructions = self.0.instruction_set();
        if instructions == InstructionSet::detect() { "trueno-cpu".into() } else { format!("trueno-{instructions}") }
    }

    fn encode(&mut self, page: &Page, out: &mut Block) -> usize {
        let out = out.first_chunk_mut().expect("a block has room for a page");
        self.0.encode(page, out).unwrap_or(PAGE_SIZE)
    }

    fn decode(&mut self, block: &[u8], page: &mut Page) -> bool {
        self.0.decode(block, page).is_ok()
    }
}

/// Copies each page, which shows the limit within the cache. No page shrinks, so all are restored as raw pages are.
pub(crate) struct CopyPage;

impl BlockCodec for CopyPage {
    fn name(&self) -> String {
        "memcpy".into()
    }

    fn encode(&mut self, page: &Page, out: &mut Block) -> usize {
        out[..PAGE_SIZE].copy_from_slice(page);
        PAGE_SIZE
    }

    fn encode_or_copy(&mut self, page: &Page, out: &mut Block) -> usize {
        self.encode(page, out)
    }

    fn decode(&mut self, _: &[u8], _: &mut Page) -> bool {
        false
    }
}

/// The rivals that are linked into the binary.
#[cfg(feature = "rivals")]
mod rivals {
    use super::{BLOCK_BOUND, Block, BlockCodec, Error, PAGE_SIZE, Page, Result};
    use crate::c_lz4;

    const _: () = assert!(BLOCK_BOUND == c_lz4::BLOCK_BOUND);

    /// C lz4 with a reused state.
    #[derive(Default)]
    pub(super) struct CLz4(c_lz4::CLz4);

    impl BlockCodec for CLz4 {
        fn name(&self) -> String {
            crate::engines::BAR.into()
        }

        fn encode(&mut self, page: &Page, out: &mut Block) -> usize {
            self.0.compress(page, out)
        }

        fn decode(&mut self, block: &[u8], page: &mut Page) -> bool {
            c_lz4::c_lz4_decompress(block, page) == Some(PAGE_SIZE)
        }
    }

    /// The safe form of lz4_flex, through its block interface, which makes a new table for each block.
    pub(super) struct Flex;

    impl BlockCodec for Flex {
        fn name(&self) -> String {
            "lz4-flex".into()
        }

        fn encode(&mut self, page: &Page, out: &mut Block) -> usize {
            lz4_flex::block::compress_into(page, out).unwrap_or(PAGE_SIZE)
        }

        fn decode(&mut self, block: &[u8], page: &mut Page) -> bool {
            lz4_flex::block::decompress_into(block, page).is_ok_and(|len| len == PAGE_SIZE)
        }
    }

    /// libzstd with reused contexts.
    pub(super) struct Zstd {
        level: i32,
        compressor: zstd::bulk::Compressor<'static>,
        decompressor: zstd::bulk::Decompressor<'static>,
    }

    impl Zstd {
        pub(super) fn new(level: i32) -> Result<Self> {
            let failed = Error::engine("zstd");
            let compressor = zstd::bulk::Compressor::new(level).map_err(&failed)?;
            Ok(Self { level, compressor, decompressor: zstd::bulk::Decompressor::new().map_err(&failed)? })
        }
    }

    impl BlockCodec for Zstd {
        fn name(&self) -> String {
            format!("zstd-{}", self.level)
        }

        fn encode(&mut self, page: &Page, out: &mut Block) -> usize {
            self.compressor.compress_to_buffer(page, &mut out[..]).unwrap_or(PAGE_SIZE)
        }

        fn decode(&mut self, block: &[u8], page: &mut Page) -> bool {
            self.decompressor.decompress_to_buffer(block, &mut page[..]).is_ok_and(|len| len == PAGE_SIZE)
        }
    }
}
