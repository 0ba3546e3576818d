//! The rules that a kernel can break.

use crate::ir::{Path, RegId};
use crate::target::{PtxVersion, Target};
use crate::types::RegClass;

/// A rule that a kernel breaks, with the statement's path where there is one.
///
/// ```
/// use trueno_gpu::{KernelBuilder, ValidateError};
/// let k = KernelBuilder::new("odd");
/// let _ = k.param_ptr::<u32>("input").byte_offset(2).load();
/// let error = k.finish().unwrap_err();
/// assert!(matches!(error, ValidateError::MisalignedOffset { offset: 2, bytes: 4, .. }));
/// assert_eq!(error.to_string(), "body[1]: constant offset 2 is not a multiple of the 4 bytes accessed");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ValidateError {
    /// A register of another kernel builder.
    #[error("{path}: register #{} belongs to another kernel", reg.0)]
    ForeignRegister {
        /// The statement.
        path: Path,
        /// The register, in the other kernel.
        reg: RegId,
    },
    /// A register that the kernel does not declare.
    #[error("{path}: register #{} is not declared", reg.0)]
    UnknownRegister {
        /// The statement.
        path: Path,
        /// The register.
        reg: RegId,
    },
    /// A register of the wrong class.
    #[error("{path}: register {reg} is {found:?} where {expected:?} is needed")]
    ClassMismatch {
        /// The statement.
        path: Path,
        /// The register.
        reg: String,
        /// The class that the instruction needs.
        expected: RegClass,
        /// The class of the register.
        found: RegClass,
    },
    /// A value (not a variable) that is assigned a second time.
    #[error("{path}: value {reg} is assigned a second time")]
    Reassigned {
        /// The statement.
        path: Path,
        /// The register.
        reg: String,
    },
    /// A value (not a variable) that is assigned under a guard, so that it has no value where the guard fails.
    #[error("{path}: value {reg} is assigned under a guard; use a variable")]
    GuardedValue {
        /// The statement.
        path: Path,
        /// The register.
        reg: String,
    },
    /// A register that is read where not every path assigns it.
    #[error("{path}: {reg} is read but not assigned on every path here")]
    Unassigned {
        /// The statement.
        path: Path,
        /// The register.
        reg: String,
    },
    /// A uniform branch or load that depends on a value that may differ between lanes.
    #[error("{path}: not uniform: {chain}")]
    NotUniform {
        /// The statement.
        path: Path,
        /// The registers from the condition back to the source of the difference.
        chain: String,
    },
    /// A barrier or an operation of all lanes, where lanes may have diverged.
    #[error("{path}: {inst} under divergent control flow")]
    DivergentBarrier {
        /// The statement.
        path: Path,
        /// The instruction.
        inst: &'static str,
    },
    /// A constant offset that breaks natural alignment.
    #[error("{path}: constant offset {offset} is not a multiple of the {bytes} bytes accessed")]
    MisalignedOffset {
        /// The statement.
        path: Path,
        /// Offset from the aligned start, in bytes.
        offset: i64,
        /// Bytes accessed at once.
        bytes: u32,
    },
    /// A region whose alignment is too small for an access at its start.
    #[error("{path}: region `{region}` is aligned to {align} bytes, the access needs {bytes}")]
    RegionAlignment {
        /// The statement.
        path: Path,
        /// The region.
        region: String,
        /// Its alignment.
        align: u32,
        /// Bytes accessed at once.
        bytes: u32,
    },
    /// An access at a constant offset outside its region.
    #[error("{path}: bytes {start}..{end} of region `{region}`, which has {bytes}")]
    RegionOverflow {
        /// The statement.
        path: Path,
        /// The region.
        region: String,
        /// First byte accessed.
        start: i64,
        /// Byte after the last accessed.
        end: i64,
        /// Size of the region.
        bytes: u32,
    },
    /// Regions that cannot be placed: an alignment is not a power of two, or the sizes exceed 32 bits.
    #[error("shared regions cannot be placed: an alignment is not a power of two, or the sizes exceed 32 bits")]
    SharedLayout,
    /// More shared memory than the target has.
    #[error("the kernel needs {bytes} bytes of shared memory per block, {target} has {limit}")]
    SharedLimit {
        /// Bytes needed.
        bytes: u32,
        /// Bytes available.
        limit: u32,
        /// The target.
        target: Target,
    },
    /// An instruction newer than the target.
    #[error("{path}: {inst} needs sm_{needs_sm} and PTX {needs_ptx}, the target is {target}")]
    TargetTooOld {
        /// The statement.
        path: Path,
        /// The instruction.
        inst: &'static str,
        /// PTX version that introduced it.
        needs_ptx: PtxVersion,
        /// First SM that has it.
        needs_sm: u32,
        /// The target.
        target: Target,
    },
    /// A break or continue outside the loop or scope it names.
    #[error("{path}: {what} outside of its loop or block")]
    OutsideTarget {
        /// The statement.
        path: Path,
        /// `break` or `continue`.
        what: &'static str,
    },
    /// Two loops or scopes with the same label.
    #[error("{path}: the label is already in use")]
    DuplicateLabel {
        /// The statement.
        path: Path,
    },
    /// Operands that do not fit the instruction.
    #[error("{path}: {inst}: {problem}")]
    BadOperand {
        /// The statement.
        path: Path,
        /// The instruction.
        inst: &'static str,
        /// The problem.
        problem: &'static str,
    },
    /// A name of a kernel or parameter that is not an identifier, or is used twice.
    #[error("`{name}` is not an identifier, or is used twice")]
    BadName {
        /// The name.
        name: String,
    },
    /// A block of 0 warps or more than 32.
    #[error("a block of {warps} warps; 1 to 32 are possible")]
    BlockSize {
        /// Number of warps requested.
        warps: u32,
    },
}
