//! The table for people and the JSON for machines.

use std::path::Path;

use serde::Serialize;
use trueno_zram_core::PAGE_SIZE;
use trueno_zram_core::gpu::BatchTimes;

/// One measurement. Speeds count uncompressed bytes, in 10^9 a second.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) section: &'static str,
    pub(crate) what: String,
    pub(crate) corpus: String,
    pub(crate) pages: usize,
    /// `batch_size` and `ring_buffer_slots`, where there is a ring.
    pub(crate) batch_pages: Option<usize>,
    pub(crate) slots: Option<usize>,
    pub(crate) multiprocessors: Option<u32>,
    pub(crate) gbps: f64,
    pub(crate) seconds: f64,
    pub(crate) seconds_least: f64,
    pub(crate) seconds_most: f64,
    pub(crate) ratio: Option<f64>,
    /// Of the median run: time in each stage, added up over slots that overlap.
    pub(crate) h2d_ms: Option<f64>,
    pub(crate) kernel_ms: Option<f64>,
    pub(crate) d2h_ms: Option<f64>,
    /// Against the bandwidth of the bus that bounds it, measured in the same run.
    pub(crate) of_bus: Option<f64>,
    /// Against C lz4 on all cores, in the same direction, in the same run.
    pub(crate) vs_c_lz4: Option<f64>,
}

/// A run of something: its time, and the GPU's stages where there are any.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    pub(crate) seconds: f64,
    pub(crate) stages: Option<BatchTimes>,
}

impl From<BatchTimes> for Timing {
    fn from(times: BatchTimes) -> Self {
        Self { seconds: times.total_time_ns as f64 / 1e9, stages: Some(times) }
    }
}

impl From<std::time::Duration> for Timing {
    fn from(time: std::time::Duration) -> Self {
        Self { seconds: time.as_secs_f64(), stages: None }
    }
}

impl Row {
    /// The median run of several.
    pub(crate) fn new(section: &'static str, what: &str, corpus: &str, pages: usize, timings: &[Timing]) -> Self {
        let mut sorted = timings.to_vec();
        sorted.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let median = sorted[sorted.len() / 2];
        let milliseconds =
            |pick: fn(&BatchTimes) -> u64| median.stages.as_ref().map(|stages| pick(stages) as f64 / 1e6);
        Self {
            section,
            what: what.to_owned(),
            corpus: corpus.to_owned(),
            pages,
            batch_pages: None,
            slots: None,
            multiprocessors: None,
            gbps: (pages * PAGE_SIZE) as f64 / median.seconds / 1e9,
            seconds: median.seconds,
            seconds_least: sorted[0].seconds,
            seconds_most: sorted[sorted.len() - 1].seconds,
            ratio: None,
            h2d_ms: milliseconds(|stages| stages.h2d_time_ns),
            kernel_ms: milliseconds(|stages| stages.kernel_time_ns),
            d2h_ms: milliseconds(|stages| stages.d2h_time_ns),
            of_bus: None,
            vs_c_lz4: None,
        }
    }
}

/// All that was measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) machine: String,
    pub(crate) threads: usize,
    pub(crate) same_filled_left_out: usize,
    pub(crate) h2d_gbps: Option<f64>,
    pub(crate) d2h_gbps: Option<f64>,
    pub(crate) c_lz4_compress_gbps: Option<f64>,
    pub(crate) c_lz4_decompress_gbps: Option<f64>,
    /// The least batch that the GPU compresses faster than the CPU.
    pub(crate) crossing_pages: Option<usize>,
    pub(crate) rows: Vec<Row>,
}

/// Which way the pages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Compress,
    Decompress,
}

impl Report {
    pub(crate) fn print_head() {
        println!(
            "{:<44} {:>9} {:>5} {:>6} {:>10} {:>7} {:>7} {:>8} {:>8} {:>8} {:>7}",
            "what", "GB/s", "bus", "C lz4", "ms", "ratio", "pages", "h2d ms", "krnl ms", "d2h ms", "slot"
        );
    }

    /// Adds a row, sets it against the limits, and prints it.
    pub(crate) fn add(&mut self, direction: Direction, mut row: Row) {
        let (bus, c_lz4) = match direction {
            Direction::Compress => (self.h2d_gbps, self.c_lz4_compress_gbps),
            Direction::Decompress => (self.d2h_gbps, self.c_lz4_decompress_gbps),
        };
        if row.section != "limits" && row.section != "cpu" {
            row.of_bus = bus.map(|bus| row.gbps / bus);
        }
        if row.section != "limits" {
            row.vs_c_lz4 = c_lz4.map(|c_lz4| row.gbps / c_lz4);
        }
        let or_blank = |value: Option<f64>, digits: usize| value.map_or_else(String::new, |v| format!("{v:.digits$}"));
        let slot = row.batch_pages.zip(row.slots).map_or_else(String::new, |(pages, slots)| format!("{pages}x{slots}"));
        println!(
            "{:<44} {:>9.2} {:>5} {:>6} {:>10.3} {:>7} {:>7} {:>8} {:>8} {:>8} {:>7}",
            format!("{} {}", row.what, row.corpus),
            row.gbps,
            or_blank(row.of_bus, 2),
            or_blank(row.vs_c_lz4, 2),
            row.seconds * 1e3,
            or_blank(row.ratio, 3),
            row.pages,
            or_blank(row.h2d_ms, 2),
            or_blank(row.kernel_ms, 2),
            or_blank(row.d2h_ms, 2),
            slot,
        );
        self.rows.push(row);
    }

    pub(crate) fn write_json(&self, file: &Path) -> Result<(), String> {
        let text = serde_json::to_string_pretty(self).map_err(|e| e.to_string())?;
        std::fs::write(file, text).map_err(|e| format!("{}: {e}", file.display()))
    }
}
