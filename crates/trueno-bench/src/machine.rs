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
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        let model = lines.find(|(key, _)| ["model name", "cpu model", "Model"].contains(&key.trim()));
        let cpu = BenchCpu {
            model: model.map_or("unknown CPU".into(), |(_, model)| model.trim().to_owned()),
            hardware_threads: available_parallelism().map_or(1, NonZeroUsize::get),
            instruction_set: InstructionSet::detect().to_string(),
        };
        let gpus = GpuDeviceInfo::all().into_iter().map(|gpu| gpu.name).collect();
        Self { version: env!("CARGO_PKG_VERSION"), cpu, gpus }
    }
}
