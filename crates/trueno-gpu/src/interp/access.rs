//! Loads, stores and atomics of a warp.

use super::fault::{Access, FaultKind, Location, StepResult, trap};
use super::memory::{ATOMIC_BYTES, AccessProblem, DeviceMemory};
use super::narrow::{lane_u32, low32, low32_of, low64_of};
use super::order::LaneOrder;
use super::program::{AtomicOp, MemOp, Program};
use super::shared::{SharedMemory, SharedProblem};
use super::traffic::{atomic_wavefronts, bits, sectors, wavefronts};
use super::warp::{LaunchContext, Warp};
use crate::inst::atomic_result;
use crate::ir::{RegionInfo, RegionScope};
use crate::types::{MemTy, RegClass, StateSpace};

/// Returns the loaded bits of one element as a register holds them.
#[inline]
fn extend(ty: MemTy, bits: u32) -> u32 {
    match ty {
        MemTy::I16 => (bits << 16).cast_signed().wrapping_shr(16).cast_unsigned(),
        _ => bits,
    }
}

/// The accesses of a warp's lanes in one instruction.
#[derive(Clone, Copy)]
struct LaneAccesses<'a, A> {
    access: Access,
    /// Addresses of the lanes, of which those in `exec` count.
    addresses: &'a [A; 32],
    /// Number of bytes per lane.
    bytes: u32,
    exec: u32,
}

/// Up to 16 bytes of memory, the most that a load or store moves.
type RawBytes = u128;

/// Returns element `k` of the loaded bytes.
fn element(raw: RawBytes, ty: MemTy, k: usize) -> u64 {
    let bits = ty.bytes() * 8;
    low64_of(raw >> (lane_u32(k) * bits)) & (u64::MAX >> (64 - bits))
}

impl Warp {
    fn shared_addresses(&self, cx: &LaunchContext<'_>, base: u32, offset: i32, exec: u32) -> StepResult<[u32; 32]> {
        self.need(RegClass::B32, base, exec, cx.program)?;
        Ok(self.w.value[base as usize].map(|base| base.wrapping_add_signed(offset)))
    }

    fn global_addresses(&self, cx: &LaunchContext<'_>, base: u32, offset: i32, exec: u32) -> StepResult<[u64; 32]> {
        self.need(RegClass::B64, base, exec, cx.program)?;
        Ok(self.d.value[base as usize].map(|base| base.wrapping_add_signed(i64::from(offset))))
    }

    /// Faults unless the lanes have written all registers of a store.
    fn need_values(&self, cx: &LaunchContext<'_>, op: &MemOp, exec: u32) -> StepResult {
        let count = usize::from(op.count);
        op.regs[..count].iter().try_for_each(|&reg| self.need(op.ty.class(), reg, exec, cx.program))
    }

    /// Returns the bytes that a lane stores.
    fn raw(&self, op: &MemOp, lane: usize) -> RawBytes {
        let mut raw = 0;
        for &reg in op.regs[..usize::from(op.count)].iter().rev() {
            let value = match op.ty.class() {
                RegClass::B64 => self.d.value[reg as usize][lane],
                _ => u64::from(self.w.value[reg as usize][lane]),
            };
            let bits = op.ty.bytes() * 8;
            raw = raw << bits | RawBytes::from(value & (u64::MAX >> (64 - bits)));
        }
        raw
    }

    /// Distributes the loaded elements over the destinations.
    fn set_loaded(&mut self, op: &MemOp, exec: u32, raw: &[RawBytes; 32]) {
        for (k, &reg) in op.regs[..usize::from(op.count)].iter().enumerate() {
            match op.ty.class() {
                RegClass::B64 => self.d.set(reg, exec, &raw.map(|raw| element(raw, op.ty, k))),
                _ => self.w.set(reg, exec, &raw.map(|raw| extend(op.ty, low32(element(raw, op.ty, k))))),
            }
        }
    }

