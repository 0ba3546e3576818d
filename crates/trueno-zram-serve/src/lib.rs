//! Serves compressed memory as block devices.
//!
//! An [`Export`] is a device. [`nbd`] serves exports to clients of the network block device protocol: qemu, nbdcopy, fio and
//! the kernel. [`control`] tells what they hold, and saves and loads them. [`keeper`] lets their memory outlive the server.
#![forbid(unsafe_code)]

pub mod control;
pub mod keeper;
pub mod nbd;

mod chunks;
mod endpoint;
mod export;

pub use endpoint::Endpoint;
pub use export::{Export, ExportError, ExportIo, StoreExport};
