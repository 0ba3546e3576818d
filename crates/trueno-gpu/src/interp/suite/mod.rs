//! Small kernels with known results, one for each instruction, which the interpreter is tested against.
//!
//! The suite is public because it also runs on real devices: a launcher emits the kernel of each [`SuiteCase`],
//! launches it on its input and compares the output. If interpreter and device agree on all cases, results of the
//! interpreter for larger kernels hold on the device.
//!
//! Expected results come from the PTX ISA: as numbers, or from functions that follow its pseudo-code bit by bit. None
//! comes from the instruction table, which is under test.
//!
//! ```
//! use trueno_gpu::interp::{suite, Launch, Memory};
//! for case in suite::cases() {
//!     let mut memory = Memory::new();
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
pub(crate) mod sketch;
mod warp;

use crate::validate::ValidKernel;

/// A kernel with one input buffer and one output buffer, and the expected output.
///
/// ```
/// let case = &trueno_gpu::interp::suite::cases()[0];
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
/// assert!(trueno_gpu::interp::suite::cases().len() > 100);
/// ```
#[must_use]
pub fn cases() -> Vec<SuiteCase> {
    let mut cases = pure::cases();
    cases.extend(memory::cases());
    cases.extend(warp::cases());
    cases.extend(control::cases());
    cases
}

/// Returns 32-bit words as bytes.
fn words(words: impl IntoIterator<Item = u32>) -> Vec<u8> {
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}
