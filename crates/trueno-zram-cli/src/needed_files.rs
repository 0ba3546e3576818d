//! Files that deltas are read from: no output may take the place of one, and none may be removed.

use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};

use trueno_zram_archive::{ArchiveChain, ArchiveOpener, ChainFile, FileId};

use crate::failure::Failure;
use crate::output::Target;

/// A base and its own bases, which an output or a removal could hit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NeededFiles<'a> {
    /// The nearest base first.
    bases: &'a [ChainFile],
}

impl<'a> NeededFiles<'a> {
    pub(crate) fn new(bases: &'a [ChainFile]) -> Self {
        Self { bases }
    }

    /// Refuses an output that would replace one of the files.
    pub(crate) fn check_target(self, target: &Target) -> Result<(), Failure> {
        match target {
            Target::Stdout => Ok(()),
            Target::Path(path) => self.check_output(path),
        }
    }

    /// Refuses an output at `path` that would replace one of the files. Links are followed, as outputs follow them.
    pub(crate) fn check_output(self, path: &Path) -> Result<(), Failure> {
        let Ok(there) = fs::metadata(path) else { return Ok(()) };
        self.check_open(&there, path.display())
    }

    /// Refuses an output that is open already.
    pub(crate) fn check_open(self, output: &Metadata, name: impl std::fmt::Display) -> Result<(), Failure> {
        match self.role_of(output) {
            Some(role) => Err(Failure::at(name, format!("is {role}; it cannot be the output too"))),
            None => Ok(()),
        }
    }

    /// Refuses to remove one of the files.
    pub(crate) fn check_removal(self, source: &Path) -> Result<(), Failure> {
        match fs::metadata(source).ok().and_then(|there| self.role_of(&there)) {
            Some(role) => Err(Failure::at(source.display(), format!("is {role}; leave out --rm"))),
            None => Ok(()),
        }
    }

    /// What the delta needs a file for; none if it does not.
    fn role_of(self, file: &Metadata) -> Option<String> {
        let id = FileId::of(file);
        match self.bases.iter().position(|base| base.id == id)? {
            0 => Some("the base".to_owned()),
            _ => Some(format!("a base of the base, {}", self.bases[0].path.display())),
        }
    }
}

/// The files that the inputs of one run need, so that no output replaces and no removal hits a file that another input still needs.
#[derive(Debug, Default)]
pub(crate) struct InputChains {
    chains: Vec<(PathBuf, Vec<ChainFile>)>,
}

impl InputChains {
    /// Looks at all inputs of a run that has several. What is wrong with a single one is reported when its turn comes.
    pub(crate) fn of(inputs: &[PathBuf], opener: &ArchiveOpener) -> Self {
        if inputs.len() < 2 {
            return Self::default();
        }
        let chain = |input: &PathBuf| {
            // Whoever writes to a pipe must not see it opened and closed.
            fs::metadata(input).ok().filter(Metadata::is_file)?;
            let ArchiveChain { files, .. } = opener.open_chain(input).ok().flatten()?;
            (files.len() > 1).then(|| (input.clone(), files))
        };
        Self { chains: inputs.iter().filter_map(chain).collect() }
    }

    /// Refuses an output that would replace a file that any of the inputs needs.
    pub(crate) fn check_target(&self, target: &Target) -> Result<(), Failure> {
        let Target::Path(path) = target else { return Ok(()) };
        let Ok(there) = fs::metadata(path) else { return Ok(()) };
        match self.needing(&there).next() {
            Some(input) => {
                let problem = format!("is a base of {}; it cannot be an output too", input.display());
                Err(Failure::at(path.display(), problem))
            }
            None => Ok(()),
        }
    }

    /// Refuses to remove a file that another input, which is still there, needs.
    pub(crate) fn check_removal(&self, source: &Path, metadata: &Metadata) -> Result<(), Failure> {
        match self.needing(metadata).find(|input| input.exists()) {
            Some(input) => {
                let problem = format!("is a base of {}, which is read from it; restore that first", input.display());
                Err(Failure::at(source.display(), problem))
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
