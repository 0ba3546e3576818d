//! `trueno-zram extract`.

use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use serde::Serialize;
use trueno_zram_archive::{ArchiveReader, ContentBatch, ContentSpan, Error, FrameReader};
use trueno_zram_core::PAGE_SIZE;

use crate::address_map::{self, AddressMap};
use crate::args::Global;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::files;
use crate::input::Input;
use crate::output::{Output, OutputOptions, Target};
use crate::ranges::{OpenRange, parse_range};
use crate::report;
use crate::restore::input_failure;

/// Arguments of `extract`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The archive.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    wanted: Wanted,
    /// Where to write [default: standard output].
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,
    /// Overwrite the output.
    #[arg(short, long)]
    force: bool,
}

/// What is to be restored.
#[derive(Clone, Copy, Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Wanted {
    /// Pages of 4 KiB by their numbers from 0: `7`, `3..9`, `3..=9`, `3..`, `..9`.
    #[arg(long, value_name = "RANGE", value_parser = parse_range)]
    pages: Option<OpenRange>,
    /// Bytes by their positions from 0, also as `4K..1M` or `0x1000..0x2000`.
    #[arg(long, value_name = "RANGE", value_parser = parse_range)]
    bytes: Option<OpenRange>,
    /// Bytes of a process's snapshot by the addresses they had: `0x7f0000001000..0x7f0000003000`.
    #[arg(long, value_name = "RANGE", value_parser = parse_range)]
    address: Option<OpenRange>,
}

impl Wanted {
    /// The range of bytes, and the words for it.
    fn bytes(&self) -> (OpenRange, String) {
        let page = PAGE_SIZE as u64;
        match (self.bytes, self.pages) {
            (Some(bytes), _) => (bytes, format!("bytes {bytes}")),
            (None, pages) => {
                let pages = pages.expect("one of the two is required");
                let end = pages.end.map(|end| end.saturating_mul(page));
                (OpenRange { start: pages.start.saturating_mul(page), end }, format!("pages {pages}"))
            }
        }
    }

    /// Where the wanted bytes are in an archive's content, in order.
    fn pieces(&self, archive: &mut ArchiveReader<&File>, name: &str) -> Result<Vec<address_map::Piece>, Failure> {
        let Some(addresses) = self.address else {
            return Ok(vec![address_map::Piece::Stored(self.within(name, archive.content_len())?)]);
        };
        let end = addresses.end.ok_or_else(|| Failure::usage("a range of addresses needs its end: --address A..B"))?;
        let section = archive
            .section(address_map::SECTION, address_map::MAX_BYTES)
            .map_err(|error| input_failure(name, error))?;
        let map = AddressMap::from_bytes(&section.ok_or_else(|| no_address_map(name))?);
        let map = map.map_err(|error| Failure::at(name, error))?;
        map.pieces(addresses.start..end).map_err(|error| Failure::at(name, error))
    }

    /// The range in a content of `len_bytes`. A last page that is a shorter one counts as a page.
    fn within(&self, name: &str, len_bytes: u64) -> Result<Range<u64>, Failure> {
        let (range, words) = self.bytes();
        let counts_pages = self.pages.is_some();
        let bound = if counts_pages { len_bytes.next_multiple_of(PAGE_SIZE as u64) } else { len_bytes };
        let Some(range) = range.within(bound) else {
            let there = if counts_pages { len_bytes.div_ceil(PAGE_SIZE as u64) } else { len_bytes };
            return Err(Failure::at(name, format!("{words} asked for, but there are {there}")));
        };
        Ok(range.start.min(len_bytes)..range.end.min(len_bytes))
    }
}

/// What came of it, for scripts.
#[derive(Debug, Serialize)]
struct Report<'a> {
    command: &'static str,
    file: &'a str,
    output: &'a str,
    bytes_out: u64,
    indexed: bool,
    seconds: f64,
    backend: &'static str,
    threads: usize,
}

