//! The kernel builder: declares parameters and variables, and collects statements.

mod arith;
mod control;
mod convert;
mod fold;
mod guard;
mod shared;
mod warp;

pub use control::{LoopLabel, ScopeLabel};
pub use guard::Guarded;
pub use shared::{SharedPerBlock, SharedPerWarp};

use crate::addr::Addr;
use crate::inst::Op;
use crate::ir::{
    self, Block, BlockKind, Few, Inst, KernelIr, ParamInfo, ParamTy, Path, PredUse, RegId, RegInfo, RegionInfo,
};
use crate::ir::{SharedLayout, SpecialReg, Stmt};
use crate::target::Target;
use crate::types::{Element, Global, Scalar, Value};
use crate::validate::{ValidKernel, ValidateError, validate};
use crate::value::{Operand, Reg, Var, mov_op};
use std::cell::RefCell;
use std::marker::PhantomData;

/// Builds one kernel. Registers borrow it, so that they can append instructions.
///
/// ```
/// use trueno_gpu::KernelBuilder;
/// let k = KernelBuilder::new("double").with_warps_per_block(4);
/// let (data, n) = (k.param_ptr::<u32>("data"), k.param_u32("n"));
/// let i = k.block_id() * k.block_threads() + k.thread_id();
/// let own = data.index(i);
/// let inside = i.lt(n);
/// let value = k.when(inside).load_or(own, 0u32);
/// k.when(inside).store(own, value * 2);
/// let ptx = trueno_gpu::emit(&k.finish()?);
/// assert!(ptx.contains(".visible .entry double("));
/// # Ok::<(), trueno_gpu::ValidateError>(())
/// ```
#[derive(Debug)]
pub struct KernelBuilder {
    state: RefCell<BuilderState>,
}

#[derive(Debug)]
struct BuilderState {
    name: String,
    target: Target,
    warps_per_block: u32,
    min_blocks_per_sm: Option<u32>,
    params: Vec<ParamInfo>,
    regs: Vec<RegInfo>,
    regions: Vec<RegionInfo>,
    /// The open block and the blocks around it.
    open: Vec<(BlockKind, Block)>,
    labels: u32,
    /// The first error that only the builder can detect.
    misuse: Option<ValidateError>,
}

