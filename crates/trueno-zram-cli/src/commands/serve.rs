//! `trueno-zram serve`.

mod block_device;
mod memory;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use serde::Serialize;
use trueno_zram_archive::Pages;
use trueno_zram_core::cpu::InstructionSet;
use trueno_zram_core::{Algorithm, CpuBatchCompressor, PAGE_SIZE, build_pool};
use trueno_zram_io::{ArchiveChain, Input};
use trueno_zram_serve::control::{ControlLimits, ControlServer, ServedStore};
use trueno_zram_serve::keeper::{self, Claim, Keeper, KeeperError};
use trueno_zram_serve::nbd::{Exports, NbdLimits, NbdServer};
use trueno_zram_serve::vhost_user::VhostUserServer;
use trueno_zram_serve::{ArchiveExport, Endpoint, Export, StoreExport};
use trueno_zram_store::{Maintenance, MaintenanceOptions, RecompressOptions, Store, StoreOptions};

use crate::args::{Global, ranges::parse_number};
use crate::engine::Engine;
use crate::failure::Failure;
use crate::files::{
    delta::BasesArgs,
    needed_files::{self, NeededFiles},
    restore::open_failure,
};
use crate::print::{json, quantity, report};
use block_device::BlockDevice;

/// Serve compressed memory as a block device, until the process is ended.
///
/// The device is RAM: its content is lost with the server, unless a keeper or systemd holds the memory, or `save` wrote it
/// to an archive.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Serve this page archive or delta instead of empty memory: read-only. It can also be written, with --overlay.
    #[arg(value_name = "ARCHIVE", conflicts_with = "load")]
    archive: Option<PathBuf>,
    #[command(flatten)]
    bases: BasesArgs,
    /// Accept writes, and keep them in memory. The archive is not changed; `save` writes both as one.
    #[arg(long, requires = "archive")]
    overlay: bool,
    /// Length of the device, such as 8G or 512M. With --overlay, that of the archive unless it is longer.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, required_unless_present_any = ["keeper", "archive"])]
    size: Option<u64>,
    /// The most memory for compressed pages. Writes that do not fit get ENOSPC.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    limit: Option<u64>,
    /// The algorithm that compresses pages when they are written: lz4, zstd, zstd:LEVEL or none.
    #[arg(long, value_name = "NAME", default_value_t = Algorithm::Lz4)]
    algorithm: Algorithm,
    /// Serve NBD on unix:PATH or tcp:HOST:PORT. TCP is for the loopback interface, unless --allow-remote is given.
    #[arg(long, value_name = "ADDRESS", required_unless_present_any = ["keeper", "vhost_user", "ublk"])]
    nbd: Vec<Endpoint>,
    /// Serve NBD beyond the loopback interface. There is no TLS and no password: whoever reaches it reads and writes everything.
    #[arg(long, requires = "nbd")]
    allow_remote: bool,
    /// Serve a virtio block device to virtual machines (vhost-user-blk) at this socket.
    #[arg(long, value_name = "PATH")]
    vhost_user: Option<PathBuf>,
    /// Make a block device of this machine, /dev/ublkbN. Needs Linux 6.5 or later, the module ublk_drv, and root.
    #[arg(long)]
    ublk: bool,
    /// Get ready for swap on the block device: lock all memory as with --lock, and print how to use it. Needs --limit.
    // Without a limit the server would lock as much memory as it frees, and with virtual machines all of theirs.
    #[arg(long, requires_all = ["ublk", "limit"], conflicts_with_all = ["archive", "vhost_user"])]
    swap: bool,
    /// Queues of the virtio device or the block device, one thread each.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: u16,
    /// The name of the export. Clients that ask for no name get it as well.
    #[arg(long, value_name = "NAME", default_value = "ram")]
    name: String,
    /// A unix socket for `stat`, `save` and `load`.
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Load this archive, or any other .lz4 or .zst file, before serving.
    #[arg(long, value_name = "FILE")]
    load: Option<PathBuf>,
    /// Take all memory up to the limit at once, and lock it. For swap.
    #[arg(long)]
    lock: bool,
    /// Recompress idle pages with this algorithm.
    #[arg(long, value_name = "NAME")]
    recompress: Option<Algorithm>,
    /// Pages that were not used for this long are idle.
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..))]
    idle: u32,
    /// The part of one core's time that recompression may take, in percent.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u8).range(1..=100))]
    recompress_cpu: u8,
    /// Have the keeper at this socket hold the memory, and attach to what it holds. Then the device outlives the server.
    // The memory does not tell which archive lies below it: attaching with another one would mix two images.
    #[arg(long, value_name = "PATH", conflicts_with = "overlay")]
    keep_in: Option<PathBuf>,
    /// Be a keeper at this socket, and serve nothing else.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["archive", "size", "nbd", "vhost_user", "ublk", "keep_in"])]
    keeper: Option<PathBuf>,
}

