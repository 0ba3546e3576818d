//! The files of a command: which there are, where their outputs go, and the loop over them.

pub(crate) mod delta;
pub(crate) mod folders;
pub(crate) mod in_place;
pub(crate) mod needed_files;
pub(crate) mod restore;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Metadata};
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use trueno_zram_io::{Input, OpenForWriting, OutputTarget, Refusal, ReservedInput};

use crate::args::Global;
use crate::failure::{Failure, FailureKind};
use crate::files::folders::{FileFilter, FolderArgs};
use crate::print::{json, report};

/// The suffixes of compressed files.
const SUFFIXES: [&str; 3] = [".lz4", ".zst", ".tzd"];

/// Standard input or output.
const DASH: &str = "-";

/// The files of commands that make one output per input.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct FileArgs {
    /// Files to read. Standard input if there are none, and for `-`.
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// The output file; `-` is standard output.
    #[arg(short, long, value_name = "OUT", conflicts_with = "stdout")]
    pub(crate) output: Option<PathBuf>,
    /// Put the outputs into this directory.
    #[arg(long, alias = "output-dir-flat", value_name = "DIR", conflicts_with_all = ["output", "stdout"])]
    pub(crate) output_dir: Option<PathBuf>,
    /// Write to standard output.
    #[arg(short = 'c', long)]
    pub(crate) stdout: bool,
    /// Overwrite files and block devices; write compressed data to a terminal.
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Remove each input once its output is complete and on the disk. A file that is open for writing elsewhere, or mapped so, is
    /// refused; one that is opened for writing meanwhile is kept.
    #[arg(long, conflicts_with = "keep")]
    pub(crate) rm: bool,
    /// Keep the inputs (the default).
    #[arg(short, long)]
    pub(crate) keep: bool,
    #[command(flatten)]
    folders: FolderArgs,
    /// Whose options messages name.
    #[arg(skip)]
    options: OptionNames,
}

/// The options that a command has for its outputs and inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum OptionNames {
    /// Those of [`FileArgs`].
    #[default]
    Files,
    /// `--keep` alone: files are removed unless it is given.
    Keep,
}

impl FileArgs {
    /// Files whose outputs lie beside them, and which are then removed, for a command whose only option for that is `--keep`.
    pub(crate) fn beside(files: Vec<PathBuf>, keep: bool) -> Self {
        let options = OptionNames::Keep;
        let folders = FolderArgs::default();
        Self { files, output: None, output_dir: None, stdout: false, force: false, rm: !keep, keep, folders, options }
    }

    /// The failure of an output, with the option that helps.
    pub(crate) fn output_failure(&self, error: trueno_zram_io::Error) -> Failure {
        match &error {
            trueno_zram_io::Error::Refused { refusal: Refusal::Exists, .. } if self.options == OptionNames::Keep => {
                Failure::new(
                    FailureKind::Exists,
                    format_args!("{error}; remove the one of the two files that is not wanted"),
                )
            }
            _ => error.into(),
        }
    }

