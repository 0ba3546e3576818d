//! `trueno-zram snapshot`: the memory of a running process into a page archive with its address map.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::{self, Scope};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::Mode;
use serde::Serialize;
use trueno_zram_archive::address_map::{self, AddressMap, Consistency, PageState};
use trueno_zram_archive::process_state::{self as state_section, ProcessState};
use trueno_zram_archive::{DeltaSummary, Format, WriteOptions, WriteSummary};
use trueno_zram_core::{PAGE_SIZE, Page, PageStats};
use trueno_zram_io::{ArchiveOutput, Claim, ClaimedRange, DeltaOptions, Output, OutputOptions, PageSource, Spool};

use crate::args::{Global, compression::CompressionArgs, parse_whole};
use crate::engine::Engine;
use crate::failure::{Failure, FailureKind};
use crate::files;
use crate::files::delta::{self, CheckBase, DedupArgs, OpenBase, Origins};
use crate::print::{
    json::{self, PageKinds},
    messages,
    progress::Stages,
    quantity, report,
};
use crate::process::state;
use crate::process::{MemoryReader, Process, ProcessError, ReadProcess, Selection, Stopped, Windows};

/// Save the anonymous memory of a running process as a page archive.
///
/// Heap, stacks and other anonymous memory go into the archive, together with a map of their addresses, which `inspect`
/// shows. Pages that the process never touched are not stored; the map marks them. Memory shared with other processes
/// and the kernel's own ranges (vvar, vdso, vsyscall) are left out.
///
/// The process keeps running while it is read, so pages may be of different moments. With --stop it is stopped, and
/// continues afterwards even if reading fails. Its registers are saved too, for `restore --elf-core`. Its memory is read by several threads
/// and compressed once it has continued, if it fits in half of the memory that is available; else it is compressed while it is read.
/// If trueno-zram is killed by SIGKILL it stays stopped until `kill -CONT PID`.
/// Its parent sees it stop and continue. Output to a pipe is written once the process has continued.
///
/// Reading needs permission to trace the process: run as root, or as its user where kernel.yama.ptrace_scope is 0.
/// The archive can hold secrets. It is readable by its owner alone, and is written only to a new file, to standard
/// output, or with -f in place of a regular file.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Process ID.
    #[arg(value_name = "PID", value_parser = parse_whole::<u32>)]
    pid: u32,
    /// The archive to write; `-` is standard output.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Overwrite the archive if it exists.
    #[arg(short, long)]
    force: bool,
    /// Stop the process while its memory is read, so that all pages are of the same moment.
    #[arg(long)]
    stop: bool,
    /// Also save pages of private file mappings that the process wrote to: data of programs and libraries.
    #[arg(long)]
    all_private: bool,
    /// Make a delta: store only pages that this archive, or delta, does not have, wherever they were, and equal pages once. All
    /// pages of the delta are read back before it gets its name.
    #[arg(long, value_name = "ARCHIVE")]
    base: Option<PathBuf>,
    /// The pages of the base that are compared with the hashes that it states, before a delta relies on them. A delta that is made
    /// from false hashes cannot be restored.
    #[arg(long, value_name = "PAGES", value_enum, default_value_t, requires = "base")]
    check_base: CheckBase,
    #[command(flatten)]
    dedup: DedupArgs,
    #[command(flatten)]
    compression: CompressionArgs,
}

/// The result of a snapshot.
#[derive(Debug, Serialize)]
struct SnapshotReport {
    pid: u32,
    process: String,
    output: String,
    consistency: &'static str,
    mappings: usize,
    #[serde(flatten)]
    kinds: PageKinds,
    untouched_pages: u64,
    swapped_pages: u64,
    unreadable_pages: u64,
    shared_bytes_left_out: u64,
    file_bytes_left_out: u64,
    bytes_in: u64,
    bytes_out: u64,
    ratio: f64,
    seconds: f64,
    stopped_seconds: Option<f64>,
    backend: &'static str,
    threads: usize,
    #[serde(flatten)]
    origins: Option<Origins>,
}

/// A process as a source of pages.
struct ProcessSource<'scope> {
    windows: Windows<'scope>,
    /// The window that is being handed out, and its first page that was not.
    window: Option<(Arc<Vec<Page>>, usize)>,
    /// The address map, without its mappings until the end.
    map: AddressMap,
    /// The results of reading, once all is read.
    read: Option<ReadProcess>,
    /// Its registers and mapped files, if it was stopped.
    state: Option<ProcessState>,
}

