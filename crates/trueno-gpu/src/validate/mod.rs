//! Checks kernels before they are emitted or run, for errors that ptxas does not report and hardware would hide.

mod assign;
mod error;
mod memory;
mod uniform;
mod valid_kernel;

pub use error::ValidateError;
pub use valid_kernel::ValidKernel;

use crate::ir::{BlockKind, Inst, KernelIr, Path, Stmt};
use crate::target::Target;

/// Validates a kernel for its own target.
///
/// # Errors
/// The first rule broken, with the statement's path.
///
/// ```
/// use trueno_gpu::{KernelBuilder, ValidateError, validate::validate};
/// let mut ir = KernelBuilder::new("fine").finish()?.into_ir();
/// assert!(validate(ir.clone()).is_ok());
/// ir.warps_per_block = 33;
/// assert!(matches!(validate(ir), Err(ValidateError::BlockSize { warps: 33 })));
/// # Ok::<(), ValidateError>(())
/// ```
pub fn validate(kernel: KernelIr) -> Result<ValidKernel, ValidateError> {
    ValidKernel::new(kernel)
}

fn is_identifier(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Checks the names and the block size.
fn check_frame(kernel: &KernelIr) -> Result<(), ValidateError> {
    let names = std::iter::once(&kernel.name).chain(kernel.params.iter().map(|p| &p.name));
    for (i, name) in names.clone().enumerate() {
        if !is_identifier(name) || names.clone().take(i).any(|earlier| earlier == name) {
            return Err(ValidateError::BadName { name: name.clone() });
        }
    }
    if !(1..=32).contains(&kernel.warps_per_block) {
        return Err(ValidateError::BlockSize { warps: kernel.warps_per_block });
    }
    Ok(())
}

/// Checks that the target has enough shared memory.
fn check_shared(kernel: &KernelIr, target: Target) -> Result<(), ValidateError> {
    let (bytes, limit) = (kernel.shared.total_bytes(), target.max_shared_bytes());
    if bytes > limit {
        return Err(ValidateError::SharedLimit { bytes, limit, target });
    }
    Ok(())
}

/// Checks that the target has all instructions.
fn check_instructions(kernel: &KernelIr, target: Target) -> Result<(), ValidateError> {
    each_inst(&kernel.body, &Path::default(), BlockKind::Body, &mut |inst, path| {
        let info = inst.info();
        if info.min_ptx > target.ptx || info.min_sm > target.sm {
            let (inst, needs_ptx, needs_sm) = (info.ptx_name, info.min_ptx, info.min_sm);
            return Err(ValidateError::TargetTooOld { path: path.clone(), inst, needs_ptx, needs_sm, target });
        }
        Ok(())
    })
}

/// Visits every instruction with its path.
fn each_inst<E>(
    block: &[Stmt],
    parent: &Path,
    part: BlockKind,
    f: &mut impl FnMut(&Inst, &Path) -> Result<(), E>,
) -> Result<(), E> {
    for (i, stmt) in block.iter().enumerate() {
        let path = parent.child(part, i);
        match stmt {
            Stmt::Inst { inst, .. } => f(inst, &path)?,
            Stmt::If { then, otherwise, .. } => {
                each_inst(then, &path, BlockKind::Then, f)?;
                each_inst(otherwise, &path, BlockKind::Else, f)?;
            }
            Stmt::Loop { body, .. } => each_inst(body, &path, BlockKind::Loop, f)?,
            Stmt::Scope { body, .. } => each_inst(body, &path, BlockKind::Scope, f)?,
            Stmt::Section(_) | Stmt::Break { .. } | Stmt::Continue { .. } => {}
        }
    }
    Ok(())
}

/// Returns a register as errors name it.
fn name_of(kernel: &KernelIr, reg: crate::ir::RegId) -> String {
    match kernel.regs.get(reg.index()).and_then(|r| r.name.as_deref()) {
        Some(name) => format!("`{name}`"),
        None => format!("#{}", reg.0),
    }
}

#[cfg(test)]
mod tests;
