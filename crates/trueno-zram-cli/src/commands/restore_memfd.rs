//! `trueno-zram restore --memfd`: fills files that other programs hand over.

use std::fs::File;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use trueno_zram_io::UnixSocket;
use trueno_zram_restore::{accept_next, receive_file};

use crate::args::Global;
use crate::delta::BasesArgs;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::fill;
use crate::input::Input;
use crate::json;
use crate::report::{self, Report};

/// How long a program may take to send its file, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Fills the files that come over the socket, one after the other: each takes all cores.
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
    let mut engine = Engine::choose(global)?;
    report::say_engine(global, &engine);
    let socket = UnixSocket::bind(path).map_err(|error| Failure::io(path.display(), &error))?;
    report::say(global, &format!("{name}: listening on {}", path.display()));
    let mut code = ExitCode::SUCCESS;
    for _ in 0..count.map_or(usize::MAX, NonZeroUsize::get) {
        let accepted = accept_next(|| socket.listener().accept());
        let (stream, _) = accepted.map_err(|error| Failure::io(path.display(), &error))?;
        let filled = serve(&stream, (archive, bases), &mut engine, global);
        if let Err(failure) = json::tracked(global, "restore", archive, filled) {
            failure.report();
            code = ExitCode::FAILURE;
        }
    }
    Ok(code)
}

/// Fills the file of one program, and tells it.
fn serve(
    stream: &UnixStream,
    (archive, bases): (&Path, &BasesArgs),
    engine: &mut Engine,
    global: &Global,
) -> Result<(), Failure> {
    let filled = receive_file(stream, PATIENCE)
        .map_err(|error| Failure::at(archive.display(), error))
        .and_then(|file| fill_file(file, (archive, bases), engine, global));
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
    let filled = fill::fill((&input, delta.as_ref()), file, "the file that was handed over", engine, global)?;
    let report = Report { command: "restore", ..filled };
    report::say(global, &format!("{}: {} bytes restored into a file", input.name, report.bytes_out));
    report::print_json(global, &report)?;
    Ok(report.bytes_out)
}
