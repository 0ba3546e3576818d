//! Scalar types, memory element types and state spaces, by which registers and addresses are typed.

use crate::inst::by_type::{self, IntegerOps, LogicOps, ScalarOps};

mod sealed {
    pub trait Sealed {}
}
use sealed::Sealed;

/// The class of a register. PTX registers are untyped bits; the instructions carry the type.
///
/// ```
/// use trueno_gpu::{KernelBuilder, RegClass};
/// let k = KernelBuilder::new("doc");
/// let _ = k.lane_id().to_u64().lt(9u64);
/// let classes: Vec<_> = k.finish().unwrap().regs.iter().map(|r| r.class).collect();
/// assert_eq!(classes, [RegClass::B32, RegClass::B64, RegClass::Pred]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RegClass {
    /// 32 bits: `u32`, `i32`, `f32`.
    B32,
    /// 64 bits: `u64` and global addresses.
    B64,
    /// One bit: a predicate.
    Pred,
}

/// A type that a register can have: `u32`, `i32`, `u64`, `f32`, or `bool` (a predicate).
///
/// ```
/// use trueno_gpu::{RegClass, Value};
/// assert_eq!(<u32 as Value>::CLASS, RegClass::B32);
/// assert_eq!(<bool as Value>::CLASS, RegClass::Pred);
/// ```
pub trait Value: Sealed + Copy + 'static {
    /// Class of the registers that hold it.
    const CLASS: RegClass;
    /// Returns the bits of a constant, zero-extended.
    fn bits(self) -> u64;
}

/// A [`Value`] that is a number: everything but `bool`.
///
/// ```
/// use trueno_gpu::{Scalar, Value};
/// fn bits<T: Scalar>(v: T) -> u64 { v.bits() }
/// assert_eq!(bits(-1i32), 0xffff_ffff);
/// ```
pub trait Scalar: Value {
    #[doc(hidden)]
    const OPS: ScalarOps;
}

/// A [`Scalar`] of 32 bits. Shuffles move these, and casts between them are free.
///
/// ```
/// use trueno_gpu::{RegClass, Value, Word};
/// fn class<T: Word>() -> RegClass { T::CLASS }
/// assert_eq!(class::<f32>(), RegClass::B32);
/// ```
pub trait Word: Scalar {}

/// A [`Scalar`] that is an integer: `u32`, `i32`, `u64`.
///
/// ```
/// use trueno_gpu::{Integer, Value};
/// fn ones<T: Integer>(v: T) -> u32 { v.bits().count_ones() }
/// assert_eq!(ones(7u64), 3);
/// ```
pub trait Integer: Scalar + Logic {
    #[doc(hidden)]
    const INT: IntegerOps;
}

/// A [`Value`] with bitwise logic: the integers and `bool`.
///
/// ```
/// use trueno_gpu::{Logic, Value};
/// fn bits<T: Logic>(v: T) -> u64 { v.bits() }
/// assert_eq!(bits(true), 1);
/// ```
pub trait Logic: Value {
    #[doc(hidden)]
    const LOGIC: LogicOps;
}

macro_rules! values {
    ($($ty:ty, $class:ident, |$v:ident| $bits:expr;)*) => {$(
        impl Sealed for $ty {}
        impl Value for $ty {
            const CLASS: RegClass = RegClass::$class;
            fn bits(self) -> u64 {
                let $v = self;
                $bits
            }
        }
    )*};
}
values! {
    u32, B32, |v| u64::from(v);
    i32, B32, |v| u64::from(v.cast_unsigned());
    f32, B32, |v| u64::from(v.to_bits());
    u64, B64, |v| v;
    bool, Pred, |v| u64::from(v);
}

macro_rules! rows {
    ($($ty:ty: $tr:ident, $name:ident: $kind:ident = $row:ident;)*) => {$(
        impl $tr for $ty {
            const $name: $kind = by_type::$row;
        }
    )*};
}
rows! {
    u32: Scalar, OPS: ScalarOps = WORD;
    i32: Scalar, OPS: ScalarOps = WORD;
    f32: Scalar, OPS: ScalarOps = F32;
    u64: Scalar, OPS: ScalarOps = U64;
    u32: Integer, INT: IntegerOps = INT_U32;
    i32: Integer, INT: IntegerOps = INT_I32;
    u64: Integer, INT: IntegerOps = INT_U64;
    u32: Logic, LOGIC: LogicOps = LOGIC_32;
    i32: Logic, LOGIC: LogicOps = LOGIC_32;
    u64: Logic, LOGIC: LogicOps = LOGIC_64;
    bool: Logic, LOGIC: LogicOps = LOGIC_PRED;
}
impl Word for u32 {}
impl Word for i32 {}
impl Word for f32 {}

