//! Tasks of the project: what to run before a commit, what must hold before a change lands, and what is shipped.
#![forbid(unsafe_code)]

mod ci;
mod command;
mod crates;
mod dist;
mod ptxas_gate;
mod public_api;
mod tree;
mod unsafe_files;

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask TASK
  check              format, lints and fast tests: before each commit
  ci [TIER...]       everything that must hold before a change lands, or some tiers of it
  public-api         compare the public interface with its listing; --write updates the listing
  ptxas-gate PTXAS   assemble every kernel, and compare registers and shared memory with the budgets
  dist [TARGET]      build what is shipped";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["check"] => ci::check(),
        ["ci", ref tiers @ ..] => ci::run_tiers(tiers),
        ["public-api", ref options @ ..] => public_api::run(options),
        ["ptxas-gate", ptxas] => ptxas_gate::run(Path::new(ptxas)),
        ["dist"] => dist::run(None),
        ["dist", target] => dist::run(Some(target)),
        _ => Err(USAGE.to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
