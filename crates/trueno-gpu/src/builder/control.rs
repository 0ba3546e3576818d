//! Structured control flow: uniform forms, which the validator checks, and divergent forms.

use super::KernelBuilder;
use crate::ir::{Block, BlockKind, Branch, LabelId, Stmt};
use crate::value::Pred;

/// The label of a loop, to break out of it or continue it from any depth.
///
/// ```
/// let k = trueno_gpu::KernelBuilder::new("doc");
/// let i = k.var(0u32);
/// k.loop_uniform(|l| {
///     i.set(i + 1);
///     l.continue_if(i.lt(5));
///     l.break_if(i.eq(9));
/// });
/// k.finish().unwrap();
/// ```
#[derive(Debug, Clone, Copy)]
pub struct LoopLabel<'k> {
    k: &'k KernelBuilder,
    label: LabelId,
    branch: Branch,
}

/// The label of a scope, to leave it early from any depth.
///
/// ```
/// let k = trueno_gpu::KernelBuilder::new("doc");
/// let n = k.param_u32("n");
/// k.block_uniform(|b| {
///     b.exit_if(n.eq(0));
///     k.section("n is not 0 here");
/// });
/// k.finish().unwrap();
/// ```
#[derive(Debug, Clone, Copy)]
pub struct ScopeLabel<'k> {
    k: &'k KernelBuilder,
    label: LabelId,
    branch: Branch,
}

impl<'k> LoopLabel<'k> {
    /// Leaves the loop where `p` holds.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let n = k.param_u32("n");
    /// k.loop_uniform(|l| l.break_if(n.eq(0)));
    /// ```
    pub fn break_if(self, p: impl Into<Pred<'k>>) {
        let p = p.into();
        let Self { k, label: target, branch } = self;
        k.check_owner(p.k, p.id);
        k.push_stmt(Stmt::Break { target, cond: Some(p.pred_use()), branch });
    }

    /// Leaves the loop.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// k.loop_uniform(|l| l.break_now());
    /// ```
    pub fn break_now(self) {
        let Self { k, label: target, branch } = self;
        k.push_stmt(Stmt::Break { target, cond: None, branch });
    }

    /// Starts the next iteration where `p` holds.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let i = k.var(0u32);
    /// k.loop_uniform(|l| {
    ///     i.set(i + 1);
    ///     l.continue_if(i.lt(5));
    ///     l.break_now();
    /// });
    /// ```
    pub fn continue_if(self, p: impl Into<Pred<'k>>) {
        let p = p.into();
        let Self { k, label: target, branch } = self;
        k.check_owner(p.k, p.id);
        k.push_stmt(Stmt::Continue { target, cond: Some(p.pred_use()), branch });
    }
}

impl<'k> ScopeLabel<'k> {
    /// Leaves the scope where `p` holds.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let n = k.param_u32("n");
    /// k.block_uniform(|b| b.exit_if(n.eq(0)));
    /// ```
    pub fn exit_if(self, p: impl Into<Pred<'k>>) {
        let p = p.into();
        let Self { k, label: target, branch } = self;
        k.check_owner(p.k, p.id);
        k.push_stmt(Stmt::Break { target, cond: Some(p.pred_use()), branch });
    }

    /// Leaves the scope.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// k.block_uniform(|b| b.exit());
    /// ```
    pub fn exit(self) {
        let Self { k, label: target, branch } = self;
        k.push_stmt(Stmt::Break { target, cond: None, branch });
    }
}

impl KernelBuilder {
    fn nested<R>(&self, part: BlockKind, body: impl FnOnce() -> R) -> (Block, R) {
        self.state.borrow_mut().open.push((part, Vec::new()));
        let result = body();
        let (_, block) = self.state.borrow_mut().open.pop().expect("what was opened above is still open");
        (block, result)
    }

    fn label(&self) -> LabelId {
        let labels = &mut self.state.borrow_mut().labels;
        *labels += 1;
        LabelId(*labels - 1)
    }

