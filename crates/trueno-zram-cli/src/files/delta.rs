//! Deltas on the command line: the base that one is made from, and the bases that one is read with.

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use trueno_zram_archive::{BaseRecord, Delta, DeltaSummary, Error, HashCheck, OriginCounts, PageHashes, WriteOptions};
use trueno_zram_io::{
    ArchiveChain, ArchiveOpener, DeltaBase, DeltaOptions, Discard, Input, MappedFile, OutputTarget, Workers,
};

use crate::args::{Backend, Global};
use crate::commands::serve::parse_size;
use crate::engine::Engine;
use crate::failure::{Failure, FailureKind};
use crate::files::{
    needed_files::NeededFiles,
    restore::{input_failure, open_failure},
};
use crate::print::{quantity, report};

/// The usual ending of a delta's name, without the dot.
pub(crate) const EXTENSION: &str = "tzd";

/// The paths of a delta's bases.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct BasesArgs {
    /// For a delta: look here first for the archives that it needs, in case they have moved. Can be repeated.
    #[arg(long = "base", value_name = "FILE")]
    bases: Vec<PathBuf>,
}

impl BasesArgs {
    /// Returns an opener of archives and deltas.
    pub(crate) fn opener(&self) -> ArchiveOpener {
        ArchiveOpener::new().with_bases(&self.bases)
    }

    /// Returns an opener of archives and deltas whose pages are read one by one, when they are needed.
    pub(crate) fn lazy_opener(&self) -> ArchiveOpener {
        self.opener().with_file_reader(|file| Arc::new(MappedFile::new(file)))
    }

    /// Opens a delta and its bases; `None` if the input is not one, or cannot be read at any position.
    pub(crate) fn open_delta(&self, path: &Path, input: &Input) -> Result<Option<ArchiveChain>, Failure> {
        if !is_delta(input) {
            return Ok(None);
        }
        if path.as_os_str() == "-" {
            return Err(Failure::at(&input.name, "a delta must be named by its path: its base is found from there"));
        }
        self.opener().open_chain(path).map_err(|error| input_failure(&input.name, error))
    }
}

/// Returns `true` if an input is known to be a delta.
pub(crate) fn is_delta(input: &Input) -> bool {
    let mut start = [0; 8];
    let starts = input.seekable().is_some_and(|file| file.read_exact_at(&mut start, 0).is_ok());
    starts && Delta::is_delta(&start)
}

/// The pages of a base that are compared with the hashes that it states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum CheckBase {
    /// 1,400 pages, chosen at random: false hashes of 1 % of the pages are found with a probability of 1 - 10^-6.
    #[default]
    Sampled,
    /// All pages.
    All,
}

impl From<CheckBase> for HashCheck {
    fn from(check: CheckBase) -> Self {
        match check {
            CheckBase::Sampled => Self::Sampled,
            CheckBase::All => Self::All,
        }
    }
}

/// Deltas without a base.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct DedupArgs {
    /// Store equal pages once, wherever they are. The file (.tzd) can be read only by trueno-zram; `flatten` makes a standard archive
    /// of it. With --base, this is always done. The CPU compresses.
    #[arg(long)]
    pub(crate) dedup: bool,
    /// The memory for finding equal pages: 21 to 27 bytes per page, in powers of two. If it is full, copies of later pages are
    /// stored again.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "1G", requires = "dedup")]
    dedup_memory: u64,
}

impl DedupArgs {
    /// The arguments of a command that makes no deltas without a base.
    pub(crate) fn off() -> Self {
        Self { dedup: false, dedup_memory: 1 << 30 }
    }

    /// Options of a delta; `None` for a standard archive.
    pub(crate) fn delta_options<'a>(
        &self,
        base: Option<DeltaBase<'a>>,
        write: WriteOptions,
    ) -> Option<DeltaOptions<'a>> {
        let is_delta = self.dedup || base.is_some();
        is_delta.then_some(DeltaOptions { base, write, table_bytes: self.dedup_memory })
    }

    /// Refuses a back end that makes no deltas.
    pub(crate) fn check_backend(&self, global: &Global) -> Result<(), Failure> {
        if self.dedup && matches!(global.backend, Backend::Gpu | Backend::Interpreter) {
            return Err(Failure::usage("--dedup compresses on the CPU; leave out --backend"));
        }
        Ok(())
    }

    /// Warns that some copies may be stored again.
    pub(crate) fn warn_if_full(summary: &DeltaSummary, name: &str, global: &Global) {
        if summary.is_table_full {
            report::warn(global, name, "the memory for finding equal pages was full; --dedup-memory gives more");
        }
    }
}

/// The archive that deltas are made from, with the hashes of its pages.
#[derive(Debug)]
pub(crate) struct OpenBase {
    /// Its path from the root.
    path: PathBuf,
    /// Its record in a delta.
    record: BaseRecord,
    chain: ArchiveChain,
    hashes: PageHashes,
}

