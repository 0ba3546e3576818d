//! Warp operations, barriers and special registers.

use super::KernelBuilder;
use crate::ir::{self, FenceScope, Inst, ReduxOp, ShflMode, SpecialReg, VoteMode};
use crate::types::{RegClass, Scalar, Value, Word};
use crate::value::{Operand, Pred, Reg};

const ALL_LANES: ir::Operand = ir::Operand::Imm(0xffff_ffff);

macro_rules! specials {
    ($($(#[$doc:meta])+ $name:ident = $reg:ident;)*) => {
        impl KernelBuilder {$(
            $(#[$doc])+
            #[doc = concat!("\n```\nlet k = trueno_gpu::KernelBuilder::new(\"doc\");\nlet v = k.", stringify!($name), "();\n# let _ = v;\n```")]
            #[must_use]
            pub fn $name(&self) -> Reg<'_, u32> {
                self.special(SpecialReg::$reg)
            }
        )*}
    };
}
specials! {
    /// Returns the thread's index in its block.
    thread_id = TidX;
    /// Returns the number of threads per block; uniform.
    block_threads = NtidX;
    /// Returns the block's index in the grid; uniform.
    block_id = CtaidX;
    /// Returns the number of blocks in the grid; uniform.
    block_count = NctaidX;
    /// Returns the lane, 0 to 31.
    lane_id = LaneId;
    /// Returns the lane's own bit.
    lanemask_eq = LanemaskEq;
    /// Returns the bits of the lane and all lower lanes.
    lanemask_le = LanemaskLe;
    /// Returns the bits of all lower lanes.
    lanemask_lt = LanemaskLt;
    /// Returns the bits of the lane and all higher lanes.
    lanemask_ge = LanemaskGe;
    /// Returns the bits of all higher lanes.
    lanemask_gt = LanemaskGt;
}

impl KernelBuilder {
    /// Returns the warp's index in its block, made uniform by a shuffle so that branches may depend on it.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc").with_warps_per_block(4);
    /// let first = k.warp_id().eq(0);
    /// k.if_uniform(first, || k.section("warp 0"));
    /// k.finish().unwrap();
    /// ```
    #[must_use]
    pub fn warp_id(&self) -> Reg<'_, u32> {
        (self.thread_id() >> 5).shfl(0)
    }

    /// Returns the bits of the lanes that execute this.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let mask = k.active_mask();
    /// # let _ = mask;
    /// ```
    #[must_use]
    pub fn active_mask(&self) -> Reg<'_, u32> {
        let dst = self.fresh();
        self.push(Inst::ActiveMask { dst: dst.id });
        dst
    }

    /// Waits for all lanes of the warp. Memory accesses before it are visible after it (`bar.warp.sync`).
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// k.sync_warp();
    /// ```
    pub fn sync_warp(&self) {
        self.push(Inst::BarWarp { mask: ALL_LANES });
    }

    /// Waits for all threads of the block (`bar.sync 0`).
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// k.sync_block();
    /// ```
    pub fn sync_block(&self) {
        self.push(Inst::BarBlock);
    }

    /// Orders the thread's memory accesses before it and after it (`membar`).
    ///
    /// ```
    /// use trueno_gpu::ir::FenceScope;
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// k.fence(FenceScope::Device);
    /// ```
    pub fn fence(&self, scope: FenceScope) {
        self.push(Inst::Fence { scope });
    }

    /// Restricts warp operations to the lanes of a mask. Each lane that executes one must be in the mask.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let lane = k.lane_id();
    /// k.if_(lane.lt(16), || {
    ///     let sum = k.members(0xffffu32).shfl_xor(lane, 1u32) + lane;
    /// #   let _ = sum;
    /// });
    /// k.finish().unwrap();
    /// ```
    #[must_use]
    pub fn members<'k>(&'k self, mask: impl Operand<'k, u32>) -> Members<'k> {
        Members { k: self, mask: mask.lower(self) }
    }

    fn all_lanes(&self) -> Members<'_> {
        Members { k: self, mask: ALL_LANES }
    }
}

