//! `trueno-zram compress`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use trueno_zram_archive::{Format, WriteOptions};
use trueno_zram_core::PAGE_SIZE;
use trueno_zram_io::{
    ArchiveOpener, Compressed, Discard, Input, MetadataWarning, Output, OutputOptions, OutputTarget, Workers,
};

use crate::args::{Global, compression::CompressionArgs};
use crate::engine::Engine;
use crate::failure::Failure;
use crate::files::{
    self, FileArgs,
    delta::{self, CheckBase, DedupArgs, OpenBase},
    folders::FileFilter,
};
use crate::print::{
    messages,
    progress::Progress,
    quantity,
    report::{self, FileNames, FileReport},
};

/// Arguments of `compress`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    files: FileArgs,
    #[command(flatten)]
    compression: CompressionArgs,
    /// Leave out the checksum of each block, or of each page in a .zst file; extract cannot notice damage then.
    #[arg(long)]
    no_block_checksums: bool,
    /// Add a checksum of the whole content to a .lz4 file. Each block has one anyway, computed by all cores; this one runs on a single
    /// core, which limits the speed to about 7 GB/s. Input from a pipe has it by default: its length is not known
    /// beforehand, and without length and checksum, damage to a block's header could be missed.
    #[arg(long, overrides_with = "no_content_checksum", conflicts_with = "dedup")]
    content_checksum: bool,
    /// Leave out the checksum of the whole content: the default, except for input from a pipe.
    #[arg(long, overrides_with = "content_checksum", conflicts_with = "dedup")]
    no_content_checksum: bool,
    /// Make a delta: store only pages that this archive, or delta, does not have, and equal pages once. The delta (.tzd) can be
    /// read only together with its base, and only by trueno-zram; `flatten` makes a standard archive of it.
    #[arg(long, value_name = "ARCHIVE", conflicts_with_all = ["content_checksum", "no_content_checksum", "page_hashes"])]
    base: Option<PathBuf>,
    /// The pages of the base that are compared with the hashes that it states, before a delta relies on them. A delta that is made
    /// from false hashes cannot be restored.
    #[arg(long, value_name = "PAGES", value_enum, default_value_t, requires = "base")]
    check_base: CheckBase,
    #[command(flatten)]
    dedup: DedupArgs,
    /// Keep a hash of each page in the archive: 16 bytes per page. With it, deltas of other images (--base) can be made without
    /// reading the archive. Deltas always have it.
    #[arg(long, conflicts_with = "dedup")]
    page_hashes: bool,
}

impl Args {
    /// The arguments for files that are compressed beside themselves, and then removed or kept.
    pub(crate) fn of_files(files: Vec<PathBuf>, compression: CompressionArgs, keep: bool) -> Self {
        Self {
            files: FileArgs::beside(files, keep),
            compression,
            no_block_checksums: false,
            content_checksum: false,
            no_content_checksum: false,
            base: None,
            check_base: CheckBase::default(),
            dedup: DedupArgs::off(),
            page_hashes: false,
        }
    }
}

/// Pages whose hashes an archive can hold. Zero pages have none.
const MAX_HASHED_PAGES: u64 = 1 << 26;

/// Runs `trueno-zram compress`.
pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    let Some(files) = args.files.expand(FileFilter::Plain, global)? else { return Ok(ExitCode::SUCCESS) };
    let args = &Args { files, ..args.clone() };
    args.files.check(global)?;
    args.files.check_targets(|input| Ok(args.output_name(input)))?;
    args.dedup.check_backend(global)?;
    let mut engine = Engine::compressing(global, args.compression)?;
    let open = |base: &PathBuf| OpenBase::open(base, args.check_base, global, &engine);
    let base = args.base.as_ref().map(open).transpose()?;
    let done = files::for_each(&args.files.files, "compress", global, |path| {
        compress(path, args, base.as_ref(), global, &mut engine)
    });
    report::say_engine(global, &engine);
    done
}

impl Args {
    /// The name of the output after that of its input.
    fn output_name(&self, input: &Path) -> PathBuf {
        let is_delta = self.base.is_some() || self.dedup.dedup;
        let extension = if is_delta { delta::EXTENSION } else { self.compression.format().extension() };
        files::compressed_name(input, extension)
    }
}

