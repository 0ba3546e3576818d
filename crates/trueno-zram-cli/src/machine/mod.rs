//! This machine: CPU, memory, GPUs, and how `auto` chooses between them.

mod cpu;
pub(crate) mod descriptors;
mod gpu;
mod memory_room;
mod placement_rule;

use std::fs;

use serde::Serialize;

pub(crate) use cpu::Cpu;
pub(crate) use gpu::{Gpu, Gpus};
pub(crate) use memory_room::lockable_bytes;
pub(crate) use placement_rule::PlacementRule;

/// The parts of this machine that matter here.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) version: &'static str,
    pub(crate) cpu: Cpu,
    /// `None` if the system does not report it.
    pub(crate) memory: Option<SystemMemory>,
    pub(crate) gpu: Gpus,
    pub(crate) choices: Vec<PlacementRule>,
}

/// Measurements to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    Nothing,
    Bandwidth,
}

/// Memory of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct SystemMemory {
    pub(crate) total_bytes: u64,
    pub(crate) available_bytes: u64,
}

impl Machine {
    /// Looks at the machine. The bandwidth of the bus is measured on request only: it takes a while and much memory.
    pub(crate) fn look(measure: Measure) -> Self {
        let gpu = Gpus::look(measure);
        let choices = PlacementRule::all(&gpu);
        let memory = fs::read_to_string("/proc/meminfo").ok().and_then(|text| SystemMemory::parse(&text));
        Self { version: env!("CARGO_PKG_VERSION"), cpu: Cpu::look(), memory, gpu, choices }
    }
}

impl SystemMemory {
    /// Parses the text of `/proc/meminfo`.
    fn parse(meminfo: &str) -> Option<Self> {
        let kib = |name: &str| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
        };
        Some(Self { total_bytes: kib("MemTotal")?, available_bytes: kib("MemAvailable")? })
    }
}

#[cfg(test)]
mod tests {
    use super::SystemMemory;

    #[test]
    fn memory_is_read_in_kib() {
        let text = "MemTotal:       24737380 kB\nMemFree:          100000 kB\nMemAvailable:   20000000 kB\n";
        let memory = SystemMemory { total_bytes: 24_737_380 * 1024, available_bytes: 20_000_000 * 1024 };
        assert_eq!(SystemMemory::parse(text), Some(memory));
        assert_eq!(SystemMemory::parse("MemTotal: many kB\n"), None);
    }
}