/// Runs the command.
pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    let start = Instant::now();
    let target = match &args.output {
        Some(path) if !files::is_dash(path) => Target::Path(path.clone()),
        _ if global.json => return Err(report::json_needs_stdout()),
        _ => Target::Stdout,
    };
    let mut engine = Engine::choose(global)?;
    report::say_engine(global, &engine);
    let input = Input::open(&args.file)?;
    let options = OutputOptions { force: args.force, binary: false, sparse: true, durable: false, private: false };
    let mut output = Output::create(&target, Some(&input.metadata), options)?;
    let (archive, why_none) = match input.seekable().map(ArchiveReader::open) {
        Some(Ok(archive)) => (archive, "no index".to_owned()),
        // The content may be whole all the same; where addresses are, the index alone knows.
        Some(Err(error @ Error::Index(_))) if args.wanted.address.is_none() => (None, format!("warning: {error}")),
        Some(Err(error)) => return Err(input_failure(&input.name, error)),
        None => (None, "no index".to_owned()),
    };
    let indexed = archive.is_some();
    match archive {
        Some(mut archive) => {
            if !archive.has_block_checksums() {
                report::warn(global, &input.name, "it has no block checksums: damage would not be noticed");
            }
            for piece in args.wanted.pieces(&mut archive, &input.name)? {
                match piece {
                    address_map::Piece::Stored(bytes) => {
                        by_index(&mut archive, bytes, &input.name, &mut output, &mut engine)?;
                    }
                    address_map::Piece::Zeros(len_bytes) => {
                        output.write_zeros(len_bytes).map_err(|error| Failure::io(&output.name, &error))?;
                    }
                }
            }
        }
        None if args.wanted.address.is_some() => return Err(no_address_map(&input.name)),
        None => {
            report::say(global, &format!("{}: {why_none}; decoding from the start", input.name));
            input.rewind()?;
            from_the_start(&input, &args.wanted, &mut output, &mut engine)?;
        }
    }
    let output_name = output.name.clone();
    let bytes_out = output.finish(None)?;
    if global.verbose > 0 {
        let seconds = start.elapsed().as_secs_f64();
        report::say(global, &format!("{}: {bytes_out} bytes restored, {seconds:.4} s: {output_name}", input.name));
    }
    let report = Report {
        command: "extract",
        file: &input.name,
        output: &output_name,
        bytes_out,
        indexed,
        seconds: start.elapsed().as_secs_f64(),
        backend: engine.name(),
        threads: engine.threads(),
    };
    report::print_json(global, &report)?;
    Ok(ExitCode::SUCCESS)
}

/// Reads and decodes the pages that hold the wanted bytes, and no others.
fn by_index(
    archive: &mut ArchiveReader<&File>,
    bytes: Range<u64>,
    name: &str,
    output: &mut Output,
    engine: &mut Engine,
) -> Result<(), Failure> {
    if bytes.is_empty() {
        return Ok(());
    }
    let page = PAGE_SIZE as u64;
    let pages = bytes.start / page..bytes.end.div_ceil(page);
    let mut window = Window { at: pages.start * page, bytes };
    let pool = engine.pool();
    pool.install(|| {
        let reader = match engine.codec() {
            Some(codec) => archive.read_pages_with(pages, codec),
            None => archive.read_pages(pages),
        };
        let mut reader = reader.map_err(|error| input_failure(name, error))?;
        let mut batch = ContentBatch::new();
        while reader.read_batch(&mut batch).map_err(|error| input_failure(name, error))? {
            window.write(&batch, output)?;
        }
        Ok(())
    })
}

fn no_address_map(name: &str) -> Failure {
    Failure::at(name, "has no address map: it is no snapshot of a process")
}

/// Decodes from the start, up to the last byte that is wanted.
fn from_the_start(input: &Input, wanted: &Wanted, output: &mut Output, engine: &mut Engine) -> Result<(), Failure> {
    let pool = engine.pool();
    let (range, _) = wanted.bytes();
    let mut window = Window { at: 0, bytes: range.start..range.end.unwrap_or(u64::MAX) };
    pool.install(|| {
        let mut reader = match engine.codec() {
            Some(codec) => FrameReader::with_codec(input.file(), codec),
            None => FrameReader::new(input.file()),
        };
        let mut batch = ContentBatch::new();
        while window.at < window.bytes.end {
            if !reader.read_batch(&mut batch).map_err(|error| input_failure(&input.name, error))? {
                // The content ends here: the range must end here too.
                return wanted.within(&input.name, window.at).map(|_| ());
            }
            window.write(&batch, output)?;
        }
        Ok(())
    })
}

/// Lets through the bytes that are wanted.
struct Window {
    /// Where the next batch starts.
    at: u64,
    bytes: Range<u64>,
}

impl Window {
    fn write(&mut self, batch: &ContentBatch, output: &mut Output) -> Result<(), Failure> {
        for span in batch.spans() {
            let len_bytes = match span {
                ContentSpan::Data(bytes) => bytes.len() as u64,
                ContentSpan::Zeros(len_bytes) => len_bytes,
            };
            let inside = |position: u64| position.saturating_sub(self.at).min(len_bytes);
            let (start, end) = (inside(self.bytes.start), inside(self.bytes.end));
            let written = match span {
                ContentSpan::Data(bytes) => output.write_data(&bytes[index(start)..index(end)]),
                ContentSpan::Zeros(_) => output.write_zeros(end - start),
            };
            written.map_err(|error| Failure::io(&output.name, &error))?;
            self.at += len_bytes;
        }
        Ok(())
    }
}

/// A position in bytes that lie in memory.
fn index(position: u64) -> usize {
    usize::try_from(position).expect("a slice's length was an upper bound")
}
