//! `trueno-zram extract`: some pages of an archive.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use trueno_zram_archive::address_map::{AddressSpan, StoredMap};
use trueno_zram_archive::{ContentBatch, ContentSpan, Error, FrameReader, PageArchive, Pages};
use trueno_zram_core::PAGE_SIZE;
use trueno_zram_io::{Input, Output, OutputOptions, OutputTarget, Sink, Workers};

use crate::args::{
    Global,
    ranges::{OpenRange, RangeList, parse_range, parse_range_list},
    verify::VerifyPolicy,
};
use crate::engine::Engine;
use crate::failure::Failure;
use crate::files::{
    self,
    delta::BasesArgs,
    needed_files::{self, NeededFiles},
    restore::{format_of_input, input_failure, not_compressed, pages_by_index, prove_read},
};
use crate::print::{json, report};

/// Arguments of `extract`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The archive.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    wanted: Wanted,
    /// The output file [default: standard output].
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,
    /// Overwrite the output; write to a terminal.
    #[arg(short, long)]
    force: bool,
    /// The proof of pages that comes before they are restored. With `touched`, the rest of it comes before the output is complete.
    #[arg(long, value_enum, default_value_t = VerifyPolicy::Group)]
    verify: VerifyPolicy,
    #[command(flatten)]
    bases: BasesArgs,
}

/// The ranges to restore.
#[derive(Clone, Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Wanted {
    /// Pages of 4 KiB, numbered from 0: `7`, `3..9`, `3..=9`, `3..`, `..9`, or a list: `1,3,5..9`.
    #[arg(long, value_name = "RANGES", value_parser = parse_range_list)]
    pages: Option<RangeList>,
    /// Bytes, numbered from 0: `4K..1M`, `0x1000..0x2000`, or a list.
    #[arg(long, value_name = "RANGES", value_parser = parse_range_list)]
    bytes: Option<RangeList>,
    /// Bytes of a process snapshot by the addresses they had: `0x7f0000001000..0x7f0000003000`.
    #[arg(long, value_name = "RANGE", value_parser = parse_range)]
    address: Option<OpenRange>,
}

/// Ranges of the content, and what they were called on the command line.
struct ContentRanges<'a> {
    unit: RangeUnit,
    ranges: &'a RangeList,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RangeUnit {
    Pages,
    Bytes,
}

impl Wanted {
    /// The ranges of the content; `None` if addresses are wanted.
    fn content(&self) -> Option<ContentRanges<'_>> {
        let pages = self.pages.as_ref().map(|ranges| ContentRanges { unit: RangeUnit::Pages, ranges });
        pages.or_else(|| self.bytes.as_ref().map(|ranges| ContentRanges { unit: RangeUnit::Bytes, ranges }))
    }
}

impl ContentRanges<'_> {
    /// The ranges in bytes, before it is known where the content ends.
    fn open(&self) -> Vec<OpenRange> {
        let scale = match self.unit {
            RangeUnit::Pages => PAGE_SIZE as u64,
            RangeUnit::Bytes => 1,
        };
        let scaled = |range: &OpenRange| OpenRange {
            start: range.start.saturating_mul(scale),
            end: range.end.map(|end| end.saturating_mul(scale)),
        };
        self.ranges.0.iter().map(scaled).collect()
    }

    /// The ranges in a content of `len_bytes`. A shorter last page counts as a page.
    fn within(&self, name: &str, len_bytes: u64) -> Result<Vec<Range<u64>>, Failure> {
        let (bound, there, unit) = match self.unit {
            RangeUnit::Pages => {
                (len_bytes.next_multiple_of(PAGE_SIZE as u64), len_bytes.div_ceil(PAGE_SIZE as u64), "pages")
            }
            RangeUnit::Bytes => (len_bytes, len_bytes, "bytes"),
        };
        let checked = self.open().into_iter().zip(&self.ranges.0).map(|(range, asked)| {
            let range = range
                .within(bound)
                .ok_or_else(|| Failure::at(name, format!("{unit} {asked} asked for, but there are {there}")))?;
            Ok(range.start.min(len_bytes)..range.end.min(len_bytes))
        });
        checked.collect()
    }
}

/// The result, for scripts.
#[derive(Debug, Serialize)]
struct ExtractReport<'a> {
    file: &'a str,
    output: &'a str,
    bytes_out: u64,
    indexed: bool,
    seconds: f64,
    backend: &'static str,
    threads: usize,
}

const COMMAND: &str = "extract";

/// Runs `trueno-zram extract`.
pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    let target = files::single_target(args.output.as_deref().unwrap_or(Path::new("-")), global)?;
    if global.json {
        needed_files::check_stdout(std::slice::from_ref(&args.file), global)?;
    }
    files::for_each(std::slice::from_ref(&args.file), COMMAND, global, |path| extract(path, args, global, &target))
}

