//! The LZ4 block format, for blocks that hold exactly one page.
//!
//! [`Codec`] encodes and decodes on a chosen [back end](crate::cpu::InstructionSet); [`decode_simple`] is the decoder's slow
//! twin in plain code. Neither knows of same-filled or raw pages: [`PageCodec`](crate::PageCodec) does.
//!
//! ```
//! use trueno_zram_core::{PAGE_SIZE, cpu::InstructionSet, lz4};
//! let (page, mut block, mut back) = (std::array::from_fn(|i| (i / 99) as u8), [0; PAGE_SIZE], [0; PAGE_SIZE]);
//! let len_bytes = lz4::Codec::new(InstructionSet::detect())?.encode(&page, &mut block).expect("it shrinks");
//! lz4::decode_simple(&block[..len_bytes], &mut back)?;
//! assert_eq!(back, page);
//! # Ok::<(), trueno_zram_core::Error>(())
//! ```

mod decode;
mod encode;
mod format;

pub use decode::{DecodeError, decode_simple};

use crate::cpu::{InstructionSet, Token};
use crate::error::Result;
use crate::page::{PAGE_SIZE, Page};

/// Encodes and decodes LZ4 blocks of pages, with working memory that is used again.
///
/// ```
/// use trueno_zram_core::{PAGE_SIZE, cpu::InstructionSet, lz4};
/// let mut codec = lz4::Codec::new(InstructionSet::detect())?;
/// let page: [u8; PAGE_SIZE] = std::array::from_fn(|i| (i % 251) as u8);
/// let (mut out, mut back) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
/// let len_bytes = codec.encode(&page, &mut out).expect("it repeats, so it shrinks");
/// codec.decode(&out[..len_bytes], &mut back)?;
/// assert_eq!(back, page);
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
pub struct Codec {
    token: Token,
    encoder: Box<encode::Scratch>,
}

impl Codec {
    /// A codec on the given back end.
    ///
    /// ```
    /// use trueno_zram_core::{Error, cpu::InstructionSet, lz4};
    /// match lz4::Codec::new(InstructionSet::Avx2) {
    ///     Ok(codec) => println!("{codec:?}"),
    ///     Err(Error::InstructionSetUnavailable(backend)) => println!("this CPU has no {backend}"),
    ///     Err(other) => panic!("{other}"),
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::InstructionSetUnavailable`](crate::Error::InstructionSetUnavailable) if this CPU cannot run it.
    pub fn new(backend: InstructionSet) -> Result<Self> {
        Ok(Self { token: backend.token()?, encoder: encode::Scratch::boxed() })
    }

    /// The back end that it runs on.
    ///
    /// ```
    /// use trueno_zram_core::{cpu::InstructionSet, lz4};
    /// let codec = lz4::Codec::new(InstructionSet::Scalar)?;
    /// assert_eq!(codec.instruction_set(), InstructionSet::Scalar);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn instruction_set(&self) -> InstructionSet {
        self.token.instruction_set()
    }

    /// Encodes a page; the block's length, or `None` if it would not be shorter than the page. What `out` holds after
    /// the block is unspecified.
    ///
    /// The same page gives the same block on every back end, and whatever the codec did before.
    ///
    /// ```
    /// use trueno_zram_core::{PAGE_SIZE, cpu::InstructionSet, lz4};
    /// let mut codec = lz4::Codec::new(InstructionSet::detect())?;
    /// let (text, mut out) = (std::array::from_fn(|i| b"abcdefg"[i % 7]), [0; PAGE_SIZE]);
    /// let block = codec.encode(&text, &mut out).map(|len_bytes| &out[..len_bytes]);
    /// assert!(block.is_some_and(|block| block.len() < 40));
    /// let noise = std::array::from_fn(|i| ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_pow(3) >> 56) as u8);
    /// assert_eq!(codec.encode(&noise, &mut out), None, "it would not shrink");
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn encode(&mut self, page: &Page, out: &mut Page) -> Option<usize> {
        let block = encode::encode_page(self.token, &mut self.encoder, page)?;
        out[..block.len()].copy_from_slice(block);
        Some(block.len())
    }

    /// Decodes a block, which must be exactly one page.
    ///
    /// It reads nothing but the block and writes nothing but the page. The verdict, and the error, are the same on
    /// every back end.
    ///
    /// ```
    /// use trueno_zram_core::{PAGE_SIZE, cpu::InstructionSet, lz4};
    /// let codec = lz4::Codec::new(InstructionSet::Scalar)?;
    /// let error = codec.decode(&[0x10, b'a', 0, 0], &mut [0; PAGE_SIZE]);
    /// assert_eq!(error, Err(lz4::DecodeError::OffsetZero { at: 2 }));
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`DecodeError`] says what is wrong with the block, and where; the page is then of no use.
    pub fn decode(&self, block: &[u8], page: &mut Page) -> std::result::Result<(), DecodeError> {
        decode::decode_page(self.token, block, page)
    }
}

impl std::fmt::Debug for Codec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Codec").field("backend", &self.instruction_set()).finish()
    }
}

const _: () = assert!(PAGE_SIZE <= u16::MAX as usize, "offsets and table entries have 16 bits");
