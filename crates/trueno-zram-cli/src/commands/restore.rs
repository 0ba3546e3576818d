//! `trueno-zram restore`: its arguments, and the report on memory that was restored while it was used.

mod elf_core;
mod uffd;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use serde::Serialize;
use trueno_zram_restore::{Notice, OnDamage, OnDisproof, RestoreOptions, RestoreReport};

use crate::args::{Global, parse_whole, ranges::parse_number, verify::VerifyPolicy};
use crate::failure::{Failure, FailureKind};
use crate::files::{delta::BasesArgs, needed_files};
use crate::print::{json, latency::LatencyObject, messages, quantity, report};

/// Run VMs from an archive of their memory, or turn it into a core file.
///
/// --elf-core writes a core file of a process snapshot, which gdb opens: with registers if it was taken with --stop, and with the
/// data of programs and libraries if with --all-private.
///
/// --uffd listens on a Unix socket for VMMs that speak Firecracker's protocol for page fault handlers: snapshot/load with the memory
/// backend `Uffd` and the path of the socket. The archive is the snapshot's memory file, made by `compress`. Several VMs can
/// be restored from it, at the same time and one after the other.
///
/// Pages near a fault are restored with it. In the background all memory is restored, and the VM then needs trueno-zram no
/// longer. Memory that a balloon gives back comes back as zeros. A page that is damaged never shows other bytes to the guest. One
/// whose index lies about it is found out after the guest has it, unless --verify says otherwise; the VM is then ended.
///
/// A VMM whose memory is not complete is ended (SIGKILL) if it cannot be served: on an error, when trueno-zram is ended by
/// a signal, and if it still waits when no more VMs are served. If trueno-zram itself is killed by SIGKILL or crashes, the VMM waits
/// for ever: end both together. The VMM itself should connect: of the memory of another process, what is missing is poisoned.
///
/// --uffd runs until it is ended by a signal, or with --vms N until N VMs have ended. SIGUSR1 prints the latencies of faults.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("mode").required(true))]
pub(crate) struct Args {
    /// The archive of the memory, or a delta.
    #[arg(value_name = "ARCHIVE")]
    archive: PathBuf,
    /// Serve VMs. The socket to listen on; it is created, and only its owner may connect.
    #[arg(long, value_name = "SOCKET", group = "mode")]
    uffd: Option<PathBuf>,
    /// Write a core file.
    #[arg(long, requires = "output", group = "mode")]
    elf_core: bool,
    /// The core file; `-` is standard output.
    #[arg(short, long, value_name = "FILE", requires = "elf_core")]
    output: Option<PathBuf>,
    #[command(flatten)]
    bases: BasesArgs,
    /// End after this many VMs. Connections that send nothing in time do not count, and do not change the exit code.
    #[arg(long, value_name = "N", value_parser = parse_whole::<NonZeroUsize>)]
    vms: Option<NonZeroUsize>,
    /// Restore only what is touched, and what --prefetch names.
    #[arg(long)]
    no_fill: bool,
    /// The block around a fault that is restored with it; 0 for the page alone.
    #[arg(long, value_name = "BYTES", value_parser = parse_number, default_value = "64K")]
    around: u64,
    /// Microseconds to look for the next fault before sleeping. Waking up takes some 40 us on an idle core.
    #[arg(long, value_name = "US", value_parser = parse_whole::<u64>, default_value = "500")]
    spin: u64,
    /// The proof of pages that comes before they are used, rather than afterwards.
    #[arg(long, value_enum, default_value_t = VerifyPolicy::Touched)]
    verify: VerifyPolicy,
    /// The treatment of a VM that touches a damaged page [default: poison]. Given explicitly, `poison` also lets a VM go on that
    /// has pages whose proof failed later.
    #[arg(long, value_enum)]
    on_damage: Option<DamagePolicy>,
    /// Write the order in which VMs first touch their memory to FILE. Implies --no-fill.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Restore what FILE lists first. It may be the one of --record, which then keeps its lines.
    #[arg(long, value_name = "FILE")]
    prefetch: Option<PathBuf>,
    /// Read the archive into memory first: no fault waits for a disk, and the file may change meanwhile.
    #[arg(long)]
    in_memory: bool,
    /// Restore from an archive without block checksums, whose damage would not be noticed; overwrite the core file.
    #[arg(short, long)]
    force: bool,
}

