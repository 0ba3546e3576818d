//! Serves compressed memory and page archives as block devices.
//!
//! An [`Export`] is a device: [`StoreExport`] holds its content in RAM, compressed, and [`ArchiveExport`] reads it from an archive.
//! Servers make exports available to others until they are dropped:
//!
//! | module | clients | needs |
//! | --- | --- | --- |
//! | [`nbd`] | qemu, nbdcopy, fio, the kernel's NBD driver: all that speak the network block device protocol | |
//! | `vhost_user` | virtual machines, as a virtio block device | feature `vhost-user` (default) |
//! | `ublk` | this machine's kernel, as `/dev/ublkbN` | feature `ublk`; Linux 6.5 and root |
//!
//! [`control`] reports the statistics of a server's stores, saves them, loads them and changes their length. [`metrics`] has the
//! statistics as OpenMetrics text, also over HTTP. [`keeper`] lets their memory outlive the server, and
//! [`registry`] lists the servers that run.
//!
//! ```
//! use std::sync::Arc;
//! use trueno_zram_serve::StoreExport;
//! use trueno_zram_serve::nbd::{Exports, NbdLimits, NbdServer};
//! use trueno_zram_store::{Store, StoreOptions};
//!
//! let store = Arc::new(Store::create(&StoreOptions::new(1 << 30))?);
//! let exports = Exports::new().with("ram", Arc::new(StoreExport::new(store)));
//! let server = NbdServer::start(&"tcp:127.0.0.1:0".parse()?, exports, NbdLimits::default())?;
//! println!("a disk of 1 GiB is at nbd://{}/ram", server.endpoint()?.to_string().trim_start_matches("tcp:"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

pub mod control;
pub mod keeper;
pub mod metrics;
pub mod nbd;
pub mod registry;
#[cfg(all(feature = "ublk", target_os = "linux"))]
pub mod ublk;
#[cfg(feature = "vhost-user")]
pub mod vhost_user;

mod archive_export;
mod chunks;
mod endpoint;
mod export;
mod peer;
mod proven_pages;
mod request_reader;
mod server;

pub use archive_export::ArchiveExport;
pub use endpoint::Endpoint;
pub use export::{Export, ExportError, ExportIo, Extent, StoreExport};
pub use proven_pages::ProvenPages;

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