fn extract(path: &Path, args: &Args, global: &Global, target: &OutputTarget) -> Result<(), Failure> {
    let mut engine = Engine::choose(global)?;
    let input = Input::open_nonblocking(path)?;
    let delta = args.bases.open_delta(path, &input)?;
    if let Some(chain) = &delta {
        NeededFiles::of_base(chain.bases()).check_target(target, global)?;
    }
    if let Some(failure) = not_compressed(&input).filter(|_| delta.is_none()) {
        return Err(failure);
    }
    if let Some(format) = format_of_input(&input) {
        engine.prepare_for(format)?;
    }
    let options = OutputOptions::default().with_force(args.force).with_binary(true).with_sparse(true);
    let mut output = Output::create(target, Some(&input.metadata), options)?;
    let opened = match delta {
        Some(chain) => Ok(Some(chain.archive)),
        None => pages_by_index(&input)?,
    };
    let (archive, why_none) = match opened {
        Ok(archive) => (archive, "no index".to_owned()),
        // The content may be intact all the same. Addresses cannot be found without the index.
        Err(error @ Error::Index(_)) if args.wanted.address.is_none() => (None, format!("warning: {error}")),
        Err(error) => return Err(input_failure(&input.name, error)),
    };
    let indexed = archive.is_some();
    match (archive, args.wanted.content()) {
        (Some(archive), wanted) => {
            if !archive.notices_damage() {
                report::warn(global, &input.name, "it has no block checksums: damage would not be noticed");
            }
            let archive = archive.with_verify(args.verify.into());
            let mut source = CopySource { archive, input: &input, engine: &mut engine };
            match wanted {
                Some(wanted) => source.copy(&wanted, &mut output)?,
                None => source.copy_addresses(args.wanted.address, &mut output)?,
            }
            if args.verify == VerifyPolicy::Touched {
                prove_read(&source.archive, &input.name)?;
            }
        }
        (None, None) => return Err(no_address_map(&input.name)),
        (None, Some(wanted)) => {
            if !wanted.ranges.is_ascending() {
                let why = "ranges that are not in ascending order need an archive with an index";
                return Err(Failure::at(&input.name, format!("{}: {why}", wanted.ranges)));
            }
            input.rewind()?;
            let announce = || report::say(global, &format!("{}: {why_none}; decoding from the start", input.name));
            from_the_start(&input, &wanted, &mut output, &mut engine, announce)?;
        }
    }
    let output_name = output.name.clone();
    let bytes_out = output.finish(None)?;
    report::say_engine(global, &engine);
    let seconds = global.stopwatch.lap().as_secs_f64();
    if global.verbose > 0 {
        report::say(global, &format!("{}: {bytes_out} bytes restored, {seconds:.4} s: {output_name}", input.name));
    }
    let report = ExtractReport {
        file: &input.name,
        output: &output_name,
        bytes_out,
        indexed,
        seconds,
        backend: engine.name(),
        threads: engine.threads(),
    };
    json::print(global, COMMAND, &report)
}

/// An archive to copy from.
struct CopySource<'a> {
    archive: PageArchive,
    input: &'a Input,
    engine: &'a mut Engine,
}

impl CopySource<'_> {
    /// Copies ranges of the content, in the order in which they were given.
    fn copy(&mut self, wanted: &ContentRanges<'_>, output: &mut Output) -> Result<(), Failure> {
        let ranges = wanted.within(&self.input.name, self.archive.len_bytes())?;
        self.restore(ranges, output)
    }

    /// Copies a range of addresses. Stored pages are in the order of their addresses, so the archive is read once.
    fn copy_addresses(&mut self, addresses: Option<OpenRange>, output: &mut Output) -> Result<(), Failure> {
        let OpenRange { start, end } = addresses.expect("one of the three is required");
        let end = end.ok_or_else(|| Failure::usage("a range of addresses needs its end: --address A..B"))?;
        let failed = |error: &dyn std::fmt::Display| Failure::at(&self.input.name, error);
        let map = StoredMap::read(self.archive.stored()).map_err(|error| Failure::damaged(&self.input.name, error))?;
        let map = map.ok_or_else(|| no_address_map(&self.input.name))?;
        let plan = map.plan(start..end, self.archive.len_bytes()).map_err(|error| failed(&error))?;
        let mut merge = Merge { spans: plan.spans(), stored_bytes: 0, output };
        self.restore(vec![plan.content.clone()], &mut merge)?;
        Ok(merge.fill()?)
    }

    /// Restores the pages that hold `ranges`, and no others.
    fn restore(&mut self, ranges: Vec<Range<u64>>, sink: &mut impl Sink) -> Result<(), Failure> {
        let (pool, name) = (self.engine.pool(), &self.input.name[..]);
        let restored = match (self.engine.codec(), &self.archive) {
            (Some(codec), PageArchive::Standard(archive)) => {
                trueno_zram_io::restore_ranges(&archive.with_codec(codec), name, ranges, sink, Workers::new(&pool))
            }
            _ => trueno_zram_io::restore_ranges(&self.archive, name, ranges, sink, Workers::new(&pool)),
        };
        self.engine.warn_of_fallback();
        restored?;
        Ok(())
    }
}

