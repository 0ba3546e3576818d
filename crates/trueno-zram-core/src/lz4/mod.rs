//! The LZ4 block format, for blocks that hold exactly one page.
//!
//! [`Codec`] encodes and decodes with a given [instruction set](crate::cpu::InstructionSet). [`decode_simple`] is the
//! reference decoder in plain code. Both handle LZ4 blocks only; [`PageCodec`](crate::PageCodec) also handles
//! same-filled and raw pages.
//!
//! ```
//! use trueno_zram_core::{PAGE_SIZE, cpu::InstructionSet, lz4};
//! let (page, mut block, mut back) = (std::array::from_fn(|i| (i / 99) as u8), [0; PAGE_SIZE], [0; PAGE_SIZE]);
//! let len_bytes = lz4::Codec::new(InstructionSet::detect())?.encode(&page, &mut block).expect("the page shrinks");
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

/// Encodes and decodes pages as LZ4 blocks, reusing its working memory.
///
/// ```
/// use trueno_zram_core::{PAGE_SIZE, cpu::InstructionSet, lz4};
/// let mut codec = lz4::Codec::new(InstructionSet::detect())?;
/// let page: [u8; PAGE_SIZE] = std::array::from_fn(|i| (i % 251) as u8);
/// let (mut out, mut back) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
/// let len_bytes = codec.encode(&page, &mut out).expect("a repetitive page shrinks");
/// codec.decode(&out[..len_bytes], &mut back)?;
/// assert_eq!(back, page);
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
pub struct Codec {
    token: Token,
    encoder: Box<encode::Scratch>,
}

impl Codec {
    /// Creates a codec that uses the given instruction set.
    ///
    /// ```
    /// use trueno_zram_core::{Error, cpu::InstructionSet, lz4};
    /// match lz4::Codec::new(InstructionSet::Avx2) {
    ///     Ok(codec) => println!("{codec:?}"),
    ///     Err(Error::InstructionSetUnavailable(set)) => println!("this CPU has no {set}"),
    ///     Err(other) => panic!("{other}"),
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::InstructionSetUnavailable`](crate::Error::InstructionSetUnavailable) if this CPU lacks the instruction
    /// set.
    pub fn new(instruction_set: InstructionSet) -> Result<Self> {
        Ok(Self { token: instruction_set.token()?, encoder: encode::Scratch::boxed() })
    }

    /// Returns the instruction set in use.
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

    /// Encodes a page. Returns the block's length, or `None` if the block would not be shorter than the page. The
    /// contents of `out` past the block are unspecified.
    ///
    /// The same page always gives the same block: with every instruction set, and after any earlier use of the codec.
    ///
    /// ```
    /// use trueno_zram_core::{PAGE_SIZE, cpu::InstructionSet, lz4};
    /// let mut codec = lz4::Codec::new(InstructionSet::detect())?;
    /// let (text, mut out) = (std::array::from_fn(|i| b"abcdefg"[i % 7]), [0; PAGE_SIZE]);
    /// let block = codec.encode(&text, &mut out).map(|len_bytes| &out[..len_bytes]);
    /// assert!(block.is_some_and(|block| block.len() < 40));
    /// let noise = std::array::from_fn(|i| ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_pow(3) >> 56) as u8);
    /// assert_eq!(codec.encode(&noise, &mut out), None, "noise does not shrink");
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn encode(&mut self, page: &Page, out: &mut Page) -> Option<usize> {
        encode::encode_page(self.token, &mut self.encoder, page, out)
    }

    /// Decodes a block, which must decode to exactly one page.
    ///
    /// It reads nothing but the block and writes nothing but the page. The result, or the error, is the same with every
    /// instruction set.
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
    /// A [`DecodeError`] that says what is wrong with the block, and where. The contents of `page` are then
    /// unspecified.
    pub fn decode(&self, block: &[u8], page: &mut Page) -> std::result::Result<(), DecodeError> {
        decode::decode_page(self.token, block, page)
    }
}

impl std::fmt::Debug for Codec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Codec").field("instruction_set", &self.instruction_set()).finish()
    }
}

const _: () = assert!(PAGE_SIZE <= u16::MAX as usize, "offsets and table entries have 16 bits");
