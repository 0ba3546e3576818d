//! Checks every instruction on the device against the PTX ISA, and runs the lane rule probe.

use trueno_test_kernels::suite::{self, SuiteCase};
use trueno_zram_core::gpu::raw::{LaunchArgs, LoadedKernel, lane_rule};

use crate::harness::{Device, FILL, device};

/// Compares a result with the expected one. `rcp.approx` may be off by one unit in the last place; all else is exact.
fn agrees(case: &SuiteCase, got: &[u8]) -> bool {
    let words = |bytes: &[u8]| bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect::<Vec<_>>();
    let close = |(got, expected): (&u32, &u32)| got.abs_diff(*expected) <= 1;
    got == case.expected || case.name.contains("rcp") && words(got).iter().zip(&words(&case.expected)).all(close)
}

fn run(device: &Device, case: &SuiteCase) -> Result<(), String> {
    let kernel = LoadedKernel::new(&device.context, &case.kernel).map_err(|e| e.to_string())?;
    let (input, output) = (device.upload(&case.input), device.buffer(case.expected.len()));
    device.stream.fill(&output, 0..case.expected.len(), FILL).map_err(|e| e.to_string())?;
    let args = LaunchArgs::new().buffer(&input).buffer(&output);
    // SAFETY: the interpreter has run the case in buffers of these sizes, and it stops at the first access out of
    // bounds.
    unsafe { kernel.launch(&device.stream, case.grid, &args) }.map_err(|e| e.to_string())?;
    let got = device.download(&output);
    if agrees(case, &got) {
        return Ok(());
    }
    let at = got.iter().zip(&case.expected).position(|(a, b)| a != b).unwrap_or(0) & !3;
    let part = |bytes: &[u8]| format!("{:02x?}", &bytes[at..bytes.len().min(at + 8)]);
    Err(format!("at {at}: {}, expected {}", part(&got), part(&case.expected)))
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_suite_case_matches_the_isa() {
    let device = device();
    let cases = suite::cases();
    let wrong: Vec<String> =
        cases.iter().filter_map(|case| run(&device, case).err().map(|e| format!("{}: {e}", case.name))).collect();
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    println!("{} cases agree", cases.len());
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn lane_rule_probe_sees_enough_conflicts_and_runs_once() {
    let device = device();
    let seen = lane_rule(&device.context).unwrap();
    println!("{seen:?}: {:?}", seen.table_stores());
    assert!(seen.conflicts >= 100_000 && seen.lowest_lane_won <= seen.conflicts, "{seen:?}");
    assert_eq!(lane_rule(&device.context).unwrap(), seen);
}