impl<'scope> ProcessSource<'scope> {
    /// Stops the process if that is wanted, looks up its ranges, and begins to read them with `threads`.
    fn start<'env>(
        args: &Args,
        process: &'env Process,
        threads: usize,
        scope: &'scope Scope<'scope, 'env>,
    ) -> Result<Self, Failure> {
        let begun = Instant::now();
        let stopped = args.stop.then(|| Stopped::stop(process)).transpose().map_err(failed)?;
        let consistency = if args.stop { Consistency::Stopped } else { Consistency::Live };
        let selection = if args.all_private { Selection::AllPrivate } else { Selection::Anonymous };
        let taken_unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let (pid, command) = (process.pid, process.command.clone());
        let maps = process.maps().map_err(failed)?;
        let state = args.stop.then(|| state::of_stopped(process, &maps));
        let reader = MemoryReader::new(pid, process, maps, selection).on_threads(threads);
        let map = AddressMap { pid, command, taken_unix_s, consistency, mappings: Vec::new() };
        let windows = Windows::read(scope, reader, stopped.map(|stopped| (stopped, begun)));
        let windows = windows.map_err(|error| Failure::from(trueno_zram_io::Error::Thread(error)))?;
        Ok(Self { windows, window: None, map, read: None, state })
    }
}

impl PageSource for ProcessSource<'_> {
    type Error = Failure;

    /// Not known beforehand: a live process may take more memory at any time.
    fn len_bytes(&self) -> Option<u64> {
        None
    }

    fn claim(&mut self, room: &mut [Page]) -> Result<Claim, Failure> {
        let window = match self.window.take() {
            Some(window) => Some(window),
            None => self.windows.next().map_err(failed)?.map(|pages| (pages, 0)),
        };
        if let Some((pages, start)) = window {
            let end = pages.len().min(start + room.len());
            let range = ClaimedRange::in_memory(&pages, start..end);
            self.window = (end < pages.len()).then_some((pages, end));
            return Ok(Claim::Range(range));
        }
        self.read = self.windows.finish();
        if let Some(read) = &mut self.read {
            self.map.mappings = std::mem::take(&mut read.mappings);
        }
        Ok(Claim::End)
    }

    fn sections(&mut self) -> Result<Vec<(&'static str, Vec<u8>)>, Failure> {
        let map = self.map.to_bytes().map_err(|error| Failure::at("address map", error))?;
        let state = self.state.as_ref().and_then(|state| state.to_bytes().ok());
        let state = state.map(|bytes| (state_section::SECTION, bytes));
        Ok([(address_map::SECTION, map)].into_iter().chain(state).collect())
    }
}

/// Runs `trueno-zram snapshot`.
pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    let target = files::single_target(&args.output, global)?;
    let page_bytes = rustix::param::page_size();
    if page_bytes != PAGE_SIZE {
        return Err(failed(ProcessError::PageSize { bytes: page_bytes }));
    }
    args.dedup.check_backend(global)?;
    let mut engine = Engine::compressing(global, args.compression)?;
    let open = |base: &PathBuf| OpenBase::open(base, args.check_base, global, &engine);
    let base = args.base.as_ref().map(open).transpose()?;
    if let Some(base) = &base {
        base.files().check_target(&target, global)?;
    }
    let base = base.as_ref().map(|base| base.for_target(&target));
    // The base may state false hashes.
    let is_read_back = base.is_some();
    let process = Process::open(args.pid).map_err(failed)?;
    // A process's memory can hold secrets.
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let options = OutputOptions::default().with_force(args.force).with_binary(true).with_private(true);
    let mut output = Output::create(&target, None, options)?;
    let name = output.name.clone();
    let timeline = Stages::default();
    let format = args.compression.format();
    // The length is not known beforehand: in an LZ4 frame, the checksum of all content makes up for that.
    let write_options = WriteOptions::default().with_format(format).with_content_checksum(format == Format::Lz4);
    // A delta is read back from where it was written, and standard output cannot be read.
    let is_spooled = args.stop && output.can_block() || is_read_back && output.new_file()?.is_none();
    let report = thread::scope(|scope| {
        let source = ProcessSource::start(args, &process, engine.threads(), scope)?;
        let delta = args.dedup.delta_options(base, write_options);
        let mut compressing = Compressing { engine: &mut engine, delta, options: write_options, timeline: &timeline };
        // The process that is stopped may be the one that reads the output, and would never do so.
        let (source, summary, origins) = if is_spooled {
            let (source, spool, summary, origins) = compressing.compress(source, Spool::new()?)?;
            if is_read_back {
                delta::read_back(spool.file()?, (&target, &name), &engine)?;
            }
            spool.copy_to(&mut output)?;
            (source, summary, origins)
        } else {
            let (source, out, summary, origins) = compressing.compress(source, output)?;
            output = out;
            if let Some(file) = output.new_file()?.filter(|_| is_read_back) {
                delta::read_back(file, (&target, &name), &engine)?;
            }
            (source, summary, origins)
        };
        output.finish_with(None, &mut |warning| report::warn(global, &name, &warning.to_string()))?;
        Ok::<_, Failure>(SnapshotReport {
            origins,
            ..SnapshotReport::new(&source, &summary, &engine, name, global.stopwatch.lap())
        })
    })?;
    report::say_engine(global, &engine);
    report.print(global)?;
    timeline.print(global);
    Ok(ExitCode::SUCCESS)
}

