//! Small kernels with known results, one for each instruction, which the interpreter is tested against.
//!
//! The suite also runs on real devices: a launcher emits the kernel of each [`SuiteCase`], launches it on its input and
//! compares the output. If interpreter and device agree on all cases, results of the
//! interpreter for larger kernels hold on the device.
//!
//! Expected results come from the PTX ISA: as numbers, or from functions that follow its pseudo-code bit by bit. None
//! comes from the instruction table, which is under test.
//!
//! ```
//! use trueno_gpu::interp::{Launch, DeviceMemory};
//! use trueno_test_kernels::suite;
//! for case in suite::cases() {
//!     let mut memory = DeviceMemory::new();
//!     let input = memory.add("input", &case.input);
//!     let output = memory.add_uninit("output", case.expected.len());
//!     Launch::new(&case.kernel).grid(case.grid).arg(input).arg(output).run(&mut memory).unwrap();
//!     assert_eq!(memory.bytes(output).unwrap(), case.expected, "{}", case.name);
//! }
//! ```

mod control;
mod isa;
mod known;
mod memory;
mod pure;
mod warp;

use crate::ir_builder::{IrBuilder, global};
use trueno_gpu::ir::RegId;
use trueno_gpu::validate::validate;
use trueno_gpu::{MemTy, RegClass, ValidKernel};

/// A kernel with one input buffer and one output buffer, and the expected output.
///
/// ```
/// let case = &trueno_test_kernels::suite::cases()[0];
/// assert_eq!(case.kernel.params.len(), 2);
/// ```
#[derive(Debug, Clone)]
pub struct SuiteCase {
    /// The instruction, and what is tested about it.
    pub name: String,
    /// The kernel. Its parameters are the input and the output pointer.
    pub kernel: ValidKernel,
    /// Bytes of the input buffer.
    pub input: Vec<u8>,
    /// Number of blocks to launch, of the kernel's own size.
    pub grid: u32,
    /// All bytes of the output buffer after the run.
    pub expected: Vec<u8>,
}

/// Returns all cases.
///
/// ```
/// assert!(trueno_test_kernels::suite::cases().len() > 100);
/// ```
#[must_use]
pub fn cases() -> Vec<SuiteCase> {
    let mut cases = pure::cases();
    cases.extend(memory::cases());
    cases.extend(warp::cases());
    cases.extend(control::cases());
    cases
}

/// The rest of the builder, which only the suite needs.
impl IrBuilder {
    /// Closes and validates the kernel.
    fn finish(self) -> ValidKernel {
        validate(self.close()).unwrap_or_else(|error| panic!("the kernel is valid: {error}"))
    }

    /// Loads the lane's 32-bit or 64-bit element of an input array that starts at `at_bytes`.
    fn argument(&mut self, class: RegClass, at_bytes: u32) -> RegId {
        let (ty, scale) = if class == RegClass::B64 { (MemTy::U64, 8) } else { (MemTy::U32, 4) };
        let address = self.element(self.input, self.index, scale);
        self.load(ty, global(address, i32::try_from(at_bytes).expect("a small input")))
    }
}

/// Returns 32-bit words as bytes.
fn words(words: impl IntoIterator<Item = u32>) -> Vec<u8> {
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}