/// The type of one memory element, as loads, stores and atomics name it.
///
/// ```
/// use trueno_gpu::{KernelBuilder, MemTy, ir::{Inst, Stmt}};
/// let k = KernelBuilder::new("doc");
/// let _ = k.param_ptr::<i16>("input").load();
/// let Stmt::Inst { inst: Inst::Load { ty, .. }, .. } = k.finish().unwrap().body[1] else { unreachable!() };
/// assert_eq!((ty, ty.bytes()), (MemTy::I16, 2));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemTy {
    /// One byte, zero-extended to 32 bits by a load.
    U8,
    /// Two bytes, zero-extended to 32 bits by a load.
    U16,
    /// Two bytes, sign-extended to 32 bits by a load.
    I16,
    /// Four bytes.
    U32,
    /// Eight bytes.
    U64,
}

impl MemTy {
    /// Returns the size in bytes, which is also the natural alignment.
    ///
    /// ```
    /// use trueno_gpu::MemTy;
    /// assert_eq!(MemTy::I16.bytes(), 2);
    /// ```
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::U8 => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 => 4,
            Self::U64 => 8,
        }
    }

    /// Returns the class of the registers that hold loaded elements.
    ///
    /// ```
    /// use trueno_gpu::{MemTy, RegClass};
    /// assert_eq!(MemTy::U8.class(), RegClass::B32);
    /// ```
    #[must_use]
    pub const fn class(self) -> RegClass {
        match self {
            Self::U64 => RegClass::B64,
            _ => RegClass::B32,
        }
    }
}

/// A type that memory can hold, with the register type that its loads return.
///
/// ```
/// use trueno_gpu::{Element, MemTy};
/// assert_eq!(<u16 as Element>::MEM, MemTy::U16);
/// fn widened<E: Element<Reg = u32>>() {}
/// widened::<u8>();
/// ```
pub trait Element: Sealed + Copy + 'static {
    /// The register type: `u32` for `u8` and `u16`, `i32` for `i16`, else the type itself.
    type Reg: Scalar;
    /// The element as the IR names it.
    const MEM: MemTy;
}

macro_rules! elements {
    ($($ty:ty, $reg:ty, $mem:ident;)*) => {$(
        impl Element for $ty {
            type Reg = $reg;
            const MEM: MemTy = MemTy::$mem;
        }
    )*};
}
impl Sealed for u8 {}
impl Sealed for u16 {}
impl Sealed for i16 {}

elements! {
    u8, u32, U8;
    u16, u32, U16;
    i16, i32, I16;
    u32, u32, U32;
    u64, u64, U64;
}

/// The state space of an address, as data.
///
/// ```
/// use trueno_gpu::{KernelBuilder, StateSpace, ir::{Inst, Stmt}};
/// let k = KernelBuilder::new("doc");
/// k.shared_per_block("flag", 4, 4).base::<u32>().store_conflicting(0u32);
/// let Stmt::Inst { inst: Inst::Store { addr, .. }, .. } = k.finish().unwrap().body[1] else { unreachable!() };
/// assert_eq!(addr.space, StateSpace::Shared);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StateSpace {
    /// Device memory; 64-bit addresses.
    Global,
    /// The block's shared memory; 32-bit addresses.
    Shared,
}

/// A state space, as a type: [`Global`] or [`Shared`].
///
/// ```
/// use trueno_gpu::{Global, Shared, Space, StateSpace};
/// assert_eq!(Global::SPACE, StateSpace::Global);
/// assert_eq!(Shared::SPACE, StateSpace::Shared);
/// ```
pub trait Space: Sealed + Copy + 'static {
    /// The type of raw addresses: `u64` in global memory, `u32` in shared memory.
    type Raw: Scalar;
    /// The space as the IR names it.
    const SPACE: StateSpace;
}

/// Device memory.
///
/// ```
/// use trueno_gpu::{Addr, Global};
/// fn takes_global(_: Addr<'_, Global, u32>) {}
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Global;

/// The block's shared memory.
///
/// ```
/// use trueno_gpu::{Addr, Shared};
/// fn takes_shared(_: Addr<'_, Shared, u16>) {}
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shared;

impl Sealed for Global {}
impl Space for Global {
    type Raw = u64;
    const SPACE: StateSpace = StateSpace::Global;
}
impl Sealed for Shared {}
impl Space for Shared {
    type Raw = u32;
    const SPACE: StateSpace = StateSpace::Shared;
}
