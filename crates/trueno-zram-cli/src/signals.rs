//! Signals that end the process, or ask for a report: temporary files are removed and stopped processes continued first.

use std::process::ExitCode;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use libc::{SIGPWR, SIGSTKFLT};
use signal_hook::consts::{
    SIGABRT, SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPIPE, SIGPROF, SIGQUIT, SIGSYS, SIGTERM, SIGTRAP, SIGUSR1, SIGUSR2,
    SIGVTALRM, SIGXCPU, SIGXFSZ,
};
use signal_hook::iterator::Signals;
use signal_hook::low_level::{emulate_default_handler, exit};
use trueno_zram_io::interrupt::{self, PendingActions};

pub(crate) use trueno_zram_io::interrupt::ActionId;

/// Signals that are sent to end a process, or end it unless it knows them. Not those of a thread's own fault, which cannot go on:
/// SIGSEGV, SIGBUS, SIGILL and SIGFPE.
const ENDING: [i32; 16] = [
    SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGALRM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU, SIGABRT, SIGIO, SIGPROF, SIGSYS,
    SIGTRAP, SIGPWR, SIGSTKFLT,
];

static LISTEN: Once = Once::new();

/// Called at SIGUSR1, which does not end the process then.
type Report = Arc<dyn Fn() + Send + Sync>;
static REPORT: Mutex<Option<Report>> = Mutex::new(None);

/// Starts the thread that waits for signals. Until then a signal ends the process at once.
pub(crate) fn listen() {
    LISTEN.call_once(|| {
        let (ready, is_ready) = sync_channel(1);
        // If the thread cannot start, no handler is set either.
        if std::thread::Builder::new().name("signals".into()).spawn(move || wait_for_signal(&ready)).is_ok() {
            let _ = is_ready.recv();
        }
    });
}

/// Holds signals off, to add an action or remove one together with what it is about.
pub(crate) fn hold_off() -> MutexGuard<'static, PendingActions> {
    listen();
    interrupt::pending_actions()
}

/// Makes SIGUSR1 call `report` instead of ending the process, until the result is dropped.
pub(crate) fn report_on_request(report: impl Fn() + Send + Sync + 'static) -> ReportOnRequest {
    listen();
    *lock_report() = Some(Arc::new(report));
    ReportOnRequest
}

/// SIGUSR1 ends the process again when this is dropped.
#[derive(Debug)]
pub(crate) struct ReportOnRequest;

impl Drop for ReportOnRequest {
    fn drop(&mut self) {
        *lock_report() = None;
    }
}

fn lock_report() -> MutexGuard<'static, Option<Report>> {
    REPORT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers SIGUSR1. Returns `false` if the signal ends the process.
fn answer_request(signal: i32) -> bool {
    let report = lock_report().clone();
    let Some(report) = report.filter(|_| signal == SIGUSR1) else { return false };
    // On a thread of its own: whoever reads the report may be slow, and another signal must end the process meanwhile.
    let _ = std::thread::Builder::new().name("report".into()).spawn(move || report());
    true
}

/// Makes a write beyond the limit of file sizes (`ulimit -f`) fail like any other write, rather than end the process.
pub(crate) fn survive_file_limits() {
    // Nobody looks at the flag: a signal that has a handler does not end the process. Without one, it does so as before.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
}

/// Ends the process by SIGPIPE, as if it had not been ignored. Outputs were dropped before, and left nothing behind.
pub(crate) fn end_by_broken_pipe() -> ExitCode {
    interrupt::pending_actions().run_all();
    let _ = emulate_default_handler(SIGPIPE);
    // The exit code that a shell shows for a process that the signal ended.
    ExitCode::from(128 + 13)
}

/// Sets the handlers, says so, and waits for a signal.
fn wait_for_signal(ready: &SyncSender<()>) {
    // A signal that was ignored when the process started (nohup) stays ignored.
    let real_time = libc::SIGRTMIN()..=libc::SIGRTMAX();
    let wanted = ENDING.into_iter().chain(real_time).filter(|signal| !is_ignored(*signal));
    let signals = Signals::new(wanted);
    let _ = ready.send(());
    let Ok(mut signals) = signals else { return };
    let Some(signal) = signals.forever().find(|signal| !answer_request(*signal)) else { return };
    // Never released: no file is created or renamed any more.
    let mut pending = interrupt::pending_actions();
    pending.run_all();
    // Ends the process by the same signal, so that a shell sees 128 + its number.
    let _ = emulate_default_handler(signal);
    // The library does not know what this one does by default.
    exit(128 + signal);
}

/// Returns `true` if the process was started with `signal` ignored, by the mask in `/proc/self/status`.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}