impl KernelBuilder {
    /// Starts a kernel with one warp per block, the default target and no statements.
    ///
    /// ```
    /// assert!(trueno_gpu::KernelBuilder::new("empty").finish().is_ok());
    /// ```
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            state: RefCell::new(BuilderState {
                name: name.to_owned(),
                target: Target::default(),
                warps_per_block: 1,
                min_blocks_per_sm: None,
                params: Vec::new(),
                regs: Vec::new(),
                regions: Vec::new(),
                open: vec![(BlockKind::Body, Vec::new())],
                labels: 0,
                misuse: None,
            }),
        }
    }

    /// Chooses the target, for validation and as the default of the emitter.
    ///
    /// ```
    /// use trueno_gpu::{KernelBuilder, Target};
    /// let kernel = KernelBuilder::new("k").with_target(Target::SM_90).finish()?;
    /// assert_eq!(kernel.target, Target::SM_90);
    /// # Ok::<(), trueno_gpu::ValidateError>(())
    /// ```
    #[must_use]
    pub fn with_target(mut self, target: Target) -> Self {
        self.state.get_mut().target = target;
        self
    }

    /// Chooses the number of warps per block.
    ///
    /// ```
    /// let kernel = trueno_gpu::KernelBuilder::new("k").with_warps_per_block(4).finish()?;
    /// assert_eq!(kernel.warps_per_block, 4);
    /// # Ok::<(), trueno_gpu::ValidateError>(())
    /// ```
    #[must_use]
    pub fn with_warps_per_block(mut self, warps: u32) -> Self {
        self.state.get_mut().warps_per_block = warps;
        self
    }

    /// Asks the compiler to limit registers so that an SM can hold this many blocks.
    ///
    /// ```
    /// let kernel = trueno_gpu::KernelBuilder::new("k").with_min_blocks_per_sm(2).finish()?;
    /// assert_eq!(kernel.min_blocks_per_sm, Some(2));
    /// # Ok::<(), trueno_gpu::ValidateError>(())
    /// ```
    #[must_use]
    pub fn with_min_blocks_per_sm(mut self, blocks: u32) -> Self {
        self.state.get_mut().min_blocks_per_sm = Some(blocks);
        self
    }

    /// Closes the kernel, validates it and simplifies it.
    ///
    /// # Errors
    /// The first rule broken, with the statement's path.
    ///
    /// ```
    /// use trueno_gpu::{KernelBuilder, ValidateError};
    /// let k = KernelBuilder::new("divergent");
    /// k.if_uniform(k.lane_id().lt(7), || k.sync_warp());
    /// assert!(matches!(k.finish(), Err(ValidateError::NotUniform { .. })));
    /// ```
    pub fn finish(self) -> Result<ValidKernel, ValidateError> {
        // Validate before simplifying, so that errors name the author's paths and registers.
        Ok(self.close()?.rewritten(fold::simplify))
    }

    /// Returns the target's SM, for kernels that have another way where an instruction is missing.
    pub(crate) fn target_sm(&self) -> u32 {
        self.state.borrow().target.sm
    }

    /// Returns the kernel as written, validated.
    fn close(self) -> Result<ValidKernel, ValidateError> {
        let mut state = self.state.into_inner();
        if let Some(misuse) = state.misuse {
            return Err(misuse);
        }
        let shared = SharedLayout::of(state.regions, state.warps_per_block).ok_or(ValidateError::SharedLayout)?;
        let (_, body) = state.open.swap_remove(0);
        let kernel = KernelIr {
            name: state.name,
            target: state.target,
            warps_per_block: state.warps_per_block,
            min_blocks_per_sm: state.min_blocks_per_sm,
            params: state.params,
            regs: state.regs,
            shared,
            body,
        };
        validate(kernel)
    }

    /// Declares a pointer parameter to elements `E` in global memory.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let input = k.param_ptr::<u32>("input"); // Addr<Global, u32>
    /// # let _ = input;
    /// ```
    #[must_use]
    pub fn param_ptr<E: Element>(&self, name: &str) -> Addr<'_, Global, E> {
        let base = self.param::<u64>(name, ParamTy::Pointer(E::MEM));
        Addr { k: self, base: base.id, offset: 0, ty: PhantomData }
    }

    /// Declares a 32-bit parameter.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let n = k.param_u32("n");
    /// # let _ = n;
    /// ```
    #[must_use]
    pub fn param_u32(&self, name: &str) -> Reg<'_, u32> {
        self.param(name, ParamTy::U32)
    }

    /// Declares a 64-bit parameter.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let total = k.param_u64("total");
    /// # let _ = total;
    /// ```
    #[must_use]
    pub fn param_u64(&self, name: &str) -> Reg<'_, u64> {
        self.param(name, ParamTy::U64)
    }

    fn param<T: Scalar>(&self, name: &str, ty: ParamTy) -> Reg<'_, T> {
        let index = {
            let params = &mut self.state.borrow_mut().params;
            params.push(ParamInfo { name: name.to_owned(), ty });
            u32::try_from(params.len() - 1).expect("a kernel has few parameters")
        };
        let dst = self.fresh::<T>().named(name);
        self.push(Inst::Param { dst: dst.id, index });
        dst
    }

    /// Returns a register with the given value. A constant is moved into one.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let ones = k.value(u32::MAX);
    /// # let _ = ones;
    /// ```
    #[must_use]
    pub fn value<'k, T: Value>(&'k self, value: impl Operand<'k, T>) -> Reg<'k, T> {
        self.pure(mov_op::<T>(), &[value.lower(self)])
    }

    /// Declares a variable with an initial value.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let count = k.var(0u32);
    /// let found = k.var(false);
    /// # let _ = (count, found);
    /// ```
    #[must_use]
    pub fn var<'k, T: Value>(&'k self, initial: impl Operand<'k, T>) -> Var<'k, T> {
        let var = self.fresh_var::<T>();
        var.set(initial);
        var
    }

    /// Declares a variable with an arbitrary initial value, without an instruction. Use it for what is assigned before
    /// it is read, and for guarded loads whose other lanes do not matter. No result may depend on the value; the
    /// interpreter fills in noise.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let word = k.var_arbitrary::<u32>();
    /// # let _ = word;
    /// ```
    #[must_use]
    pub fn var_arbitrary<T: Value>(&self) -> Var<'_, T> {
        let var = self.fresh_var::<T>();
        self.push(Inst::Arbitrary { dst: var.0.id });
        var
    }

    /// Writes a comment into the PTX.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// k.section("find matches");
    /// assert!(trueno_gpu::emit(&k.finish()?).contains("// find matches"));
    /// # Ok::<(), trueno_gpu::ValidateError>(())
    /// ```
    pub fn section(&self, title: &str) {
        self.push_stmt(Stmt::Section(title.to_owned()));
    }

    fn special(&self, reg: SpecialReg) -> Reg<'_, u32> {
        let dst = self.fresh();
        self.push(Inst::Special { dst: dst.id, reg });
        dst
    }

    pub(crate) fn fresh<T: Value>(&self) -> Reg<'_, T> {
        Reg::new(self, self.declare(T::CLASS, false))
    }

    pub(crate) fn fresh_var<T: Value>(&self) -> Var<'_, T> {
        Var(Reg::new(self, self.declare(T::CLASS, true)))
    }

    fn declare(&self, class: crate::types::RegClass, mutable: bool) -> RegId {
        let regs = &mut self.state.borrow_mut().regs;
        regs.push(RegInfo { class, name: None, mutable });
        RegId(u32::try_from(regs.len() - 1).expect("a kernel has fewer than 2^32 registers"))
    }

    pub(crate) fn set_name(&self, id: RegId, name: &str) {
        self.state.borrow_mut().regs[id.index()].name = Some(name.to_owned());
    }

    pub(crate) fn is_mutable(&self, id: RegId) -> bool {
        self.state.borrow().regs.get(id.index()).is_some_and(|r| r.mutable)
    }

    pub(crate) fn pure<T: Value>(&self, op: Op, args: &[ir::Operand]) -> Reg<'_, T> {
        let dst = self.fresh();
        self.push(Inst::Pure { op, dst: dst.id, args: Few::from_slice(args) });
        dst
    }

    pub(crate) fn assign<'k, T: Value>(&'k self, var: Var<'k, T>, value: impl Operand<'k, T>, guard: Option<PredUse>) {
        let args = Few::from([value.lower(self)]);
        self.push_guarded(Inst::Pure { op: mov_op::<T>(), dst: var.0.id, args }, guard);
    }

    pub(crate) fn push(&self, inst: Inst) {
        self.push_guarded(inst, None);
    }

    pub(crate) fn push_guarded(&self, inst: Inst, guard: Option<PredUse>) {
        self.push_stmt(Stmt::Inst { inst, guard });
    }

    fn push_stmt(&self, stmt: Stmt) {
        self.state.borrow_mut().open.last_mut().expect("the body is always open").1.push(stmt);
    }

    /// Records the use of another builder's register, which would name a different register here.
    pub(crate) fn check_owner(&self, owner: &Self, reg: RegId) {
        if !std::ptr::eq(self, owner) {
            let mut state = self.state.borrow_mut();
            let path = Path(state.open.iter().map(|(part, block)| (*part, block.len())).collect());
            state.misuse.get_or_insert(ValidateError::ForeignRegister { path, reg });
        }
    }
}

#[cfg(test)]
mod tests;
