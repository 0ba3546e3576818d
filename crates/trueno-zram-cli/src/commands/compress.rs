//! `trueno-zram compress`.

use std::path::Path;
use std::process::ExitCode;

use trueno_zram_archive::{Format, WriteOptions};
use trueno_zram_io::Compressed;

use crate::args::Global;
use crate::compression::CompressionArgs;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::files::{self, FileArgs};
use crate::input::Input;
use crate::json;
use crate::messages;
use crate::output::{Output, OutputOptions, Target};
use crate::progress::Progress;
use crate::report::{self, Report};

/// Arguments of `compress`.
#[derive(Debug, clap::Args)]
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
    #[arg(long, overrides_with = "no_content_checksum")]
    content_checksum: bool,
    /// Leave out the checksum of the whole content: the default, except for input from a pipe.
    #[arg(long, overrides_with = "content_checksum")]
    no_content_checksum: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    args.files.check(global)?;
    args.files.check_targets(|input| Ok(files::compressed_name(input, args.compression.format())))?;
    let mut engine = Engine::compressing(global, args.compression)?;
    report::say_engine(global, &engine);
    files::for_each(&args.files.files, |path| {
        json::tracked(global, "compress", path, compress(path, args, global, &mut engine))
    })
}

fn compress(path: &Path, args: &Args, global: &Global, engine: &mut Engine) -> Result<(), Failure> {
    let FileArgs { force, rm, .. } = args.files;
    let target = args.files.target(path, |input| Ok(files::compressed_name(input, args.compression.format())))?;
    let input = Input::open(path)?;
    files::check_removable(rm, path, &input)?;
    let source = input.metadata.clone();
    let name = input.name.clone();
    let output_options = OutputOptions { force, binary: true, sparse: false, durable: rm, private: false };
    let output = Output::create(&target, Some(&source), output_options)?;
    let output_name = output.name.clone();
    let format = args.compression.format();
    // Zstandard files have a checksum per page and none of the whole content.
    let content_checksum = args.content_checksum || (input.len_bytes.is_none() && !args.no_content_checksum);
    let options = WriteOptions {
        format,
        content_len: input.len_bytes,
        block_checksums: !args.no_block_checksums,
        content_checksum: content_checksum && format == Format::Lz4,
    };
    let progress = Progress::start(global, &name, input.len_bytes);
    let Compressed { out, summary, .. } =
        engine.compress(input.into_pages(), (output, &output_name), options, &progress)?;
    out.finish_with(Some(&source), &mut |warning| report::warn(global, &output_name, &warning.to_string()))?;
    let time = progress.finish_with_timeline(global);
    files::remove_source(rm, path, &source)?;

    let report = Report {
        command: "compress",
        file: &name,
        output: Some(&output_name),
        bytes_in: summary.content_len,
        bytes_out: summary.archive_len,
        ratio: report::ratio(summary.content_len, summary.archive_len),
        pages: summary.pages.into(),
        seconds: time.as_secs_f64(),
        backend: engine.name(),
        threads: engine.threads(),
    };
    if target != Target::Stdout || global.verbose > 0 {
        let Report { bytes_in, bytes_out, ratio, .. } = report;
        let line = if bytes_in == 0 {
            format!("{name}: empty, into {bytes_out} bytes: {output_name}")
        } else {
            let (share, speed) = (100.0 / ratio, report::gbps(bytes_in, time));
            format!(
                "{name}: {bytes_in} bytes into {bytes_out} ==> {share:.2} % (ratio {ratio:.3}), {speed:.2} GB/s: {output_name}"
            )
        };
        report::say(global, &line);
    }
    if summary.index_len == 0 {
        report::warn(
            global,
            &output_name,
            "its index would be longer than 4 GiB and was left out; extract will be slow",
        );
    }
    if global.verbose > 0 {
        let Report { pages, seconds, .. } = &report;
        messages::line(format_args!("pages: {pages}; index of {} bytes; {seconds:.3} s", summary.index_len));
    }
    report::print_json(global, &report)
}