/// The addresses of a server, for scripts: printed once clients can connect.
#[derive(Debug, Serialize)]
struct Ready {
    size_bytes: u64,
    attached: bool,
    nbd: Vec<String>,
    /// The path of the block device.
    ublk: Option<String>,
}

/// Runs `trueno-zram serve`.
pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    if let Some(path) = &args.keeper {
        return run_keeper(path, global);
    }
    if let Some(endpoint) = args.nbd.iter().find(|endpoint| endpoint.is_remote() && !args.allow_remote) {
        return Err(Failure::usage(format!(
            "--nbd {endpoint} is beyond the loopback interface, and there is no TLS: whoever reaches it reads and writes \
             everything; --allow-remote serves it all the same"
        )));
    }
    if global.json {
        let files: Vec<PathBuf> = args.archive.iter().chain(&args.load).cloned().collect();
        needed_files::check_stdout(&files, global)?;
    }
    if args.swap {
        block_device::prepare_for_swap(global)?;
    }
    let is_read_only = args.archive.is_some() && !args.overlay;
    if is_read_only {
        refuse_options_of_memory(args)?;
    }
    let base = args.archive.as_deref().map(|path| open_archive(path, &args.bases)).transpose()?;
    if let Some(base) = base.as_ref().filter(|_| global.json) {
        NeededFiles::of_archive(&base.files).check_stdout(global)?;
    }
    let base = match base {
        Some(base) if is_read_only => {
            let export = Arc::new(ArchiveExport::new(base.archive));
            return serve(args, global, ServedDevice { export, attached: false, store: None });
        }
        base => base,
    };
    let (store, attached) = open_store(args, global, base.as_ref().map_or(0, |base| base.archive.len_bytes()))?;
    let (store, files) = match base {
        None => (store, Vec::new()),
        Some(ArchiveChain { archive, files }) => (store.with_base(archive).map_err(store_failed)?, files),
    };
    let store = Arc::new(store);
    memory::watch(&store, global)?;
    if let Some(path) = args.load.as_ref().filter(|_| attached) {
        report::warn(global, &path.display().to_string(), "not loaded: the content that was kept is served");
    }
    if let Some(path) = args.load.as_ref().filter(|_| !attached) {
        load(&store, path, global)?;
    }
    let _maintenance = start_maintenance(&store, args, global)?;
    let export = Arc::new(StoreExport::new(Arc::clone(&store)));
    let store = ServedStore::new(&args.name, store).with_files(&files);
    serve(args, global, ServedDevice { export, attached, store: Some(store) })
}

/// An archive that is served as it is has no memory to configure.
fn refuse_options_of_memory(args: &Args) -> Result<(), Failure> {
    let given = [
        ("--size", args.size.is_some()),
        ("--limit", args.limit.is_some()),
        ("--lock", args.lock),
        ("--recompress", args.recompress.is_some()),
        ("--keep-in", args.keep_in.is_some()),
        ("--control", args.control.is_some()),
    ];
    match given.iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((option, _)) => Err(Failure::usage(format!("{option} needs --overlay when an archive is served"))),
    }
}

/// Opens an archive with its bases. Their paths are whole: clients of the control socket run in other folders.
fn open_archive(path: &Path, bases: &BasesArgs) -> Result<ArchiveChain, Failure> {
    let opened = bases.opener().open_chain(path);
    match opened.map_err(|error| open_failure(&path.display().to_string(), error))? {
        Some(mut chain) => {
            for file in &mut chain.files {
                file.path = std::fs::canonicalize(&file.path).unwrap_or_else(|_| file.path.clone());
            }
            Ok(chain)
        }
        None => Err(Failure::at(path.display(), "the file has no index of pages; trueno-zram compress makes one")),
    }
}