/// Warp operations among the lanes of a mask; see [`KernelBuilder::members`].
///
/// ```
/// let k = trueno_gpu::KernelBuilder::new("doc");
/// let low_half = k.members(0xffffu32);
/// k.if_(k.lane_id().lt(16), || low_half.sync());
/// k.finish().unwrap();
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Members<'k> {
    k: &'k KernelBuilder,
    mask: ir::Operand,
}

impl<'k> Members<'k> {
    fn vote(self, mode: VoteMode, p: Pred<'k>) -> Pred<'k> {
        let dst = self.k.fresh();
        self.k.push(Inst::Vote { mode, dst: dst.id, src: p.pred_use(), mask: self.mask });
        dst
    }

    /// Returns a predicate that holds if `p` holds in any member.
    ///
    /// ```
    /// # let k = trueno_gpu::KernelBuilder::new("doc");
    /// let some = k.members(u32::MAX).any(k.lane_id().gt(3));
    /// # let _ = some;
    /// ```
    #[must_use]
    pub fn any(self, p: Pred<'k>) -> Pred<'k> {
        self.vote(VoteMode::Any, p)
    }

    /// Returns a predicate that holds if `p` holds in all members.
    ///
    /// ```
    /// # let k = trueno_gpu::KernelBuilder::new("doc");
    /// let all = k.members(u32::MAX).all(k.lane_id().lt(32));
    /// # let _ = all;
    /// ```
    #[must_use]
    pub fn all(self, p: Pred<'k>) -> Pred<'k> {
        self.vote(VoteMode::All, p)
    }

    /// Returns a predicate that holds if `p` is the same in all members.
    ///
    /// ```
    /// # let k = trueno_gpu::KernelBuilder::new("doc");
    /// let same = k.members(u32::MAX).uni(k.lane_id().lt(32));
    /// # let _ = same;
    /// ```
    #[must_use]
    pub fn uni(self, p: Pred<'k>) -> Pred<'k> {
        self.vote(VoteMode::Uni, p)
    }

    /// Returns one bit for each member where `p` holds.
    ///
    /// ```
    /// # let k = trueno_gpu::KernelBuilder::new("doc");
    /// let odd = k.members(u32::MAX).ballot((k.lane_id() & 1).ne(0));
    /// # let _ = odd;
    /// ```
    #[must_use]
    pub fn ballot(self, p: Pred<'k>) -> Reg<'k, u32> {
        let dst = self.k.fresh();
        self.k.push(Inst::Ballot { dst: dst.id, src: p.pred_use(), mask: self.mask });
        dst
    }

    /// Returns the bits of the members that have the same value.
    ///
    /// ```
    /// # let k = trueno_gpu::KernelBuilder::new("doc");
    /// let peers = k.members(u32::MAX).match_any(k.lane_id() >> 2);
    /// # let _ = peers;
    /// ```
    #[must_use]
    pub fn match_any<T: Scalar>(self, value: Reg<'k, T>) -> Reg<'k, u32> {
        let class: RegClass = <T as Value>::CLASS;
        let src = value.lower(self.k);
        let dst = self.k.fresh();
        self.k.push(Inst::MatchAny { dst: dst.id, src, class, mask: self.mask });
        dst
    }

    /// Returns the values of all members, combined. Needs an SM of 80 or newer.
    ///
    /// ```
    /// # use trueno_gpu::{Target, ir::ReduxOp};
    /// # let k = trueno_gpu::KernelBuilder::new("doc").with_target(Target::SM_80);
    /// let largest = k.members(u32::MAX).redux(k.lane_id(), ReduxOp::Max);
    /// # let _ = largest;
    /// ```
    #[must_use]
    pub fn redux(self, value: Reg<'k, u32>, op: ReduxOp) -> Reg<'k, u32> {
        let src = value.lower(self.k);
        let dst = self.k.fresh();
        self.k.push(Inst::Redux { op, dst: dst.id, src, mask: self.mask });
        dst
    }

    fn shuffle<T: Word>(self, mode: ShflMode, v: Reg<'k, T>, lane: impl Operand<'k, u32>) -> (Reg<'k, T>, Inst) {
        let (src, lane) = (v.lower(self.k), lane.lower(self.k));
        let dst = self.k.fresh();
        // `Up` compares with the lowest source lane, the others with the highest.
        let clamp = if mode == ShflMode::Up { 0 } else { 31 };
        (dst, Inst::Shfl { mode, dst: dst.id, in_range: None, src, lane, clamp, mask: self.mask })
    }

    fn plain<T: Word>(self, mode: ShflMode, v: Reg<'k, T>, lane: impl Operand<'k, u32>) -> Reg<'k, T> {
        let (dst, inst) = self.shuffle(mode, v, lane);
        self.k.push(inst);
        dst
    }

    fn checked<T: Word>(self, mode: ShflMode, v: Reg<'k, T>, lane: impl Operand<'k, u32>) -> (Reg<'k, T>, Pred<'k>) {
        let (dst, mut inst) = self.shuffle(mode, v, lane);
        let pred = self.k.fresh::<bool>();
        if let Inst::Shfl { in_range, .. } = &mut inst {
            *in_range = Some(pred.id);
        }
        self.k.push(inst);
        (dst, pred)
    }

    /// Returns `v` of the given lane (modulo 32), which is always in range.
    ///
    /// ```
    /// # let k = trueno_gpu::KernelBuilder::new("doc");
    /// let first = k.members(u32::MAX).shfl(k.lane_id(), 0u32);
    /// # let _ = first;
    /// ```
    #[must_use]
    pub fn shfl<T: Word>(self, v: Reg<'k, T>, lane: impl Operand<'k, u32>) -> Reg<'k, T> {
        self.plain(ShflMode::Idx, v, lane)
    }

    /// Returns `v` of the lane `distance` below; the lane's own value if there is none.
    ///
    /// ```
    /// # let k = trueno_gpu::KernelBuilder::new("doc");
    /// let before = k.members(u32::MAX).shfl_up(k.lane_id(), 1u32);
    /// # let _ = before;
    /// ```
    #[must_use]
    pub fn shfl_up<T: Word>(self, v: Reg<'k, T>, distance: impl Operand<'k, u32>) -> Reg<'k, T> {
        self.plain(ShflMode::Up, v, distance)
    }

    /// Returns `v` of the lane `distance` above; the lane's own value if there is none.
    ///
    /// ```
    /// # let k = trueno_gpu::KernelBuilder::new("doc");
    /// let after = k.members(u32::MAX).shfl_down(k.lane_id(), 1u32);
    /// # let _ = after;
    /// ```
    #[must_use]
    pub fn shfl_down<T: Word>(self, v: Reg<'k, T>, distance: impl Operand<'k, u32>) -> Reg<'k, T> {
        self.plain(ShflMode::Down, v, distance)
    }

    /// Returns `v` of the lane whose number differs in the bits of `mask` (modulo 32), which is always in range.
    ///
    /// ```
    /// # let k = trueno_gpu::KernelBuilder::new("doc");
    /// let partner = k.members(u32::MAX).shfl_xor(k.lane_id(), 1u32);
    /// # let _ = partner;
    /// ```
    #[must_use]
    pub fn shfl_xor<T: Word>(self, v: Reg<'k, T>, mask: impl Operand<'k, u32>) -> Reg<'k, T> {
        self.plain(ShflMode::Bfly, v, mask)
    }

    /// Waits for all members (`bar.warp.sync`).
    ///
    /// ```
    /// # let k = trueno_gpu::KernelBuilder::new("doc");
    /// k.members(u32::MAX).sync();
    /// ```
    pub fn sync(self) {
        self.k.push(Inst::BarWarp { mask: self.mask });
    }
}

/// Votes of all lanes. The results are uniform.
impl<'k> Reg<'k, bool> {
    /// Returns one bit for each lane where the predicate holds.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let low = k.lane_id().lt(5).ballot(); // 0b11111
    /// # let _ = low;
    /// ```
    #[must_use]
    pub fn ballot(self) -> Reg<'k, u32> {
        self.k.all_lanes().ballot(self)
    }

    /// Returns a predicate that holds if this one holds in any lane.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let some = k.lane_id().lt(5).any();
    /// # let _ = some;
    /// ```
    #[must_use]
    pub fn any(self) -> Pred<'k> {
        self.k.all_lanes().any(self)
    }

