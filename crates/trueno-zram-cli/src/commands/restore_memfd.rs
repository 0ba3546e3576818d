//! `trueno-zram restore --memfd`: fills files that other programs hand over.

use std::fs::File;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use trueno_zram_connections::serve_each;
use trueno_zram_io::{Input, UnixSocket};
use trueno_zram_restore::{Error, receive_file};

use crate::args::Global;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::files::{delta::BasesArgs, in_place};
use crate::print::{
    json,
    report::{self, Report},
};

/// How long a program may take to send its file, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Fills the files that come over the socket, one after the other: each takes all cores. Programs that have not sent theirs yet
/// do not keep others waiting.
pub(crate) fn run(
    (archive, bases): (&Path, &BasesArgs),
    path: &Path,
    count: Option<NonZeroUsize>,
    global: &Global,
) -> Result<ExitCode, Failure> {
    let name = archive.display().to_string();
    // Fails early if there is no such archive, or a base is missing.
    let input = Input::open_at_once(archive)?;
    drop(bases.open_delta(archive, &input)?);
    drop(input);
    let engine = Engine::choose(global)?;
    report::say_engine(global, &engine);
    let socket = UnixSocket::bind(path).map_err(|error| Failure::io(path.display(), &error))?;
    report::say(global, &format!("{name}: listening on {}", path.display()));
    let (engine, failed) = (Mutex::new(engine), AtomicBool::new(false));
    let served = serve_each(socket.listener(), count.map(NonZeroUsize::get), |client| {
        let received = receive_file(client.connection(), PATIENCE);
        // A program that sends nothing does not count. One that was displaced has no use for an answer.
        let is_silent = matches!(received, Err(Error::HandshakeTimeout { .. }));
        if is_silent || !client.establish() {
            return;
        }
        let filled = serve(client.connection(), received, (archive, bases), &engine, global);
        if let Err(failure) = json::tracked(global, "restore", archive, filled) {
            failure.report();
            failed.store(true, Ordering::Relaxed);
        }
    });
    served.map_err(|error| Failure::io(path.display(), &error))?;
    Ok(if failed.load(Ordering::Relaxed) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Fills the file of one program, and tells it.
fn serve(
    stream: &UnixStream,
    received: Result<File, Error>,
    (archive, bases): (&Path, &BasesArgs),
    engine: &Mutex<Engine>,
    global: &Global,
) -> Result<(), Failure> {
    let filled = received.map_err(|error| Failure::at(archive.display(), error)).and_then(|file| {
        let mut engine = engine.lock().unwrap_or_else(PoisonError::into_inner);
        fill_file(file, (archive, bases), &mut engine, global)
    });
    let answer = match &filled {
        Ok(bytes) => format!("ok {bytes}\n"),
        Err(Failure::Usage(reason) | Failure::Failed(reason)) => format!("error {}\n", reason.replace('\n', " ")),
        Err(Failure::BrokenPipe) => "error\n".to_owned(),
    };
    let told = stream.set_write_timeout(Some(PATIENCE)).and_then(|()| (&*stream).write_all(answer.as_bytes()));
    filled?;
    told.map_err(|error: io::Error| Failure::at(archive.display(), format!("cannot answer the program: {error}")))
}

fn fill_file(
    file: File,
    (archive, bases): (&Path, &BasesArgs),
    engine: &mut Engine,
    global: &Global,
) -> Result<u64, Failure> {
    let input = Input::open_at_once(archive)?;
    let delta = bases.open_delta(archive, &input)?;
    let filled = in_place::fill((&input, delta.as_ref()), file, "the file that was handed over", engine, global)?;
    let report = Report { command: "restore", ..filled };
    report::say(global, &format!("{}: {} bytes restored into a file", input.name, report.bytes_out));
    report::print_json(global, &report)?;
    Ok(report.bytes_out)
}
