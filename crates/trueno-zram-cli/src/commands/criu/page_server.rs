//! `trueno-zram criu page-server`.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;
use trueno_zram_connections::{ClientConnection, serve_each};
use trueno_zram_criu::{Error, LazyDir, Memory, PageServer};

use super::{failure, open_dir};
use crate::args::{Global, parse_whole};
use crate::failure::Failure;
use crate::files::delta::BasesArgs;
use crate::print::{json, quantity, report};
use crate::signals;

/// Serve an image directory's pages to `criu lazy-pages`.
///
/// A process is restored by three commands, with the same address and port:
///
///   trueno-zram criu page-server DIR --lazy-dir LAZY --port 9999
///
///   criu lazy-pages -D LAZY --page-server --address 127.0.0.1 --port 9999
///
///   criu restore -D LAZY --lazy-pages
///
/// LAZY is made like the directory of `criu dump --lazy-pages`: the pages that a process needs before it runs, and links to all
/// other images. It is removed at the end. Do not restore from it without --lazy-pages.
///
/// CRIU's protocol has neither passwords nor encryption: whoever can connect can read the memory. A page that is damaged is
/// never sent: the process that touches it waits. Do not end the server while a process still needs it: CRIU would end too, and
/// the kernel would fill what is missing with zeros.
///
/// Runs until it is ended by a signal, or with --clients N until N clients have gone. Connections without a request do not
/// count. If there are too many of them, the oldest end.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The image directory, or one archive in it, to serve that process alone.
    #[arg(value_name = "DIR|ARCHIVE")]
    images: PathBuf,
    /// Make this directory for `criu lazy-pages` and `criu restore`; it must not exist.
    #[arg(long, value_name = "LAZY")]
    lazy_dir: Option<PathBuf>,
    /// The address to listen on. One beyond the loopback interface needs --allow-remote.
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    address: IpAddr,
    /// Listen beyond the loopback interface. There is no TLS and no password: whoever reaches it can read the memory.
    #[arg(long)]
    allow_remote: bool,
    /// The port to listen on; 0 for any free one, which is printed.
    #[arg(long, value_name = "N", value_parser = parse_whole::<u16>, default_value = "0")]
    port: u16,
    /// End after this many clients.
    #[arg(long, value_name = "N", value_parser = parse_whole::<NonZeroUsize>)]
    clients: Option<NonZeroUsize>,
    #[command(flatten)]
    bases: BasesArgs,
}

/// What a client was sent, for scripts.
#[derive(Debug, Serialize)]
struct Report<'a> {
    file: &'a str,
    memory_bytes: u64,
    replies: u64,
    sent_bytes: u64,
    closed: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    if !args.allow_remote && !args.address.to_canonical().is_loopback() {
        return Err(Failure::usage(format!(
            "--address {} is beyond the loopback interface, and there is no TLS: whoever reaches it can read the memory; \
             --allow-remote serves it all the same",
            args.address
        )));
    }
    let name = args.images.display().to_string();
    let images = open_dir(&args.images)?;
    let opener = args.bases.lazy_opener();
    let memory = Memory::open(&images, &opener).map_err(failure)?;
    let lazy = match args.lazy_dir.clone() {
        Some(path) => {
            let mut pending = signals::hold_off();
            let lazy = LazyDir::create(&path).map_err(failure)?;
            Some((lazy, pending.add(move || LazyDir::remove(&path))))
        }
        None => None,
    };
    if let Some((lazy, _)) = &lazy {
        lazy.write(&images, &opener).map_err(failure)?;
    }
    let at = SocketAddr::new(args.address, args.port);
    let listener = TcpListener::bind(at).map_err(|error| Failure::io(at, &error))?;
    let at = listener.local_addr().map_err(|error| Failure::io(at, &error))?;
    let processes = memory.processes().count();
    let bytes = quantity::bytes(memory.len_bytes());
    report::say(global, &format!("{name}: {bytes} of {processes} processes, listening on {at}"));
    let server = PageServer::new(memory, global.threads().get());
    let served = serve_all(&server, &listener, args, global, &name);
    if let Some((_, action)) = &lazy {
        signals::hold_off().remove(action);
    }
    drop(lazy);
    served.map_err(|error| Failure::io(at, &error))
}

/// Serves clients, each on a thread of its own.
fn serve_all(
    server: &PageServer,
    listener: &TcpListener,
    args: &Args,
    global: &Global,
    name: &str,
) -> io::Result<ExitCode> {
    let failed = AtomicBool::new(false);
    serve_each(listener, args.clients.map(NonZeroUsize::get), |client| {
        let ended = serve(server, client, global, name);
        if let Err(failure) = json::tracked(global, "criu", &args.images, ended) {
            failure.report();
            failed.store(true, Ordering::Relaxed);
        }
    })?;
    Ok(if failed.load(Ordering::Relaxed) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Serves one client. A connection that ends without a request is not one.
fn serve(
    server: &PageServer,
    client: &ClientConnection<'_, TcpListener>,
    global: &Global,
    name: &str,
) -> Result<(), Failure> {
    let mut stream: &TcpStream = client.connection();
    // A reply is one write; a process waits for it.
    let _ = stream.set_nodelay(true);
    let served = server.serve_client(stream, || client.establish());
    if let Err(error @ Error::Damaged { .. }) = &served {
        report::warn(global, name, &format!("{error}; the process waits there for ever: end it"));
        // If the connection ended, CRIU would end, and the kernel would fill what is missing with zeros.
        let _ = io::copy(&mut stream, &mut io::sink());
    }
    let Some(served) = served.map_err(failure)? else { return Ok(()) };
    let report = Report {
        file: name,
        memory_bytes: server.memory().len_bytes(),
        replies: served.replies,
        sent_bytes: served.pages * trueno_zram_core::PAGE_SIZE as u64,
        closed: served.closed,
    };
    let (sent, replies) = (quantity::bytes(report.sent_bytes), quantity::count(report.replies));
    report::say(global, &format!("{name}: the client has ended: {sent} sent in {replies} replies"));
    json::print(global, "criu", &report)
}
