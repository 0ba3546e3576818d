//! Values of the kernel being built: registers, variables, predicates and operands.

use crate::builder::KernelBuilder;
use crate::inst::Op;
use crate::ir::{self, PredUse, RegId};
use crate::types::{Logic, Scalar, Value};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Add, BitAnd, BitOr, BitXor, Deref, Mul, Not, Shl, Shr, Sub};

/// A register of type `T`, assigned once. It is `Copy`. Each operation on it appends an instruction to its kernel.
///
/// ```
/// use trueno_gpu::KernelBuilder;
/// let k = KernelBuilder::new("doc");
/// let lane = k.lane_id();
/// let position = (lane * 2 + 1).min(40u32);
/// let hit = position.eq(7) & lane.lt(16);
/// let chosen = hit.select(position, 0u32).named("chosen");
/// # let _ = chosen;
/// k.finish().unwrap();
/// ```
///
/// Widening is explicit:
/// ```compile_fail,E0277
/// let k = trueno_gpu::KernelBuilder::new("doc");
/// let wide = k.param_u64("wide");
/// let sum = k.lane_id() + wide;
/// ```
pub struct Reg<'k, T> {
    pub(crate) k: &'k KernelBuilder,
    pub(crate) id: RegId,
    /// `true` for the negation of a predicate register. Always `false` otherwise.
    pub(crate) negated: bool,
    pub(crate) ty: PhantomData<T>,
}

/// A predicate. Negation is free, because it is applied where the predicate is used.
///
/// ```
/// use trueno_gpu::{KernelBuilder, Pred};
/// fn first_half<'k>(k: &'k KernelBuilder) -> Pred<'k> { !k.lane_id().ge(16) }
/// # let k = KernelBuilder::new("doc");
/// # first_half(&k);
/// ```
pub type Pred<'k> = Reg<'k, bool>;

impl<T> Clone for Reg<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Reg<'_, T> {}

impl<T> fmt::Debug for Reg<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", if self.negated { "!" } else { "" }, self.id)
    }
}

impl<'k, T: Value> Reg<'k, T> {
    /// Returns this value as it is now: a copy, if it reads a variable.
    pub(crate) fn settled(self) -> Self {
        if self.k.is_mutable(self.id) { self.k.pure(mov_op::<T>(), &[ir::Operand::Reg(self.id)]) } else { self }
    }

    pub(crate) fn new(k: &'k KernelBuilder, id: RegId) -> Self {
        Self { k, id, negated: false, ty: PhantomData }
    }

    /// Names the register, for readable PTX and errors. Letters, digits and `_` are kept.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let hash = (k.lane_id() * 2654435761).named("hash");
    /// # let _ = hash;
    /// assert!(trueno_gpu::emit(&k.finish()?).contains("%hash"));
    /// # Ok::<(), trueno_gpu::ValidateError>(())
    /// ```
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        self.k.set_name(self.id, name);
        self
    }
}

impl Reg<'_, bool> {
    pub(crate) fn pred_use(self) -> PredUse {
        PredUse { reg: self.id, negated: self.negated }
    }
}

/// A variable: declared with a value by [`KernelBuilder::var`], changed by [`Var::set`].
///
/// As an operand it reads as its value at that moment, and it has all methods of [`Reg`]. `*var` is the variable itself
/// as a register, so it changes with it; [`Var::get`] takes a copy.
///
/// ```
/// use trueno_gpu::KernelBuilder;
/// let k = KernelBuilder::new("doc");
/// let sum = k.var(0u32).named("sum");
/// let i = k.var(0u32);
/// k.while_uniform(|| i.lt(10), || {
///     sum.set(sum + i);
///     i.set(i + 1);
/// });
/// k.finish().unwrap();
/// ```
pub struct Var<'k, T>(pub(crate) Reg<'k, T>);

impl<T> Clone for Var<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Var<'_, T> {}

impl<T> fmt::Debug for Var<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Var({:?})", self.0)
    }
}

