//! Files that are still read: no output may take the place of one or be written into it, and none may be removed.

use std::fmt;
use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};

use trueno_zram_io::{
    ArchiveChain, ArchiveOpener, ChainFile, FileId, OutputTarget, STANDARD_OUTPUT, stdout_file_metadata,
};

use crate::args::Global;
use crate::failure::Failure;
use crate::files;

/// An archive and its bases, or bases alone, which an output or a removal could hit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NeededFiles<'a> {
    /// The file that needs those behind it comes first.
    files: &'a [ChainFile],
    /// The role of the first file.
    first: &'static str,
}

impl<'a> NeededFiles<'a> {
    /// The base of a delta, and the bases of that.
    pub(crate) fn of_base(files: &'a [ChainFile]) -> Self {
        Self { files, first: "the base" }
    }

    /// An archive, and its bases.
    pub(crate) fn of_archive(files: &'a [ChainFile]) -> Self {
        Self { files, first: "the archive" }
    }

    /// An archive that a server serves, and its bases.
    pub(crate) fn of_server(files: &'a [ChainFile]) -> Self {
        Self { files, first: "the archive that is served" }
    }

    /// Refuses an output that would hit one of the files, and with `--json` a report on standard output.
    pub(crate) fn check_target(self, target: &OutputTarget, global: &Global) -> Result<(), Failure> {
        if *target == OutputTarget::Stdout || global.json {
            self.check_stdout(global)?;
        }
        match target {
            OutputTarget::Stdout => Ok(()),
            OutputTarget::Path(path) => self.check_output(path),
        }
    }

    /// Refuses an output at `path` that would replace one of the files. Links are followed, as outputs follow them.
    pub(crate) fn check_output(self, path: &Path) -> Result<(), Failure> {
        let Ok(there) = fs::metadata(path) else { return Ok(()) };
        self.check_open(&there, path.display())
    }

    /// Refuses an output that is open already.
    pub(crate) fn check_open(self, output: &Metadata, name: impl fmt::Display) -> Result<(), Failure> {
        match self.role_of(output) {
            Some(role) => Err(Failure::refused(name, hit(role))),
            None => Ok(()),
        }
    }

    /// Refuses standard output that leads to one of the files.
    pub(crate) fn check_stdout(self, global: &Global) -> Result<(), Failure> {
        match stdout_file_metadata().and_then(|there| self.role_of(&there)) {
            Some(role) => Err(stdout_failure(global, hit(role))),
            None => Ok(()),
        }
    }

    /// Refuses to remove one of the files.
    pub(crate) fn check_removal(self, source: &Path) -> Result<(), Failure> {
        match fs::metadata(source).ok().and_then(|there| self.role_of(&there)) {
            Some(role) => Err(Failure::refused(source.display(), format!("is {role}; leave out --rm"))),
            None => Ok(()),
        }
    }

    /// Returns the role of a file; `None` if it is not needed.
    fn role_of(self, file: &Metadata) -> Option<String> {
        let (id, first) = (FileId::of(file), self.first);
        match self.files.iter().position(|needed| needed.id == id)? {
            0 => Some(first.to_owned()),
            _ => Some(format!("a base of {first}, {}", self.files[0].path.display())),
        }
    }
}

/// The message for an output that is a file with this role.
fn hit(role: impl fmt::Display) -> String {
    format!("is {role}; it cannot be the output too")
}

/// The failure of standard output that cannot be used. With `--json` it is one of usage, which is not printed there.
fn stdout_failure(global: &Global, problem: String) -> Failure {
    if global.json {
        Failure::usage(format_args!("{STANDARD_OUTPUT}: {problem}"))
    } else {
        Failure::refused(STANDARD_OUTPUT, problem)
    }
}

/// Refuses standard output that leads to one of the inputs, for a command that writes or prints to it.
pub(crate) fn check_stdout(inputs: &[PathBuf], global: &Global) -> Result<(), Failure> {
    match stdout_file_metadata() {
        Some(there) if is_input(&there, inputs) => Err(stdout_failure(global, hit("the input"))),
        _ => Ok(()),
    }
}

/// Refuses an output at `path` that would replace one of the inputs.
pub(crate) fn check_inputs(path: &Path, inputs: &[PathBuf]) -> Result<(), Failure> {
    match fs::metadata(path) {
        Ok(there) if is_input(&there, inputs) => Err(Failure::refused(path.display(), hit("the input"))),
        _ => Ok(()),
    }
}

fn is_input(file: &Metadata, inputs: &[PathBuf]) -> bool {
    let id = FileId::of(file);
    inputs.iter().any(|input| files::metadata(input).is_ok_and(|input| FileId::of(&input) == id))
}

/// The files that the inputs of one run need, so that no output replaces and no removal hits a file that another input still needs.
#[derive(Debug, Default)]
pub(crate) struct InputChains {
    chains: Vec<(PathBuf, Vec<ChainFile>)>,
}

impl InputChains {
    /// Looks at all inputs of a run that has several. Problems of a single one are reported when its turn comes.
    pub(crate) fn of(inputs: &[PathBuf], opener: &ArchiveOpener) -> Self {
        if inputs.len() < 2 {
            return Self::default();
        }
        let chain = |input: &PathBuf| {
            // The writer of a pipe must not see it opened and closed.
            fs::metadata(input).ok().filter(Metadata::is_file)?;
            let ArchiveChain { files, .. } = opener.open_chain(input).ok().flatten()?;
            (files.len() > 1).then(|| (input.clone(), files))
        };
        Self { chains: inputs.iter().filter_map(chain).collect() }
    }

    /// Refuses an output that would hit a file that any of the inputs needs, and with `--json` a report on standard output.
    pub(crate) fn check_target(&self, target: &OutputTarget, global: &Global) -> Result<(), Failure> {
        let hit = |there: Option<Metadata>| {
            let input = self.needing(&there?).next()?;
            Some(format!("is a base of {}; it cannot be an output too", input.display()))
        };
        if *target == OutputTarget::Stdout || global.json {
            hit(stdout_file_metadata()).map_or(Ok(()), |problem| Err(stdout_failure(global, problem)))?;
        }
        let OutputTarget::Path(path) = target else { return Ok(()) };
        hit(fs::metadata(path).ok()).map_or(Ok(()), |problem| Err(Failure::refused(path.display(), problem)))
    }

    /// Refuses to remove a file that another input, which is still there, needs.
    pub(crate) fn check_removal(&self, source: &Path, metadata: &Metadata) -> Result<(), Failure> {
        match self.needing(metadata).find(|input| input.exists()) {
            Some(input) => {
                let problem = format!("is a base of {}, which is read from it; restore that first", input.display());
                Err(Failure::refused(source.display(), problem))
            }
            None => Ok(()),
        }
    }

    /// The inputs that have this file as a base.
    fn needing(&self, file: &Metadata) -> impl Iterator<Item = &Path> {
        let id = FileId::of(file);
        let needs = move |files: &[ChainFile]| files.iter().skip(1).any(|base| base.id == id);
        self.chains.iter().filter(move |(_, files)| needs(files)).map(|(input, _)| input.as_path())
    }
}
