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

/// Runs the command.
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
            say(&wrapped(format!("      {:<38}", "gpu"), &format!("left out: {why}")))?;
        }
        say(&verdict(&outcomes, took))?;
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn line(outcome: &Outcome) -> String {
    let mark = if outcome.passed { "ok" } else { "FAIL" };
    wrapped(format!("{mark:<5} {:<38} {:>8} ", outcome.name, quantity::time(outcome.took())), &outcome.text)
}

/// Returns the text after the start of its line, or below it, if a terminal of 80 columns has no room for it there.
fn wrapped(start: String, text: &str) -> String {
    const COLUMNS: usize = 80;
    const INDENT: &str = "      ";
    if start.chars().count() + 1 + text.chars().count() <= COLUMNS {
        return format!("{start} {text}");
    }
    let mut lines = vec![start.trim_end().to_owned()];
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && INDENT.len() + line.chars().count() + 1 + word.chars().count() > COLUMNS {
            lines.push(format!("{INDENT}{}", std::mem::take(&mut line)));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(format!("{INDENT}{line}"));
    lines.join("\n")
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
    fn no_line_is_longer_than_80_columns() {
        let text = "1,971 pages, ratio 2.017, read by the plain decoder and lz4_flex ".repeat(3);
        for len_bytes in (0..text.len()).filter(|len_bytes| text.is_char_boundary(*len_bytes)) {
            let name = "cpu scalar: round trip".into();
            let outcome = Outcome { name, passed: true, text: text[..len_bytes].trim().into(), seconds: 0.5 };
            let shown = line(&outcome);
            assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
            let words: Vec<_> = shown.split_whitespace().skip(7).collect();
            assert_eq!(words, outcome.text.split_whitespace().collect::<Vec<_>>());
        }
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
