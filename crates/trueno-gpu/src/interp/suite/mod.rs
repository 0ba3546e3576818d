//! Small kernels with known results, one for each instruction: the interpreter's own truth.
//!
//! Public because the same suite runs on a real device: whoever launches PTX on one emits each [`SuiteCase`]'s kernel, launches it on
//! its input and compares the output. Where interpreter and device agree on all of it, what the interpreter says of larger kernels
//! holds on the device.
//!
//! Expected results are written from the PTX ISA: as numbers, or by functions ([`isa`](self)) that follow its pseudo-code bit by bit.
//! None comes from the instruction table, which is what is tested.
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

/// A kernel with one input buffer and one output buffer, and what it must write.
///
/// ```
/// let case = &trueno_gpu::interp::suite::cases()[0];
/// assert_eq!(case.kernel.params.len(), 2);
/// ```
#[derive(Debug, Clone)]
pub struct SuiteCase {
    /// The instruction, and what about it.
    pub name: String,
    /// The kernel: its parameters are the input and the output pointer.
    pub kernel: ValidKernel,
    /// Bytes of the input buffer.
    pub input: Vec<u8>,
    /// Blocks to launch, of the kernel's own size.
    pub grid: u32,
    /// All bytes of the output buffer after the run.
    pub expected: Vec<u8>,
}

/// All cases.
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

/// 32-bit words as bytes.
fn words(words: impl IntoIterator<Item = u32>) -> Vec<u8> {
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}
