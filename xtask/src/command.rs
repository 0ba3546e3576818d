//! Commands that tasks run: started in the root of the project, with their output passed on.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The root of the project.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the root").to_owned()
}

/// A command in the root of the project.
pub(crate) fn command(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(root());
    command
}

/// Runs a command, prints it first, and fails if it does.
pub(crate) fn run(program: &str, args: &[&str]) -> Result<(), String> {
    run_prepared(&mut command(program, args))
}

/// Runs `cargo` with these arguments, given as one line: none of them contains a space.
pub(crate) fn cargo(line: &str) -> Result<(), String> {
    run("cargo", &line.split_whitespace().collect::<Vec<_>>())
}

/// Like [`run`], for a command with environment variables or another directory.
pub(crate) fn run_prepared(command: &mut Command) -> Result<(), String> {
    let line = shown(command);
    println!("$ {line}");
    let status = command.status().map_err(|error| format!("cannot start {line}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{line}: {status}")) }
}

/// Returns the standard output of a command, and prints nothing.
pub(crate) fn output(program: &str, args: &[&str]) -> Result<String, String> {
    let bytes = output_of(&mut command(program, args))?;
    String::from_utf8(bytes).map_err(|_| format!("{program}: the output is not UTF-8"))
}

/// Like [`output`], for any bytes and for a command with environment variables or another directory.
pub(crate) fn output_of(command: &mut Command) -> Result<Vec<u8>, String> {
    let line = shown(command);
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| format!("cannot start {line}: {error}"))?;
    if output.status.success() { Ok(output.stdout) } else { Err(format!("{line}: {}", output.status)) }
}

/// Returns `true` if the command can be started and succeeds. Its output is dropped.
pub(crate) fn succeeds(program: &str, args: &[&str]) -> bool {
    command(program, args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

fn shown(command: &Command) -> String {
    let parts = std::iter::once(command.get_program()).chain(command.get_args());
    parts.map(|part| part.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
