//! Checks memory accesses: valid forms, and constant offsets that keep alignment and stay inside their region.

use super::{ValidateError, each_inst};
use crate::inst::Op;
use crate::ir::{BlockKind, Inst, KernelIr, LoadHint, MemAddr, Operand, Path, RegId, RegionScope};
use crate::types::{MemTy, StateSpace};

pub(super) fn check(kernel: &KernelIr) -> Result<(), ValidateError> {
    // Values that are the start of a region plus a constant. Values come before their uses in program order.
    let mut known: Vec<Option<RegionOffset>> = vec![None; kernel.regs.len()];
    each_inst(&kernel.body, &Path::default(), BlockKind::Body, &mut |inst, path| {
        check_form(inst, path)?;
        check_access(kernel, &known, inst, path)?;
        let place = place_of(kernel, &known, inst);
        inst.for_each_def(|r| {
            if !kernel.reg(r).mutable {
                known[r.index()] = place;
            }
        });
        Ok(())
    })
}

/// A constant position in a region.
#[derive(Clone, Copy)]
struct RegionOffset {
    region: usize,
    offset: i64,
}

fn place_of(kernel: &KernelIr, known: &[Option<RegionOffset>], inst: &Inst) -> Option<RegionOffset> {
    let at = |operand: Operand| match operand {
        Operand::Reg(RegId(r)) => known[r as usize],
        Operand::Imm(_) => None,
    };
    let Inst::Pure { op, args, .. } = inst else {
        return match inst {
            Inst::SharedBase { region, .. } => Some(RegionOffset { region: region.0 as usize, offset: 0 }),
            _ => None,
        };
    };
    match (op, args[0], args.get(1), args.get(2)) {
        (Op::Mov32, from, ..) => at(from),
        (Op::AddU32, base, Some(&Operand::Imm(bytes)), _) | (Op::AddU32, Operand::Imm(bytes), Some(&base), _) => {
            at(base).map(|p| RegionOffset { offset: p.offset + signed(bytes), ..p })
        }
        // The start of a warp's own part, as the builder writes it.
        (Op::MadLoU32, _, Some(Operand::Imm(stride)), Some(&base)) => at(base).filter(|p| {
            let region = &kernel.shared.regions[p.region];
            p.offset == 0 && region.scope == RegionScope::Warp && u64::from(region.stride) == *stride
        }),
        _ => None,
    }
}

/// Returns a 32-bit constant as a signed distance.
fn signed(bits: u64) -> i64 {
    u32::try_from(bits).map_or(0, |b| i64::from(b.cast_signed()))
}

fn check_access(
    kernel: &KernelIr,
    known: &[Option<RegionOffset>],
    inst: &Inst,
    path: &Path,
) -> Result<(), ValidateError> {
    let (addr, ty, count): (&MemAddr, MemTy, usize) = match inst {
        Inst::Load { addr, ty, dst, .. } => (addr, *ty, dst.len()),
        Inst::Store { addr, ty, src, .. } => (addr, *ty, src.len()),
        Inst::Atomic { addr, .. } => (addr, MemTy::U32, 1),
        _ => return Ok(()),
    };
    let path = path.clone();
    let bytes = ty.bytes() * u32::try_from(count).expect("at most four");
    let place = if addr.space == StateSpace::Shared { known[addr.base.index()] } else { None };
    let offset = place.map_or(0, |p| p.offset) + i64::from(addr.offset);
    if offset % i64::from(bytes) != 0 {
        return Err(ValidateError::MisalignedOffset { path, offset, bytes });
    }
    let Some(place) = place else { return Ok(()) };
    let region = &kernel.shared.regions[place.region];
    let (name, size) = (region.name.clone(), region.bytes);
    if region.align < bytes {
        return Err(ValidateError::RegionAlignment { path, region: name, align: region.align, bytes });
    }
    let end = offset + i64::from(bytes);
    if offset < 0 || end > i64::from(size) {
        return Err(ValidateError::RegionOverflow { path, region: name, start: offset, end, bytes: size });
    }
    Ok(())
}

/// Checks the forms that the types of the IR allow but PTX does not.
fn check_form(inst: &Inst, path: &Path) -> Result<(), ValidateError> {
    let bad = |problem| Err(ValidateError::BadOperand { path: path.clone(), inst: inst.info().ptx_name, problem });
    match inst {
        Inst::Load { dst, ty, addr, hint, .. } => {
            if !is_vector(dst.len(), *ty) {
                return bad("a vector has two or four elements and at most 16 bytes");
            }
            if addr.space == StateSpace::Shared && *hint == LoadHint::NonCoherent {
                return bad("the cache of read-only memory only applies to global memory");
            }
        }
        Inst::Store { src, ty, .. } if !is_vector(src.len(), *ty) => {
            return bad("a vector has two or four elements and at most 16 bytes");
        }
        _ => {}
    }
    Ok(())
}

fn is_vector(count: usize, ty: MemTy) -> bool {
    matches!(count, 1 | 2 | 4) && count * ty.bytes() as usize <= 16
}
