//! VMs that run while their memory is restored: the VMM's message, its regions, one handler per VM, and the background fill.

mod fill;
mod handler;
mod handshake;
mod proof;
mod regions;
mod restore;
mod session;
mod touches;
mod vmms;

pub use restore::LazyRestore;
pub use touches::Touches;