fn store_failed(error: trueno_zram_store::Error) -> Failure {
    Failure::at("the store", describe(&error))
}

/// A device to serve.
struct ServedDevice {
    export: Arc<dyn Export>,
    /// `true` if the memory was kept from an earlier server.
    attached: bool,
    /// The store for `stat`, `save` and `load`.
    store: Option<ServedStore>,
}

/// Serves an export on all sockets that the arguments name. Never returns but for an error.
fn serve(args: &Args, global: &Global, served: ServedDevice) -> Result<ExitCode, Failure> {
    let ServedDevice { export, attached, store } = served;
    let mut servers = Vec::new();
    for endpoint in &args.nbd {
        let exports = Exports::new().with(&args.name, Arc::clone(&export));
        let server = NbdServer::start(endpoint, exports, NbdLimits::default());
        servers.push(server.map_err(|error| Failure::io(endpoint, &error))?);
    }
    let _device = match &args.vhost_user {
        None => None,
        Some(path) => {
            let device = VhostUserServer::start(path, &export, args.queues);
            let device = device.map_err(|error| Failure::io(path.display(), &error))?;
            report::say(global, &format!("virtio device with {} queues on {}", args.queues, path.display()));
            Some(device)
        }
    };
    let _control = match (&args.control, store) {
        (Some(path), Some(store)) => {
            let server = ControlServer::start(path, vec![store], ControlLimits::default())
                .map_err(|error| Failure::io(path.display(), &error))?;
            Some(server)
        }
        _ => None,
    };
    let block_device = if args.ublk { Some(BlockDevice::start(args, global, &export)?) } else { None };
    let addresses: Result<Vec<_>, _> = servers.iter().map(NbdServer::endpoint).collect();
    let addresses = addresses.map_err(|error| Failure::io("--nbd", &error))?;
    keeper::systemd_ready();
    let size = quantity::bytes(export.size_bytes());
    for address in &addresses {
        report::say(global, &format!("serving {size} as `{}` on {address}", args.name));
    }
    let nbd = addresses.iter().map(ToString::to_string).collect();
    let ready =
        Ready { size_bytes: export.size_bytes(), attached, nbd, ublk: block_device.as_ref().map(BlockDevice::path) };
    json::print(global, "serve", &ready)?;
    if let Some(device) = block_device {
        return Err(device.wait());
    }
    // Signals end the process. Everything else happens in other threads.
    loop {
        std::thread::park();
    }
}

fn run_keeper(path: &Path, global: &Global) -> Result<ExitCode, Failure> {
    let keeper = Keeper::bind(path).map_err(|error| Failure::io(path.display(), &error))?;
    keeper::systemd_ready();
    report::say(global, &format!("keeping stores at {}", path.display()));
    match keeper.run() {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(Failure::io(path.display(), &error)),
    }
}

/// Attaches to the store that a keeper or systemd holds, or creates one and gives it to them. The store has room for
/// `base_bytes`. Returns whether it was there before.
fn open_store(args: &Args, global: &Global, base_bytes: u64) -> Result<(Store, bool), Failure> {
    let (kept, vacancy) = match &args.keep_in {
        Some(path) => match keeper::claim(path, &args.name).map_err(|error| keeper_failed(path, error))? {
            Claim::Kept(fds) => (Some(fds), None),
            Claim::Vacant(vacancy) => (None, Some((path, vacancy))),
        },
        None => (keeper::systemd_get().map_err(|error| Failure::io("systemd", &error))?, None),
    };
    let asked = args.size.unwrap_or(base_bytes);
    if asked < base_bytes {
        return Err(Failure::usage(format!("--size {asked} is less than the {base_bytes} bytes of the archive")));
    }
    let size_bytes = asked.checked_next_multiple_of(PAGE_SIZE as u64).unwrap_or(asked);
    if let Some(fds) = kept {
        let store = Store::attach(fds).map_err(|error| match error {
            trueno_zram_store::Error::InUse { .. } => {
                Failure::at(format!("`{}`", args.name), format!("{error}; end that server, or give another --name"))
            }
            other => store_failed(other),
        })?;
        if store.size_bytes() != size_bytes {
            let held = store.size_bytes();
            return Err(Failure::usage(format!("the store that is kept has {held} bytes, not {size_bytes}")));
        }
        if args.swap && !store.is_locked() {
            return Err(Failure::usage(
                "the store that is kept is not locked in memory; --swap needs one made with --lock",
            ));
        }
        return Ok((store, true));
    }
    let options = store_options(args, size_bytes);
    memory::check(&options, global)?;
    let store = Store::create(&options).map_err(store_failed)?;
    match vacancy {
        Some((path, vacancy)) => vacancy.put(store.fds()).map_err(|error| keeper_failed(path, error))?,
        None => {
            keeper::systemd_put(store.fds()).map_err(|error| Failure::io("systemd", &error))?;
        }
    }
    Ok((store, false))
}

