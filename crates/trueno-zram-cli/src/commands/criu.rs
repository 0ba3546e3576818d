//! `trueno-zram criu`: CRIU's image directories with compressed pages.

mod lazy_pages;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use trueno_zram_criu::{Error, ImageDir, PagesName};
use trueno_zram_io::open_regular_file;

use crate::args::{Global, compression::CompressionArgs};
use crate::commands::{compress, decompress};
use crate::failure::{Failure, FailureKind};
use crate::files::{
    delta::BasesArgs,
    restore::{input_failure, open_failure},
};

/// Compress the memory in CRIU's image directories, and restore processes from it page by page.
///
/// `criu dump` writes the memory of processes to files pages-N.img. `compress` turns them into page archives pages-N.img.lz4, and
/// `decompress` turns them back, byte for byte. `lazy-pages` restores processes without unpacking: a process
/// runs at once, and its pages come when it touches them.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    LazyPages(lazy_pages::Args),
    Compress(CompressArgs),
    Decompress(DecompressArgs),
}

/// Turn the pages-N.img of a directory into archives, on all cores.
///
/// Each file is removed once its archive is complete and on the disk. All other images stay as they are.
#[derive(Debug, clap::Args)]
struct CompressArgs {
    /// The image directory.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    #[command(flatten)]
    compression: CompressionArgs,
    /// Keep the files that are not compressed as well.
    #[arg(short, long)]
    keep: bool,
}

/// Turn the archives and deltas of a directory back into pages-N.img, on all cores.
#[derive(Debug, clap::Args)]
struct DecompressArgs {
    /// The image directory.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    #[command(flatten)]
    bases: BasesArgs,
    /// Keep the archives as well.
    #[arg(short, long)]
    keep: bool,
}

/// Runs `trueno-zram criu`.
pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    match &args.action {
        Action::LazyPages(args) => lazy_pages::run(args, global),
        Action::Compress(CompressArgs { dir, compression, keep }) => {
            let files = pages_files(dir, PagesForm::Plain)?;
            compress::run(&compress::Args::of_files(files, *compression, *keep), global)
        }
        Action::Decompress(DecompressArgs { dir, bases, keep }) => {
            let files = pages_files(dir, PagesForm::Compressed)?;
            decompress::run(&decompress::Args::of_files(files, bases, *keep), global)
        }
    }
}

/// The form of a pages file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PagesForm {
    Plain,
    Compressed,
}

/// Returns the pages files of a directory that have this form. The pagemaps are checked: pages that they do not describe, or
/// that CRIU has compressed itself, are left alone.
fn pages_files(dir: &Path, form: PagesForm) -> Result<Vec<PathBuf>, Failure> {
    let images = ImageDir::open(dir).map_err(failure)?;
    let files = ImageDir::pages_files(dir).map_err(failure)?;
    let is_wanted =
        |name: &PagesName| name.compressed == (form == PagesForm::Compressed) && images.describes(name.pages_id);
    let wanted = files.into_iter().filter(|(name, _)| is_wanted(name));
    let wanted: Vec<PathBuf> = wanted.map(|(_, path)| path).collect();
    if wanted.is_empty() {
        let what = match form {
            PagesForm::Plain => "it has no pages-N.img to compress",
            PagesForm::Compressed => "it has no pages-N.img.lz4, .zst or .tzd to decompress",
        };
        return Err(Failure::at(dir.display(), what));
    }
    // A pipe would wait for its other end.
    for path in &wanted {
        open_regular_file(path).map_err(|error| open_failure(&path.display().to_string(), error))?;
    }
    Ok(wanted)
}

/// Opens an image directory, or the one of an archive.
fn open_dir(path: &Path) -> Result<ImageDir, Failure> {
    if path.is_dir() {
        return ImageDir::open(path).map_err(failure);
    }
    path.metadata().map_err(|error| Failure::io(path.display(), &error))?;
    let name = path.file_name().and_then(|name| PagesName::parse(name.to_str()?));
    let Some(PagesName { pages_id, .. }) = name else {
        return Err(Failure::at(
            path.display(),
            "is neither a directory nor a file pages-N.img, .img.lz4, .img.zst or .img.tzd",
        ));
    };
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    ImageDir::open(dir).and_then(|images| images.only(pages_id)).map_err(failure)
}

/// The failure for an error of the image directory.
fn failure(error: Error) -> Failure {
    match error {
        Error::Io { path, source } => Failure::io(path.display(), &source),
        Error::Archive { path, source } => input_failure(&path.display().to_string(), source),
        error => Failure::new(FailureKind::Other, error),
    }
}