impl<'k, T> Deref for Var<'k, T> {
    type Target = Reg<'k, T>;
    fn deref(&self) -> &Reg<'k, T> {
        &self.0
    }
}

impl<'k, T: Value> Var<'k, T> {
    /// Returns a copy of the current value, which later `set`s do not change.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let v = k.var(1u32);
    /// let before = v.get();
    /// v.set(2);
    /// let both = v + before; // 3
    /// # let _ = both;
    /// ```
    #[must_use]
    pub fn get(self) -> Reg<'k, T> {
        let k = self.0.k;
        k.pure(mov_op::<T>(), &[ir::Operand::Reg(self.0.id)])
    }

    /// Assigns a value. Where possible, the instruction that computes the value writes the variable directly.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let v = k.var(1u32);
    /// v.set(v + 1); // one `add`
    /// ```
    pub fn set(self, value: impl Operand<'k, T>) {
        self.0.k.assign(self, value, None);
    }

    /// Names the variable, like [`Reg::named`].
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let v = k.var(0u32).named("count");
    /// # let _ = v;
    /// ```
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self(self.0.named(name))
    }
}

/// Reads a predicate variable where a predicate is expected.
impl<'k> From<Var<'k, bool>> for Pred<'k> {
    fn from(var: Var<'k, bool>) -> Self {
        var.0
    }
}

pub(crate) const fn mov_op<T: Value>() -> Op {
    match T::CLASS {
        crate::types::RegClass::B32 => Op::Mov32,
        crate::types::RegClass::B64 => Op::Mov64,
        crate::types::RegClass::Pred => Op::MovPred,
    }
}

/// A type that can be an operand of type `T`: a register, a variable or a Rust constant.
///
/// ```
/// use trueno_gpu::{KernelBuilder, Operand, Reg};
/// fn double<'k>(k: &'k KernelBuilder, v: impl Operand<'k, u32>) -> Reg<'k, u32> {
///     k.value(v) * 2
/// }
/// let k = KernelBuilder::new("doc");
/// double(&k, 21u32);
/// double(&k, k.lane_id());
/// ```
pub trait Operand<'k, T>: Copy {
    #[doc(hidden)]
    fn lower(self, k: &'k KernelBuilder) -> ir::Operand;
}

impl<'k, T: Value> Operand<'k, T> for Reg<'k, T> {
    fn lower(self, k: &'k KernelBuilder) -> ir::Operand {
        k.check_owner(self.k, self.id);
        if self.negated {
            let plain = ir::Operand::Reg(self.id);
            let inverted: Reg<'k, bool> = k.pure(Op::NotPred, &[plain]);
            return ir::Operand::Reg(inverted.id);
        }
        ir::Operand::Reg(self.id)
    }
}

impl<'k, T: Value> Operand<'k, T> for Var<'k, T> {
    fn lower(self, k: &'k KernelBuilder) -> ir::Operand {
        self.0.lower(k)
    }
}

macro_rules! constants {
    ($($ty:ty),*) => {$(
        impl<'k> Operand<'k, $ty> for $ty {
            fn lower(self, _: &'k KernelBuilder) -> ir::Operand {
                ir::Operand::Imm(self.bits())
            }
        }
    )*};
}
constants!(u32, i32, u64, f32);

impl<'k> Operand<'k, bool> for bool {
    fn lower(self, k: &'k KernelBuilder) -> ir::Operand {
        // PTX has predicate constants in moves only.
        let constant: Reg<'k, bool> = k.pure(Op::MovPred, &[ir::Operand::Imm(self.bits())]);
        ir::Operand::Reg(constant.id)
    }
}

