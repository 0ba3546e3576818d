//! Which vector instructions the CPU has: asked once, proven by tokens.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// A set of vector instructions that the LZ4 codec runs on. All give the same bytes.
///
/// ```
/// use trueno_zram_core::cpu::InstructionSet;
/// let best = InstructionSet::detect();
/// assert!(InstructionSet::available().contains(&best));
/// assert_eq!("scalar".parse(), Ok(InstructionSet::Scalar));
/// ```
///
/// There is no AVX-512: neither encoder nor decoder gained by wider vectors (0.99 and 0.93 to 0.97 of AVX2's speed). There is
/// no Neon yet: what it would gain has not been measured on such a CPU, where [`InstructionSet::Scalar`] runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InstructionSet {
    /// Portable code, on any CPU.
    Scalar,
    /// x86-64 with AVX2, BMI1, BMI2 and LZCNT: Intel since 2013, AMD since 2015.
    Avx2,
}

impl InstructionSet {
    const ALL: [Self; 2] = [Self::Scalar, Self::Avx2];

    /// The fastest back end of this CPU.
    ///
    /// ```
    /// use trueno_zram_core::{Algorithm, PageCodec, cpu::InstructionSet};
    /// let codec = PageCodec::with_instruction_set(Algorithm::Lz4, InstructionSet::detect())?; // what `PageCodec::new` does
    /// println!("LZ4 on {}", codec.instruction_set());
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn detect() -> Self {
        Self::available().last().copied().unwrap_or(Self::Scalar)
    }

    /// All back ends of this CPU, the slowest first.
    ///
    /// ```
    /// use trueno_zram_core::{Algorithm, PAGE_SIZE, PageCodec, cpu::InstructionSet};
    /// let page: [u8; PAGE_SIZE] = std::array::from_fn(|i| (i % 100) as u8);
    /// for backend in InstructionSet::available() {
    ///     let mut out = [0; PAGE_SIZE];
    ///     let compressed = PageCodec::with_instruction_set(Algorithm::Lz4, backend)?.compress(&page, &mut out)?.bytes().len();
    ///     println!("{backend}: {compressed} bytes"); // the same on all
    /// }
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|backend| backend.token().is_ok()).collect()
    }

    /// The proof that this CPU has the instructions.
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
        let backend = Self::ALL.into_iter().find(|backend| backend.to_string() == name);
        backend.ok_or_else(|| Error::Unsupported { what: format!("a back end named {name:?}"), by: "the CPU codec" })
    }
}

/// A back end that this CPU has. Only [`InstructionSet::token`] makes one.
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

/// Portable arithmetic: every CPU has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scalar;

/// A value exists only on a CPU with AVX2, BMI1, BMI2 and LZCNT.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(());

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    /// The only constructor.
    pub(crate) fn detect() -> Option<Self> {
        let all = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt");
        all.then_some(Self(()))
    }
}
