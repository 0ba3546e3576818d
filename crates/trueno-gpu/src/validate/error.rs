//! Every way a kernel can be wrong.

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
        /// Where.
        path: Path,
        /// The register, in the other kernel.
        reg: RegId,
    },
    /// A register that the kernel does not declare.
    #[error("{path}: register #{} is not declared", reg.0)]
    UnknownRegister {
        /// Where.
        path: Path,
        /// The register.
        reg: RegId,
    },
    /// A register of the wrong class.
    #[error("{path}: register {reg} is {found:?} where {expected:?} is needed")]
    ClassMismatch {
        /// Where.
        path: Path,
        /// The register.
        reg: String,
        /// What the instruction needs.
        expected: RegClass,
        /// What the register is.
        found: RegClass,
    },
    /// A value (not a variable) assigned a second time.
    #[error("{path}: value {reg} is assigned a second time")]
    Reassigned {
        /// Where.
        path: Path,
        /// The register.
        reg: String,
    },
    /// A value (not a variable) assigned under a guard, so that it has none where the guard fails.
    #[error("{path}: value {reg} is assigned under a guard; use a variable")]
    GuardedValue {
        /// Where.
        path: Path,
        /// The register.
        reg: String,
    },
    /// A register read on a path that does not assign it.
    #[error("{path}: {reg} is read but not assigned on every path here")]
    Unassigned {
        /// Where.
        path: Path,
        /// The register.
        reg: String,
    },
    /// A uniform branch or load that depends on a value that may differ between lanes.
    #[error("{path}: not uniform: {chain}")]
    NotUniform {
        /// Where.
        path: Path,
        /// The registers from the condition back to what differs.
        chain: String,
    },
    /// A barrier or an operation of all lanes where not all lanes need be.
    #[error("{path}: {inst} under divergent control flow")]
    DivergentBarrier {
        /// Where.
        path: Path,
        /// The instruction.
        inst: &'static str,
    },
    /// A constant offset that breaks natural alignment.
    #[error("{path}: constant offset {offset} is not a multiple of the {bytes} bytes accessed")]
    MisalignedOffset {
        /// Where.
        path: Path,
        /// Offset from the aligned start, in bytes.
        offset: i64,
        /// Bytes accessed at once.
        bytes: u32,
    },
    /// A region aligned to less than an access through its start.
    #[error("{path}: region `{region}` is aligned to {align} bytes, the access needs {bytes}")]
    RegionAlignment {
        /// Where.
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
        /// Where.
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
    /// Regions that cannot be placed: an alignment that is no power of two, or sizes beyond 32 bits.
    #[error("shared regions cannot be placed: an alignment is no power of two, or the sizes overflow")]
    SharedLayout,
    /// More shared memory than the target has.
    #[error("{bytes} bytes of shared memory a block, {target} has {limit}")]
    SharedLimit {
        /// Needed.
        bytes: u32,
        /// Allowed.
        limit: u32,
        /// By this target.
        target: Target,
    },
    /// An instruction newer than the target.
    #[error("{path}: {inst} needs sm_{needs_sm} and PTX {needs_ptx}, the target is {target}")]
    TargetTooOld {
        /// Where.
        path: Path,
        /// The instruction.
        inst: &'static str,
        /// PTX version that has it.
        needs_ptx: PtxVersion,
        /// SM that has it.
        needs_sm: u32,
        /// The target.
        target: Target,
    },
    /// A break or continue outside the loop or scope it names.
    #[error("{path}: {what} outside of its loop or block")]
    OutsideTarget {
        /// Where.
        path: Path,
        /// `break` or `continue`.
        what: &'static str,
    },
    /// Two loops or scopes of one name.
    #[error("{path}: the label is used a second time")]
    DuplicateLabel {
        /// Where.
        path: Path,
    },
    /// Operands that the instruction does not have in that form.
    #[error("{path}: {inst}: {problem}")]
    BadOperand {
        /// Where.
        path: Path,
        /// The instruction.
        inst: &'static str,
        /// What is wrong.
        problem: &'static str,
    },
    /// A kernel's or parameter's name that is no identifier or is taken.
    #[error("`{name}` is no identifier, or is used twice")]
    BadName {
        /// The name.
        name: String,
    },
    /// A block of no or more than 32 warps.
    #[error("a block of {warps} warps; it can have 1 to 32")]
    BlockSize {
        /// Warps asked for.
        warps: u32,
    },
}
