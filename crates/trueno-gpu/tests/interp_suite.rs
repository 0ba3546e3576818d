//! The suite of small kernels, in every lane order: the interpreter against the PTX ISA.

mod support;

use support::assemble;
use trueno_gpu::interp::{DeviceMemory, LaneOrder, Launch};
use trueno_test_kernels::suite;

#[test]
fn every_case_gives_what_the_isa_says() {
    for case in suite::cases() {
        for order in [LaneOrder::Ascending, LaneOrder::Descending, LaneOrder::Shuffled { seed: 42 }] {
            let mut memory = DeviceMemory::new();
            let input = memory.add("input", &case.input);
            let output = memory.add_uninit("output", case.expected.len());
            let launch = Launch::new(&case.kernel).grid(case.grid).arg(input).arg(output).lane_order(order);
            if let Err(fault) = launch.run(&mut memory) {
                panic!("{}: {fault}", case.name);
            }
            let got = memory.bytes(output).unwrap_or_else(|e| panic!("{}: {e}", case.name));
            if let Some(at) = got.iter().zip(&case.expected).position(|(a, b)| a != b) {
                let word =
                    |bytes: &[u8]| bytes[at & !3..].iter().take(4).rev().fold(0u32, |w, &b| w << 8 | u32::from(b));
                panic!("{} at {at}: {:#x}, expected {:#x}", case.name, word(&got), word(&case.expected));
            }
        }
    }
}

#[test]
fn names_are_unique_and_inputs_are_used() {
    let cases = suite::cases();
    let mut names: Vec<_> = cases.iter().map(|case| &case.name).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), cases.len());
    assert!(cases.iter().all(|case| !case.input.is_empty() && !case.expected.is_empty()));
}

#[test]
fn every_case_assembles() {
    for case in suite::cases() {
        assemble(&case.kernel);
    }
}