    /// Prepares for the removal of an input before it is read. Only files are removed, and only if nobody else writes them.
    pub(crate) fn removal<'a>(&self, path: &'a Path, input: &Input) -> Result<Removal<'a>, Failure> {
        if !self.rm {
            return Ok(Removal(None));
        }
        let cause = match self.options {
            OptionNames::Files => "--rm would",
            OptionNames::Keep => "without --keep, this would",
        };
        if fs::symlink_metadata(path).is_ok_and(|there| there.is_symlink()) {
            return Err(Failure::refused(&input.name, format!("is a symlink; {cause} remove it and not the file")));
        }
        if !input.metadata.is_file() {
            return Err(Failure::refused(&input.name, format!("is not a regular file; {cause} not remove it")));
        }
        let reserved = ReservedInput::new(input.file())
            .map_err(|reason| Failure::refused(&input.name, format!("{reason}; {cause} lose what is written to it")))?;
        Ok(Removal(Some(Removed { path, source: input.metadata.clone(), reserved })))
    }

    /// Returns the arguments with the files in directories in place of these, if `-r` was given; `None` if there are none.
    pub(crate) fn expand(&self, filter: FileFilter, global: &Global) -> Result<Option<Self>, Failure> {
        let files = self.folders.expand(&self.files, filter, global)?;
        Ok(files.map(|files| Self { files, ..self.clone() }))
    }

    /// Refuses a second file that is not there: lz4 would write to it.
    fn check_second(&self) -> Result<(), Failure> {
        let [first, second] = &self.files[..] else { return Ok(()) };
        let names_outputs = self.output.is_some() || self.output_dir.is_some() || self.stdout || self.folders.multiple;
        let is_there = |path: &Path| is_stdin(path) || fs::symlink_metadata(path).is_ok();
        if names_outputs || is_there(second) || !is_there(first) {
            return Ok(());
        }
        let way_out = match second.to_str() {
            Some("stdout") => "-c writes to standard output".to_owned(),
            Some("null") => "-t tests a file without writing anything".to_owned(),
            _ => format!("to write to it, give -o {}", second.display()),
        };
        Err(Failure::usage(format!(
            "{}: no such file. Every FILE is an input, unlike for lz4; {way_out}",
            second.display()
        )))
    }

    /// Checks what can be checked before any file is opened.
    pub(crate) fn check(&self, global: &Global) -> Result<(), Failure> {
        let to_stdout = self.stdout || self.output.as_deref().is_some_and(is_stdout);
        let inputs = inputs(&self.files)?;
        if self.output.is_some() && !to_stdout && inputs.len() > 1 {
            return Err(Failure::usage(format!("-o names one output, but there are {} inputs", inputs.len())));
        }
        self.check_second()?;
        let reads_stdin = inputs.iter().any(|input| is_stdin(input));
        if let Some(dir) = self.output_dir.as_ref().filter(|_| reads_stdin) {
            let dir = dir.display();
            return Err(Failure::usage(format!("--output-dir {dir}: standard input has no name; give -o FILE")));
        }
        let writes_stdout = to_stdout || (reads_stdin && self.output.is_none());
        if self.rm && (writes_stdout || reads_stdin) {
            return Err(Failure::usage("--rm is for files that become files, not for standard input or output"));
        }
        if global.json && writes_stdout {
            return Err(report::json_needs_stdout());
        }
        if global.json || writes_stdout { needed_files::check_stdout(&inputs, global) } else { Ok(()) }
    }

    /// Refuses outputs that would overwrite each other, or an input of the same run.
    pub(crate) fn check_targets(&self, derive: impl Fn(&Path) -> Result<PathBuf, Failure>) -> Result<(), Failure> {
        if self.files.len() < 2 {
            return Ok(());
        }
        let inputs: BTreeSet<PathBuf> = self.files.iter().filter_map(|file| fs::canonicalize(file).ok()).collect();
        let mut outputs = BTreeMap::new();
        for input in &self.files {
            // Problems of a single file are reported when its turn comes.
            let Ok(OutputTarget::Path(path)) = self.target(input, &derive) else { continue };
            let place = resolved(&path);
            if inputs.contains(&place) {
                let problem = format!(
                    "is an input, and the output of {} at the same time. Every FILE is an input, unlike for lz4; -o names an output",
                    input.display()
                );
                return Err(Failure::refused(path.display(), problem));
            }
            if let Some(first) = outputs.insert(place, input) {
                let problem = format!("is the output of both {} and {}", first.display(), input.display());
                return Err(Failure::refused(path.display(), problem));
            }
        }
        Ok(())
    }

    /// Returns the target of the output of `input`; `derive` names it after its input.
    pub(crate) fn target(
        &self,
        input: &Path,
        derive: impl Fn(&Path) -> Result<PathBuf, Failure>,
    ) -> Result<OutputTarget, Failure> {
        match &self.output {
            _ if self.stdout => Ok(OutputTarget::Stdout),
            Some(path) if is_stdout(path) => Ok(OutputTarget::Stdout),
            Some(path) => Ok(OutputTarget::Path(path.clone())),
            None if is_stdin(input) => Ok(OutputTarget::Stdout),
            None => {
                let path = derive(input)?;
                let name = path.file_name().filter(|_| self.output_dir.is_some());
                let moved = self.output_dir.iter().zip(name).map(|(dir, name)| dir.join(name)).next();
                Ok(OutputTarget::Path(moved.unwrap_or(path)))
            }
        }
    }
}

