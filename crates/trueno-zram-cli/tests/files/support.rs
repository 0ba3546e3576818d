//! Runs the binary, and makes files to run it on.

use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use trueno_test_pages::{PAGE_SIZE, corpus, edge_pages};

/// The binary.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_trueno-zram");

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Run {
    /// The exit code; `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Run {
    /// It worked, and had nothing to warn of.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        assert!(!self.stderr.contains("warning"), "{}", self.stderr);
        self
    }

    /// It failed with exit code 1 and one line, which names these files, options and numbers.
    #[track_caller]
    pub(crate) fn fails(self, names: &[&str]) -> Self {
        assert_eq!(self.code, Some(1), "{}", self.stderr);
        assert_eq!(self.stderr.lines().count(), 1, "{}", self.stderr);
        assert!(self.stderr.starts_with("trueno-zram: "), "{}", self.stderr);
        self.names(names)
    }

    /// It failed as [`fails`](Self::fails) says, and `--json` printed an error of this kind last.
    #[track_caller]
    pub(crate) fn fails_as(self, kind: &str, names: &[&str]) -> Self {
        let failed = self.fails(names);
        assert_eq!(failed.json().iter().rfind(|object| object["status"] == "failed").unwrap()["error_kind"], kind);
        failed
    }

    /// The arguments were refused, with a message that names these options.
    #[track_caller]
    pub(crate) fn refuses(self, options: &[&str]) {
        assert_eq!(self.code, Some(2), "{}", self.stderr);
        self.names(options);
    }

    #[track_caller]
    fn names(self, names: &[&str]) -> Self {
        for name in names {
            assert!(self.stderr.contains(name), "{name:?} is in {:?}", self.stderr);
        }
        self
    }

    /// The JSON objects on standard output, one per line.
    pub(crate) fn json(&self) -> Vec<serde_json::Value> {
        let text = std::str::from_utf8(&self.stdout).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Runs the binary in a folder, with nothing on standard input.
pub(crate) fn run<S: AsRef<OsStr>>(folder: &Path, args: &[S]) -> Run {
    run_with(folder, args, &[])
}

/// Runs the binary in a folder, with `input` on standard input.
pub(crate) fn run_with<S: AsRef<OsStr>>(folder: &Path, args: &[S], input: &[u8]) -> Run {
    finish(&mut command(folder, args), input)
}

/// Runs a command to its end, with `input` on standard input.
pub(crate) fn finish(command: &mut Command, input: &[u8]) -> Run {
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        // It may stop reading early: then it has its reason.
        scope.spawn(move || stdin.write_all(input));
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        Run { code: output.status.code(), stdout: output.stdout, stderr }
    })
}

/// The binary, with pipes at all ends.
pub(crate) fn command<S: AsRef<OsStr>>(folder: &Path, args: &[S]) -> Command {
    let mut command = Command::new(BINARY);
    piped(command.current_dir(folder).args(args));
    command
}

/// Gives a command pipes at all ends.
pub(crate) fn piped(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped())
}

/// A folder of its own.
pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// A memory image: real pages and odd ones, with zeros between.
pub(crate) fn image(pages: usize) -> Vec<u8> {
    let mut image = Vec::with_capacity(pages * PAGE_SIZE);
    let mut real = corpus::ALL.iter().flat_map(|corpus| corpus.pages.iter().step_by(5)).cycle();
    let edges = edge_pages::all();
    let mut edges = edges.iter().cycle();
    for number in 0..pages {
        match number % 16 {
            3 => image.extend(*edges.next().unwrap().page),
            7..11 => image.extend([0; PAGE_SIZE]),
            _ => image.extend(real.next().unwrap()),
        }
    }
    image
}

/// The names in a folder, sorted.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