macro_rules! operator {
    ($tr:ident, $method:ident, $bound:ident, |$a:ident, $b:ident| $body:expr) => {
        impl<'k, T: $bound, R: Operand<'k, T>> $tr<R> for Reg<'k, T> {
            type Output = Reg<'k, T>;
            fn $method(self, rhs: R) -> Reg<'k, T> {
                let ($a, $b) = (self, rhs);
                $body
            }
        }
        impl<'k, T: $bound, R: Operand<'k, T>> $tr<R> for Var<'k, T> {
            type Output = Reg<'k, T>;
            fn $method(self, rhs: R) -> Reg<'k, T> {
                self.0.$method(rhs)
            }
        }
    };
}
operator!(Add, add, Scalar, |a, b| a.binary(T::OPS.add, b));
operator!(Sub, sub, Scalar, |a, b| a.binary(T::OPS.sub, b));
operator!(Mul, mul, Scalar, |a, b| a.binary(T::OPS.mul, b));
operator!(BitAnd, bitand, Logic, |a, b| a.binary(T::LOGIC.and, b));
operator!(BitOr, bitor, Logic, |a, b| a.binary(T::LOGIC.or, b));
operator!(BitXor, bitxor, Logic, |a, b| a.binary(T::LOGIC.xor, b));

// Constants on the left: `31 - lane`, `1 << n`.
macro_rules! constant_left {
    ($($tr:ident, $method:ident, $ty:ty, $right:ty, $op:expr;)*) => {$(
        impl<'k> $tr<Reg<'k, $right>> for $ty {
            type Output = Reg<'k, $ty>;
            fn $method(self, rhs: Reg<'k, $right>) -> Reg<'k, $ty> {
                rhs.k.pure($op, &[ir::Operand::Imm(self.bits()), Operand::<$right>::lower(rhs, rhs.k)])
            }
        }
        impl<'k> $tr<Var<'k, $right>> for $ty {
            type Output = Reg<'k, $ty>;
            fn $method(self, rhs: Var<'k, $right>) -> Reg<'k, $ty> {
                self.$method(rhs.0)
            }
        }
    )*};
}
constant_left! {
    Add, add, u32, u32, Op::AddU32;
    Mul, mul, u32, u32, Op::MulLoU32;
    Sub, sub, u32, u32, Op::SubU32;
    Sub, sub, i32, i32, Op::SubU32;
    Sub, sub, u64, u64, Op::SubU64;
    Sub, sub, f32, f32, Op::SubF32;
    Shl, shl, u32, u32, Op::Shl32;
    Shr, shr, u32, u32, Op::ShrU32;
}

macro_rules! shift {
    ($tr:ident, $method:ident, $field:ident) => {
        /// Shifting by the width or more shifts all bits out (with sign fill for `i32`).
        impl<'k, T: crate::types::Integer, R: Operand<'k, u32>> $tr<R> for Reg<'k, T> {
            type Output = Reg<'k, T>;
            fn $method(self, amount: R) -> Reg<'k, T> {
                let amount = amount.lower(self.k);
                self.k.pure(T::INT.$field, &[self.lower(self.k), amount])
            }
        }
        impl<'k, T: crate::types::Integer, R: Operand<'k, u32>> $tr<R> for Var<'k, T> {
            type Output = Reg<'k, T>;
            fn $method(self, amount: R) -> Reg<'k, T> {
                self.0.$method(amount)
            }
        }
    };
}
shift!(Shl, shl, shl);
shift!(Shr, shr, shr);

impl<'k, T: Logic> Not for Reg<'k, T> {
    type Output = Reg<'k, T>;
    fn not(self) -> Reg<'k, T> {
        match T::LOGIC.not {
            Some(op) => self.k.pure(op, &[self.lower(self.k)]),
            None => Self { negated: !self.negated, ..self },
        }
    }
}

impl<'k, T: Logic> Not for Var<'k, T> {
    type Output = Reg<'k, T>;
    fn not(self) -> Reg<'k, T> {
        // Negate the predicate now: a later `set` must not change it.
        self.0.k.pure(T::LOGIC.not.unwrap_or(Op::NotPred), &[self.0.lower(self.0.k)])
    }
}
