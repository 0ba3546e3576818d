//! Addresses, typed by state space and element, and plain accesses through them.

use crate::builder::KernelBuilder;
use crate::inst::Op;
use crate::ir::{self, AtomOp, Conflict, Few, Inst, LoadHint, MemAddr, RegId, StoreHint};
use crate::types::{Element, Global, Shared, Space, Value};
use crate::value::{Operand, Reg, Var};
use std::fmt;
use std::marker::PhantomData;

/// An address of elements `E` in the space `S`: a register plus a constant that the instruction adds at no cost.
///
/// ```
/// use trueno_gpu::KernelBuilder;
/// let k = KernelBuilder::new("doc");
/// let input = k.param_ptr::<u32>("input");
/// let own = input.index(k.lane_id());
/// let sum = own.load() + own.at(32).load();
/// own.store(sum);
/// k.finish().unwrap();
/// ```
///
/// The space is part of the type, so a shared address cannot be used as a global one:
/// ```compile_fail,E0308
/// use trueno_gpu::{Addr, Global, KernelBuilder, Reg};
/// fn first<'k>(a: Addr<'k, Global, u32>) -> Reg<'k, u32> { a.load() }
/// let k = KernelBuilder::new("doc");
/// let table = k.shared_per_block("table", 64, 4);
/// first(table.base::<u32>());
/// ```
pub struct Addr<'k, S, E> {
    pub(crate) k: &'k KernelBuilder,
    pub(crate) base: RegId,
    pub(crate) offset: i32,
    pub(crate) ty: PhantomData<(S, E)>,
}

impl<S, E> Clone for Addr<'_, S, E> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<S, E> Copy for Addr<'_, S, E> {}

impl<S, E> fmt::Debug for Addr<'_, S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{:?}{:+}]", self.base, self.offset)
    }
}

impl<'k> Reg<'k, u32> {
    /// Uses this number as an address in shared memory.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let page = k.shared_per_block("page", 4096, 4096).base::<u8>();
    /// let word = (page.raw() + k.lane_id() * 5) & !3;
    /// let aligned = word.shared::<u32>().load();
    /// # let _ = aligned;
    /// k.finish().unwrap();
    /// ```
    #[must_use]
    pub fn shared<E: Element>(self) -> Addr<'k, Shared, E> {
        let base = self.settled();
        Addr { k: base.k, base: base.id, offset: 0, ty: PhantomData }
    }
}

impl<'k> Reg<'k, u64> {
    /// Uses this number as an address in global memory.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let raw = k.param_ptr::<u8>("out").raw() + 16;
    /// raw.global::<u32>().store(1);
    /// k.finish().unwrap();
    /// ```
    #[must_use]
    pub fn global<E: Element>(self) -> Addr<'k, Global, E> {
        let base = self.settled();
        Addr { k: base.k, base: base.id, offset: 0, ty: PhantomData }
    }
}

impl<'k, S: Space, E: Element> Addr<'k, S, E> {
    /// Returns the address `n` elements further (or back), as a constant in the instruction.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let second = k.param_ptr::<u32>("input").at(1).load();
    /// # let _ = second;
    /// ```
    #[must_use]
    pub fn at(self, n: i32) -> Self {
        self.byte_offset(n.wrapping_mul(E::MEM.bytes().cast_signed()))
    }

    /// Returns the address `bytes` further (or back), as a constant in the instruction. The validator checks its
    /// alignment.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let second = k.param_ptr::<u32>("input").byte_offset(4).load();
    /// # let _ = second;
    /// ```
    #[must_use]
    pub fn byte_offset(self, bytes: i32) -> Self {
        Self { offset: self.offset.wrapping_add(bytes), ..self }
    }

