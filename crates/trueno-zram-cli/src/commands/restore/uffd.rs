//! `trueno-zram restore --uffd`: VMs that run while their memory is restored.

use std::fs::File;
use std::io::{self, BufReader};
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use trueno_zram_io::UnixSocket;
use trueno_zram_restore::{Ending, Error, LazyRestore, Notice, RestoreOptions, Touches};

use super::{Args, COMMAND, DamagePolicy, Restored, say_damage, say_end};
use crate::args::Global;
use crate::failure::Failure;
use crate::files::{needed_files::NeededFiles, restore::open_failure};
use crate::machine::descriptors;
use crate::print::{json, latency::LatencyLines, messages, quantity, report};
use crate::signals;

/// Descriptors of a VM: its connection, its process, its userfaultfd, an event, and a file in `/proc` for a moment.
const VM_DESCRIPTORS: usize = 5;
/// Other descriptors: the socket, three times; the connection, the process and the userfaultfd of a VMM that comes too late; the list of
/// touches, and one to spare.
const OTHER_DESCRIPTORS: usize = 8;

/// Serves VMs that connect to the socket at `path`.
pub(super) fn run(args: &Args, path: &Path, global: &Global) -> Result<ExitCode, Failure> {
    let name = args.archive.display().to_string();
    let restore = Arc::new(prepare(args, global, &name)?);
    // From here on a signal ends the VMs, rather than leave them waiting: those, too, that connect as soon as they can.
    let action = {
        let (restore, record) = (Arc::clone(&restore), args.record.clone());
        signals::hold_off().add(move || {
            restore.end_all();
            let _ = record.map(|record| write_record(&restore, &record));
        })
    };
    let socket = UnixSocket::bind_prepared(path, |socket| restore.adopt_socket(socket));
    let socket = socket.map_err(|error| Failure::io(path.display(), &error))?;
    report::say(global, &format!("{name}: listening on {}", path.display()));
    let _report = {
        let (restore, name) = (Arc::clone(&restore), name.clone());
        signals::report_on_request(move || {
            messages::lines(LatencyLines { name: &name, latencies: &restore.latencies() });
        })
    };
    let failed = AtomicBool::new(false);
    let served = restore.serve_all(socket.listener(), args.vms.map(NonZeroUsize::get), |ended| {
        // Not one of the VMs that were asked for.
        if let Err(error @ (Error::Displaced | Error::HandshakeTimeout { .. })) = &ended {
            report::warn(global, &name, &error.to_string());
            return;
        }
        let ended = ended.map_err(|error| vm_failure(&name, error)).and_then(|done| {
            if let Some(record) = &args.record {
                write_record(&restore, record)?;
            }
            say_end(global, COMMAND, &format!("{name}: the VM has ended"), &name, &done)
        });
        let ended = json::report_failure_of(global, COMMAND, &args.archive, ended);
        if !matches!(ended, Ok(Restored::AsSaved)) {
            failed.store(true, Ordering::Relaxed);
        }
        if let Err(failure) = ended {
            failure.report();
        }
    });
    signals::hold_off().remove(&action);
    served.map_err(|error| Failure::io(path.display(), &error))?;
    Ok(if failed.load(Ordering::Relaxed) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The failure of a VM that was not served to its end.
fn vm_failure(name: &str, error: Error) -> Failure {
    let is_damage = matches!(error, Error::Damaged { .. } | Error::Disproven { .. } | Error::Unproven { .. });
    if is_damage { Failure::damaged(name, error) } else { Failure::at(name, error) }
}

/// Opens the archive, and the list of touches.
fn prepare(args: &Args, global: &Global, name: &str) -> Result<LazyRestore, Failure> {
    let start = Instant::now();
    let opener = args.bases.lazy_opener().with_files_in_memory(args.in_memory).with_verify(args.verify.into());
    let chain = opener.open_chain(&args.archive);
    let chain = chain.map_err(|error| open_failure(name, error))?;
    let chain = chain.ok_or_else(|| {
        Failure::at(
            name,
            "it has no index; only archives that `trueno-zram compress` makes can be restored page by page",
        )
    })?;
    if let Some(record) = &args.record {
        NeededFiles::of_archive(&chain.files).check_output(record)?;
    }
    if global.json {
        NeededFiles::of_archive(&chain.files).check_stdout(global)?;
    }
    let archive = chain.archive;
    if args.in_memory && global.verbose > 0 {
        report::say(global, &format!("{name}: read into memory in {}", quantity::time(start.elapsed())));
    }
    if !args.force && !archive.notices_damage() {
        return Err(Failure::at(
            name,
            "it has no block checksums: damage would not be noticed; -f restores it all the same",
        ));
    }
    let options = RestoreOptions::default()
        .with_around_bytes(args.around)
        .with_spin(Duration::from_micros(args.spin))
        .with_background_fill(!args.no_fill && args.record.is_none())
        .with_workers(global.threads())
        .with_vms_at_a_time(vms_at_a_time(name)?);
    let options = DamagePolicy::apply(args.on_damage, options);
    let mut restore = LazyRestore::new(archive, options).on_notice(notices(global, name));
    if let Some(path) = &args.prefetch {
        restore = restore.prefetch(read_touches(path, args.record.as_deref())?);
    }
    if args.record.is_some() {
        restore = restore.record();
    }
    Ok(restore)
}

/// Returns how many VMs can be restored at the same time. Without enough descriptors, a VMM could neither be served nor ended.
fn vms_at_a_time(name: &str) -> Result<NonZeroUsize, Failure> {
    descriptors::raise_limit();
    let left = descriptors::left();
    let vms = NonZeroUsize::new(left.saturating_sub(OTHER_DESCRIPTORS) / VM_DESCRIPTORS);
    vms.map(|vms| vms.min(RestoreOptions::default().vms_at_a_time)).ok_or_else(|| {
        let needed = OTHER_DESCRIPTORS + VM_DESCRIPTORS;
        Failure::at(name, format!("restoring a VM opens {needed} files, but only {left} more may be open (ulimit -n)"))
    })
}

/// Reads a list of touches. The one that is about to be recorded may not exist yet.
fn read_touches(path: &Path, record: Option<&Path>) -> Result<Touches, Failure> {
    match File::open(path) {
        Ok(file) => Touches::read(BufReader::new(file)).map_err(|error| Failure::at(path.display(), error)),
        Err(error) if error.kind() == io::ErrorKind::NotFound && record == Some(path) => Ok(Touches::default()),
        Err(error) => Err(Failure::io(path.display(), &error)),
    }
}

/// Replaces the list of touches as a whole.
fn write_record(restore: &LazyRestore, path: &Path) -> Result<(), Failure> {
    let failure = |error: &io::Error| Failure::io(path.display(), error);
    let Some(touches) = restore.recorded() else { return Ok(()) };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(|error| failure(&error))?;
    touches.write(&mut file).map_err(|error| failure(&error))?;
    file.persist(path).map_err(|error| failure(&error.error))?;
    Ok(())
}

/// Prints what happens while VMs run.
fn notices(global: &Global, name: &str) -> impl Fn(Notice<'_>) + Send + Sync + use<> {
    let (global, name) = (global.clone(), name.to_owned());
    move |notice| match notice {
        Notice::Connected { regions, memory_bytes } if global.verbose > 0 => {
            let memory = quantity::bytes(memory_bytes);
            report::say(&global, &format!("{name}: a VM with {memory} in {regions} regions"));
        }
        Notice::Complete if global.verbose > 0 => report::say(&global, &format!("{name}: all memory is restored")),
        Notice::FillStopped => {
            report::warn(&global, &name, "memory is short: the rest is restored when it is touched");
        }
        Notice::Ended(Ending::Killed) => {
            report::warn(&global, &name, "a VMM was ended (SIGKILL): its memory could not be restored");
        }
        Notice::Ended(Ending::Poisoned) => {
            messages::problem(format_args!(
                "{name}: a VM could not be ended: its memory is not that of the process that connected, or that must not be signalled; what \
                 is missing was poisoned"
            ));
        }
        Notice::Ended(Ending::Unprotected) => {
            messages::problem(format_args!(
                "{name}: a VM could not be ended, and what is missing in its memory could not be poisoned: end it, or it sees zeros"
            ));
        }
        Notice::Crowded { vms_at_a_time } => {
            let problem = format!("{vms_at_a_time} VMs are restored at a time: another one waits until one has ended");
            report::warn(&global, &name, &problem);
        }
        _ => say_damage(&name, &notice),
    }
}
