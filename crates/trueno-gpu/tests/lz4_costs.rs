//! Costs of the LZ4 kernels per page, compared with the committed figures. These counts bound their speed on a GPU.
//! `UPDATE_COSTS=1` rewrites the figures.

#[path = "support/costs.rs"]
mod costs;
#[allow(dead_code)]
#[path = "support/lz4.rs"]
mod support;

use std::collections::BTreeMap;

use support::{compress_on, decompress};
use trueno_gpu::interp::{LaneOrder, LaunchReport};
use trueno_gpu::kernels::lz4::{Lz4WarpCompressKernel, Lz4WarpDecompressKernel, Mode, TableStores};
use trueno_test_pages::{Page, corpus};

/// A rise above this fails. Commit the new figures after a fall.
const ALLOWED_RISE: f64 = 1.05;

/// Returns instructions and shared-memory wavefronts per page, by kernel.
fn measure() -> BTreeMap<String, [f64; 2]> {
    let pages: Vec<Page> = corpus::all_pages().step_by(4).copied().collect();
    let per_page = |report: &LaunchReport| {
        let counts = [report.total.instructions(), report.total.shared_wavefronts];
        counts.map(|count| count as f64 / pages.len() as f64)
    };
    let mut costs = BTreeMap::new();
    for (mode, name) in [(Mode::Fast, "fast"), (Mode::Ratio, "ratio")] {
        let kernel = Lz4WarpCompressKernel::new(1000).with_mode(mode);
        // Lanes in descending order, so that no entry has to be stored again, as on hardware.
        let packed = compress_on(1, &kernel, &pages, LaneOrder::Descending).unwrap_or_else(|fault| panic!("{fault}"));
        costs.insert(format!("compress {name}, read back"), per_page(&packed.report));
        let trusting = kernel.with_table_stores(TableStores::LowestLaneWins);
        let packed = compress_on(1, &trusting, &pages, LaneOrder::Descending).unwrap_or_else(|fault| panic!("{fault}"));
        costs.insert(format!("compress {name}, lowest lane"), per_page(&packed.report));
        let kernel = Lz4WarpDecompressKernel::new(1000);
        let restored = decompress(&kernel, &packed.index, &packed.bytes, LaneOrder::Ascending);
        let (_, report) = restored.unwrap_or_else(|fault| panic!("{fault}"));
        costs.insert(format!("decompress {name}"), per_page(&report));
    }
    costs
}

#[test]
fn no_kernel_costs_more_than_committed() {
    costs::assert_no_rise("lz4_costs.txt", "kernel", &measure(), |then| then * ALLOWED_RISE);
}