    /// Returns the same address with another element type.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let byte = k.param_ptr::<u32>("input").cast::<u8>().at(3).load();
    /// # let _ = byte;
    /// ```
    #[must_use]
    pub fn cast<F: Element>(self) -> Addr<'k, S, F> {
        Addr { k: self.k, base: self.base, offset: self.offset, ty: PhantomData }
    }

    /// Returns the address as a number.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let raw = k.param_ptr::<u8>("out").raw(); // Reg<u64>
    /// # let _ = raw;
    /// ```
    #[must_use]
    pub fn raw(self) -> Reg<'k, S::Raw> {
        let base = Reg::new(self.k, self.base);
        if self.offset == 0 {
            return base;
        }
        // Sign-extended to the width of the address.
        let bytes = ir::Operand::Imm(if S::Raw::CLASS == crate::types::RegClass::B64 {
            i64::from(self.offset).cast_unsigned()
        } else {
            u64::from(self.offset.cast_unsigned())
        });
        let add = <S::Raw as crate::types::Scalar>::OPS.add;
        self.k.pure(add, &[ir::Operand::Reg(base.id), bytes])
    }

    pub(crate) fn mem(self) -> MemAddr {
        MemAddr { space: S::SPACE, base: self.base, offset: self.offset }
    }

    pub(crate) fn load_inst<const N: usize>(self, dst: [RegId; N], hint: LoadHint) -> Inst {
        const {
            assert!(N == 1 || N == 2 || N == 4, "vectors have two or four elements");
            assert!(N * E::MEM.bytes() as usize <= 16, "one access moves at most 16 bytes");
        }
        Inst::Load { dst: Few::from(dst), ty: E::MEM, addr: self.mem(), hint, uniform: false }
    }

    pub(crate) fn store_inst<const N: usize, V: Operand<'k, E::Reg>>(self, values: [V; N], hint: StoreHint) -> Inst {
        const {
            assert!(N == 1 || N == 2 || N == 4, "vectors have two or four elements");
            assert!(N * E::MEM.bytes() as usize <= 16, "one access moves at most 16 bytes");
        }
        let src = Few::from(values.map(|v| v.lower(self.k)));
        Inst::Store { src, ty: E::MEM, addr: self.mem(), hint, conflict: Conflict::Fault }
    }

    /// Loads one element.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let byte = k.param_ptr::<u8>("input").load(); // Reg<u32>
    /// # let _ = byte;
    /// ```
    #[must_use]
    pub fn load(self) -> Reg<'k, E::Reg> {
        let [loaded] = self.load_vec();
        loaded
    }

    /// Loads one element through an address that all lanes share, so that the result is uniform. The validator checks
    /// that the address is uniform. Nothing may write the element meanwhile.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let size = k.param_ptr::<u32>("sizes").index(k.block_id()).load_uniform();
    /// k.if_uniform(size.ne(0), || k.sync_warp());
    /// k.finish().unwrap();
    /// ```
    #[must_use]
    pub fn load_uniform(self) -> Reg<'k, E::Reg> {
        let dst = self.k.fresh::<E::Reg>();
        let mut inst = self.load_inst([dst.id], LoadHint::Default);
        if let Inst::Load { uniform, .. } = &mut inst {
            *uniform = true;
        }
        self.k.push(inst);
        dst
    }

    /// Loads two or four elements at once. The address must be aligned to their total size.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let [a, b, c, d] = k.param_ptr::<u32>("input").load_vec();
    /// # let _ = (a, b, c, d);
    /// ```
    #[must_use]
    pub fn load_vec<const N: usize>(self) -> [Reg<'k, E::Reg>; N] {
        self.load_vec_with(LoadHint::Default)
    }

    /// Loads two or four elements at once, with a cache hint.
    ///
    /// ```
    /// use trueno_gpu::ir::LoadHint;
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let words = k.param_ptr::<u32>("input").load_vec_with::<4>(LoadHint::NonCoherent);
    /// # let _ = words;
    /// ```
    #[must_use]
    pub fn load_vec_with<const N: usize>(self, hint: LoadHint) -> [Reg<'k, E::Reg>; N] {
        let dst = std::array::from_fn(|_| self.k.fresh::<E::Reg>());
        self.k.push(self.load_inst(dst.map(|r| r.id), hint));
        dst
    }

    /// Stores one element. For one-byte and two-byte elements, stores the low bits.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// k.param_ptr::<u8>("out").index(k.lane_id()).store(0);
    /// ```
    pub fn store(self, value: impl Operand<'k, E::Reg>) {
        self.store_vec([value]);
    }

    /// Stores two or four elements at once. The address must be aligned to their total size.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// k.param_ptr::<u32>("out").store_vec([1u32, 2]);
    /// ```
    pub fn store_vec<const N: usize, V: Operand<'k, E::Reg>>(self, values: [V; N]) {
        self.k.push(self.store_inst(values, StoreHint::Default));
    }

    /// Stores one element where lanes may write the same bytes on purpose. Any one of them wins.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let table = k.shared_per_block("table", 64, 2).base::<u16>();
    /// let lane = k.lane_id();
    /// table.index(lane >> 1).store_conflicting(lane);
    /// ```
    pub fn store_conflicting(self, value: impl Operand<'k, E::Reg>) {
        self.k.push(conflicting(self.store_inst([value], StoreHint::Default)));
    }
}

pub(crate) fn conflicting(mut inst: Inst) -> Inst {
    if let Inst::Store { conflict, .. } = &mut inst {
        *conflict = Conflict::Intended;
    }
    inst
}

