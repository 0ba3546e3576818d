//! The library that makes system calls fail, built once per test run by the C compiler.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::support::{Run, command, finish};

/// The failure of a call.
pub(crate) const FAULTS: [&str; 4] = ["EIO", "ENOSPC", "EINTR", "SHORT"];

/// Set to check every call; otherwise only some of them are.
const ALL_CALLS: &str = "TRUENO_ALL_FAULTS";

/// The library.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let library = folder.join(format!("faults-{}.so", std::process::id()));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/files/shim.c");
        let built = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).status();
        assert!(built.expect("a C compiler is installed").success());
        library
    })
}

/// Runs the binary with some functions always failing: `"linkat,renameat2:EPERM"`.
pub(crate) fn run_refusing<S: AsRef<OsStr>>(folder: &Path, args: &[S], refused: &str) -> Run {
    finish(refuse(&mut command(folder, args), refused), &[])
}

/// Makes some functions always fail in a command.
pub(crate) fn refuse<'a>(command: &'a mut Command, refused: &str) -> &'a mut Command {
    command.env("LD_PRELOAD", library()).env("TRUENO_REFUSE", refused)
}

/// One run of the binary, in which one call failed.
pub(crate) struct Faulty {
    pub(crate) run: Run,
    /// The function that failed.
    pub(crate) function: String,
    /// For messages.
    pub(crate) what: String,
}

/// Runs the binary again and again with the n-th call failing, until there are no more calls. `prepare` makes the
/// folder what it was, `check` looks at what came of it. Returns the number of runs.
pub(crate) fn at_every_call(
    step: usize,
    args: &[&str],
    input: &[u8],
    prepare: impl Fn(&Path),
    check: impl Fn(&Path, &Faulty),
) -> usize {
    let step = if std::env::var_os(ALL_CALLS).is_some() { 1 } else { step };
    let mut runs = 0;
    for (number, fault) in FAULTS.iter().enumerate() {
        // Every fault starts elsewhere, so that together they meet most calls.
        for call in (1 + number % step..).step_by(step) {
            let folder = crate::support::folder();
            let log = crate::support::folder();
            let log = log.path().join("failed");
            prepare(folder.path());
            let mut command = command(folder.path(), args);
            command.env("LD_PRELOAD", library()).env("TRUENO_FAULT", fault).env("TRUENO_FAULT_LOG", &log);
            let run = finish(command.env("TRUENO_FAULT_CALL", call.to_string()), input);
            let Ok(function) = fs::read_to_string(&log) else { break };
            let what = format!("{args:?}: {fault} in call {call}, {function}: {:?}, {}", run.code, run.stderr);
            runs += 1;
            assert!(matches!(run.code, Some(0 | 1)), "{what}");
            if run.code == Some(1) {
                assert!(run.stderr.starts_with("trueno-zram: "), "there is a message: {what}");
            }
            check(folder.path(), &Faulty { run, function, what });
        }
    }
    assert!(runs > 20, "{runs} runs of {args:?}: the library is loaded");
    runs
}