/// Returns the target of a command with one output. Data and JSON cannot share standard output.
pub(crate) fn single_target(output: &Path, global: &Global) -> Result<OutputTarget, Failure> {
    match is_stdout(output) {
        true if global.json => Err(report::json_needs_stdout()),
        true => Ok(OutputTarget::Stdout),
        false => Ok(OutputTarget::Path(output.to_owned())),
    }
}

/// The path with all links followed. The file itself need not exist.
fn resolved(path: &Path) -> PathBuf {
    if let Ok(place) = fs::canonicalize(path) {
        return place;
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match (fs::canonicalize(parent), path.file_name()) {
        (Ok(parent), Some(name)) => parent.join(name),
        _ => path.to_owned(),
    }
}

/// The inputs that are named; standard input if none is and it is not a terminal.
pub(crate) fn inputs(files: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    if !files.is_empty() {
        let dashed = |file: &PathBuf| if is_stdin(file) { PathBuf::from(DASH) } else { file.clone() };
        return Ok(files.iter().map(dashed).collect());
    }
    if io::stdin().is_terminal() {
        return Err(Failure::usage("no input: name a FILE, or - for standard input"));
    }
    Ok(vec![PathBuf::from(DASH)])
}

/// Runs the work of `command` on all files. One that fails is reported and the others follow; the exit code is then 1.
pub(crate) fn for_each(
    files: &[PathBuf],
    command: &str,
    global: &Global,
    mut work: impl FnMut(&Path) -> Result<(), Failure>,
) -> Result<ExitCode, Failure> {
    let mut code = None;
    for file in inputs(files)? {
        let done = work(&file).map_err(|failure| with_way_into(&file, command, failure));
        match json::report_failure_of(global, command, &file, done) {
            Ok(()) => {}
            Err(failure @ Failure::Failed { .. }) => code = Some(failure.report()),
            // Nothing more can be written. An earlier failure still shows in the exit code.
            Err(Failure::BrokenPipe) if code.is_some() => break,
            Err(failure) => return Err(failure),
        }
    }
    Ok(code.unwrap_or(ExitCode::SUCCESS))
}

/// Names the option that takes a directory, if this is one.
fn with_way_into(file: &Path, command: &str, failure: Failure) -> Failure {
    let takes_folders = matches!(command, "compress" | "decompress" | "test" | "inspect");
    match failure {
        Failure::Failed { kind: FailureKind::Refused, message } if takes_folders && file.is_dir() => {
            Failure::new(FailureKind::Refused, format_args!("{message}; -r takes the files in it"))
        }
        failure => failure,
    }
}

/// The removal of an input, if that was asked for.
#[derive(Debug)]
pub(crate) struct Removal<'a>(Option<Removed<'a>>);

/// An input that is removed in the end.
#[derive(Debug)]
struct Removed<'a> {
    path: &'a Path,
    /// The file when it was opened.
    source: Metadata,
    reserved: ReservedInput,
}

impl Removal<'_> {
    /// Removes the input of a complete output, if it is still the file that was opened, and nobody writes to it.
    pub(crate) fn complete(self) -> Result<(), Failure> {
        let Some(Removed { path, source, reserved }) = self.0 else { return Ok(()) };
        let failed = |error: io::Error| Failure::io(path.display(), &error);
        let there = fs::symlink_metadata(path).map_err(failed)?;
        let identity = |file: &Metadata| (file.dev(), file.ino(), file.len(), file.mtime(), file.mtime_nsec());
        if identity(&there) != identity(&source) {
            return Err(Failure::refused(
                path.display(),
                "was changed or replaced while it was read; it is not removed",
            ));
        }
        let kept = |OpenForWriting| {
            Failure::refused(path.display(), "was opened for writing while it was read; it is not removed")
        };
        reserved.check().map_err(kept)?;
        fs::remove_file(path).map_err(failed)
    }
}