    fn branch_on<'k>(&'k self, branch: Branch, p: impl Into<Pred<'k>>, then: impl FnOnce(), otherwise: impl FnOnce()) {
        let p = p.into();
        self.check_owner(p.k, p.id);
        // Read the condition at the branch, before anything in the blocks can change it.
        let cond = p.pred_use();
        let (then, ()) = self.nested(BlockKind::Then, then);
        let (otherwise, ()) = self.nested(BlockKind::Else, otherwise);
        self.push_stmt(Stmt::If { cond, branch, then, otherwise });
    }

    fn loop_with<'k>(&'k self, branch: Branch, body: impl FnOnce(LoopLabel<'k>)) {
        let label = self.label();
        let (body, ()) = self.nested(BlockKind::Loop, || body(LoopLabel { k: self, label, branch }));
        self.push_stmt(Stmt::Loop { label, branch, body });
    }

    fn scope_with<'k>(&'k self, branch: Branch, body: impl FnOnce(ScopeLabel<'k>)) {
        let label = self.label();
        let (body, ()) = self.nested(BlockKind::Scope, || body(ScopeLabel { k: self, label, branch }));
        self.push_stmt(Stmt::Scope { label, body });
    }

    /// Runs `then` if `p` holds. All lanes must agree on `p`.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let some = k.lane_id().gt(40).any();
    /// k.if_uniform(some, || k.sync_warp());
    /// k.finish().unwrap();
    /// ```
    pub fn if_uniform<'k>(&'k self, p: impl Into<Pred<'k>>, then: impl FnOnce()) {
        self.branch_on(Branch::Uniform, p, then, || {});
    }

    /// Runs `then` if `p` holds, else `otherwise`. All lanes must agree on `p`.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let size = k.var(0u32);
    /// k.if_else_uniform(k.param_u32("n").eq(1), || size.set(1), || size.set(2));
    /// k.finish().unwrap();
    /// ```
    pub fn if_else_uniform<'k>(&'k self, p: impl Into<Pred<'k>>, then: impl FnOnce(), otherwise: impl FnOnce()) {
        self.branch_on(Branch::Uniform, p, then, otherwise);
    }

    /// Runs `then` in the lanes where `p` holds.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let v = k.var(0u32);
    /// k.if_(k.lane_id().lt(3), || v.set(1));
    /// k.finish().unwrap();
    /// ```
    pub fn if_<'k>(&'k self, p: impl Into<Pred<'k>>, then: impl FnOnce()) {
        self.branch_on(Branch::Divergent, p, then, || {});
    }

    /// Runs `then` in the lanes where `p` holds and `otherwise` in the others.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let v = k.var(0u32);
    /// k.if_else(k.lane_id().lt(3), || v.set(1), || v.set(2));
    /// k.finish().unwrap();
    /// ```
    pub fn if_else<'k>(&'k self, p: impl Into<Pred<'k>>, then: impl FnOnce(), otherwise: impl FnOnce()) {
        self.branch_on(Branch::Divergent, p, then, otherwise);
    }

    /// Repeats until the body breaks. All lanes must agree on the condition of the break.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let i = k.var(0u32);
    /// k.loop_uniform(|l| {
    ///     i.set(i + 1);
    ///     l.break_if(i.eq(8));
    /// });
    /// k.finish().unwrap();
    /// ```
    pub fn loop_uniform<'k>(&'k self, body: impl FnOnce(LoopLabel<'k>)) {
        self.loop_with(Branch::Uniform, body);
    }

    /// Repeats until every lane has broken out.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let i = k.var(k.lane_id());
    /// k.loop_(|l| {
    ///     i.set(i + 1);
    ///     l.break_if(i.ge(40));
    /// });
    /// k.finish().unwrap();
    /// ```
    pub fn loop_<'k>(&'k self, body: impl FnOnce(LoopLabel<'k>)) {
        self.loop_with(Branch::Divergent, body);
    }

    /// Repeats the body while the condition holds, which is tested first. All lanes must agree on the condition.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let i = k.var(0u32);
    /// k.while_uniform(|| i.lt(8), || i.set(i + 1));
    /// k.finish().unwrap();
    /// ```
    pub fn while_uniform<'k>(&'k self, cond: impl FnOnce() -> Pred<'k>, body: impl FnOnce()) {
        self.loop_uniform(|l| {
            l.break_if(!cond());
            body();
        });
    }

    /// Runs the body and repeats it while it returns true, with one branch per iteration. All lanes must agree on the
    /// result.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let i = k.var(0u32);
    /// k.do_while_uniform(|| {
    ///     i.set(i + 1);
    ///     i.lt(8)
    /// });
    /// k.finish().unwrap();
    /// ```
    pub fn do_while_uniform<'k>(&'k self, body: impl FnOnce() -> Pred<'k>) {
        self.loop_uniform(|l| l.break_if(!body()));
    }

    /// Runs the body once. `exit_if` leaves it early, on conditions that all lanes agree on.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let n = k.param_u32("n");
    /// k.block_uniform(|b| {
    ///     b.exit_if(n.gt(100));
    ///     k.section("small");
    /// });
    /// k.finish().unwrap();
    /// ```
    pub fn block_uniform<'k>(&'k self, body: impl FnOnce(ScopeLabel<'k>)) {
        self.scope_with(Branch::Uniform, body);
    }

    /// Runs the body once. Lanes leave it early with `exit_if`.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let lane = k.lane_id();
    /// let v = k.var(0u32);
    /// k.block(|b| {
    ///     b.exit_if(lane.gt(9));
    ///     v.set(1);
    /// });
    /// k.finish().unwrap();
    /// ```
    pub fn block<'k>(&'k self, body: impl FnOnce(ScopeLabel<'k>)) {
        self.scope_with(Branch::Divergent, body);
    }
}
