//! Times page compression kernels on pages that lie on the GPU, beside nvCOMP in the same run.
//!
//! `kernel-bench [OPTIONS] CORPUS.bin...`; `kernel-bench --help` lists the options. Runs from a copied binary: it needs the
//! NVIDIA driver, and libnvcomp where `--nvcomp` names it; no Rust and no CUDA toolkit.
#![deny(unsafe_code)]

mod args;
mod corpora;
mod index;
mod kernels;
mod measure;
mod report;
mod resident;
mod verify;

use std::process::ExitCode;

use trueno_bench_engines::nvcomp::NvComp;
use trueno_zram_core::gpu::raw::{GpuContext, Stream};

use args::{Builtin, Options, Runs};
use kernels::Loaded;
use report::{Machine, Report};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("kernel-bench: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let Some(options) = Options::from_args(std::env::args().skip(1))? else {
        println!("{}", args::HELP);
        return Ok(());
    };
    let corpora = corpora::load(&options.files)?;
    let context = GpuContext::new(options.device).map_err(|e| e.to_string())?;
    let stream = Stream::new(&context).map_err(|e| e.to_string())?;
    let nvcomp = options.nvcomp.as_deref().map(NvComp::load).transpose()?;
    let machine = Machine::of(&context, nvcomp.as_ref());
    println!("{machine}");
    println!("{} pages on the device, medians of {} by events", options.pages, options.reps);
    let kernels = load(&context, &options)?;
    if options.runs == Runs::Once {
        return corpora.iter().try_for_each(|corpus| measure::once(&context, &stream, &kernels, corpus, &options));
    }
    let mut report = Report::new(machine, &options);
    for corpus in &corpora {
        let rows = measure::corpus(&context, &stream, &kernels, nvcomp.as_ref(), corpus, &options)?;
        report::print_corpus(corpus, &rows);
        report.rows.extend(rows);
    }
    report.print_means();
    options.json.as_deref().map_or(Ok(()), |file| report.write_json(file))
}

fn load(context: &GpuContext, options: &Options) -> Result<Vec<Loaded>, String> {
    let mut loaded = match options.builtin {
        Builtin::All => kernels::copies(context)?,
        Builtin::WithoutCopies | Builtin::None => Vec::new(),
    };
    if options.builtin != Builtin::None {
        loaded.append(&mut kernels::own(context)?);
    }
    for kernel in &options.added {
        loaded.push(kernel.load(context)?);
    }
    Ok(loaded)
}
