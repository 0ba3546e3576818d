//! The tables for people and the JSON for machines.

use std::fmt;
use std::path::Path;

use serde::Serialize;
use trueno_bench_engines::nvcomp::NvComp;
use trueno_bench_engines::timing::geometric_mean;
use trueno_zram_core::gpu::raw::GpuContext;

use crate::args::Options;
use crate::corpora::Corpus;

/// The rival's name in the rows.
pub(crate) const NVCOMP: &str = "nvCOMP";

/// What one kernel did on one corpus. Speeds count uncompressed bytes; same-filled pages are left out.
#[derive(Clone, Serialize)]
pub(crate) struct Row {
    pub(crate) corpus: String,
    pub(crate) direction: &'static str,
    pub(crate) kernel: String,
    /// For decompression: who made the blocks.
    pub(crate) blocks_of: String,
    pub(crate) pages: usize,
    pub(crate) distinct_pages: usize,
    pub(crate) same_filled_left_out: usize,
    /// Pages decoded on the CPU, or compared with the input.
    pub(crate) verified_pages: usize,
    pub(crate) gbps: f64,
    pub(crate) kernel_ms: f64,
    pub(crate) kernel_ms_min: f64,
    pub(crate) kernel_ms_max: f64,
    /// With the zeroing of index and counters before the kernel counted in.
    pub(crate) gbps_with_zeroing: f64,
    pub(crate) ratio: f64,
    pub(crate) ratio_vs_c_lz4: f64,
    pub(crate) vs_nvcomp: Option<f64>,
    pub(crate) scratch_bytes: usize,
    pub(crate) grid: u32,
    pub(crate) block_threads: u32,
    pub(crate) blocks_per_sm: u32,
    pub(crate) dynamic_shared_bytes: u32,
    pub(crate) registers: u32,
    pub(crate) local_bytes: u32,
}

/// Where it was measured.
#[derive(Clone, Serialize)]
pub(crate) struct Machine {
    device: String,
    compute_capability: (u32, u32),
    multiprocessors: u32,
    driver_cuda_version: u32,
    nvcomp_version: Option<u32>,
}

impl Machine {
    pub(crate) fn of(context: &GpuContext, nvcomp: Option<&NvComp>) -> Self {
        let (info, limits) = (context.info(), context.limits());
        Self {
            device: info.name.clone(),
            compute_capability: info.compute_capability,
            multiprocessors: limits.multiprocessors,
            driver_cuda_version: limits.driver_version,
            nvcomp_version: nvcomp.map(|nvcomp| nvcomp.version),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.compute_capability;
        let (cuda, sms) = (self.driver_cuda_version, self.multiprocessors);
        write!(
            f,
            "{}, sm_{major}{minor}, {sms} SMs, driver for CUDA {}.{}",
            self.device,
            cuda / 1000,
            cuda % 1000 / 10
        )?;
        match self.nvcomp_version {
            Some(version) => write!(f, ", nvCOMP {version}"),
            None => write!(f, ", no nvCOMP"),
        }
    }
}

/// Means over the corpora of one kernel.
#[derive(Clone, Serialize)]
struct Mean {
    direction: &'static str,
    kernel: String,
    blocks_of: String,
    corpora: usize,
    gbps: f64,
    ratio: f64,
    ratio_vs_c_lz4: f64,
    ratio_vs_c_lz4_least: f64,
    vs_nvcomp: Option<f64>,
    vs_nvcomp_least: Option<f64>,
    vs_nvcomp_least_on: Option<String>,
}

/// Everything of a run.
#[derive(Serialize)]
pub(crate) struct Report {
    machine: Machine,
    pages: u32,
    reps: usize,
    pub(crate) rows: Vec<Row>,
    means: Vec<Mean>,
}

impl Report {
    pub(crate) fn new(machine: Machine, options: &Options) -> Self {
        Self { machine, pages: options.pages, reps: options.reps, rows: Vec::new(), means: Vec::new() }
    }

    /// Geometric means over the corpora; and the least quotients, which the mean hides.
    pub(crate) fn print_means(&mut self) {
        self.means = means(&self.rows);
        let corpora = self.means.iter().map(|mean| mean.corpora).max().unwrap_or(0);
        println!("\ngeometric means over {corpora} corpora");
        println!(
            "{:<11} {:<20} {:<18} {:>8} {:>7} {:>7} {:>7} {:>9} {:>7}",
            "", "kernel", "blocks of", "GB/s", "ratio", "vs C", "least", "vs nvCOMP", "least"
        );
        for mean in &self.means {
            println!(
                "{:<11} {:<20} {:<18} {:8.1} {:7.3} {:7.3} {:7.3} {:>9} {:>7} {}",
                mean.direction,
                mean.kernel,
                mean.blocks_of,
                mean.gbps,
                mean.ratio,
                mean.ratio_vs_c_lz4,
                mean.ratio_vs_c_lz4_least,
                quotient(mean.vs_nvcomp),
                quotient(mean.vs_nvcomp_least),
                mean.vs_nvcomp_least_on.as_deref().map(|on| format!("on {on}")).unwrap_or_default(),
            );
        }
    }

