//! The CPU: its name, its features, and the instruction set that the codec uses.

use std::num::NonZeroUsize;
use std::thread::available_parallelism;

use serde::Serialize;
use trueno_zram_core::cpu::InstructionSet;

/// The CPU.
#[derive(Debug, Serialize)]
pub(crate) struct Cpu {
    pub(crate) model: String,
    pub(crate) architecture: &'static str,
    /// Hardware threads that this process may use.
    pub(crate) hardware_threads: usize,
    /// The extensions that the codec can use.
    pub(crate) features: Vec<Feature>,
    /// The instruction set that the codec uses.
    pub(crate) instruction_set: String,
    /// The instruction sets that this CPU supports.
    pub(crate) instruction_sets: Vec<String>,
}

/// An extension of the instruction set.
#[derive(Debug, Serialize)]
pub(crate) struct Feature {
    pub(crate) name: &'static str,
    pub(crate) present: bool,
}

impl Cpu {
    pub(crate) fn look() -> Self {
        Self {
            model: trueno_bench::cpu_model(),
            architecture: std::env::consts::ARCH,
            hardware_threads: available_parallelism().map_or(1, NonZeroUsize::get),
            features: features(),
            instruction_set: InstructionSet::detect().to_string(),
            instruction_sets: InstructionSet::available().iter().map(InstructionSet::to_string).collect(),
        }
    }

    /// Lists the features that are present and those that are missing.
    pub(crate) fn features_text(&self) -> String {
        let named = |present: bool| {
            let names = self.features.iter().filter(|feature| feature.present == present);
            names.map(|feature| feature.name).collect::<Vec<_>>().join(", ")
        };
        match (named(true), named(false)) {
            (present, missing) if present.is_empty() && missing.is_empty() => {
                format!("no vector instructions for {}", self.architecture)
            }
            (present, missing) if missing.is_empty() => format!("has {present}"),
            (present, missing) if present.is_empty() => format!("lacks {missing}"),
            (present, missing) => format!("has {present}; lacks {missing}"),
        }
    }
}

/// The extensions that the AVX2 instruction set of the codec needs.
#[cfg(target_arch = "x86_64")]
fn features() -> Vec<Feature> {
    [
        ("AVX2", is_x86_feature_detected!("avx2")),
        ("BMI1", is_x86_feature_detected!("bmi1")),
        ("BMI2", is_x86_feature_detected!("bmi2")),
        ("LZCNT", is_x86_feature_detected!("lzcnt")),
    ]
    .into_iter()
    .map(|(name, present)| Feature { name, present })
    .collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn features() -> Vec<Feature> {
    Vec::new()
}
