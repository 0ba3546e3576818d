//! Which back end a batch would go to, and why.

use serde::Serialize;
use trueno_zram_core::gpu::{BackendSelection, select_backend};

use super::{Cpu, Gpus};

/// The choice for batches of some size.
#[derive(Debug, Serialize)]
pub(crate) struct Choice {
    /// The sizes this holds for, in words.
    pub(crate) batch: String,
    pub(crate) least_pages: usize,
    /// `gpu`, `simd` or `scalar`.
    pub(crate) backend: &'static str,
    pub(crate) why: String,
}

/// Sizes that are tried to find where the choice changes.
const TRIED_PAGES: std::ops::RangeInclusive<usize> = 1..=100_000;

impl Choice {
    /// For one batch.
    pub(crate) fn of_batch(pages: usize, gpus: &Gpus) -> Self {
        let selection = select_backend(pages, gpus.available);
        let batch = if pages == 1 { "1 page".into() } else { format!("{pages} pages") };
        Self { batch, least_pages: pages, backend: name(selection), why: why(selection, gpus).into() }
    }

    /// For every size: one entry for each run of sizes with the same answer.
    pub(crate) fn all(gpus: &Gpus) -> Vec<Self> {
        let changes: Vec<usize> = TRIED_PAGES
            .filter(|pages| {
                *pages == *TRIED_PAGES.start()
                    || select_backend(*pages, gpus.available) != select_backend(*pages - 1, gpus.available)
            })
            .collect();
        let ends = changes.iter().skip(1).map(|next| Some(next - 1)).chain([None]);
        changes
            .iter()
            .zip(ends)
            .map(|(&first, last)| {
                let batch = match last {
                    Some(last) if last == first => format!("{first} page(s)"),
                    Some(last) => format!("{first} to {last} pages"),
                    None => format!("{first} pages or more"),
                };
                Self { batch, ..Self::of_batch(first, gpus) }
            })
            .collect()
    }

    /// The back end as it is called elsewhere.
    pub(crate) fn backend_text(&self, cpu: &Cpu) -> String {
        match self.backend {
            "gpu" => "GPU".into(),
            "simd" => format!("CPU, {}", cpu.backend),
            _ => "CPU, scalar".into(),
        }
    }
}

fn name(selection: BackendSelection) -> &'static str {
    match selection {
        BackendSelection::Gpu => "gpu",
        BackendSelection::Simd => "simd",
        BackendSelection::Scalar => "scalar",
    }
}

fn why(selection: BackendSelection, gpus: &Gpus) -> &'static str {
    match selection {
        BackendSelection::Gpu => "enough pages to be worth the way over the bus",
        BackendSelection::Scalar => "too few pages for anything else to show",
        BackendSelection::Simd if gpus.available => "too few pages to be worth the way to the GPU",
        BackendSelection::Simd => "enough pages for vector code; there is no GPU to use",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus(available: bool) -> Gpus {
        Gpus { available, reason: None, driver_version: None, cuda_version: None, devices: Vec::new() }
    }

    #[test]
    fn the_runs_of_sizes_agree_with_the_rule_everywhere() {
        for available in [true, false] {
            let choices = Choice::all(&gpus(available));
            for pages in (1..2000).chain([10_000, 1_000_000]) {
                let choice = choices.iter().rfind(|choice| choice.least_pages <= pages).expect("from 1 on");
                assert_eq!(choice.backend, name(select_backend(pages, available)), "{pages} pages");
            }
        }
        let batches: Vec<_> = Choice::all(&gpus(true)).into_iter().map(|choice| choice.batch).collect();
        assert_eq!(batches, ["1 to 3 pages", "4 to 999 pages", "1000 pages or more"]);
    }

    #[test]
    fn the_reason_names_what_is_missing() {
        assert!(Choice::of_batch(5000, &gpus(false)).why.contains("no GPU"));
        assert_eq!(Choice::of_batch(50, &gpus(true)).why, "too few pages to be worth the way to the GPU");
    }
}
