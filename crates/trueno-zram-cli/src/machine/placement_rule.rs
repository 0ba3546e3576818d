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
    /// The rule for batches of `pages` pages.
    pub(crate) fn of_batch(pages: usize, gpus: &Gpus) -> Self {
        let batch = if pages == 1 { "1 page".into() } else { format!("{pages} pages") };
        let (placement, why) = match pages {
            _ if !gpus.available => (AutoPlacement::Cpu, "there is no usable GPU"),
            pages if pages < Placement::MIN_GPU_PAGES => {
                (AutoPlacement::Cpu, "the CPU does these before a GPU is tried")
            }
            _ => (AutoPlacement::Measured, "the GPU as well, while that costs less CPU time per byte"),
        };
        Self { batch, least_pages: pages, placement, why }
    }

    /// The rules for all batches: one per range of sizes.
    pub(crate) fn all(gpus: &Gpus) -> Vec<Self> {
        let least = Placement::MIN_GPU_PAGES;
        let rule = |pages, batch: String| Self { batch, ..Self::of_batch(pages, gpus) };
        match gpus.available {
            false => vec![rule(1, "all batches".into())],
            true => vec![rule(1, format!("below {least} pages")), rule(least, format!("{least} pages or more"))],
        }
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
    fn the_ranges_of_sizes_agree_with_the_rule_everywhere() {
        for available in [true, false] {
            let choices = PlacementRule::all(&gpus(available));
            for pages in (1..2000).chain([10_000, 1_000_000]) {
                let choice = choices.iter().rfind(|choice| choice.least_pages <= pages).expect("from 1 on");
                assert_eq!(
                    choice.placement,
                    PlacementRule::of_batch(pages, &gpus(available)).placement,
                    "{pages} pages"
                );
            }
        }
        let batches: Vec<_> = PlacementRule::all(&gpus(true)).into_iter().map(|choice| choice.batch).collect();
        assert_eq!(batches, ["below 1000 pages", "1000 pages or more"]);
    }

    #[test]
    fn the_reason_names_what_is_missing() {
        assert!(PlacementRule::of_batch(5000, &gpus(false)).why.contains("no usable GPU"));
        assert_eq!(PlacementRule::of_batch(50, &gpus(true)).why, "the CPU does these before a GPU is tried");
    }
}
