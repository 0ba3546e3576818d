//! Shuffles, votes, matches and barriers of a warp.

use super::fault::{FaultKind, LaneSet, StepResult, trap};
use super::narrow::lane_u32;
use super::program::{Cond, RegSlot, ShflOp};
use super::traffic::bits;
use super::warp::{ALL, LaunchContext, Warp};
use crate::inst::{L32, shfl_source};
use crate::ir::{ReduxOp, VoteMode};
use crate::types::RegClass;

/// The lanes that take part in a warp operation.
enum MemberGroups<'a> {
    /// All lanes that execute it, together.
    One,
    /// Several groups. Each lane has the mask of its own.
    Groups(&'a L32),
}

impl Warp {
    /// Checks that the mask of each lane names exactly the lanes that execute this with the same mask.
    fn members(
        &self,
        cx: &LaunchContext<'_>,
        mask: RegSlot,
        exec: u32,
        missed: fn(LaneSet, LaneSet) -> FaultKind,
    ) -> StepResult<MemberGroups<'_>> {
        self.need(RegClass::B32, mask, exec, cx.program)?;
        let masks = &self.w.value[mask as usize];
        if exec == ALL && masks.iter().all(|&mask| mask == ALL) {
            return Ok(MemberGroups::One);
        }
        let mut one = true;
        for lane in bits(exec) {
            let same = bits(exec).filter(|&other| masks[other] == masks[lane]).fold(0, |set, other| set | 1 << other);
            if masks[lane] != same {
                return trap(same, missed(LaneSet(masks[lane]), LaneSet(same)));
            }
            one &= same == exec;
        }
        Ok(if one { MemberGroups::One } else { MemberGroups::Groups(masks) })
    }

    fn operation(&self, cx: &LaunchContext<'_>, mask: RegSlot, exec: u32) -> StepResult<MemberGroups<'_>> {
        self.members(cx, mask, exec, |members, reached| FaultKind::WarpOperationMissed { members, reached })
    }

    /// Applies a function to the group of each lane, once if there is only one group.
    fn by_group<T: Copy + Default>(members: &MemberGroups<'_>, exec: u32, f: impl Fn(u32) -> T) -> [T; 32] {
        match members {
            MemberGroups::One => [f(exec); 32],
            MemberGroups::Groups(masks) => {
                let mut results = [T::default(); 32];
                bits(exec).for_each(|lane| results[lane] = f(masks[lane]));
                results
            }
        }
    }

    pub(super) fn shfl(&mut self, cx: &LaunchContext<'_>, op: &ShflOp, exec: u32) -> StepResult {
        self.need(RegClass::B32, op.src, exec, cx.program)?;
        self.need(RegClass::B32, op.lane, exec, cx.program)?;
        let members = self.operation(cx, op.mask, exec)?;
        let (src, lanes) = (&self.w.value[op.src as usize], &self.w.value[op.lane as usize]);
        let mut result = [0; 32];
        let mut in_range = 0;
        for lane in bits(exec) {
            let (source, valid) = shfl_source(op.mode, lane_u32(lane), lanes[lane], op.clamp);
            let source = source as usize & 31;
            let group = match members {
                MemberGroups::One => exec,
                MemberGroups::Groups(masks) => masks[lane],
            };
            // If out of range, the source is the lane itself, which takes part.
            if group >> source & 1 == 0 {
                return trap(1 << lane, FaultKind::ShuffleSource { source_lane: lane_u32(source) });
            }
            result[lane] = src[source];
            in_range |= u32::from(valid) << lane;
        }
        self.w.set(op.dst, exec, &result);
        if let Some(dst) = op.in_range {
            self.p.set(dst, exec, &in_range);
        }
        Ok(())
    }

    pub(super) fn vote(
        &mut self,
        cx: &LaunchContext<'_>,
        mode: VoteMode,
        dst: RegSlot,
        src: Cond,
        mask: RegSlot,
        exec: u32,
    ) -> StepResult {
        let holds = self.condition(src, exec, cx.program)?;
        let members = self.operation(cx, mask, exec)?;
        let answers = Self::by_group(&members, exec, |group| match mode {
            VoteMode::Any => holds & group != 0,
            VoteMode::All => holds & group == group,
            VoteMode::Uni => holds & group == 0 || holds & group == group,
        });
        let answer = bits(exec).fold(0, |mask, lane| mask | u32::from(answers[lane]) << lane);
        self.p.set(dst, exec, &answer);
        Ok(())
    }

    pub(super) fn ballot(
        &mut self,
        cx: &LaunchContext<'_>,
        dst: RegSlot,
        src: Cond,
        mask: RegSlot,
        exec: u32,
    ) -> StepResult {
        let holds = self.condition(src, exec, cx.program)?;
        let members = self.operation(cx, mask, exec)?;
        let result = Self::by_group(&members, exec, |group| holds & group);
        self.w.set(dst, exec, &result);
        Ok(())
    }

    pub(super) fn match_any(
        &mut self,
        cx: &LaunchContext<'_>,
        dst: RegSlot,
        src: RegSlot,
        wide: bool,
        mask: RegSlot,
        exec: u32,
    ) -> StepResult {
        let values = if wide {
            self.need(RegClass::B64, src, exec, cx.program)?;
            self.d.value[src as usize]
        } else {
            self.need(RegClass::B32, src, exec, cx.program)?;
            self.w.value[src as usize].map(u64::from)
        };
        let members = self.operation(cx, mask, exec)?;
        let groups = Self::by_group(&members, exec, |group| group);
        let mut result = [0; 32];
        for lane in bits(exec) {
            let same = bits(groups[lane]).filter(|&other| values[other] == values[lane]);
            result[lane] = same.fold(0, |set, other| set | 1 << other);
        }
        self.w.set(dst, exec, &result);
        Ok(())
    }

    pub(super) fn redux(
        &mut self,
        cx: &LaunchContext<'_>,
        op: ReduxOp,
        dst: RegSlot,
        src: RegSlot,
        mask: RegSlot,
        exec: u32,
    ) -> StepResult {
        self.need(RegClass::B32, src, exec, cx.program)?;
        let members = self.operation(cx, mask, exec)?;
        let values = &self.w.value[src as usize];
        let combine: fn(u32, u32) -> u32 = match op {
            ReduxOp::Add => u32::wrapping_add,
            ReduxOp::Min => u32::min,
            ReduxOp::Max => u32::max,
            ReduxOp::And => |a, b| a & b,
            ReduxOp::Or => |a, b| a | b,
            ReduxOp::Xor => |a, b| a ^ b,
        };
        let result = Self::by_group(&members, exec, |group| {
            bits(group).map(|lane| values[lane]).reduce(combine).unwrap_or_default()
        });
        self.w.set(dst, exec, &result);
        Ok(())
    }

    pub(super) fn warp_barrier(&mut self, cx: &LaunchContext<'_>, mask: RegSlot, exec: u32) -> StepResult {
        let members =
            self.members(cx, mask, exec, |members, reached| FaultKind::WarpBarrierMissed { members, reached })?;
        match members {
            MemberGroups::One => self.clock.barrier(exec, self.steps),
            MemberGroups::Groups(masks) => {
                let masks = *masks;
                let mut left = exec;
                while left != 0 {
                    let group = masks[left.trailing_zeros() as usize];
                    self.clock.barrier(group, self.steps);
                    left &= !group;
                }
            }
        }
        Ok(())
    }
}
