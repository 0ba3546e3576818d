//! Tests of the interpreter on hand-made trees, some of which are invalid.

#![allow(clippy::unwrap_used)]

mod aliases;
mod counters;
mod faults;
mod grids;
mod ir_builder;
mod orders;
mod races;
mod speed;

use super::{DeviceMemory, Fault, FaultKind, LaneSet, Launch, LaunchReport};
use crate::validate::ValidKernel;
use ir_builder::IrBuilder;

impl IrBuilder {
    /// Closes the kernel without validating it.
    fn finish_unchecked(self) -> ValidKernel {
        ValidKernel::unchecked(self.close())
    }
}

/// Runs one block on an input of 128 bytes (words 0, 1, 2, ...). Returns the bytes of the output, `0xee` where
/// unwritten.
fn run(k: IrBuilder) -> (Result<LaunchReport, Fault>, Vec<u8>) {
    let kernel = k.finish_unchecked();
    let mut memory = DeviceMemory::new();
    let input = memory.add("input", &(0..32u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>());
    let output = memory.add_uninit("output", 512);
    let result = Launch::new(&kernel).arg(input).arg(output).step_limit(10_000).run(&mut memory);
    (result, memory.bytes_or(output, 0xee))
}

/// Returns the fault of a kernel that must have one, and the lanes it names.
fn fault(k: IrBuilder) -> (FaultKind, LaneSet) {
    let fault = run(k).0.expect_err("this kernel has a fault");
    assert!(!fault.to_string().is_empty());
    let place = fault.site.expect("faults of a running kernel have a place");
    assert_eq!((place.block, place.warp), (0, 0));
    (fault.kind, place.lanes)
}
