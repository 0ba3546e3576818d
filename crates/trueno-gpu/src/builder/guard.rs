//! Predicated instructions, which run without a branch in the lanes where a predicate holds.

use super::KernelBuilder;
use crate::addr::{Addr, conflicting, ids};
use crate::ir::{AtomOp, LoadHint, PredUse, StoreHint};
use crate::types::{Element, Space, Value};
use crate::value::{Operand, Pred, Reg, Var};

/// Instructions under a predicate; see [`KernelBuilder::when`].
///
/// ```
/// let k = trueno_gpu::KernelBuilder::new("doc");
/// let count = k.var(0u32);
/// let odd = (k.lane_id() & 1).ne(0);
/// k.when(odd).set(count, count + 1); // @p add
/// k.finish().unwrap();
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Guarded<'k> {
    k: &'k KernelBuilder,
    guard: PredUse,
}

impl KernelBuilder {
    /// Guards the instructions called on the result: they run in the lanes where `p` holds. Guards do not nest; combine
    /// predicates with `&`.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let out = k.param_ptr::<u32>("out");
    /// k.when(k.lane_id().eq(0)).store(out, 1u32);
    /// k.finish().unwrap();
    /// ```
    #[must_use]
    pub fn when<'k>(&'k self, p: impl Into<Pred<'k>>) -> Guarded<'k> {
        let p = p.into();
        self.check_owner(p.k, p.id);
        Guarded { k: self, guard: p.pred_use() }
    }
}

impl<'k> Guarded<'k> {
    /// Assigns a variable. In other lanes it keeps its value. An operation whose result is only used here becomes the
    /// predicated instruction itself.
    ///
    /// ```
    /// # let k = trueno_gpu::KernelBuilder::new("doc");
    /// # let v = k.var(0u32);
    /// # let p = k.lane_id().lt(4);
    /// k.when(p).set(v, v.max(9u32));
    /// ```
    pub fn set<T: Value>(self, var: Var<'k, T>, value: impl Operand<'k, T>) {
        self.k.assign(var, value, Some(self.guard));
    }

    /// Loads into a variable. In other lanes it keeps its value, and nothing is read.
    ///
    /// ```
    /// # let k = trueno_gpu::KernelBuilder::new("doc");
    /// # let input = k.param_ptr::<u32>("input");
    /// # let p = k.lane_id().lt(4);
    /// let word = k.var(0u32);
    /// k.when(p).load(word, input);
    /// ```
    pub fn load<S: Space, E: Element>(self, var: Var<'k, E::Reg>, addr: Addr<'k, S, E>) {
        self.load_vec([var], addr);
    }

