//! Shuffles, votes, matches and reductions of a warp.

use super::fault::{FaultKind, LaneSet, StepResult, trap};
use super::narrow::lane_u32;
use super::program::{Cond, RegSlot, ShflOp};
use super::traffic::bits;
use super::warp::{ALL, LaunchContext, Warp};
use crate::inst::{L32, shfl_source};
use crate::ir::{ReduxOp, VoteMode};
use crate::types::RegClass;

/// Faults unless all lanes of the warp execute an operation.
pub(super) fn need_all_lanes(exec: u32) -> StepResult {
    if exec == ALL {
        return Ok(());
    }
    trap(exec, FaultKind::WarpOperationMissed { reached: LaneSet(exec) })
}

impl Warp {
    /// Returns a 32-bit register that all lanes have written.
    fn word(&self, cx: &LaunchContext<'_>, slot: RegSlot) -> StepResult<&L32> {
        self.need(RegClass::B32, slot, ALL, cx.program)?;
        Ok(&self.w.value[slot as usize])
    }

    pub(super) fn shfl(&mut self, cx: &LaunchContext<'_>, op: &ShflOp, exec: u32) -> StepResult {
        need_all_lanes(exec)?;
        let (src, lanes) = (self.word(cx, op.src)?, self.word(cx, op.lane)?);
        let mut result = [0; 32];
        let mut in_range = 0;
        for lane in 0..32 {
            let (source, valid) = shfl_source(op.mode, lane_u32(lane), lanes[lane]);
            result[lane] = src[source as usize & 31];
            in_range |= u32::from(valid) << lane;
        }
        self.w.set(op.dst, ALL, &result);
        if let Some(dst) = op.in_range {
            self.p.set(dst, ALL, &in_range);
        }
        Ok(())
    }

    pub(super) fn vote(
        &mut self,
        cx: &LaunchContext<'_>,
        mode: VoteMode,
        dst: RegSlot,
        src: Cond,
        exec: u32,
    ) -> StepResult {
        need_all_lanes(exec)?;
        let holds = self.condition(src, ALL, cx.program)?;
        let answer = match mode {
            VoteMode::Any => holds != 0,
            VoteMode::All => holds == ALL,
        };
        self.p.set(dst, ALL, &if answer { ALL } else { 0 });
        Ok(())
    }

    pub(super) fn ballot(&mut self, cx: &LaunchContext<'_>, dst: RegSlot, src: Cond, exec: u32) -> StepResult {
        need_all_lanes(exec)?;
        let holds = self.condition(src, ALL, cx.program)?;
        self.w.set(dst, ALL, &[holds; 32]);
        Ok(())
    }

    pub(super) fn match_any(&mut self, cx: &LaunchContext<'_>, dst: RegSlot, src: RegSlot, exec: u32) -> StepResult {
        need_all_lanes(exec)?;
        let values = self.word(cx, src)?;
        let result =
            values.map(|own| bits(ALL).filter(|&lane| values[lane] == own).fold(0, |set, lane| set | 1 << lane));
        self.w.set(dst, ALL, &result);
        Ok(())
    }

    pub(super) fn redux(
        &mut self,
        cx: &LaunchContext<'_>,
        op: ReduxOp,
        dst: RegSlot,
        src: RegSlot,
        exec: u32,
    ) -> StepResult {
        need_all_lanes(exec)?;
        let values = self.word(cx, src)?;
        let result = match op {
            ReduxOp::Add => values.iter().fold(0, |sum: u32, value| sum.wrapping_add(*value)),
            ReduxOp::Max => values.iter().fold(0, |largest, value| largest.max(*value)),
            ReduxOp::Or => values.iter().fold(0, |bits, value| bits | value),
        };
        self.w.set(dst, ALL, &[result; 32]);
        Ok(())
    }
}