fn compress(
    path: &Path,
    args: &Args,
    base: Option<&OpenBase>,
    global: &Global,
    engine: &mut Engine,
) -> Result<(), Failure> {
    let FileArgs { force, rm, .. } = args.files;
    let target = args.files.target(path, |input| Ok(args.output_name(input)))?;
    if let Some(base) = base {
        base.files().check_target(&target, global)?;
        if rm {
            base.files().check_removal(path)?;
        }
    }
    let input = Input::open(path)?;
    let removal = args.files.removal(path, &input)?;
    let source = input.metadata.clone();
    let name = input.name.clone();
    let output_options = OutputOptions::default().with_force(force).with_binary(true).with_durable(rm);
    let output = Output::create(&target, Some(&source), output_options);
    let output = output.map_err(|error| args.files.output_failure(error))?;
    let output_name = output.name.clone();
    let format = args.compression.format();
    // Zstandard files have a checksum per page and none of the whole content.
    let content_checksum = args.content_checksum || (input.len_bytes.is_none() && !args.no_content_checksum);
    let options = WriteOptions::default()
        .with_format(format)
        .with_content_len(input.len_bytes)
        .with_block_checksums(!args.no_block_checksums)
        .with_content_checksum(content_checksum && format == Format::Lz4)
        .with_page_hashes(args.page_hashes);
    if args.page_hashes && input.len_bytes.is_some_and(|len| len / PAGE_SIZE as u64 > MAX_HASHED_PAGES) {
        let limit = quantity::count(MAX_HASHED_PAGES);
        report::warn(
            global,
            &name,
            &format!("this fails if more than {limit} pages are not zero; leave out --page-hashes"),
        );
    }
    let progress = Progress::start(global, &name, input.len_bytes);
    let names = FileNames { command: "compress", file: &name, output: Some(&output_name) };
    let finish = |output: Output| {
        let warn = &mut |warning: MetadataWarning| report::warn(global, &output_name, &warning.to_string());
        output.finish_with(Some(&source), warn).map_err(|error| args.files.output_failure(error))
    };
    let base = base.map(|base| base.for_target(&target));
    let record = base.as_ref().map(|base| base.record.clone());
    let (report, index_len) = if let Some(options) = args.dedup.delta_options(base, options) {
        let done = engine.compress_delta(input.into_pages(), output, options, &progress)?;
        finish(done.out)?;
        let time = progress.finish(global);
        if rm && record.is_some() {
            verify_before_removal(&name, &target, engine)?;
        }
        DedupArgs::warn_if_full(&done.summary, &output_name, global);
        (names.compressed_delta(record.as_ref(), &done.summary, time, engine), None)
    } else {
        let Compressed { out, summary, .. } = engine.compress(input.into_pages(), output, options, &progress)?;
        finish(out)?;
        (names.compressed(&summary, progress.finish(global), engine), Some(summary.index_len))
    };
    removal.complete()?;

    let FileReport { bytes_in, bytes_out, ratio, .. } = report;
    if target != OutputTarget::Stdout || global.verbose > 0 {
        let share = match &report.origins {
            Some(origins) if origins.base().is_some() => format!("({origins})"),
            Some(origins) => format!("==> {:.2} % (ratio {ratio:.3}; {origins})", 100.0 / ratio),
            None => format!("==> {:.2} % (ratio {ratio:.3})", 100.0 / ratio),
        };
        let line = match bytes_in {
            0 => format!("{name}: empty, into {bytes_out} bytes: {output_name}"),
            _ => {
                let speed = report.gbps(bytes_in);
                format!("{name}: {bytes_in} bytes into {bytes_out} {share}, {speed:.2} GB/s: {output_name}")
            }
        };
        report::say(global, &line);
    }
    if index_len == Some(0) {
        report::warn(
            global,
            &output_name,
            "its index would be longer than 4 GiB and was left out; extract will be slow",
        );
    }
    if let Some(index_len) = index_len.filter(|_| global.verbose > 0) {
        let FileReport { pages, seconds, .. } = &report;
        messages::line(format_args!("pages: {pages}; index of {index_len} bytes; {seconds:.3} s"));
    }
    report.print_json(global)
}

/// Reads a complete delta as anyone else would, before what it was made of is removed: the base may be damaged although its page
/// hashes are right, and its path may lead elsewhere.
fn verify_before_removal(name: &str, delta: &OutputTarget, engine: &Engine) -> Result<(), Failure> {
    let OutputTarget::Path(path) = delta else { return Ok(()) };
    let failed =
        |error: &dyn std::fmt::Display| Failure::at(name, format!("is kept, as its delta cannot be restored: {error}"));
    let delta_name = path.display().to_string();
    let archive = ArchiveOpener::new().open(path).map_err(|error| failed(&format!("{delta_name}: {error}")))?;
    let archive = archive.ok_or_else(|| failed(&format!("{delta_name}: it is not an archive any more")))?;
    let read = trueno_zram_io::restore_pages(&archive, &delta_name, &mut Discard, Workers::new(&engine.pool()));
    read.map(drop).map_err(|error| failed(&error))
}