    pub(super) fn shared_load(
        &mut self,
        cx: &LaunchContext<'_>,
        shared: &mut SharedMemory,
        op: &MemOp,
        uniform: bool,
        exec: u32,
    ) -> StepResult {
        let addresses = self.shared_addresses(cx, op.base, op.offset, exec)?;
        if uniform && bits(exec).any(|lane| addresses[lane] != addresses[exec.trailing_zeros() as usize]) {
            return trap(exec, FaultKind::DivergentUniformLoad);
        }
        let bytes = op.bytes();
        self.traffic[self.pc] += u64::from(wavefronts(&addresses, exec, bytes));
        let lanes = LaneAccesses { access: Access::Read, addresses: &addresses, bytes, exec };
        check_shared(cx, shared, lanes)?;
        let visit = shared.visit(self.floor, self.steps, self.index, Access::Read);
        if bytes <= 4 && op.count == 1 {
            let loaded = match bytes {
                1 => shared.load_lanes::<1>(&visit, exec, &addresses),
                2 => shared.load_lanes::<2>(&visit, exec, &addresses),
                _ => shared.load_lanes::<4>(&visit, exec, &addresses),
            };
            let mut loaded = loaded.or_else(|(lane, problem)| shared_fault(cx, lanes, lane, problem))?;
            if op.ty == MemTy::I16 {
                loaded = loaded.map(|v| extend(op.ty, v));
            }
            self.w.set(op.regs[0], exec, &loaded);
            return Ok(());
        }
        let mut raw = [0; 32];
        let loaded = bits(exec).try_for_each(|lane| {
            let address = addresses[lane];
            let mut load = || {
                if bytes == 2 {
                    return Ok(RawBytes::from(shared.load::<2>(&visit, lane, address)?));
                }
                (0..bytes).step_by(4).try_fold(0, |value, at| {
                    Ok(value | RawBytes::from(shared.load::<4>(&visit, lane, address + at)?) << (at * 8))
                })
            };
            raw[lane] = load().map_err(|problem| (lane, problem))?;
            Ok(())
        });
        loaded.or_else(|(lane, problem)| shared_fault(cx, lanes, lane, problem))?;
        self.set_loaded(op, exec, &raw);
        Ok(())
    }

    pub(super) fn shared_store(
        &mut self,
        cx: &LaunchContext<'_>,
        shared: &mut SharedMemory,
        op: &MemOp,
        conflicting: bool,
        exec: u32,
    ) -> StepResult {
        let addresses = self.shared_addresses(cx, op.base, op.offset, exec)?;
        self.need_values(cx, op, exec)?;
        let bytes = op.bytes();
        self.traffic[self.pc] += u64::from(wavefronts(&addresses, exec, bytes));
        let access = if conflicting { Access::ConflictingWrite } else { Access::Write };
        let lanes = LaneAccesses { access, addresses: &addresses, bytes, exec };
        check_shared(cx, shared, lanes)?;
        // Without conflicts the order makes no difference.
        let turns = if conflicting { Some(cx.order.turns(exec, &mut self.random)) } else { None };
        let visit = shared.visit(self.floor, self.steps, self.index, access);
        let stored = match (turns, op.ty.class(), op.count) {
            (None, RegClass::B32, 1) => {
                let values = &self.w.value[op.regs[0] as usize];
                match bytes {
                    1 => shared.store_lanes::<1>(&visit, exec, &addresses, values),
                    2 => shared.store_lanes::<2>(&visit, exec, &addresses, values),
                    _ => shared.store_lanes::<4>(&visit, exec, &addresses, values),
                }
            }
            (turns, ..) => {
                let turns = turns.unwrap_or_else(|| LaneOrder::Ascending.turns(exec, &mut self.random));
                each_turn(&turns, exec, |lane| {
                    let (address, raw) = (addresses[lane], self.raw(op, lane));
                    match bytes {
                        1 => shared.store::<1>(&visit, lane, address, low32_of(raw)),
                        2 => shared.store::<2>(&visit, lane, address, low32_of(raw)),
                        _ => (0..bytes).step_by(4).try_for_each(|at| {
                            shared.store::<4>(&visit, lane, address + at, low32_of(raw >> (at * 8)))
                        }),
                    }
                })
            }
        };
        stored.or_else(|(lane, problem)| shared_fault(cx, lanes, lane, problem))
    }

    pub(super) fn shared_atomic(
        &mut self,
        cx: &LaunchContext<'_>,
        shared: &mut SharedMemory,
        op: &AtomicOp,
        exec: u32,
    ) -> StepResult {
        let addresses = self.shared_addresses(cx, op.base, op.offset, exec)?;
        self.need(RegClass::B32, op.value, exec, cx.program)?;
        let value = &self.w.value[op.value as usize];
        self.traffic[self.pc] += u64::from(atomic_wavefronts(&addresses, exec));
        let turns = cx.order.turns(exec, &mut self.random);
        let lanes = LaneAccesses { access: Access::Atomic, addresses: &addresses, bytes: ATOMIC_BYTES, exec };
        check_shared(cx, shared, lanes)?;
        let visit = shared.visit(self.floor, self.steps, self.index, Access::Atomic);
        let mut old = [0; 32];
        let done = each_turn(&turns, exec, |lane| {
            old[lane] = shared.load::<4>(&visit, lane, addresses[lane])?;
            shared.store::<4>(&visit, lane, addresses[lane], atomic_result(op.op, old[lane], value[lane]))
        });
        done.or_else(|(lane, problem)| shared_fault(cx, lanes, lane, problem))?;
        if let Some(dst) = op.dst {
            self.w.set(dst, exec, &old);
        }
        Ok(())
    }

