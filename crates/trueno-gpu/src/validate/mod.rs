//! Checks a kernel before anything runs or reads it: every rule that ptxas does not check and hardware would hide.

mod assign;
mod error;
mod memory;
mod uniform;

pub use error::ValidateError;

use crate::ir::{Inst, KernelIr, Part, Path, Stmt};
use crate::target::Target;

/// Checks a kernel for its own target.
///
/// # Errors
/// The first rule broken, with the statement's path.
///
/// ```
/// use trueno_gpu::{validate::validate, KernelBuilder};
/// let kernel = KernelBuilder::new("fine").finish()?;
/// assert!(validate(&kernel).is_ok());
/// # Ok::<(), trueno_gpu::ValidateError>(())
/// ```
pub fn validate(kernel: &KernelIr) -> Result<(), ValidateError> {
    validate_for(kernel, kernel.target)
}

/// Checks a kernel for a target.
///
/// # Errors
/// The first rule broken, with the statement's path.
///
/// ```
/// use trueno_gpu::{validate::validate_for, KernelBuilder, Target, ValidateError};
/// let k = KernelBuilder::new("big").with_target(Target::SM_90);
/// let _ = k.shared_per_block("buffer", 200 * 1024, 16);
/// let kernel = k.finish()?;
/// assert!(matches!(validate_for(&kernel, Target::SM_75), Err(ValidateError::SharedLimit { .. })));
/// # Ok::<(), trueno_gpu::ValidateError>(())
/// ```
pub fn validate_for(kernel: &KernelIr, target: Target) -> Result<(), ValidateError> {
    check_frame(kernel, target)?;
    assign::check(kernel)?;
    each_inst(&kernel.body, &Path::default(), Part::Body, &mut |inst, path| check_target(inst, path, target))?;
    memory::check(kernel)?;
    uniform::check(kernel)
}

fn is_identifier(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// What does not depend on the statements: names, block size, shared memory.
fn check_frame(kernel: &KernelIr, target: Target) -> Result<(), ValidateError> {
    let names = std::iter::once(&kernel.name).chain(kernel.params.iter().map(|p| &p.name));
    for (i, name) in names.clone().enumerate() {
        if !is_identifier(name) || names.clone().take(i).any(|earlier| earlier == name) {
            return Err(ValidateError::BadName { name: name.clone() });
        }
    }
    if !(1..=32).contains(&kernel.warps_per_block) {
        return Err(ValidateError::BlockSize { warps: kernel.warps_per_block });
    }
    let (bytes, limit) = (kernel.shared.total_bytes(), target.max_shared_bytes());
    if bytes > limit {
        return Err(ValidateError::SharedLimit { bytes, limit, target });
    }
    Ok(())
}

fn check_target(inst: &Inst, path: &Path, target: Target) -> Result<(), ValidateError> {
    let info = inst.info();
    if info.min_ptx > target.ptx || info.min_sm > target.sm {
        let (inst, needs_ptx, needs_sm) = (info.ptx_name, info.min_ptx, info.min_sm);
        return Err(ValidateError::TargetTooOld { path: path.clone(), inst, needs_ptx, needs_sm, target });
    }
    Ok(())
}

/// Visits every instruction with its path.
fn each_inst<E>(
    block: &[Stmt],
    parent: &Path,
    part: Part,
    f: &mut impl FnMut(&Inst, &Path) -> Result<(), E>,
) -> Result<(), E> {
    for (i, stmt) in block.iter().enumerate() {
        let path = parent.child(part, i);
        match stmt {
            Stmt::Inst { inst, .. } => f(inst, &path)?,
            Stmt::If { then, otherwise, .. } => {
                each_inst(then, &path, Part::Then, f)?;
                each_inst(otherwise, &path, Part::Else, f)?;
            }
            Stmt::Loop { body, .. } => each_inst(body, &path, Part::Loop, f)?,
            Stmt::Scope { body, .. } => each_inst(body, &path, Part::Scope, f)?,
            Stmt::Section(_) | Stmt::Break { .. } | Stmt::Continue { .. } => {}
        }
    }
    Ok(())
}

/// A register as an error names it.
fn name_of(kernel: &KernelIr, reg: crate::ir::RegId) -> String {
    match kernel.regs.get(reg.index()).and_then(|r| r.name.as_deref()) {
        Some(name) => format!("`{name}`"),
        None => format!("#{}", reg.0),
    }
}

#[cfg(test)]
mod tests;
