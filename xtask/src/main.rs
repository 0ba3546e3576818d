//! Tasks of the CI gate. `cargo run -p xtask -- ptxas-gate` assembles every kernel with NVIDIA's ptxas.
#![forbid(unsafe_code)]

mod ptxas_gate;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["ptxas-gate"] => ptxas_gate::run(),
        _ => Err("usage: xtask ptxas-gate".to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