    /// Loads where the predicate holds, and returns `otherwise` in other lanes, with a move and a predicated load.
    ///
    /// ```
    /// # let k = trueno_gpu::KernelBuilder::new("doc");
    /// # let input = k.param_ptr::<u8>("input");
    /// # let p = k.lane_id().lt(4);
    /// let byte = k.when(p).load_or(input, 0u32);
    /// # let _ = byte;
    /// ```
    #[must_use]
    pub fn load_or<S: Space, E: Element>(
        self,
        addr: Addr<'k, S, E>,
        otherwise: impl Operand<'k, E::Reg>,
    ) -> Reg<'k, E::Reg> {
        let var = self.k.var(otherwise);
        self.load(var, addr);
        var.0
    }

    /// Loads two or four elements into variables.
    ///
    /// ```
    /// # let k = trueno_gpu::KernelBuilder::new("doc");
    /// # let input = k.param_ptr::<u32>("input");
    /// # let p = k.lane_id().lt(4);
    /// let pair = [k.var(0u32), k.var(0u32)];
    /// k.when(p).load_vec(pair, input);
    /// ```
    pub fn load_vec<S: Space, E: Element, const N: usize>(self, vars: [Var<'k, E::Reg>; N], addr: Addr<'k, S, E>) {
        self.load_vec_with(LoadHint::Default, vars, addr);
    }

    /// Loads one, two or four elements into variables, with a cache hint.
    ///
    /// ```
    /// # use trueno_gpu::ir::LoadHint;
    /// # let k = trueno_gpu::KernelBuilder::new("doc");
    /// # let input = k.param_ptr::<u32>("input");
    /// # let p = k.lane_id().lt(4);
    /// let words = [(); 4].map(|()| k.var_arbitrary::<u32>());
    /// k.when(p).load_vec_with(LoadHint::NonCoherent, words, input);
    /// ```
    pub fn load_vec_with<S: Space, E: Element, const N: usize>(
        self,
        hint: LoadHint,
        vars: [Var<'k, E::Reg>; N],
        addr: Addr<'k, S, E>,
    ) {
        self.k.push_guarded(addr.load_inst(ids(vars), hint), Some(self.guard));
    }

    /// Stores one element.
    ///
    /// ```
    /// # let k = trueno_gpu::KernelBuilder::new("doc");
    /// # let out = k.param_ptr::<u8>("out");
    /// # let p = k.lane_id().lt(4);
    /// k.when(p).store(out.index(k.lane_id()), 0u32);
    /// ```
    pub fn store<S: Space, E: Element>(self, addr: Addr<'k, S, E>, value: impl Operand<'k, E::Reg>) {
        self.store_vec(addr, [value]);
    }

    /// Stores two or four elements.
    ///
    /// ```
    /// # let k = trueno_gpu::KernelBuilder::new("doc");
    /// # let out = k.param_ptr::<u32>("out");
    /// # let p = k.lane_id().lt(1);
    /// k.when(p).store_vec(out, [1u32, 2, 3, 4]);
    /// ```
    pub fn store_vec<S: Space, E: Element, const N: usize, V: Operand<'k, E::Reg>>(
        self,
        addr: Addr<'k, S, E>,
        values: [V; N],
    ) {
        self.store_vec_with(StoreHint::Default, addr, values);
    }

    /// Stores one, two or four elements, with a cache hint.
    ///
    /// ```
    /// # use trueno_gpu::ir::StoreHint;
    /// # let k = trueno_gpu::KernelBuilder::new("doc");
    /// # let out = k.param_ptr::<u32>("out");
    /// # let p = k.lane_id().lt(1);
    /// k.when(p).store_vec_with(StoreHint::Volatile, out, [1u32, 2]);
    /// ```
    pub fn store_vec_with<S: Space, E: Element, const N: usize, V: Operand<'k, E::Reg>>(
        self,
        hint: StoreHint,
        addr: Addr<'k, S, E>,
        values: [V; N],
    ) {
        self.k.push_guarded(addr.store_inst(values, hint), Some(self.guard));
    }

    /// Stores one element where lanes may write the same bytes on purpose.
    ///
    /// ```
    /// # let k = trueno_gpu::KernelBuilder::new("doc");
    /// # let table = k.shared_per_block("table", 64, 2).base::<u16>();
    /// # let p = k.lane_id().lt(9);
    /// k.when(p).store_conflicting(table, k.lane_id());
    /// ```
    pub fn store_conflicting<S: Space, E: Element>(self, addr: Addr<'k, S, E>, value: impl Operand<'k, E::Reg>) {
        let inst = conflicting(addr.store_inst([value], StoreHint::Default));
        self.k.push_guarded(inst, Some(self.guard));
    }

    /// Changes the element atomically. The old value goes to `old`, which keeps its value in other lanes.
    ///
    /// ```
    /// # use trueno_gpu::ir::AtomOp;
    /// # let k = trueno_gpu::KernelBuilder::new("doc");
    /// # let counter = k.param_ptr::<u32>("counter");
    /// let ticket = k.var(0u32);
    /// k.when(k.lane_id().eq(0)).atomic(ticket, counter, AtomOp::Add, 1u32);
    /// let page = ticket.shfl(0);
    /// # let _ = page;
    /// ```
    pub fn atomic<S: Space>(self, old: Var<'k, u32>, addr: Addr<'k, S, u32>, op: AtomOp, value: impl Operand<'k, u32>) {
        let value = value.lower(self.k);
        self.k.push_guarded(addr.atomic_inst(Some(old.0.id), op, value), Some(self.guard));
    }

    /// Changes the element atomically and returns nothing (`red`).
    ///
    /// ```
    /// # use trueno_gpu::ir::AtomOp;
    /// # let k = trueno_gpu::KernelBuilder::new("doc");
    /// # let bitmap = k.shared_per_block("bitmap", 4, 4).base::<u32>();
    /// # let p = k.lane_id().lt(9);
    /// k.when(p).reduce(bitmap, AtomOp::Or, k.lanemask_eq());
    /// ```
    pub fn reduce<S: Space>(self, addr: Addr<'k, S, u32>, op: AtomOp, value: impl Operand<'k, u32>) {
        let value = value.lower(self.k);
        self.k.push_guarded(addr.atomic_inst(None, op, value), Some(self.guard));
    }
}
