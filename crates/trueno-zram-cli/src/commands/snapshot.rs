//! `trueno-zram snapshot`: the memory of a running process into a page archive with its address map.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::Mode;
use serde::Serialize;
use trueno_zram_archive::{ArchiveWriter, ContentHash, Summary, WriteOptions};
use trueno_zram_core::{CompressedBatch, PAGE_SIZE, Page, PageStats};

use crate::address_map::{self, AddressMap, Consistency, PageState};
use crate::args::Global;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::output::{Output, OutputOptions, Target};
use crate::process::{Left, MemoryReader, Process, ProcessError, Selection, Stopped};
use crate::quantity;
use crate::report;
use crate::terminal::printable;

/// Save the anonymous memory of a running process as a page archive.
///
/// Heap, stacks and other anonymous memory go into the archive, with a map of the addresses they had: `inspect` shows
/// it. Pages that the process never touched are not stored; the map tells them from stored ones. Memory shared with other
/// processes and the kernel's own ranges (vvar, vdso, vsyscall) are left out.
///
/// The process goes on while it is read, so that pages may be of different moments. With --stop it stands still, and
/// goes on afterwards even if the reading fails; only if trueno-zram is killed by SIGKILL it stays stopped, until `kill -CONT
/// PID`. Its parent sees it stop and go on.
///
/// Reading takes the right to trace the process: as root, or as its user where kernel.yama.ptrace_scope is 0.
/// The archive can hold secrets; it is made readable by its owner alone.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of the process.
    #[arg(value_name = "PID")]
    pid: u32,
    /// The archive to write; `-` is standard output.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Overwrite the archive if it exists.
    #[arg(short, long)]
    force: bool,
    /// Stop the process while its memory is read, so that all pages are of one moment.
    #[arg(long)]
    stop: bool,
    /// Also save the pages of private mappings of files that the process wrote to: data of programs and libraries.
    #[arg(long)]
    all_private: bool,
}

/// Buffers between reader and writer: one is filled, one compressed, one waits.
const BUFFERS: usize = 3;

/// What a snapshot came to.
#[derive(Debug, Serialize)]
struct Report {
    pid: u32,
    command: String,
    output: String,
    consistency: Consistency,
    mappings: usize,
    pages: u64,
    zero: u64,
    same_filled: u64,
    lz4: u64,
    raw: u64,
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
}

/// What the reading thread brings home.
struct ReadOut {
    map: AddressMap,
    hash: ContentHash,
    swapped_pages: u64,
    left: Left,
    stopped: Option<Duration>,
}

/// Runs the command.
pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    let begun = Instant::now();
    let target = if args.output.as_os_str() == "-" { Target::Stdout } else { Target::Path(args.output.clone()) };
    if global.json && target == Target::Stdout {
        return Err(report::json_needs_stdout());
    }
    let page_bytes = rustix::param::page_size();
    if page_bytes != PAGE_SIZE {
        return Err(failed(ProcessError::PageSize { bytes: page_bytes }));
    }
    let mut engine = Engine::choose(global)?;
    report::say_engine(global, &engine);
    let process = Process::open(args.pid).map_err(failed)?;
    // What is in a process's memory is no one else's business.
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let options = OutputOptions { force: args.force, binary: true, private: true, ..OutputOptions::default() };
    let output = Output::create(&target, None, options)?;
    let name = output.name.clone();
    let (read, output, summary) = copy(args, &process, &mut engine, output)?;
    output.finish(None)?;
    let report = Report::new(&read, &summary, &engine, name, begun.elapsed());
    report.print(global)?;
    Ok(ExitCode::SUCCESS)
}

/// Reads on one thread, compresses and writes on this one.
fn copy(
    args: &Args,
    process: &Process,
    engine: &mut Engine,
    output: Output,
) -> Result<(ReadOut, Output, Summary), Failure> {
    let name = output.name.clone();
    let archive_failed = |error: trueno_zram_archive::Error| match error {
        trueno_zram_archive::Error::Write(error) => Failure::io(&name, &error),
        error => Failure::at(&name, error),
    };
    // What is not known beforehand is how many pages there are: a live process may take more at any time.
    let mut writer = ArchiveWriter::new(output, WriteOptions::default()).map_err(archive_failed)?;
    let (full_sender, full) = sync_channel(BUFFERS);
    let (empty_sender, empty) = sync_channel(BUFFERS);
    let batch_pages = engine.batch_pages();
    for _ in 1..BUFFERS {
        empty_sender.send(vec![[0; PAGE_SIZE]; batch_pages]).expect("there is room for all buffers");
    }
    let (read, written) = std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            // The signal thread must not end the process between the two: `Stopped` sees to that.
            let stopped = args.stop.then(|| Stopped::stop(process)).transpose()?;
            let begun = Instant::now();
            let read = read_all(args, process, vec![[0; PAGE_SIZE]; batch_pages], &full_sender, &empty);
            let still = stopped.as_ref().map(|_| begun.elapsed());
            drop(stopped);
            read.map(|read| ReadOut { stopped: still, ..read })
        });
        let mut batch = CompressedBatch::new();
        let mut write = |(pages, filled): (Vec<Page>, usize)| {
            engine.compress_into(&pages[..filled], &mut batch).map_err(|e| Failure::at("compressing", e))?;
            writer.write_batch(&batch).map_err(archive_failed)?;
            // The reader may be done already.
            let _ = empty_sender.send(pages);
            Ok(())
        };
        let written: Result<(), Failure> = full.into_iter().try_for_each(&mut write);
        drop(empty_sender);
        (reader.join(), written)
    });
    // A panic there is a panic here. A failed write ends the reading, so its error is the one to tell of.
    let read = read.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    written?;
    let read = read.map_err(failed)?;
    let map = read.map.to_bytes().map_err(|e| Failure::at(&name, e))?;
    writer.add_section(address_map::SECTION, &map).map_err(archive_failed)?;
    let (output, summary) = writer.finish(Some(read.hash.clone())).map_err(archive_failed)?;
    Ok((read, output, summary))
}