/// The treatment of damaged pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum DamagePolicy {
    /// The access fails as on broken memory; the VM or process is ended where the kernel cannot do that (before Linux 6.6).
    Poison,
    /// The VM or process is ended.
    Kill,
}

impl DamagePolicy {
    /// Returns options with the treatment of damage that was asked for.
    pub(super) fn apply(asked: Option<Self>, options: RestoreOptions) -> RestoreOptions {
        match asked {
            None => options,
            Some(Self::Kill) => options.with_on_damage(OnDamage::Kill),
            Some(Self::Poison) => options.with_on_damage(OnDamage::Poison).with_on_disproof(OnDisproof::GoOn),
        }
    }
}

/// Memory that is no longer served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Restored {
    /// Nothing in it is known to be other than it was saved.
    AsSaved,
    /// It has pages whose proof failed, or could not be read.
    Unproven,
}

/// The JSON object of a VM, or of processes.
#[derive(Debug, Serialize)]
struct RestoreObject<'a> {
    file: &'a str,
    memory_bytes: u64,
    faults: u64,
    copied_bytes: u64,
    zero_bytes: u64,
    removed_bytes: u64,
    poisoned: u64,
    disproven_pages: u64,
    unproven: bool,
    complete: bool,
    first_touches: LatencyObject,
    later_touches: LatencyObject,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_kind: Option<FailureKind>,
}

const COMMAND: &str = "restore";

/// Runs `trueno-zram restore`.
pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    if global.json {
        needed_files::check_stdout(std::slice::from_ref(&args.archive), global)?;
    }
    match (&args.uffd, &args.output) {
        (Some(socket), _) => uffd::run(args, socket, global),
        (_, Some(output)) => elf_core::run(args, output, global),
        (None, None) => Err(Failure::usage("give --uffd or --elf-core")),
    }
}

/// Reports that the memory of a VM, or of processes, is no longer served.
pub(super) fn say_end(
    global: &Global,
    command: &'static str,
    ended: &str,
    file: &str,
    done: &RestoreReport,
) -> Result<Restored, Failure> {
    let RestoreReport { memory_bytes, faults, copied_bytes, zero_bytes, removed_bytes, .. } = *done;
    let RestoreReport { poisoned, disproven_pages, unproven, complete, .. } = *done;
    report::say(
        global,
        &format!(
            "{ended}: {} faults, {} copied, {} zeros of {}",
            quantity::count(faults),
            quantity::bytes(copied_bytes),
            quantity::bytes(zero_bytes),
            quantity::bytes(memory_bytes)
        ),
    );
    let problem = match (disproven_pages, unproven) {
        (0, false) => None,
        (0, true) => Some("pages that were restored could not be proven: the archive cannot be read".to_owned()),
        (pages, _) => Some(format!("the proof of {} that were restored has failed", quantity::pages(pages))),
    };
    if let Some(problem) = &problem {
        messages::problem(format_args!("{file}: {problem}"));
    }
    let object = RestoreObject {
        file,
        memory_bytes,
        faults,
        copied_bytes,
        zero_bytes,
        removed_bytes,
        poisoned,
        disproven_pages,
        unproven,
        complete,
        first_touches: (&done.latencies.first).into(),
        later_touches: (&done.latencies.later).into(),
        error: problem.as_deref(),
        error_kind: problem.as_ref().map(|_| FailureKind::Damaged),
    };
    let (status, restored) = match problem {
        None => (json::Status::Ok, Restored::AsSaved),
        Some(_) => (json::Status::Failed, Restored::Unproven),
    };
    json::print_with(global, command, status, &object)?;
    Ok(restored)
}

/// Tells of pages that cannot be restored, or are not what was saved.
pub(super) fn say_damage(name: &str, notice: &Notice<'_>) {
    match notice {
        Notice::Poisoned { page, error } => {
            messages::problem(format_args!("{name}: page {page} cannot be restored and was poisoned: {error}"));
        }
        Notice::Disproven { restored: 0, error, .. } => {
            messages::problem(format_args!("{name}: {error}; none of them was restored before"));
        }
        Notice::Disproven { restored, error, .. } => {
            messages::problem(format_args!("{name}: {error}; {restored} of them were restored before"));
        }
        Notice::Unproven { error } => {
            messages::problem(format_args!("{name}: pages that were restored cannot be proven: {error}"));
        }
        _ => {}
    }
}
