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
#[ignore = "needs an NVIDIA GPU"]
fn the_bandwidth_of_the_bus_is_measured() {
    let shown = run(folder().path(), &["info", "--json", "--measure"]).ok();
    let machine: Value = serde_json::from_slice(&shown.stdout).unwrap();
    let bus = &machine["gpu"]["devices"][0]["bandwidth"];
    assert!(bus["to_gpu_gbps"].as_f64().unwrap() > 1.0 && bus["from_gpu_gbps"].as_f64().unwrap() > 1.0, "{bus}");
}