fn keeper_failed(path: &Path, error: KeeperError) -> Failure {
    match error {
        KeeperError::Io(error) => Failure::io(path.display(), &error),
        other => Failure::at(path.display(), other),
    }
}

fn store_options(args: &Args, size_bytes: u64) -> StoreOptions {
    // Memory that is swapped to must not be swapped out itself.
    let locked = args.lock || args.swap;
    StoreOptions::new(size_bytes).with_limit_bytes(args.limit).with_algorithm(args.algorithm).with_locked(locked)
}

fn load(store: &Arc<Store>, path: &Path, global: &Global) -> Result<(), Failure> {
    let input = Input::open_nonblocking(path)?;
    let file = input.file().try_clone().map_err(|error| Failure::io(&input.name, &error))?;
    let pool = build_pool(global.threads()).map_err(|error| Failure::at("worker threads", error))?;
    let codec = CpuBatchCompressor::with_pool(Algorithm::Lz4, InstructionSet::detect(), pool);
    let mut codec = codec.map_err(|error| Failure::at("lz4", error))?;
    let loaded = store.load(file, &mut codec).map_err(|error| Failure::at(&input.name, describe(&error)))?;
    report::say(global, &format!("{}: {} loaded", input.name, quantity::bytes(loaded)));
    Ok(())
}

/// Starts the background thread. Idle pages are recompressed by a GPU where there is one, and it is not `--backend cpu`.
fn start_maintenance(store: &Arc<Store>, args: &Args, global: &Global) -> Result<Maintenance, Failure> {
    // Idle after two ticks, so pages are idle for between one and one and a half times as long as asked.
    const TICKS: u8 = 2;
    let default = RecompressOptions::default();
    let (codec, batch_pages) = match args.recompress {
        None => (None, default.batch_pages),
        Some(algorithm) => {
            let engine = Engine::in_background(global, algorithm)?;
            report::say(global, &format!("idle pages are recompressed with {algorithm}: {}", engine.describe()));
            let batch_pages = engine.background_batch_pages();
            (Some(engine.into_codec()), batch_pages)
        }
    };
    let recompress = RecompressOptions::default()
        .with_min_age(TICKS)
        .with_batch_pages(batch_pages)
        .with_cpu_percent(args.recompress_cpu);
    let options = MaintenanceOptions::default()
        .with_tick(std::time::Duration::from_secs(args.idle.into()) / u32::from(TICKS))
        .with_recompress(recompress);
    Maintenance::start(store, options, codec).map_err(store_failed)
}

/// The message of an error with those of its causes.
fn describe(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Parses a number of bytes above 0: `4096`, `512M`, `8G`.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    match parse_number(text)? {
        0 => Err("the size must not be 0".to_owned()),
        size => Ok(size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_and_not_zero() {
        assert_eq!(["1", "512m", "8GiB"].map(parse_size), [1, 512 << 20, 8 << 30].map(Ok));
        assert!(["0", "0K", "1.5G", "-1"].iter().all(|wrong| parse_size(wrong).is_err()));
    }

    #[test]
    fn memory_for_swap_is_locked() {
        let locked = |args: &[&str]| {
            let command = <Args as clap::Args>::augment_args(clap::Command::new("serve").no_binary_name(true));
            let matches =
                command.try_get_matches_from([&["--size", "8G", "--limit", "3G", "--ublk"], args].concat()).unwrap();
            store_options(&<Args as clap::FromArgMatches>::from_arg_matches(&matches).unwrap(), 8 << 30).locked
        };
        assert!(!locked(&[]) && locked(&["--lock"]) && locked(&["--swap"]));
    }
}
