//! `trueno-zram criu lazy-pages`.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use trueno_zram_criu::{DumpedMemory, LAZY_PAGES_SOCKET, LazyDir, LazyPages};
use trueno_zram_io::UnixSocket;
use trueno_zram_restore::{Notice, RestoreOptions};

use super::failure;
use crate::args::{Global, verify::VerifyPolicy};
use crate::commands::restore::{DamagePolicy, Restored, say_damage, say_end};
use crate::failure::Failure;
use crate::files::delta::BasesArgs;
use crate::machine::descriptors;
use crate::print::{latency::LatencyLines, messages, quantity, report};
use crate::signals;

/// Restore processes at once, and their pages when they touch them: in place of `criu lazy-pages`.
///
/// A process is restored by two commands, run in the same directory:
///
///   trueno-zram criu lazy-pages DIR --lazy-dir LAZY
///
///   criu restore -D LAZY --lazy-pages
///
/// The second one is started once the first one listens. LAZY is made like the directory of `criu dump --lazy-pages`: the pages
/// that a process needs before it runs, and links to all other images. It is removed at the end. Do not restore from it without
/// --lazy-pages.
///
/// All memory is restored in the background, by as many threads as -T says; without it, one
/// more than there are cores. Then the command ends: processes no longer need it. What they
/// move, unmap or fork meanwhile is followed. SIGUSR1 prints the latencies of faults.
///
/// A process never sees zeros in place of a page that is missing. One whose memory is not complete is ended (SIGKILL) if it cannot
/// be restored, and when trueno-zram is ended by a signal; what children that it has forked still miss is poisoned, so that
/// touching it fails (SIGBUS). If trueno-zram itself is killed by SIGKILL, the kernel fills with zeros what is missing: end both together.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The image directory, or one archive in it, to restore that process alone.
    #[arg(value_name = "DIR|ARCHIVE")]
    images: PathBuf,
    /// Make this directory for `criu restore`; it must not exist.
    #[arg(long, value_name = "LAZY")]
    lazy_dir: PathBuf,
    /// The work directory of `criu restore` (its option -W), where the socket is made.
    #[arg(short = 'W', long, value_name = "DIR", default_value = ".")]
    work_dir: PathBuf,
    /// The proof of pages that comes before they are used, rather than afterwards.
    #[arg(long, value_enum, default_value_t = VerifyPolicy::Touched)]
    verify: VerifyPolicy,
    /// The treatment of a page that is damaged [default: poison]. Given explicitly, `poison` also lets a process go on that has
    /// pages whose proof failed later.
    #[arg(long, value_enum)]
    on_damage: Option<DamagePolicy>,
    #[command(flatten)]
    bases: BasesArgs,
}

/// Runs `trueno-zram criu lazy-pages`.
pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    // Each process takes two, and each child that it forks one.
    descriptors::raise_limit();
    let name = args.images.display().to_string();
    let images = super::open_dir(&args.images)?;
    let opener = args.bases.lazy_opener().with_verify(args.verify.into());
    let memory = DumpedMemory::open(&images, &opener).map_err(failure)?;
    let options = DamagePolicy::apply(args.on_damage, RestoreOptions::default().with_workers(workers(global)));
    let daemon = Arc::new(LazyPages::new(memory, options, notices(global, &name)).map_err(failure)?);
    let (lazy, action) = {
        // From here on a signal removes the directory, and ends the processes.
        let mut pending = signals::hold_off();
        let lazy = LazyDir::create(&args.lazy_dir).map_err(failure)?;
        let (daemon, path) = (Arc::clone(&daemon), args.lazy_dir.clone());
        let action = pending.add(move || {
            daemon.end_all();
            LazyDir::remove(&path);
        });
        (lazy, action)
    };
    let _report = {
        let (daemon, name) = (Arc::clone(&daemon), name.clone());
        signals::report_on_request(move || {
            messages::lines(LatencyLines { name: &name, latencies: &daemon.latencies() });
        })
    };
    lazy.write(&images, &opener).map_err(failure)?;
    let path = args.work_dir.join(LAZY_PAGES_SOCKET);
    let socket = UnixSocket::bind_prepared(&path, |socket| LazyPages::prepare_socket(socket));
    let socket = socket.map_err(|error| Failure::io(path.display(), &error))?;
    let (bytes, processes) = (quantity::bytes(daemon.memory().len_bytes()), daemon.memory().processes().count());
    report::say(global, &format!("{name}: {bytes} of memory, processes: {processes}, listening on {}", path.display()));
    let served = daemon.serve(socket.listener());
    signals::hold_off().remove(&action);
    drop(lazy);
    let done = served.map_err(failure)?;
    let ended = if done.complete { "all memory is restored" } else { "the processes have ended" };
    let restored = say_end(global, "criu", &format!("{name}: {ended}"), &name, &done)?;
    let is_failed = daemon.failures() > 0 || restored == Restored::Unproven;
    Ok(if is_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Threads that fill memory: as many as asked for, or one more than there are cores. They share the cores with the processes
/// and with the thread that answers faults, which both come first.
fn workers(global: &Global) -> NonZeroUsize {
    global.asked_threads().unwrap_or_else(|| global.threads().saturating_add(1))
}

/// Prints what happens while processes run.
fn notices(global: &Global, name: &str) -> impl Fn(Notice<'_>) + Send + Sync + use<> {
    let (global, name) = (global.clone(), name.to_owned());
    move |notice| match notice {
        Notice::Complete if global.verbose > 0 => {
            report::say(&global, &format!("{name}: all memory of a process is restored"));
        }
        Notice::Failed { pid, error } => {
            messages::problem(format_args!(
                "{name}: process {pid} or a child of it cannot be restored; it was ended, or fails where memory is missing: {error}"
            ));
        }
        _ => say_damage(&name, &notice),
    }
}
