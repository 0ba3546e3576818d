//! The cost of the Zstandard kernel per page, in total and by section, against the committed figures. `UPDATE_COSTS=1`
//! writes them anew.

#[path = "support/costs.rs"]
mod costs;
#[allow(dead_code)]
#[path = "support/packed.rs"]
mod packed;

use std::collections::BTreeMap;

use packed::Packed;
use trueno_gpu::interp::LaneOrder;
use trueno_gpu::kernels::zstd::{Mode, TableStores, ZstdWarpCompressKernel};
use trueno_test_pages::{Page, corpus};

/// A rise over this fails; a fall is welcome, and is to be committed.
const ALLOWED_RISE: f64 = 1.05;

/// Parts of the kernel: sections whose titles start with the name and a colon. All others draw, pack and store pages.
const PARTS: [&str; 6] = ["find", "literals", "huffman", "fse", "sequences", "frame"];

/// Instructions and shared-memory wavefronts per page, by kernel and by part of it.
fn measure(pages: &[Page]) -> BTreeMap<String, [f64; 2]> {
    let mut costs = BTreeMap::new();
    for (mode, stores, name) in [
        (Mode::Fast, TableStores::ReadBack, "fast, read back"),
        (Mode::Fast, TableStores::LowestLaneWins, "fast, lowest lane"),
        (Mode::Ratio, TableStores::LowestLaneWins, "ratio, lowest lane"),
    ] {
        let kernel = ZstdWarpCompressKernel::new(1000).with_mode(mode).with_table_stores(stores);
        // Lanes in descending order, so that no entry has to be stored again, as on hardware. With one thread no warp
        // ever waits for another, and counts repeat.
        let run = kernel.interpret(pages, |launch| launch.threads(1).lane_order(LaneOrder::Descending));
        let report = Packed::check(run.unwrap_or_else(|fault| panic!("{fault}"))).report;
        for section in &report.sections {
            let title = section.section.as_deref().unwrap_or_default();
            let part = title.split_once(':').map_or("pages", |(part, _)| part);
            assert!(part == "pages" || PARTS.contains(&part), "{title}");
            let counts = [section.counts.instructions(), section.counts.shared_wavefronts];
            for key in [format!("compress {name}"), format!("compress {name}, {part}")] {
                let sum = costs.entry(key).or_insert([0.0; 2]);
                sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count as f64 / pages.len() as f64);
            }
        }
        let total = report.total.instructions() as f64 / pages.len() as f64;
        assert!((costs[&format!("compress {name}")][0] - total).abs() < 1.0, "sections cover everything");
    }
    costs
}

#[test]
fn no_part_costs_more_than_committed() {
    let pages: Vec<Page> = corpus::all_pages().step_by(4).copied().collect();
    costs::assert_no_rise("zstd_compress_costs.txt", "kernel, part", &measure(&pages), |then| then * ALLOWED_RISE);
}

/// Prints the cost by corpus: `TRUENO_PAGES=FILE:FILE` adds files of pages.
#[test]
#[ignore = "prints a table"]
fn costs_by_corpus() {
    let mut sets: Vec<(String, Vec<Page>)> =
        corpus::ALL.iter().map(|corpus| (corpus.name.to_owned(), corpus.pages.to_vec())).collect();
    if let Ok(files) = std::env::var("TRUENO_PAGES") {
        for file in files.split(':') {
            let bytes = std::fs::read(file).expect("TRUENO_PAGES names files of pages");
            sets.push((file.to_owned(), bytes.as_chunks().0.iter().step_by(6).copied().collect()));
        }
    }
    for (name, pages) in sets {
        let costs = measure(&pages);
        let instructions = |part: &str| costs.get(part).map_or(0.0, |cost| cost[0]);
        print!("{name:>40} {:>6.0}", instructions("compress fast, lowest lane"));
        for part in PARTS.iter().chain(&["pages"]) {
            print!("  {part} {:.0}", instructions(&format!("compress fast, lowest lane, {part}")));
        }
        println!();
    }
}
