//! `info`.

use serde_json::Value;

use crate::support::{folder, run};

#[test]
fn a_new_user_sees_the_machine_at_a_glance() {
    let shown = run(folder().path(), &["info"]).ok();
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(text.contains(&trueno_zram_core::cpu::InstructionSet::detect().to_string()), "{text}");
    assert!(text.lines().count() < 30 && text.lines().all(|line| line.chars().count() <= 120), "{text}");
}

#[test]
fn scripts_get_the_same() {
    let shown = run(folder().path(), &["info", "--json"]).ok();
    let machine: Value = serde_json::from_slice(&shown.stdout).unwrap();
    let available = trueno_zram_core::gpu::gpu_available();
    assert_eq!(machine["gpu"]["available"], available);
    assert_eq!(machine["gpu"]["reason"].is_string(), !available);
    assert_eq!(machine["cpu"]["instruction_set"], trueno_zram_core::cpu::InstructionSet::detect().to_string());
    assert!(machine["memory"]["total_bytes"].as_u64().unwrap() > 1 << 20);
    assert_eq!(machine["choices"][0]["least_pages"], 1);
}

#[test]
fn a_batch_size_is_answered_as_auto_decides() {
    let placement_of = |pages: &str| {
        let shown = run(folder().path(), &["info", "--json", "--batch", pages]).ok();
        let machine: Value = serde_json::from_slice(&shown.stdout).unwrap();
        assert_eq!(machine["choices"].as_array().unwrap().len(), 1);
        machine["choices"][0]["placement"].as_str().unwrap().to_owned()
    };
    let by_rates = if trueno_zram_core::gpu::gpu_available() { "measured" } else { "cpu" };
    assert_eq!(placement_of("1"), "cpu");
    assert_eq!(placement_of("999"), "cpu", "the CPU comes first");
    assert_eq!(placement_of("1000"), by_rates);
    assert_eq!(placement_of("50000"), by_rates);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_bandwidth_of_the_bus_is_measured() {
    let shown = run(folder().path(), &["info", "--json", "--measure"]).ok();
    let machine: Value = serde_json::from_slice(&shown.stdout).unwrap();
    let bus = &machine["gpu"]["devices"][0]["bandwidth"];
    assert!(bus["to_gpu_gbps"].as_f64().unwrap() > 1.0 && bus["from_gpu_gbps"].as_f64().unwrap() > 1.0, "{bus}");
}
