//! `trueno-zram selftest`: checks the codecs, the kernels and the archive on this machine.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::args::Global;
use crate::checks::{self, Check, Outcome};
use crate::failure::{Failure, FailureKind};
use crate::machine::{Gpus, Measure};
use crate::print::{
    json::{self, Status},
    quantity, stdout,
};

/// Check the codecs and the kernels on this machine.
///
/// The CPU with each instruction set, the GPU kernels in the interpreter, and the kernels on each GPU compress real, edge-case
/// and generated pages. The plain decoder and lz4_flex read the results; the codecs read the blocks of lz4_flex, and refuse
/// the damaged blocks that the plain decoder refuses. Archives are written, read and damaged.
///
/// Ends with PASS or FAIL, and the exit code 0 or 1.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run only checks whose names contain this text.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
}

/// The result, for scripts.
#[derive(Debug, Serialize)]
struct SelftestReport<'a> {
    passed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_kind: Option<FailureKind>,
    seconds: f64,
    gpu_left_out: Option<&'a str>,
    checks: &'a [Outcome],
}

/// Runs `trueno-zram selftest`.
pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    let mut chosen = checks::all();
    if let Some(only) = &args.only {
        chosen.retain(|check| check.name.contains(only.as_str()));
        if chosen.is_empty() {
            return Err(Failure::usage(format!("no check has {only:?} in its name")));
        }
    }
    let gpus = Gpus::look(Measure::Nothing);
    run_checks(chosen, gpus.reason.as_deref(), global)
}

/// Runs checks, and prints the result of each as soon as it is known.
fn run_checks(chosen: Vec<Check>, no_gpu: Option<&str>, global: &Global) -> Result<ExitCode, Failure> {
    let begun = Instant::now();
    let mut outcomes = Vec::new();
    for check in chosen {
        let outcome = check.run();
        let silent = global.json || global.quiet && outcome.passed;
        if !silent {
            say(&line(&outcome))?;
        }
        outcomes.push(outcome);
    }
    let passed = outcomes.iter().all(|outcome| outcome.passed);
    let took = begun.elapsed();
    if global.json {
        let report = SelftestReport {
            passed,
            error: (!passed).then(|| verdict(&outcomes, took)),
            error_kind: (!passed).then_some(FailureKind::Other),
            seconds: took.as_secs_f64(),
            gpu_left_out: no_gpu,
            checks: &outcomes,
        };
        let status = if passed { Status::Ok } else { Status::Failed };
        json::print_with(global, "selftest", status, &report)?;
    } else if !global.quiet || !passed {
        if let Some(why) = no_gpu {
            say(&wrapped(&format!("      {:<38}", "gpu"), &format!("left out: {why}")))?;
        }
        say(&verdict(&outcomes, took))?;
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn line(outcome: &Outcome) -> String {
    let mark = if outcome.passed { "ok" } else { "FAIL" };
    wrapped(&format!("{mark:<5} {:<38} {:>8} ", outcome.name, quantity::time(outcome.took())), &outcome.text)
}

/// Returns the text after the start of its line, or below it, if a terminal of 80 columns has no room for it there.
fn wrapped(start: &str, text: &str) -> String {
    const COLUMNS: usize = 80;
    let fits = start.chars().count() + 1 + text.chars().count() <= COLUMNS;
    if fits { format!("{start} {text}") } else { format!("{}\n      {text}", start.trim_end()) }
}

fn verdict(outcomes: &[Outcome], took: Duration) -> String {
    let failed = outcomes.iter().filter(|outcome| !outcome.passed).count();
    let took = quantity::time(took);
    match failed {
        0 => format!("PASS: all {} checks, in {took}", outcomes.len()),
        failed => format!("FAIL: {failed} of {} checks, in {took}", outcomes.len()),
    }
}

fn say(text: &str) -> Result<(), Failure> {
    stdout::print_lines(&format!("{text}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_does_not_fit_80_columns_is_below() {
        let lines = |text: &str| wrapped("ok    archive: damage", text).lines().count();
        assert_eq!([lines(&"x".repeat(58)), lines(&"x".repeat(59))], [1, 2]);
    }

    #[test]
    fn one_failure_among_many_is_a_fail() {
        let outcome = |passed| Outcome { name: "a".into(), passed, text: "b".into(), seconds: 0.5 };
        let took = Duration::from_secs(1);
        assert!(verdict(&[outcome(true), outcome(true)], took).starts_with("PASS: all 2"));
        assert!(verdict(&[outcome(true), outcome(false)], took).starts_with("FAIL: 1 of 2"));
        assert!(line(&outcome(false)).starts_with("FAIL"));
    }
}