    pub(crate) fn write_json(&self, file: &Path) -> Result<(), String> {
        let json = serde_json::to_string_pretty(self).map_err(|e| e.to_string())?;
        std::fs::write(file, json + "\n").map_err(|e| format!("{}: {e}", file.display()))
    }
}

pub(crate) fn print_corpus(corpus: &Corpus, rows: &[Row]) {
    println!(
        "\n{}: {} pages, {} same-filled left out, C lz4 ratio {:.3}",
        corpus.name,
        corpus.pages.len(),
        corpus.same_filled,
        corpus.c_lz4_ratio()
    );
    println!(
        "{:<11} {:<20} {:<18} {:>8} {:>8} {:>21} {:>7} {:>7} {:>9}   launch",
        "", "kernel", "blocks of", "GB/s", "zeroing", "ms (min-max)", "ratio", "vs C", "vs nvCOMP"
    );
    for row in rows {
        println!("{}", row_text(row));
    }
}

fn row_text(row: &Row) -> String {
    let spread = format!("{:.3} ({:.3}-{:.3})", row.kernel_ms, row.kernel_ms_min, row.kernel_ms_max);
    let launch = if row.grid == 0 {
        format!("{} MB temp", row.scratch_bytes / 1_000_000)
    } else {
        format!(
            "{} x {} warps, {} regs, {} B local, {} B shared, {} MB scratch",
            row.grid,
            row.block_threads / 32,
            row.registers,
            row.local_bytes,
            row.dynamic_shared_bytes,
            row.scratch_bytes / 1_000_000
        )
    };
    format!(
        "{:<11} {:<20} {:<18} {:8.1} {:8.1} {spread:>21} {:7.3} {:7.3} {:>9}   {launch}",
        row.direction,
        row.kernel,
        row.blocks_of,
        row.gbps,
        row.gbps_with_zeroing,
        row.ratio,
        row.ratio_vs_c_lz4,
        quotient(row.vs_nvcomp),
    )
}

fn quotient(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"))
}

fn means(rows: &[Row]) -> Vec<Mean> {
    let mut groups: Vec<Vec<&Row>> = Vec::new();
    for row in rows {
        let same = |group: &&mut Vec<&Row>| {
            let first = group[0];
            (first.direction, &first.kernel, &first.blocks_of) == (row.direction, &row.kernel, &row.blocks_of)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups.iter().map(|group| mean_of(group)).collect()
}

fn mean_of(rows: &[&Row]) -> Mean {
    let mean = |value: &dyn Fn(&Row) -> f64| geometric_mean(rows.iter().map(|row| value(row)));
    let quotients: Option<Vec<f64>> = rows.iter().map(|row| row.vs_nvcomp).collect();
    let least = quotients.as_ref().and_then(|quotients| {
        quotients
            .iter()
            .zip(rows)
            .min_by(|a, b| a.0.total_cmp(b.0))
            .map(|(quotient, row)| (*quotient, row.corpus.clone()))
    });
    let mut corpora: Vec<&str> = rows.iter().map(|row| row.corpus.as_str()).collect();
    corpora.dedup();
    Mean {
        direction: rows[0].direction,
        kernel: rows[0].kernel.clone(),
        blocks_of: rows[0].blocks_of.clone(),
        corpora: corpora.len(),
        gbps: mean(&|row| row.gbps),
        ratio: mean(&|row| row.ratio),
        ratio_vs_c_lz4: mean(&|row| row.ratio_vs_c_lz4),
        ratio_vs_c_lz4_least: rows.iter().map(|row| row.ratio_vs_c_lz4).fold(f64::INFINITY, f64::min),
        vs_nvcomp: quotients.map(geometric_mean),
        vs_nvcomp_least: least.as_ref().map(|(quotient, _)| *quotient),
        vs_nvcomp_least_on: least.map(|(_, corpus)| corpus),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_is_a_dash() {
        assert_eq!(quotient(None), "-");
        assert_eq!(quotient(Some(6.504)), "6.50");
    }
}