    /// Returns a predicate that holds if this one holds in all lanes.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let all = k.lane_id().lt(5).all();
    /// # let _ = all;
    /// ```
    #[must_use]
    pub fn all(self) -> Pred<'k> {
        self.k.all_lanes().all(self)
    }
}

/// Shuffles among all lanes.
impl<'k, T: Word> Reg<'k, T> {
    /// Returns the value of the given lane (modulo 32), which is always in range; uniform if the lane is.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let first = k.lane_id().shfl(0);
    /// # let _ = first;
    /// ```
    #[must_use]
    pub fn shfl(self, lane: impl Operand<'k, u32>) -> Self {
        self.k.all_lanes().shfl(self, lane)
    }

    /// Returns the value of the lane `distance` below; the lane's own value if there is none.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let before = k.lane_id().shfl_up(1);
    /// # let _ = before;
    /// ```
    #[must_use]
    pub fn shfl_up(self, distance: impl Operand<'k, u32>) -> Self {
        self.k.all_lanes().shfl_up(self, distance)
    }

    /// Like [`Reg::shfl_up`], with a predicate that holds if there is such a lane. A step of a prefix sum takes two
    /// instructions with it.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let sum = k.var(k.lane_id());
    /// for d in [1u32, 2, 4, 8, 16] {
    ///     let (below, there_is) = sum.shfl_up_checked(d);
    ///     k.when(there_is).set(sum, sum + below);
    /// }
    /// k.finish().unwrap();
    /// ```
    #[must_use]
    pub fn shfl_up_checked(self, distance: impl Operand<'k, u32>) -> (Self, Pred<'k>) {
        self.k.all_lanes().checked(ShflMode::Up, self, distance)
    }

