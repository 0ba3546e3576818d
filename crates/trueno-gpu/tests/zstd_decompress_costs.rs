//! Costs of the Zstandard decompression kernels per page and section, compared with the committed figures. These counts
//! bound its speed on a GPU. `UPDATE_COSTS=1` rewrites the figures.

#[path = "support/costs.rs"]
mod costs;
#[allow(dead_code, unused_imports)]
#[path = "support/zstd.rs"]
mod support;

use std::collections::BTreeMap;

use support::{compress, most_sequences};
use trueno_gpu::interp::LaunchReport;
use trueno_gpu::kernels::packed::{PackedEntry, PageKind};
use trueno_gpu::kernels::zstd::{ZstdGroupDecompressKernel, ZstdWarpDecompressKernel};
use trueno_test_pages::generate::Generator;
use trueno_test_pages::{Page, corpus};

/// A rise above this fails, if it is more than a few instructions. Commit the new figures after a fall.
const ALLOWED_RISE: f64 = 1.05;
const ALLOWED_INSTRUCTIONS: f64 = 20.0;

/// Sections below this are not listed.
const LEAST_INSTRUCTIONS: f64 = 50.0;

/// The most that any frame may cost, in warp instructions: bounds the time of a crafted page.
const WORST_PAGE: f64 = 120_000.0;

/// The kernel that restores the frames.
#[derive(Clone, Copy)]
enum Design {
    /// One warp per page.
    Warp,
    /// Groups of pages.
    Group,
}

fn run(design: Design, frames: &[Vec<u8>]) -> LaunchReport {
    let (mut bytes, mut index) = (Vec::new(), Vec::new());
    for frame in frames {
        let len_bytes = u16::try_from(frame.len()).expect("frames are short");
        index.extend(PackedEntry::new(bytes.len() as u64, len_bytes, PageKind::Zstd).bits().to_le_bytes());
        bytes.extend_from_slice(frame);
        bytes.resize(bytes.len().next_multiple_of(16), 0);
    }
    let mut pages = vec![[0; 4096]; frames.len()];
    let (warp, group) = (ZstdWarpDecompressKernel::new(100_000), ZstdGroupDecompressKernel::new(100_000));
    let run = match design {
        Design::Warp => warp.interpret(&bytes, &index, &mut pages, |launch| launch.grid(1).threads(1)),
        Design::Group => group.interpret(&bytes, &index, &mut pages, |launch| launch.grid(1).threads(1)),
    };
    let run = run.unwrap_or_else(|fault| panic!("{fault}"));
    assert!(run.status.iter().all(|byte| *byte == 0), "all pages are restored");
    run.report
}

/// Returns instructions and shared-memory wavefronts per page, by level and section.
fn measure(design: Design) -> BTreeMap<String, [f64; 2]> {
    let pages: Vec<Page> = corpus::all_pages().step_by(4).copied().collect();
    let mut costs = BTreeMap::new();
    for level in [1, 3, 9, 19] {
        let frames: Vec<_> = pages.iter().map(|page| compress(page, level)).collect();
        let report = run(design, &frames);
        let mut add = |name: &str, instructions: u64, wavefronts: u64| {
            let sum: &mut [f64; 2] = costs.entry(format!("level {level}, {name}")).or_default();
            sum[0] += instructions as f64 / pages.len() as f64;
            sum[1] += wavefronts as f64 / pages.len() as f64;
        };
        add("total", report.total.instructions(), report.total.shared_wavefronts);
        for section in &report.sections {
            let name = section.section.as_deref().unwrap_or("start");
            add(name, section.counts.instructions(), section.counts.shared_wavefronts);
        }
    }
    costs.retain(|_, [instructions, _]| *instructions >= LEAST_INSTRUCTIONS);
    costs
}

#[test]
fn the_kernels_cost_no_more_than_committed() {
    for (design, file) in
        [(Design::Warp, "zstd_decompress_costs.txt"), (Design::Group, "zstd_group_decompress_costs.txt")]
    {
        costs::assert_no_rise(file, "level of libzstd, section", &measure(design), |then| {
            (then * ALLOWED_RISE).max(then + ALLOWED_INSTRUCTIONS)
        });
    }
}

#[test]
fn the_worst_pages_are_bounded() {
    let mut generator = Generator::new(50);
    let noise: Page = std::array::from_fn(|_| generator.byte() & 0x7f);
    let frames = [most_sequences(&mut generator), compress(&noise, 3)];
    for (frame, name) in frames.into_iter().zip(["most sequences", "seven bits per literal"]) {
        for design in [Design::Warp, Design::Group] {
            let instructions = run(design, std::slice::from_ref(&frame)).total.instructions() as f64;
            println!("{name}: {instructions} instructions");
            assert!(instructions < WORST_PAGE, "{name}: {instructions} instructions");
        }
    }
}
