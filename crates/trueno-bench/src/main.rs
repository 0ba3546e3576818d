//! `trueno-bench`: codecs alone, GPU kernels beside nvCOMP, and whole pipelines.
//!
//! Runs from a copied binary: it needs no Rust and no CUDA toolkit, only the NVIDIA driver for `kernels` and `pipeline`.
#![forbid(unsafe_code)]

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::available_parallelism;

use clap::{Parser, ValueEnum};
use trueno_bench::pipeline::Section;
use trueno_bench::{Document, Observer, RunSettings, kernels, load, pages, pipeline, table};

/// Measure codecs, GPU kernels and pipelines beside their rivals.
#[derive(Parser)]
#[command(version)]
enum Command {
    /// Codecs alone, one page at a time in the cache of one thread; and our batches from one thread to all.
    Pages {
        #[command(flatten)]
        common: Common,
        /// Rounds; the median of each figure counts.
        #[arg(long, default_value = "15")]
        rounds: NonZeroUsize,
        /// Pages in the batches of the thread series.
        #[arg(long, default_value = "32768")]
        pages: NonZeroUsize,
    },
    /// GPU kernels on pages in device memory.
    Kernels {
        #[command(flatten)]
        common: Common,
        /// The library libnvcomp.so to measure beside (libnvcomp.so.6 of the wheel nvidia-libnvcomp-cu13).
        #[arg(long, value_name = "FILE")]
        nvcomp: Option<PathBuf>,
        /// The CUDA device.
        #[arg(long, default_value_t = 0)]
        device: u32,
        /// Rounds; the median of each figure counts.
        #[arg(long, default_value = "11")]
        rounds: NonZeroUsize,
        /// Pages on the device; each corpus is repeated.
        #[arg(long, default_value = "65536")]
        pages: NonZeroU32,
        /// Check each kernel without timing it, for profilers.
        #[arg(long)]
        once: bool,
    },
    /// Batches from host memory through the GPU and back.
    Pipeline {
        #[command(flatten)]
        common: Common,
        /// The CUDA device.
        #[arg(long, default_value_t = 0)]
        device: u32,
        /// Rounds; the median of each figure counts.
        #[arg(long, default_value = "5")]
        rounds: NonZeroUsize,
        /// Pages in a batch; the corpora are mixed and repeated.
        #[arg(long, default_value = "1048576")]
        pages: NonZeroUsize,
        /// Parts to run [default: all].
        #[arg(long, value_enum, value_delimiter = ',')]
        sections: Vec<Section>,
    },
    /// Plain writers of a new file, and our batches on the CPU: what `trueno-zram` is compared with.
    Files {
        /// Files of 4 KiB pages [default: the built-in corpus].
        #[arg(value_name = "FILE")]
        files: Vec<PathBuf>,
        /// The folder to write to. Nothing is left there.
        #[arg(long, value_name = "FOLDER", default_value = "/dev/shm")]
        folder: PathBuf,
        /// Bytes to write.
        #[arg(long, value_name = "BYTES", default_value = "1073741824")]
        bytes: NonZeroUsize,
        /// Pages in a batch; the corpora are mixed and repeated.
        #[arg(long, default_value = "262144")]
        pages: NonZeroUsize,
        /// Rounds; the best of each figure counts.
        #[arg(long, default_value = "3")]
        rounds: NonZeroUsize,
    },
}

#[derive(clap::Args)]
struct Common {
    /// Files of 4 KiB pages [default: the built-in corpus].
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Write everything to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Prints on standard error what is being measured.
struct Lines;

impl Observer for Lines {
    fn begin(&self, what: &str) {
        eprintln!("measuring {what}");
    }
}

fn main() -> ExitCode {
    match run(Command::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("trueno-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<(), Box<dyn std::error::Error>> {
    let threads = available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let (common, document) = match command {
        Command::Files { files, folder, bytes, pages, rounds } => {
            let pool = trueno_zram_core::build_pool(threads)?;
            let mut figures = trueno_bench::files::writers(&folder, bytes.get(), threads, rounds.get())?;
            let pages = trueno_bench::mix(&load(&files, usize::MAX)?, pages.get())?;
            figures.extend(trueno_bench::files::batches(&pages, &pool, rounds.get())?);
            for (name, gbps) in figures {
                println!("{name:<24}{gbps:8.2} GB/s");
            }
            return Ok(());
        }
        Command::Pages { common, rounds, pages } => {
            let run = RunSettings { rounds: rounds.get(), pages: pages.get(), threads };
            let document = pages::run(&load(&common.files, usize::MAX)?, run, &Lines)?;
            (common, document)
        }
        Command::Kernels { common, nvcomp, device, rounds, pages, once } => {
            let run = RunSettings { rounds: rounds.get(), pages: pages.get() as usize, threads };
            let corpora = load(&common.files, usize::MAX)?;
            if once {
                return Ok(kernels::check(&corpora, device, run, &Lines)?);
            }
            let document = kernels::run(&corpora, device, nvcomp.as_ref(), run, &Lines)?;
            (common, document)
        }
        Command::Pipeline { common, device, rounds, pages, mut sections } => {
            if sections.is_empty() {
                sections = Section::value_variants().to_vec();
            }
            let run = RunSettings { rounds: rounds.get(), pages: pages.get(), threads };
            let document = pipeline::run(&load(&common.files, usize::MAX)?, device, &sections, run, &Lines)?;
            (common, document)
        }
    };
    print!("{}", table::draw(&document));
    common.json.map_or(Ok(()), |file| write_json(&file, &document))
}

fn write_json(file: &Path, document: &Document) -> Result<(), Box<dyn std::error::Error>> {
    let json = document.to_json()? + "\n";
    Ok(std::fs::write(file, json).map_err(|error| format!("{}: {error}", file.display()))?)
}
