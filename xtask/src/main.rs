//! Tasks of the project. `cargo run -p xtask -- ptxas-gate` assembles every kernel with NVIDIA's ptxas;
//! `cargo run -p xtask -- dist [TARGET]` builds what is shipped.
#![forbid(unsafe_code)]

mod dist;
mod ptxas_gate;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["ptxas-gate"] => ptxas_gate::run(),
        ["dist"] => dist::run(None),
        ["dist", target] => dist::run(Some(target)),
        _ => Err("usage: xtask ptxas-gate | xtask dist [TARGET]".to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
