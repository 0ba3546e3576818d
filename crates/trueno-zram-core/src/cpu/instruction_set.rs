//! The CPU's vector instructions, detected at run time and proven by tokens.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// A set of vector instructions that the LZ4 codec can use. All give the same bytes.
///
/// ```
/// use trueno_zram_core::cpu::InstructionSet;
/// let best = InstructionSet::detect();
/// assert!(InstructionSet::available().contains(&best));
/// assert_eq!("scalar".parse(), Ok(InstructionSet::Scalar));
/// ```
///
/// There is no AVX-512 variant: wider vectors speed up neither the encoder nor the decoder (0.99 and 0.93 to 0.97 of
/// AVX2's speed). There is no Neon variant yet: its gain has not been measured. CPUs with Neon use
/// [`InstructionSet::Scalar`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InstructionSet {
    /// Portable code, for any CPU.
    Scalar,
    /// x86-64 with AVX2, BMI1, BMI2 and LZCNT: Intel since 2013, AMD since 2015.
    Avx2,
}

impl InstructionSet {
    const ALL: [Self; 2] = [Self::Scalar, Self::Avx2];

    /// Returns the fastest instruction set of this CPU.
    ///
    /// ```
    /// use trueno_zram_core::{Algorithm, PageCodec, cpu::InstructionSet};
    /// let codec = PageCodec::with_instruction_set(Algorithm::Lz4, InstructionSet::detect())?; // like `PageCodec::new`
    /// println!("LZ4 on {}", codec.instruction_set());
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn detect() -> Self {
        Self::available().last().copied().unwrap_or(Self::Scalar)
    }

    /// Returns all instruction sets of this CPU, slowest first.
    ///
    /// ```
    /// use trueno_zram_core::{Algorithm, PAGE_SIZE, PageCodec, cpu::InstructionSet};
    /// let page: [u8; PAGE_SIZE] = std::array::from_fn(|i| (i % 100) as u8);
    /// for set in InstructionSet::available() {
    ///     let mut out = [0; PAGE_SIZE];
    ///     let compressed = PageCodec::with_instruction_set(Algorithm::Lz4, set)?.compress(&page, &mut out)?.bytes().len();
    ///     println!("{set}: {compressed} bytes"); // the same for all
    /// }
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|set| set.token().is_ok()).collect()
    }

    /// Returns proof that this CPU has the instructions.
    pub(crate) fn token(self) -> Result<Token> {
        match self {
            Self::Scalar => Ok(Token::Scalar(Scalar)),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => Avx2::detect().map(Token::Avx2).ok_or(Error::InstructionSetUnavailable(self)),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 => Err(Error::InstructionSetUnavailable(self)),
        }
    }
}

impl fmt::Display for InstructionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
        })
    }
}

impl FromStr for InstructionSet {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|set| set.to_string() == name);
        found.ok_or_else(|| Error::Unsupported { what: format!("the instruction set {name:?}"), by: "the CPU codec" })
    }
}

/// An instruction set that this CPU has. Created only by [`InstructionSet::token`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Token {
    Scalar(Scalar),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
}

impl Token {
    pub(crate) fn instruction_set(self) -> InstructionSet {
        match self {
            Self::Scalar(_) => InstructionSet::Scalar,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => InstructionSet::Avx2,
        }
    }
}

/// Portable arithmetic, available on every CPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scalar;

/// Proof of AVX2, BMI1, BMI2 and LZCNT: a value exists only on a CPU that has them.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(());

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    /// Detects the instructions. This is the only constructor.
    pub(crate) fn detect() -> Option<Self> {
        let all = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt");
        all.then_some(Self(()))
    }
}
