//! The entry of a server in the list that `stat` shows.

use std::io;
use std::path::PathBuf;

use trueno_zram_serve::registry::{Registry, RegistryEntry, ServerRecord};

use super::Args;
use crate::args::Global;
use crate::print::report;

/// Enters this server into the list that `stat` shows. A server that cannot be listed serves all the same.
pub(super) fn enter(
    args: &Args,
    nbd: &[String],
    ublk: Option<&str>,
    size_bytes: u64,
    global: &Global,
) -> Option<RegistryEntry> {
    let folder = Registry::folder_of_user()?;
    let whole = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
    let vhost_user = args.vhost_user.iter().map(|path| format!("vhost-user:{}", whole(path).display()));
    let addresses = nbd.iter().cloned().chain(vhost_user).chain(ublk.map(str::to_owned)).collect();
    let mut record = ServerRecord::new(&args.name, size_bytes).with_addresses(addresses);
    if let Some(control) = &args.control {
        record = record.with_control(whole(control));
    }
    let entered = Registry::open(&folder).and_then(|registry| registry.enter(&record));
    let warn = |error: &io::Error| {
        report::warn(global, &folder.display().to_string(), &format!("stat will not list this server: {error}"));
    };
    entered.inspect_err(warn).ok()
}