impl<'k, S: Space> Addr<'k, S, u32> {
    pub(crate) fn atomic_inst(self, dst: Option<RegId>, op: AtomOp, value: ir::Operand) -> Inst {
        Inst::Atomic { dst, op, addr: self.mem(), value }
    }

    /// Changes the element atomically and returns the old value.
    ///
    /// ```
    /// use trueno_gpu::ir::AtomOp;
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let ticket = k.param_ptr::<u32>("counter").atomic(AtomOp::Add, 1u32);
    /// # let _ = ticket;
    /// ```
    #[must_use]
    pub fn atomic(self, op: AtomOp, value: impl Operand<'k, u32>) -> Reg<'k, u32> {
        let value = value.lower(self.k);
        let dst = self.k.fresh();
        self.k.push(self.atomic_inst(Some(dst.id), op, value));
        dst
    }

    /// Changes the element atomically and returns nothing (`red`).
    ///
    /// ```
    /// use trueno_gpu::ir::AtomOp;
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let bitmap = k.shared_per_block("bitmap", 4, 4).base::<u32>();
    /// bitmap.reduce(AtomOp::Or, 1u32 << k.lane_id());
    /// ```
    pub fn reduce(self, op: AtomOp, value: impl Operand<'k, u32>) {
        let value = value.lower(self.k);
        self.k.push(self.atomic_inst(None, op, value));
    }
}

impl<'k, E: Element> Addr<'k, Shared, E> {
    /// Returns the address of element `i`, with one `mad` (one `add` for bytes).
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let table = k.shared_per_block("table", 64, 2).base::<u16>();
    /// let entry = table.index(k.lane_id()).load();
    /// # let _ = entry;
    /// ```
    #[must_use]
    pub fn index(self, i: impl Operand<'k, u32>) -> Self {
        let (base, i) = (ir::Operand::Reg(self.base), i.lower(self.k));
        let base: Reg<'k, u32> = match E::MEM.bytes() {
            1 => self.k.pure(Op::AddU32, &[base, i]),
            size => self.k.pure(Op::MadLoU32, &[i, ir::Operand::Imm(u64::from(size)), base]),
        };
        Self { base: base.id, ..self }
    }

    /// Returns the address `bytes` further, by a register.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let page = k.shared_per_block("page", 4096, 16).base::<u32>();
    /// let word = page.byte_add(k.lane_id() * 16).load();
    /// # let _ = word;
    /// ```
    #[must_use]
    pub fn byte_add(self, bytes: impl Operand<'k, u32>) -> Self {
        let base: Reg<'k, u32> = self.k.pure(Op::AddU32, &[ir::Operand::Reg(self.base), bytes.lower(self.k)]);
        Self { base: base.id, ..self }
    }
}

impl<'k, E: Element> Addr<'k, Global, E> {
    /// Returns the address of element `i`, with one `mad.wide`.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let word = k.param_ptr::<u32>("input").index(k.lane_id()).load();
    /// # let _ = word;
    /// ```
    #[must_use]
    pub fn index(self, i: impl Operand<'k, u32>) -> Self {
        self.step(i, E::MEM.bytes())
    }

    /// Returns the address of structure `i` of `size_bytes` each, with one `mad.wide`.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let page = k.param_ptr::<u8>("pages").step(k.block_id(), 4096);
    /// # let _ = page;
    /// ```
    #[must_use]
    pub fn step(self, i: impl Operand<'k, u32>, size_bytes: u32) -> Self {
        let args = [i.lower(self.k), ir::Operand::Imm(u64::from(size_bytes)), ir::Operand::Reg(self.base)];
        let base: Reg<'k, u64> = self.k.pure(Op::MadWideU32, &args);
        Self { base: base.id, ..self }
    }

    /// Returns the address `bytes` further, by a 64-bit register.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let start = k.param_ptr::<u64>("offsets").load();
    /// let page = k.param_ptr::<u8>("packed").byte_add(start);
    /// # let _ = page;
    /// ```
    #[must_use]
    pub fn byte_add(self, bytes: impl Operand<'k, u64>) -> Self {
        let base: Reg<'k, u64> = self.k.pure(Op::AddU64, &[ir::Operand::Reg(self.base), bytes.lower(self.k)]);
        Self { base: base.id, ..self }
    }
}

/// The registers of variables, for guarded vector loads.
pub(crate) fn ids<T, const N: usize>(vars: [Var<'_, T>; N]) -> [RegId; N] {
    vars.map(|v| v.0.id)
}