    /// Returns the value of the lane `distance` above; the lane's own value if there is none.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let after = k.lane_id().shfl_down(1);
    /// # let _ = after;
    /// ```
    #[must_use]
    pub fn shfl_down(self, distance: impl Operand<'k, u32>) -> Self {
        self.k.all_lanes().shfl_down(self, distance)
    }

    /// Like [`Reg::shfl_down`], with a predicate that holds if there is such a lane.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let (after, there_is) = k.lane_id().shfl_down_checked(1);
    /// # let _ = (after, there_is);
    /// ```
    #[must_use]
    pub fn shfl_down_checked(self, distance: impl Operand<'k, u32>) -> (Self, Pred<'k>) {
        self.k.all_lanes().checked(ShflMode::Down, self, distance)
    }

    /// Returns the value of the lane whose number differs in the bits of `mask` (modulo 32), which is always in range.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let partner = k.lane_id().shfl_xor(1);
    /// # let _ = partner;
    /// ```
    #[must_use]
    pub fn shfl_xor(self, mask: impl Operand<'k, u32>) -> Self {
        self.k.all_lanes().shfl_xor(self, mask)
    }
}

impl<'k> Reg<'k, u64> {
    /// Returns the value of the given lane (modulo 32), which is always in range, by two shuffles of the halves.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let first = k.lane_id().to_u64().shfl(0u32);
    /// # let _ = first;
    /// ```
    #[must_use]
    pub fn shfl(self, lane: impl Operand<'k, u32>) -> Self {
        self.lo().shfl(lane).pack(self.hi().shfl(lane))
    }
}

impl<'k> Reg<'k, u32> {
    /// Returns the values of all lanes, combined; uniform. Needs an SM of 80 or newer.
    ///
    /// ```
    /// use trueno_gpu::{Target, ir::ReduxOp};
    /// let k = trueno_gpu::KernelBuilder::new("doc").with_target(Target::SM_80);
    /// let sum = k.lane_id().redux(ReduxOp::Add);
    /// k.if_uniform(sum.eq(496), || k.sync_warp());
    /// k.finish().unwrap();
    /// ```
    #[must_use]
    pub fn redux(self, op: ReduxOp) -> Self {
        self.k.all_lanes().redux(self, op)
    }
}

impl<'k, T: Scalar> Reg<'k, T> {
    /// Returns the bits of the lanes that have the same value.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let peers = (k.lane_id() >> 2).match_any();
    /// # let _ = peers;
    /// ```
    #[must_use]
    pub fn match_any(self) -> Reg<'k, u32> {
        self.k.all_lanes().match_any(self)
    }
}