/// Compresses a snapshot into an archive, or into a delta.
struct Compressing<'a> {
    engine: &'a mut Engine,
    delta: Option<DeltaOptions<'a>>,
    options: WriteOptions,
    timeline: &'a Stages,
}

impl Compressing<'_> {
    fn compress<'p, W: ArchiveOutput>(
        &mut self,
        source: ProcessSource<'p>,
        out: W,
    ) -> Result<(ProcessSource<'p>, W, WriteSummary, Option<Origins>), Failure> {
        let Some(options) = self.delta.take() else {
            let done = self.engine.compress(source, out, self.options, self.timeline)?;
            return Ok((done.source, done.out, done.summary, None));
        };
        let record = options.base.as_ref().map(|base| base.record.clone());
        let done = self.engine.compress_delta(source, out, options, self.timeline)?;
        let DeltaSummary { content_len, archive_len, zero_pages, stored, .. } = done.summary;
        let pages = PageStats { zero: zero_pages, ..stored };
        let summary = WriteSummary { pages, content_len, archive_len, index_len: 0 };
        Ok((done.source, done.out, summary, Some(Origins::written(record.as_ref(), &done.summary))))
    }
}

fn failed(error: ProcessError) -> Failure {
    let kind = match &error {
        ProcessError::NotThere { .. } | ProcessError::Ended { .. } | ProcessError::Gone { .. } => FailureKind::NotFound,
        ProcessError::NoRight { .. } | ProcessError::NoRightToStop { .. } => FailureKind::PermissionDenied,
        ProcessError::Io { error, .. } => error.into(),
        _ => FailureKind::Other,
    };
    Failure::new(kind, error)
}

impl SnapshotReport {
    fn new(
        source: &ProcessSource<'_>,
        summary: &WriteSummary,
        engine: &Engine,
        output: String,
        took: Duration,
    ) -> Self {
        let map = &source.map;
        let (swapped, left) = source.read.as_ref().map_or_else(Default::default, |read| (read.swapped, read.left));
        Self {
            pid: map.pid,
            process: map.command.clone(),
            output,
            consistency: json::consistency(map.consistency),
            mappings: map.mappings.len(),
            kinds: PageKinds { pages: map.pages(PageState::Stored), ..summary.pages.into() },
            untouched_pages: map.pages(PageState::Untouched),
            swapped_pages: swapped,
            unreadable_pages: map.pages(PageState::Unreadable),
            shared_bytes_left_out: left.shared_bytes,
            file_bytes_left_out: left.file_bytes,
            bytes_in: summary.content_len,
            bytes_out: summary.archive_len,
            ratio: summary.content_len as f64 / summary.archive_len as f64,
            seconds: took.as_secs_f64(),
            stopped_seconds: source.read.as_ref().and_then(|read| read.stopped_for).map(|time| time.as_secs_f64()),
            backend: engine.name(),
            threads: engine.threads(),
            origins: None,
        }
    }

    fn print(&self, global: &Global) -> Result<(), Failure> {
        if self.unreadable_pages > 0 {
            // Not silenced by --quiet: the snapshot is not complete.
            let unreadable = quantity::pages(self.unreadable_pages);
            messages::problem(format_args!("{}: {unreadable} of process {} could not be read", self.output, self.pid));
        }
        if global.json {
            return json::print(global, "snapshot", self);
        }
        if global.quiet {
            return Ok(());
        }
        let (bytes_in, bytes_out) = (quantity::bytes(self.bytes_in), quantity::bytes(self.bytes_out));
        messages::line(format_args!(
            "{} ({}): {} in {} ranges, {bytes_in} into {bytes_out}, ratio {:.3}, {:.2} s",
            self.process,
            self.pid,
            quantity::pages(self.kinds.pages),
            self.mappings,
            self.ratio,
            self.seconds,
        ));
        if let Some(origins) = &self.origins {
            messages::line(format_args!("pages: {origins}"));
        }
        match self.stopped_seconds {
            Some(seconds) => {
                messages::line(format_args!("stopped for {:.0} ms: all pages are of the same moment", seconds * 1e3));
            }
            None => messages::line("read while running: pages may be of different moments (--stop prevents that)"),
        }
        if global.verbose > 0 {
            messages::line(format_args!(
                "left out: {} never touched, {} of shared memory, {} of file mappings; {} read from swap",
                quantity::pages(self.untouched_pages),
                quantity::bytes(self.shared_bytes_left_out),
                quantity::bytes(self.file_bytes_left_out),
                quantity::pages(self.swapped_pages),
            ));
        }
        Ok(())
    }
}