/// Reads the whole process, and sends its pages on.
fn read_all(
    args: &Args,
    process: &Process,
    buffer: Vec<Page>,
    full: &SyncSender<(Vec<Page>, usize)>,
    empty: &Receiver<Vec<Page>>,
) -> Result<ReadOut, ProcessError> {
    let consistency = if args.stop { Consistency::Stopped } else { Consistency::Live };
    let selection = if args.all_private { Selection::AllPrivate } else { Selection::Anonymous };
    let taken_unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let lines = process.maps()?;
    let mut hash = ContentHash::new();
    let sink = |pages: &mut Vec<Page>, filled: usize| {
        hash.update(pages[..filled].as_flattened());
        let handed_on = full.send((std::mem::take(pages), filled)).is_ok();
        match empty.recv() {
            Ok(buffer) if handed_on => {
                *pages = buffer;
                ControlFlow::Continue(())
            }
            _ => ControlFlow::Break(()),
        }
    };
    let mut reader = MemoryReader::new(process.pid, process, buffer, sink);
    let mappings = reader.read(&lines, selection)?;
    let (swapped_pages, left) = (reader.swapped, reader.left);
    let map = AddressMap { pid: process.pid, command: process.command.clone(), taken_unix_s, consistency, mappings };
    Ok(ReadOut { map, hash, swapped_pages, left, stopped: None })
}

fn failed(error: ProcessError) -> Failure {
    Failure::Failed(error.to_string())
}

impl Report {
    fn new(read: &ReadOut, summary: &Summary, engine: &Engine, output: String, took: Duration) -> Self {
        let map = &read.map;
        let PageStats { zero, same_filled, lz4, raw, .. } = summary.pages;
        Self {
            pid: map.pid,
            command: map.command.clone(),
            output,
            consistency: map.consistency,
            mappings: map.mappings.len(),
            pages: map.pages(PageState::Stored),
            zero,
            same_filled: same_filled - zero,
            lz4,
            raw,
            untouched_pages: map.pages(PageState::Untouched),
            swapped_pages: read.swapped_pages,
            unreadable_pages: map.pages(PageState::Unreadable),
            shared_bytes_left_out: read.left.shared_bytes,
            file_bytes_left_out: read.left.file_bytes,
            bytes_in: summary.content_len,
            bytes_out: summary.archive_len,
            ratio: summary.content_len as f64 / summary.archive_len as f64,
            seconds: took.as_secs_f64(),
            stopped_seconds: read.stopped.map(|time| time.as_secs_f64()),
            backend: engine.name(),
            threads: engine.threads(),
        }
    }

    fn print(&self, global: &Global) -> Result<(), Failure> {
        if self.unreadable_pages > 0 {
            // Not silenced by --quiet: the snapshot is not whole.
            let unreadable = quantity::pages(self.unreadable_pages);
            eprintln!("trueno-zram: {unreadable} of process {} could not be read and are not in it", self.pid);
        }
        if global.json {
            return report::print_json(global, self);
        }
        if global.quiet {
            return Ok(());
        }
        let (bytes_in, bytes_out) = (quantity::bytes(self.bytes_in), quantity::bytes(self.bytes_out));
        eprintln!(
            "{} ({}): {} in {} ranges, {bytes_in} into {bytes_out}, ratio {:.3}, {:.2} s",
            printable(&self.command),
            self.pid,
            quantity::pages(self.pages),
            self.mappings,
            self.ratio,
            self.seconds,
        );
        match self.stopped_seconds {
            Some(seconds) => eprintln!("stood still for {:.0} ms: all pages are of one moment", seconds * 1e3),
            None => eprintln!("read while it ran: pages may be of different moments (--stop for one moment)"),
        }
        if global.verbose > 0 {
            eprintln!(
                "not in it: {} never touched, {} of shared memory, {} of files' mappings; {} came back from swap",
                quantity::pages(self.untouched_pages),
                quantity::bytes(self.shared_bytes_left_out),
                quantity::bytes(self.file_bytes_left_out),
                quantity::pages(self.swapped_pages),
            );
        }
        Ok(())
    }
}