/// Returns `true` if a path means standard input: `-`, or a name that the system has for it. Opened by such a name, a file would be
/// read from its start, wherever its descriptor stands.
pub(crate) fn is_stdin(path: &Path) -> bool {
    let names = [DASH, "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"];
    names.iter().any(|name| path.as_os_str() == *name)
}

/// Returns the metadata of an input.
pub(crate) fn metadata(path: &Path) -> io::Result<Metadata> {
    if is_stdin(path) { File::from(io::stdin().as_fd().try_clone_to_owned()?).metadata() } else { fs::metadata(path) }
}

/// Returns `true` if a path means standard output: `-`, or a name that the system has for it. By such a name, the file that standard
/// output leads to would be replaced, and nothing written to standard output.
pub(crate) fn is_stdout(path: &Path) -> bool {
    let names = [DASH, "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"];
    names.iter().any(|name| path.as_os_str() == *name)
}

/// `image` becomes `image.lz4`, `image.zst` or `image.tzd`.
pub(crate) fn compressed_name(input: &Path, extension: &str) -> PathBuf {
    let mut name = input.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    name.into()
}

/// Returns `true` if a file's name is that of a compressed file.
pub(crate) fn has_suffix(name: &[u8]) -> bool {
    SUFFIXES.iter().any(|suffix| name.ends_with(suffix.as_bytes()))
}

/// `image.lz4`, `image.zst` and `image.tzd` become `image`.
pub(crate) fn restored_name(input: &Path) -> Result<PathBuf, Failure> {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let bytes = input.as_os_str().as_bytes();
    let name = SUFFIXES.iter().find_map(|suffix| bytes.strip_suffix(suffix.as_bytes()));
    match name {
        Some(name) if !name.is_empty() && !name.ends_with(b"/") => {
            Ok(std::ffi::OsString::from_vec(name.to_vec()).into())
        }
        _ => Err(Failure::at(input.display(), "does not end in .lz4, .zst or .tzd; name the output with -o")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::OpenOptionsExt;

    use super::*;

    #[test]
    fn an_input_is_removed_only_if_it_is_still_the_one_that_was_read() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("image"), folder.path().join("other"));
        fs::write(&path, b"first").unwrap();
        fs::write(&other, b"other").unwrap();
        let removal = |keep| FileArgs::beside(Vec::new(), keep).removal(&path, &Input::open(&path).unwrap());
        removal(true).unwrap().complete().unwrap();
        let read = removal(false).unwrap();
        fs::rename(&other, &path).unwrap();
        assert!(matches!(read.complete(), Err(Failure::Failed { .. })), "another file has its name");
        let read = removal(false).unwrap();
        if read.0.as_ref().is_some_and(|read| read.reserved.is_leased()) {
            let flag = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
            File::options().write(true).custom_flags(flag).open(&path).unwrap_err();
            assert!(matches!(read.complete(), Err(Failure::Failed { .. })), "somebody wants to write to it");
        }
        // A file system without leases: /proc.
        let reserved = ReservedInput::new(&File::open("/proc/self/status").unwrap()).unwrap();
        let source = fs::metadata(&path).unwrap();
        fs::write(&path, b"longer than before").unwrap();
        let read = Removal(Some(Removed { path: &path, source, reserved }));
        assert!(matches!(read.complete(), Err(Failure::Failed { .. })), "it was written to");
        assert_eq!(fs::read(&path).unwrap(), b"longer than before");
        removal(false).unwrap().complete().unwrap();
        assert!(!path.exists());
    }
}
