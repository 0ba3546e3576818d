//! Lane semantics: functions over all 32 lanes of a warp. Their type is the signature of the instruction.

use crate::types::RegClass;

/// A 32-bit register of a whole warp.
///
/// ```
/// use trueno_gpu::inst::{L32, Lanes, Op};
/// let Lanes::W1(popc) = Op::Popc32.lanes() else { unreachable!() };
/// let below: L32 = std::array::from_fn(|lane| (1 << lane) - 1); // %lanemask_lt
/// assert_eq!(popc(&below)[9], 9);
/// ```
pub type L32 = [u32; 32];

/// A 64-bit register of a whole warp.
///
/// ```
/// use trueno_gpu::inst::{L64, Lanes, Op};
/// let Lanes::Widen2(mul) = Op::MulWideU32.lanes() else { unreachable!() };
/// let products: L64 = mul(&[u32::MAX; 32], &[2; 32]);
/// assert_eq!(products, [0x1_ffff_fffe; 32]);
/// ```
pub type L64 = [u64; 32];

/// A predicate register of a whole warp: bit `i` is lane `i`.
///
/// ```
/// use trueno_gpu::inst::{Lanes, Mask, Op};
/// let Lanes::Cmp32(lt) = Op::SetpLtU32.lanes() else { unreachable!() };
/// let low_half: Mask = lt(&std::array::from_fn(|lane| 1 << lane), &[1 << 16; 32]);
/// assert_eq!(low_half, 0xffff);
/// ```
pub type Mask = u32;

/// The meaning of a pure instruction for a whole warp. The variant determines the classes of its operands.
///
/// All 32 lanes are computed. The caller keeps the active ones.
///
/// ```
/// use trueno_gpu::inst::{Lanes, Op};
/// let Lanes::W2(add) = Op::AddU32.lanes() else { unreachable!() };
/// assert_eq!(add(&[u32::MAX; 32], &[2; 32]), [1; 32]);
/// ```
#[derive(Debug, Clone, Copy)]
pub enum Lanes {
    /// 32 <- 32
    W1(fn(&L32) -> L32),
    /// 32 <- 32, 32
    W2(fn(&L32, &L32) -> L32),
    /// 32 <- 32, 32, 32
    W3(fn(&L32, &L32, &L32) -> L32),
    /// 32 <- 32, 32, 32, 32
    W4(fn(&L32, &L32, &L32, &L32) -> L32),
    /// 64 <- 64
    D1(fn(&L64) -> L64),
    /// 64 <- 64, 64
    D2(fn(&L64, &L64) -> L64),
    /// 64 <- 64, 32
    D1W1(fn(&L64, &L32) -> L64),
    /// 64 <- 32
    Widen1(fn(&L32) -> L64),
    /// 64 <- 32, 32
    Widen2(fn(&L32, &L32) -> L64),
    /// 64 <- 32, 32, 64
    Widen3(fn(&L32, &L32, &L64) -> L64),
    /// 32 <- 64
    Narrow1(fn(&L64) -> L32),
    /// predicate <- 32, 32
    Cmp32(fn(&L32, &L32) -> Mask),
    /// predicate <- 64, 64
    Cmp64(fn(&L64, &L64) -> Mask),
    /// 32 <- 32, 32, predicate
    Sel32(fn(&L32, &L32, Mask) -> L32),
    /// 64 <- 64, 64, predicate
    Sel64(fn(&L64, &L64, Mask) -> L64),
    /// predicate <- predicate
    P1(fn(Mask) -> Mask),
    /// predicate <- predicate, predicate
    P2(fn(Mask, Mask) -> Mask),
}

impl Lanes {
    /// Returns the class of the destination, and the classes of the sources in order.
    ///
    /// ```
    /// use trueno_gpu::{inst::Op, RegClass::{B32, B64}};
    /// assert_eq!(Op::MadWideU32.lanes().signature(), (B64, &[B32, B32, B64][..]));
    /// ```
    #[must_use]
    pub const fn signature(&self) -> (RegClass, &'static [RegClass]) {
        use RegClass::{B32, B64, Pred};
        match self {
            Self::W1(_) => (B32, &[B32]),
            Self::W2(_) => (B32, &[B32, B32]),
            Self::W3(_) => (B32, &[B32, B32, B32]),
            Self::W4(_) => (B32, &[B32, B32, B32, B32]),
            Self::D1(_) => (B64, &[B64]),
            Self::D2(_) => (B64, &[B64, B64]),
            Self::D1W1(_) => (B64, &[B64, B32]),
            Self::Widen1(_) => (B64, &[B32]),
            Self::Widen2(_) => (B64, &[B32, B32]),
            Self::Widen3(_) => (B64, &[B32, B32, B64]),
            Self::Narrow1(_) => (B32, &[B64]),
            Self::Cmp32(_) => (Pred, &[B32, B32]),
            Self::Cmp64(_) => (Pred, &[B64, B64]),
            Self::Sel32(_) => (B32, &[B32, B32, Pred]),
            Self::Sel64(_) => (B64, &[B64, B64, Pred]),
            Self::P1(_) => (Pred, &[Pred]),
            Self::P2(_) => (Pred, &[Pred, Pred]),
        }
    }
}

// Each macro lifts a function on one lane to the warp. The function is a constant inside the lifted one, so it is
// inlined and the loop over the lanes vectorises.
macro_rules! lift {
    ($name:ident: $variant:ident ($($arg:ident: $ty:ty),*) -> $ret:ty) => {
        macro_rules! $name {
            ($f:expr) => {
                $crate::inst::lanes::Lanes::$variant(|$($arg),*| {
                    let f: fn($($ty),*) -> $ret = $f;
                    std::array::from_fn(|i| f($($arg[i]),*))
                })
            };
        }
        pub(super) use $name;
    };
}
lift!(w1: W1(a: u32) -> u32);
lift!(w2: W2(a: u32, b: u32) -> u32);
lift!(w3: W3(a: u32, b: u32, c: u32) -> u32);
lift!(w4: W4(a: u32, b: u32, c: u32, d: u32) -> u32);
lift!(d1: D1(a: u64) -> u64);
lift!(d2: D2(a: u64, b: u64) -> u64);
lift!(d1w1: D1W1(a: u64, b: u32) -> u64);
lift!(widen1: Widen1(a: u32) -> u64);
lift!(widen2: Widen2(a: u32, b: u32) -> u64);
lift!(widen3: Widen3(a: u32, b: u32, c: u64) -> u64);
lift!(narrow1: Narrow1(a: u64) -> u32);

macro_rules! lift_compare {
    ($name:ident: $variant:ident ($ty:ty)) => {
        macro_rules! $name {
            ($f:expr) => {
                $crate::inst::lanes::Lanes::$variant(|a, b| {
                    let f: fn($ty, $ty) -> bool = $f;
                    (0..32).fold(0, |mask, i| mask | u32::from(f(a[i], b[i])) << i)
                })
            };
        }
        pub(super) use $name;
    };
}
lift_compare!(cmp32: Cmp32(u32));
lift_compare!(cmp64: Cmp64(u64));
