//! The rules by which `--backend auto` places batches of pages, with their reasons.

use serde::Serialize;
use trueno_zram_core::Placement;

use super::{Cpu, Gpus};

/// The rule for batches of some sizes.
#[derive(Debug, Serialize)]
pub(crate) struct PlacementRule {
    /// The sizes of batches this holds for, as text.
    pub(crate) batch: String,
    /// The smallest of these sizes.
    pub(crate) least_pages: usize,
    pub(crate) placement: AutoPlacement,
    pub(crate) why: &'static str,
}

/// The placement of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AutoPlacement {
    /// To the CPU, always.
    Cpu,
    /// To the GPU, the CPU or both, by the cost measured so far.
    Measured,
}

impl PlacementRule {
    /// The rules for all batches: one per range of sizes.
    pub(crate) fn all(gpus: &Gpus) -> Vec<Self> {
        let least_gpu_pages = Placement::MIN_GPU_PAGES;
        let rule = |batch: String, least_pages, placement, why| Self { batch, least_pages, placement, why };
        if !gpus.available {
            return vec![rule("all batches".into(), 1, AutoPlacement::Cpu, "there is no usable GPU")];
        }
        let (small, large) = (format!("below {least_gpu_pages} pages"), format!("{least_gpu_pages} pages or more"));
        let why_measured = "the GPU as well, while that costs less CPU time per byte";
        vec![
            rule(small, 1, AutoPlacement::Cpu, "the CPU does these before a GPU is tried"),
            rule(large, least_gpu_pages, AutoPlacement::Measured, why_measured),
        ]
    }

    /// The placement for people to read.
    pub(crate) fn placement_text(&self, cpu: &Cpu) -> String {
        match self.placement {
            AutoPlacement::Cpu => format!("CPU, {}", cpu.instruction_set),
            AutoPlacement::Measured => "GPU, CPU or both".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus(available: bool) -> Gpus {
        Gpus { available, reason: None, driver_version: None, cuda_version: None, devices: Vec::new() }
    }

    #[test]
    fn batches_too_small_for_a_gpu_go_to_the_cpu() {
        let rules = PlacementRule::all(&gpus(true));
        let rules: Vec<_> = rules.iter().map(|rule| (rule.batch.as_str(), rule.least_pages, rule.placement)).collect();
        let small = ("below 1000 pages", 1, AutoPlacement::Cpu);
        assert_eq!(rules, [small, ("1000 pages or more", 1000, AutoPlacement::Measured)]);
    }

    #[test]
    fn without_a_gpu_one_rule_names_the_reason() {
        let rules = PlacementRule::all(&gpus(false));
        assert!(rules.len() == 1 && rules[0].why.contains("no usable GPU"), "{rules:?}");
    }
}
