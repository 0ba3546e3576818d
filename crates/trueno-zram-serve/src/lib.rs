//! Serves compressed memory and page archives as block devices.
//!
//! An [`Export`] is a device. [`nbd`] serves exports to clients of the network block device protocol: qemu, nbdcopy, fio and
//! the kernel. `vhost_user` serves them to virtual machines as virtio devices, and `ublk` to this machine's kernel. [`control`]
//! reports their statistics, and saves and loads them. [`keeper`] lets their memory outlive the server.
#![deny(unsafe_code)]

pub mod control;
pub mod keeper;
pub mod nbd;
#[cfg(all(feature = "ublk", target_os = "linux"))]
pub mod ublk;
#[cfg(feature = "vhost-user")]
pub mod vhost_user;

mod archive_export;
mod chunks;
mod endpoint;
mod export;
mod peer;
mod server;

pub use archive_export::ArchiveExport;
pub use endpoint::Endpoint;
pub use export::{Export, ExportError, ExportIo, Extent, StoreExport};

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