impl OpenBase {
    /// Opens the base, and its own bases. An archive without page hashes is read once; those of others are compared with
    /// pages as `check` says.
    pub(crate) fn open(path: &Path, check: CheckBase, global: &Global, engine: &Engine) -> Result<Self, Failure> {
        if matches!(global.backend, Backend::Gpu | Backend::Interpreter) {
            return Err(Failure::usage(
                "--base compresses on the CPU: most pages are only hashed; leave out --backend",
            ));
        }
        let name = path.display().to_string();
        let failed = |error| open_failure(&name, error);
        let chain = ArchiveOpener::new().open_chain(path).map_err(failed)?;
        let chain = chain.ok_or_else(|| {
            Failure::at(&name, "it is not an archive with an index, as `trueno-zram compress` makes them")
        })?;
        let archive = &chain.archive;
        let path = fs::canonicalize(path).map_err(|error| Failure::io(&name, &error))?;
        let record = archive.record(path.as_os_str().as_bytes()).map_err(|error| match error {
            Error::ChainTooLong { max_deltas } => {
                let problem = format!("it ends a chain of {max_deltas} deltas, the longest that can be read");
                Failure::new(
                    FailureKind::Base,
                    format_args!("{name}: {problem}; `trueno-zram flatten` makes a standard archive of it"),
                )
            }
            error => failed(error),
        })?;
        let hashes = PageHashes::stored(archive).map_err(failed)?;
        let start = Instant::now();
        let hashes = match hashes {
            Some(hashes) => {
                let checked = engine.pool().install(|| hashes.check(archive, check.into()));
                let checked = checked.map_err(|error| match error {
                    Error::StatedHash { .. } => {
                        let problem = "a delta of it could not be restored; compress its image again";
                        Failure::damaged(&name, format_args!("{error}; {problem}"))
                    }
                    error => failed(error),
                })?;
                if global.verbose > 0 {
                    let (pages, time) = (quantity::pages(checked), quantity::time(start.elapsed()));
                    report::say(global, &format!("{name}: {pages} compared with their hashes, {time}"));
                }
                hashes
            }
            None => {
                let hashes = engine.pool().install(|| PageHashes::compute(archive)).map_err(failed)?;
                let time = quantity::time(start.elapsed());
                let why = "it has no page hashes and was read once for them";
                report::say(global, &format!("{name}: {why}, {time}; compress --page-hashes stores them"));
                hashes
            }
        };
        Ok(Self { path, record, chain, hashes })
    }

    /// The base itself, and what it needs.
    pub(crate) fn files(&self) -> NeededFiles<'_> {
        NeededFiles::of_base(&self.chain.files)
    }

    /// Returns the base of a delta at `target`.
    pub(crate) fn for_target(&self, target: &OutputTarget) -> DeltaBase<'_> {
        let path = recorded_path(&self.path, target).as_os_str().as_bytes().to_vec();
        DeltaBase { record: BaseRecord { path, ..self.record.clone() }, hashes: &self.hashes }
    }
}

/// Reads all pages of a complete delta as anyone else would, before it gets its name: the base may be damaged or state false
/// hashes, and its path may lead elsewhere.
pub(crate) fn read_back(file: File, (target, name): (&OutputTarget, &str), engine: &Engine) -> Result<(), Failure> {
    let path = match target {
        OutputTarget::Path(path) => path,
        OutputTarget::Stdout => Path::new(""),
    };
    let chain = ArchiveOpener::new().open_file(file, path).map_err(|error| input_failure(name, error))?;
    let archive = chain.ok_or_else(|| Failure::at(name, "it is not an archive any more"))?.archive;
    trueno_zram_io::restore_pages(&archive, name, &mut Discard, Workers::new(&engine.pool()))?;
    Ok(())
}

/// The path that a delta keeps of its base: from its own directory if the base lies there or below, else from the root.
fn recorded_path<'a>(base: &'a Path, target: &OutputTarget) -> &'a Path {
    let OutputTarget::Path(delta) = target else { return base };
    // A delta that replaces the target of a link lies beside that target.
    let delta = fs::canonicalize(delta).unwrap_or_else(|_| delta.clone());
    let folder = delta.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = fs::canonicalize(folder).ok();
    folder.and_then(|folder| base.strip_prefix(folder).ok()).unwrap_or(base)
}

/// The pages of a delta, for scripts.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct Origins {
    #[serde(skip_serializing_if = "Option::is_none")]
    base: Option<String>,
    base_pages: u64,
    stored_pages: u64,
    duplicate_pages: u64,
}

impl Origins {
    pub(crate) fn written(base: Option<&BaseRecord>, summary: &DeltaSummary) -> Self {
        let DeltaSummary { base_pages, stored_pages, duplicate_pages, .. } = *summary;
        Self { base: base.map(BaseRecord::to_string), base_pages, stored_pages, duplicate_pages }
    }

    /// The path of the base.
    pub(crate) fn base(&self) -> Option<&str> {
        self.base.as_deref()
    }

    pub(crate) fn of(delta: &Delta) -> Self {
        let OriginCounts { base: base_pages, stored: stored_refs, .. } = delta.origin_counts();
        let stored_pages = delta.stored().info().page_count;
        let duplicate_pages = stored_refs.saturating_sub(stored_pages);
        let base = delta.base_record().map(BaseRecord::to_string);
        Self { base, base_pages, stored_pages, duplicate_pages }
    }
}

impl std::fmt::Display for Origins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { base, base_pages, stored_pages, duplicate_pages } = self;
        if let Some(base) = base {
            write!(f, "{base_pages} pages of {base}, ")?;
        }
        write!(f, "{stored_pages} stored, {duplicate_pages} copies of these")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_beside_the_delta_is_recorded_by_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(folder.path()).unwrap();
        fs::create_dir(root.join("deltas")).unwrap();
        let base = root.join("monday.lz4");
        let recorded = |delta: &str| recorded_path(&base, &OutputTarget::Path(root.join(delta))).to_owned();
        assert_eq!(recorded("tuesday.tzd"), Path::new("monday.lz4"));
        assert_eq!(recorded("deltas/tuesday.tzd"), base);
        assert_eq!(recorded_path(&root.join("deltas/b"), &OutputTarget::Path(root.join("d"))), Path::new("deltas/b"));
        assert_eq!(recorded_path(&base, &OutputTarget::Stdout), base);
    }
}