fn no_address_map(name: &str) -> Failure {
    Failure::at(name, "has no address map: it is not a snapshot of a process")
}

/// Decodes from the start, up to the last byte that is wanted. Calls `announce` once the input turns out to be decodable.
fn from_the_start(
    input: &Input,
    wanted: &ContentRanges<'_>,
    output: &mut Output,
    engine: &mut Engine,
    announce: impl FnOnce() + Send,
) -> Result<(), Failure> {
    let pool = engine.pool();
    let mut announce = Some(announce);
    let ranges = wanted.open().into_iter().map(|range| range.start..range.end.unwrap_or(u64::MAX)).collect();
    let mut window = RangeFilter { at: 0, ranges, sink: output };
    let end = window.ranges.last().map_or(0, |range| range.end);
    let copied = pool.install(|| {
        let mut reader = match engine.codec() {
            Some(codec) => FrameReader::with_codec(input.file(), codec),
            None => FrameReader::new(input.file()),
        };
        let mut batch = ContentBatch::new();
        while window.at < end {
            let has_more = reader.read_batch(&mut batch).map_err(|error| input_failure(&input.name, error))?;
            if let Some(announce) = announce.take() {
                announce();
            }
            if !has_more {
                // The content ends here: so must the ranges.
                return wanted.within(&input.name, window.at).map(|_| ());
            }
            window.push(&batch)?;
        }
        Ok(())
    });
    engine.warn_of_fallback();
    copied
}

/// Passes on the bytes of ascending ranges.
struct RangeFilter<'a, K> {
    /// The offset of the next span in the content.
    at: u64,
    ranges: Vec<Range<u64>>,
    sink: &'a mut K,
}

impl<K: Sink> RangeFilter<'_, K> {
    fn push(&mut self, batch: &ContentBatch) -> Result<(), Failure> {
        for span in batch.spans() {
            let (span_start, span_end) = (self.at, self.at + span.len_bytes());
            let from = self.ranges.partition_point(|range| range.end <= span_start);
            for range in self.ranges[from..].iter().take_while(|range| range.start < span_end) {
                let (start, end) = (range.start.max(span_start) - span_start, range.end.min(span_end) - span_start);
                self.sink.take(match span {
                    ContentSpan::Data(bytes) => ContentSpan::Data(&bytes[index(start)..index(end)]),
                    ContentSpan::Zeros(_) => ContentSpan::Zeros(end - start),
                })?;
            }
            self.at = span_end;
        }
        Ok(())
    }
}

/// Puts zeros between the stored bytes of a range of addresses.
struct Merge<'a, I> {
    spans: I,
    /// Stored bytes that are due before the next span.
    stored_bytes: u64,
    output: &'a mut Output,
}

impl<I: Iterator<Item = AddressSpan>> Merge<'_, I> {
    /// Writes zeros up to the next stored bytes.
    fn fill(&mut self) -> trueno_zram_io::Result<()> {
        while self.stored_bytes == 0 {
            match self.spans.next() {
                Some(AddressSpan::Stored(len_bytes)) => self.stored_bytes = len_bytes,
                Some(AddressSpan::Zeros(len_bytes)) => self.output.take(ContentSpan::Zeros(len_bytes))?,
                None => break,
            }
        }
        Ok(())
    }
}

impl<I: Iterator<Item = AddressSpan> + Send> Sink for Merge<'_, I> {
    /// Takes the next stored bytes.
    fn take(&mut self, mut stored: ContentSpan<'_>) -> trueno_zram_io::Result<()> {
        while stored.len_bytes() > 0 {
            self.fill()?;
            let now = stored.len_bytes().min(self.stored_bytes);
            if now == 0 {
                // The plan's content has no byte more than its spans.
                return Ok(());
            }
            self.stored_bytes -= now;
            stored = match stored {
                ContentSpan::Data(bytes) => {
                    let (now, rest) = bytes.split_at(index(now));
                    self.output.take(ContentSpan::Data(now))?;
                    ContentSpan::Data(rest)
                }
                ContentSpan::Zeros(len_bytes) => {
                    self.output.take(ContentSpan::Zeros(now))?;
                    ContentSpan::Zeros(len_bytes - now)
                }
            };
        }
        Ok(())
    }

    fn name(&self) -> &str {
        self.output.name()
    }
}

/// A position in bytes that are in memory.
fn index(position: u64) -> usize {
    usize::try_from(position).expect("at most the length of a slice")
}
