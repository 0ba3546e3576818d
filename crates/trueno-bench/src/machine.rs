//! The machine that a run was made on.

use std::fs;
use std::num::NonZeroUsize;
use std::thread::available_parallelism;

use serde::Serialize;
use trueno_zram_core::cpu::InstructionSet;
use trueno_zram_core::gpu::GpuDeviceInfo;

/// CPU and GPUs.
#[derive(Debug, Serialize)]
pub(crate) struct BenchMachine {
    pub(crate) version: &'static str,
    pub(crate) cpu: BenchCpu,
    /// Names of the GPUs.
    pub(crate) gpus: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct BenchCpu {
    pub(crate) model: String,
    pub(crate) hardware_threads: usize,
    pub(crate) instruction_set: String,
}

impl BenchMachine {
    pub(crate) fn look() -> Self {
        let cpu = BenchCpu {
            model: cpu_model(),
            hardware_threads: available_parallelism().map_or(1, NonZeroUsize::get),
            instruction_set: InstructionSet::detect().to_string(),
        };
        let gpus = GpuDeviceInfo::all().into_iter().map(|gpu| gpu.name).collect();
        Self { version: env!("CARGO_PKG_VERSION"), cpu, gpus }
    }
}

/// Returns the name of the CPU.
///
/// ```
/// assert!(!trueno_bench::cpu_model().is_empty());
/// ```
#[must_use]
pub fn cpu_model() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    model(&cpuinfo).unwrap_or_else(|| "unknown CPU".into())
}

/// Finds the name of the CPU in `/proc/cpuinfo`, whose keys depend on the architecture.
fn model(cpuinfo: &str) -> Option<String> {
    ["model name", "cpu model", "Model", "cpu"].into_iter().find_map(|key| {
        let value = cpuinfo.lines().filter_map(|line| line.split_once(':')).find(|(name, _)| name.trim() == key)?.1;
        Some(value.split_whitespace().collect::<Vec<_>>().join(" ")).filter(|value| !value.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::model;

    #[test]
    fn the_model_is_found_under_any_of_its_keys() {
        let intel = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel\t\t: 85\nmodel name\t: Xeon  @ 2.00GHz\n";
        assert_eq!(model(intel).as_deref(), Some("Xeon @ 2.00GHz"));
        assert_eq!(model("processor : 0\nModel : Raspberry Pi 5\n").as_deref(), Some("Raspberry Pi 5"));
        assert_eq!(model("model name\t:\n"), None);
    }
}
