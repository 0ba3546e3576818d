//! The proof that a kernel was validated.

use std::ops::Deref;

use super::{ValidateError, check_frame, check_instructions, check_shared, validate};
use crate::interp::Lowered;
use crate::ir::KernelIr;
use crate::target::Target;

/// A kernel that passed validation.
///
/// Only [`validate`] and [`KernelBuilder::finish`](crate::KernelBuilder::finish) make one. The emitter and the
/// interpreter accept nothing else, so each kernel is validated exactly once. A `ValidKernel` can be read like the
/// [`KernelIr`] that it wraps, but not changed.
///
/// ```
/// use trueno_gpu::{KernelBuilder, emit};
/// let kernel = KernelBuilder::new("nothing").finish()?;
/// assert_eq!(kernel.name, "nothing");
/// assert!(emit(&kernel).contains(".entry nothing"));
/// # Ok::<(), trueno_gpu::ValidateError>(())
/// ```
#[derive(Debug, Clone)]
pub struct ValidKernel {
    ir: KernelIr,
    lowered: Lowered,
}

impl ValidKernel {
    /// Checks the rules one by one; the only way to make a value of this type from an arbitrary tree.
    pub(super) fn new(kernel: KernelIr) -> Result<Self, ValidateError> {
        check_frame(&kernel)?;
        check_shared(&kernel, kernel.target)?;
        super::assign::check(&kernel)?;
        check_instructions(&kernel, kernel.target)?;
        super::memory::check(&kernel)?;
        super::uniform::check(&kernel)?;
        Ok(Self::from_ir(kernel))
    }

    fn from_ir(ir: KernelIr) -> Self {
        Self { ir, lowered: Lowered::default() }
    }

    /// Returns the program of the interpreter, if it was made.
    pub(crate) fn lowered(&self) -> &Lowered {
        &self.lowered
    }

    /// Checks that a target has the shared memory and the instructions that the kernel needs.
    ///
    /// # Errors
    /// [`ValidateError::SharedLimit`] or [`ValidateError::TargetTooOld`].
    ///
    /// ```
    /// use trueno_gpu::{KernelBuilder, Target, ValidateError};
    /// let k = KernelBuilder::new("big").with_target(Target::SM_90);
    /// let _ = k.shared_per_block("buffer", 200 * 1024, 16);
    /// let kernel = k.finish()?;
    /// assert!(matches!(kernel.check_target(Target::SM_75), Err(ValidateError::SharedLimit { .. })));
    /// # Ok::<(), ValidateError>(())
    /// ```
    pub fn check_target(&self, target: Target) -> Result<(), ValidateError> {
        check_shared(&self.ir, target)?;
        check_instructions(&self.ir, target)
    }

    /// Returns the kernel as plain data, for example to change it and validate it again.
    ///
    /// ```
    /// use trueno_gpu::{KernelBuilder, validate::validate};
    /// let mut ir = KernelBuilder::new("before").finish()?.into_ir();
    /// ir.name = "after".to_owned();
    /// assert_eq!(validate(ir)?.name, "after");
    /// # Ok::<(), trueno_gpu::ValidateError>(())
    /// ```
    #[must_use]
    pub fn into_ir(self) -> KernelIr {
        self.ir
    }

    /// Applies a rewrite that keeps valid kernels valid. Debug builds check that it did.
    pub(crate) fn rewritten(self, rewrite: impl FnOnce(&mut KernelIr)) -> Self {
        let mut ir = self.ir;
        rewrite(&mut ir);
        debug_assert_eq!(validate(ir.clone()).err(), None, "the rewrite broke the kernel");
        Self::from_ir(ir)
    }

    /// Skips validation, for tests of how the interpreter handles invalid kernels.
    #[cfg(test)]
    pub(crate) fn unchecked(kernel: KernelIr) -> Self {
        Self::from_ir(kernel)
    }
}

impl Deref for ValidKernel {
    type Target = KernelIr;

    fn deref(&self) -> &KernelIr {
        &self.ir
    }
}
