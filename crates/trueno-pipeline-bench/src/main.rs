//! Times batches from host memory through a GPU and back, beside the bus, memcpy and C lz4 in the same run.
//!
//! `pipeline-bench [OPTIONS] [FILES]`; `--help` lists the options. Runs from a copied binary: it needs the NVIDIA driver;
//! no Rust and no CUDA toolkit.
#![forbid(unsafe_code)]

mod args;
mod limits;
mod measure;
mod report;

use std::num::NonZeroUsize;
use std::process::ExitCode;

use trueno_zram_core::gpu::raw::GpuContext;

use args::Options;
use measure::Bench;
use report::Report;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("pipeline-bench: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let Some(options) = Options::from_args(std::env::args().skip(1))? else {
        println!("{}", args::HELP);
        return Ok(());
    };
    let corpora = trueno_bench_engines::load(&options.files, usize::MAX).map_err(|e| e.to_string())?;
    let context = GpuContext::new(options.device).map_err(|e| e.to_string())?;
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let (info, limits) = (context.info(), context.limits());
    let (major, minor) = info.compute_capability;
    let machine = format!("{}, sm_{major}{minor}, {} SMs", info.name, limits.multiprocessors);
    println!("{machine}, {threads} threads; medians of {}", options.reps);
    let report = Report {
        machine,
        threads: threads.get(),
        same_filled_left_out: corpora.iter().map(|corpus| corpus.same_filled).sum(),
        h2d_gbps: None,
        d2h_gbps: None,
        c_lz4_compress_gbps: None,
        c_lz4_decompress_gbps: None,
        crossing_pages: None,
        rows: Vec::new(),
    };
    println!("{} same-filled pages of the corpora are left out", report.same_filled_left_out);
    Report::print_head();
    let mut bench = Bench::new(&options, context, threads, corpora, report);
    bench.run()?;
    options.json.as_deref().map_or(Ok(()), |file| bench.report.write_json(file))
}
