//! `trueno-zram info`: this machine, and how `auto` uses it.

use std::fmt::Write as _;
use std::process::ExitCode;

use serde::Serialize;

use crate::args::Global;
use crate::failure::{Failure, FailureKind};
use crate::machine::{Gpu, Machine, Measure};
use crate::print::{
    json::{self, Status},
    quantity, stdout,
};

/// Show the CPU and the GPUs of this machine, and how `--backend auto` chooses between them.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Measure the bandwidth to each GPU and back: 256 MiB of page-locked memory, best of 5 rounds.
    #[arg(long)]
    measure: bool,
}

/// The result, for scripts.
#[derive(Debug, Serialize)]
struct InfoReport<'a> {
    #[serde(flatten)]
    machine: &'a Machine,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_kind: Option<FailureKind>,
}

/// Runs `trueno-zram info`.
pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    let measure = if args.measure { Measure::Bandwidth } else { Measure::Nothing };
    let machine = Machine::look(measure);
    // A measurement that was requested and failed is a failure. A machine without a GPU is not.
    let failed = machine.gpu.devices.iter().find_map(|gpu| gpu.error.as_ref().filter(|_| args.measure));
    let failure = failed.map(|error| Failure::at("measuring the bandwidth", error));
    if global.json {
        let (status, error, error_kind) = match &failure {
            Some(Failure::Failed { kind, message }) => (Status::Failed, Some(message.as_str()), Some(*kind)),
            _ => (Status::Ok, None, None),
        };
        json::print_with(global, "info", status, &InfoReport { machine: &machine, error, error_kind })?;
    } else {
        stdout::print_lines(&describe(&machine))?;
    }
    Ok(failure.map_or(ExitCode::SUCCESS, |failure| failure.report()))
}

/// A few lines for people to read.
fn describe(machine: &Machine) -> String {
    let mut out = String::new();
    let mut line = |title: &str, text: &str| {
        // Writing to a string does not fail.
        let _ = writeln!(out, "{title:<9}{text}");
    };
    let cpu = &machine.cpu;
    line("CPU", &format!("{}, {}", cpu.model, plural(cpu.hardware_threads, "hardware thread")));
    line("", &format!("instruction set {} ({})", cpu.instruction_set, cpu.features_text()));
    if let Some(memory) = &machine.memory {
        let (total, available) = (quantity::bytes(memory.total_bytes), quantity::bytes(memory.available_bytes));
        line("Memory", &format!("{total}, {available} available"));
    }
    for gpu in &machine.gpu.devices {
        line(&format!("GPU {}", gpu.index), &gpu.name);
        gpu_lines(gpu, |text| line("", text));
    }
    if let Some(why) = &machine.gpu.reason {
        line("GPU", &format!("none that can be used: {why}"));
    }
    if let Some(driver) = machine.gpu.driver_text() {
        line("Driver", &driver);
    }
    for (i, choice) in machine.choices.iter().enumerate() {
        let title = if i == 0 { "Choice" } else { "" };
        line(title, &format!("{:<17} {:<17} {}", choice.batch, choice.placement_text(cpu), choice.why));
    }
    out
}

fn gpu_lines(gpu: &Gpu, mut line: impl FnMut(&str)) {
    let (major, minor) = gpu.compute_capability;
    let processors = gpu.multiprocessors.map_or(String::new(), |count| format!(", {count} multiprocessors"));
    line(&format!("compute capability {major}.{minor}{processors}"));
    let free = gpu.free_memory_bytes.map_or(String::new(), |free| format!(" ({} free)", quantity::bytes(free)));
    let l2 = quantity::bytes(gpu.l2_cache_bytes);
    line(&format!("memory {}{free}, L2 cache {l2}", quantity::bytes(gpu.memory_bytes)));
    line(&format!("works best with batches of {}", quantity::pages(gpu.optimal_batch_pages as u64)));
    if let Some(bus) = &gpu.bandwidth {
        line(&format!("{:.1} GB/s to the GPU, {:.1} GB/s back", bus.to_gpu_gbps, bus.from_gpu_gbps));
    }
    if let Some(error) = &gpu.error {
        line(&format!("cannot be used: {error}"));
    }
}

fn plural(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}
