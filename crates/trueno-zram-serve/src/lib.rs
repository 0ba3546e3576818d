//! Serves compressed memory as block devices.
//!
//! An [`Export`] is a device. [`nbd`] serves exports to clients of the network block device protocol: qemu, nbdcopy, fio and
//! the kernel.
#![forbid(unsafe_code)]

pub mod nbd;

mod endpoint;
mod export;

pub use endpoint::Endpoint;
pub use export::{Export, ExportError, ExportIo, StoreExport};
