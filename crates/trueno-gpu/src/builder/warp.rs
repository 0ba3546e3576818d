//! Warp operations, barriers and special registers.

use super::KernelBuilder;
use crate::ir::{Inst, ReduxOp, ShflMode, SpecialReg, VoteMode};
use crate::types::Word;
use crate::value::{Operand, Pred, Reg};

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

    /// Waits for all lanes of the warp. Memory accesses before it are visible after it (`bar.warp.sync`).
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// k.sync_warp();
    /// ```
    pub fn sync_warp(&self) {
        self.push(Inst::BarWarp);
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
}

/// Votes. The results are uniform.
impl<'k> Reg<'k, bool> {
    fn vote(self, mode: VoteMode) -> Self {
        let dst = self.k.fresh();
        self.k.push(Inst::Vote { mode, dst: dst.id, src: self.pred_use() });
        dst
    }

    /// Returns one bit for each lane where the predicate holds.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let low = k.lane_id().lt(5).ballot(); // 0b11111
    /// # let _ = low;
    /// ```
    #[must_use]
    pub fn ballot(self) -> Reg<'k, u32> {
        let dst = self.k.fresh();
        self.k.push(Inst::Ballot { dst: dst.id, src: self.pred_use() });
        dst
    }

    /// Returns a predicate that holds if this one holds in any lane.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let some = k.lane_id().lt(5).any();
    /// # let _ = some;
    /// ```
    #[must_use]
    pub fn any(self) -> Self {
        self.vote(VoteMode::Any)
    }

    /// Returns a predicate that holds if this one holds in all lanes.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let all = k.lane_id().lt(5).all();
    /// # let _ = all;
    /// ```
    #[must_use]
    pub fn all(self) -> Self {
        self.vote(VoteMode::All)
    }
}

/// Shuffles.
impl<'k, T: Word> Reg<'k, T> {
    fn shuffle(self, mode: ShflMode, lane: impl Operand<'k, u32>) -> Self {
        let (src, lane) = (self.lower(self.k), lane.lower(self.k));
        let dst = self.k.fresh();
        self.k.push(Inst::Shfl { mode, dst: dst.id, in_range: None, src, lane });
        dst
    }

    fn shuffle_checked(self, mode: ShflMode, lane: impl Operand<'k, u32>) -> (Self, Pred<'k>) {
        let (src, lane) = (self.lower(self.k), lane.lower(self.k));
        let (dst, in_range) = (self.k.fresh(), self.k.fresh::<bool>());
        self.k.push(Inst::Shfl { mode, dst: dst.id, in_range: Some(in_range.id), src, lane });
        (dst, in_range)
    }

    /// Returns the value of the given lane (modulo 32), which is always in range; uniform if the lane is.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let first = k.lane_id().shfl(0);
    /// # let _ = first;
    /// ```
    #[must_use]
    pub fn shfl(self, lane: impl Operand<'k, u32>) -> Self {
        self.shuffle(ShflMode::Idx, lane)
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
        self.shuffle(ShflMode::Up, distance)
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
        self.shuffle_checked(ShflMode::Up, distance)
    }

    /// Returns the value of the lane `distance` above, and a predicate that holds if there is such a lane. Otherwise the
    /// value is the lane's own.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let (after, there_is) = k.lane_id().shfl_down_checked(1);
    /// # let _ = (after, there_is);
    /// ```
    #[must_use]
    pub fn shfl_down_checked(self, distance: impl Operand<'k, u32>) -> (Self, Pred<'k>) {
        self.shuffle_checked(ShflMode::Down, distance)
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
        self.shuffle(ShflMode::Bfly, mask)
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
        let src = self.lower(self.k);
        let dst = self.k.fresh();
        self.k.push(Inst::Redux { op, dst: dst.id, src });
        dst
    }
}

impl<'k, T: Word> Reg<'k, T> {
    /// Returns the bits of the lanes that have the same value.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let peers = (k.lane_id() >> 2).match_any();
    /// # let _ = peers;
    /// ```
    #[must_use]
    pub fn match_any(self) -> Reg<'k, u32> {
        let src = self.lower(self.k);
        let dst = self.k.fresh();
        self.k.push(Inst::MatchAny { dst: dst.id, src });
        dst
    }
}