    pub(super) fn global_load(&mut self, cx: &LaunchContext<'_>, op: &MemOp, uniform: bool, exec: u32) -> StepResult {
        let addresses = self.global_addresses(cx, op.base, op.offset, exec)?;
        if uniform && bits(exec).any(|lane| addresses[lane] != addresses[exec.trailing_zeros() as usize]) {
            return trap(exec, FaultKind::DivergentUniformLoad);
        }
        let bytes = op.bytes();
        self.traffic[self.pc] += u64::from(sectors(&addresses, exec));
        let mut raw = [0; 32];
        for lane in bits(exec) {
            match cx.memory.load(addresses[lane], bytes) {
                Ok([low, high]) => raw[lane] = RawBytes::from(low) | RawBytes::from(high) << 64,
                Err(problem) => {
                    let lanes = LaneAccesses { access: Access::Read, addresses: &addresses, bytes, exec };
                    return global_fault(cx.memory, lanes, lane, problem);
                }
            }
        }
        self.set_loaded(op, exec, &raw);
        Ok(())
    }

    pub(super) fn global_store(
        &mut self,
        cx: &LaunchContext<'_>,
        op: &MemOp,
        conflicting: bool,
        exec: u32,
    ) -> StepResult {
        let addresses = self.global_addresses(cx, op.base, op.offset, exec)?;
        self.need_values(cx, op, exec)?;
        let bytes = op.bytes();
        self.traffic[self.pc] += u64::from(sectors(&addresses, exec));
        let access = if conflicting { Access::ConflictingWrite } else { Access::Write };
        let mut raw = [0; 32];
        bits(exec).for_each(|lane| raw[lane] = self.raw(op, lane));
        let turns = if conflicting {
            cx.order.turns(exec, &mut self.random)
        } else {
            if let Some((lanes, address)) = conflict(&addresses, &raw, exec) {
                return trap(lanes, FaultKind::StoreConflict { at: cx.memory.location(address) });
            }
            LaneOrder::Ascending.turns(exec, &mut self.random)
        };
        for lane in turns[..exec.count_ones() as usize].iter().map(|&lane| usize::from(lane)) {
            let value = [low64_of(raw[lane]), low64_of(raw[lane] >> 64)];
            if let Err(problem) = cx.memory.store(addresses[lane], bytes, value) {
                let lanes = LaneAccesses { access, addresses: &addresses, bytes, exec };
                return global_fault(cx.memory, lanes, lane, problem);
            }
        }
        Ok(())
    }

    pub(super) fn global_atomic(&mut self, cx: &LaunchContext<'_>, op: &AtomicOp, exec: u32) -> StepResult {
        let addresses = self.global_addresses(cx, op.base, op.offset, exec)?;
        self.need(RegClass::B32, op.value, exec, cx.program)?;
        let value = &self.w.value[op.value as usize];
        self.traffic[self.pc] += u64::from(sectors(&addresses, exec));
        let turns = cx.order.turns(exec, &mut self.random);
        let mut old = [0; 32];
        for lane in turns[..exec.count_ones() as usize].iter().map(|&lane| usize::from(lane)) {
            match cx.memory.atomic(addresses[lane], |old| atomic_result(op.op, old, value[lane])) {
                Ok(before) => old[lane] = before,
                Err(problem) => {
                    let (access, addresses, bytes) = (Access::Atomic, &addresses, ATOMIC_BYTES);
                    return global_fault(cx.memory, LaneAccesses { access, addresses, bytes, exec }, lane, problem);
                }
            }
        }
        if let Some(dst) = op.dst {
            self.w.set(dst, exec, &old);
        }
        Ok(())
    }
}

/// Faults if the access of any lane is out of bounds or misaligned, and names all lanes with the same problem.
#[inline]
fn check_shared(cx: &LaunchContext<'_>, shared: &SharedMemory, lanes: LaneAccesses<'_, u32>) -> StepResult {
    let LaneAccesses { access, addresses, bytes, exec } = lanes;
    let bad = shared.check_all(addresses, exec, bytes);
    if bad == 0 {
        return Ok(());
    }
    let first = bad.trailing_zeros() as usize;
    let problem = shared.check(addresses[first], bytes);
    let same = bits(bad).filter(|&lane| shared.check(addresses[lane], bytes) == problem);
    let lanes = same.fold(0, |mask, lane| mask | 1 << lane);
    let problem = problem.expect_err("the access of this lane is known to be bad");
    let at = |address| shared_location(cx.program, address);
    trap(lanes, access_fault(problem, access, u64::from(addresses[first]), bytes, at))
}

/// Calls `f` for each lane in turn, until one fails.
fn each_turn<E>(turns: &[u8; 32], lanes: u32, mut f: impl FnMut(usize) -> Result<(), E>) -> Result<(), (usize, E)> {
    let turns = turns[..lanes.count_ones() as usize].iter().map(|&lane| usize::from(lane));
    turns.into_iter().try_for_each(|lane| f(lane).map_err(|e| (lane, e)))
}

#[cold]
fn shared_fault<T>(
    cx: &LaunchContext<'_>,
    lanes: LaneAccesses<'_, u32>,
    lane: usize,
    problem: SharedProblem,
) -> StepResult<T> {
    let LaneAccesses { access, addresses, bytes, exec } = lanes;
    let at = |address: u32| shared_location(cx.program, u64::from(address));
    match problem {
        SharedProblem::UnwrittenByte { address } => trap(1 << lane, FaultKind::UninitialisedMemory { at: at(address) }),
        SharedProblem::Race { address, earlier, earlier_by } => {
            trap(1 << lane, FaultKind::SharedRace { at: at(address), access, earlier, earlier_by })
        }
        SharedProblem::Conflict { address } => {
            let hits = |&lane: &usize| address.wrapping_sub(addresses[lane]) < bytes;
            let lanes = bits(exec).filter(hits).fold(0, |mask, lane| mask | 1 << lane);
            trap(lanes, FaultKind::StoreConflict { at: at(address) })
        }
    }
}

fn access_fault(
    problem: AccessProblem,
    access: Access,
    address: u64,
    bytes: u32,
    at: impl Fn(u64) -> Location,
) -> FaultKind {
    match problem {
        AccessProblem::OutOfBounds => FaultKind::OutOfBounds { access, at: at(address), bytes },
        AccessProblem::Misaligned => FaultKind::Misaligned { access, at: at(address), bytes },
        AccessProblem::UnwrittenByte(byte) => FaultKind::UninitialisedMemory { at: at(byte) },
    }
}

#[cold]
fn global_fault(
    memory: &DeviceMemory,
    lanes: LaneAccesses<'_, u64>,
    lane: usize,
    problem: AccessProblem,
) -> StepResult {
    let LaneAccesses { access, addresses, bytes, exec } = lanes;
    let same = |&lane: &usize| match (problem, memory.load(addresses[lane], bytes)) {
        (AccessProblem::UnwrittenByte(_), Err(AccessProblem::UnwrittenByte(_))) => true,
        (problem, Err(other)) => problem == other,
        _ => false,
    };
    let lanes = bits(exec).filter(same).fold(1 << lane, |mask, lane| mask | 1 << lane);
    trap(lanes, access_fault(problem, access, addresses[lane], bytes, |address| memory.location(address)))
}

/// Returns the lanes of a store that write the same bytes with different values.
fn conflict(addresses: &[u64; 32], raw: &[RawBytes; 32], exec: u32) -> Option<(u32, u64)> {
    // With equal sizes and natural alignment, accesses overlap only if their addresses are equal. Addresses mostly
    // rise.
    let mut lanes = bits(exec);
    let mut last = addresses[lanes.next()?];
    if lanes.all(|lane| std::mem::replace(&mut last, addresses[lane]) < addresses[lane]) {
        return None;
    }
    bits(exec).find_map(|lane| {
        let rivals = bits(exec).filter(|&other| addresses[other] == addresses[lane] && raw[other] != raw[lane]);
        let rivals = rivals.fold(0, |mask, other| mask | 1 << other);
        (rivals != 0).then_some((rivals | 1 << lane, addresses[lane]))
    })
}

/// Returns a shared address as faults show it: with the region that holds it or ends before it.
fn shared_location(program: &Program, address: u64) -> Location {
    let from_base = address.checked_sub(u64::from(program.shared_base));
    let before = |region: &&RegionInfo| from_base.is_some_and(|at| u64::from(region.offset) <= at);
    let region = program.shared.regions.iter().filter(before).max_by_key(|region| region.offset);
    let offset = region.zip(from_base).map_or(0, |(region, at)| {
        let offset = at - u64::from(region.offset);
        match region.scope {
            RegionScope::Warp if region.stride > 0 => offset % u64::from(region.stride),
            _ => offset,
        }
    });
    Location { space: StateSpace::Shared, address, name: region.map(|region| region.name.clone()), offset }
}
