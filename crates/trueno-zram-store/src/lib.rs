//! Holds 4 KiB pages by number in RAM, compressed.
//!
//! Like zram in the kernel, but as a library: the memory behind a block device, without the device. A [`Store`] is created
//! with a size, and optionally a limit. Each thread reads, writes and discards through its own [`StoreHandle`].
//!
//! ```
//! use std::sync::Arc;
//! use trueno_zram_store::{Store, StoreHandle, StoreOptions};
//!
//! let store = Arc::new(Store::create(&StoreOptions::new(1 << 30))?);
//! let mut handle = StoreHandle::new(&store)?;
//! let text: Vec<u8> = (0..100_000u32).flat_map(|n| (n / 7).to_le_bytes()).collect();
//! handle.write_at(0, &text)?;
//!
//! let mut back = vec![0; text.len()];
//! handle.read_at(0, &mut back)?;
//! assert_eq!(back, text);
//! assert!(store.stats().mm.mem_used_total < 200_000, "400,000 bytes take less than half of that");
//! # Ok::<(), trueno_zram_store::Error>(())
//! ```
//!
//! # Memory
//!
//! The table takes 8 bytes per page. Zero pages and pages that repeat four bytes are held in it entirely. All others take a
//! slot: a multiple of 64 bytes in a slab of slots of the same length. [`Store::compact`] moves pages together and returns
//! memory to the system. A write that would exceed the limit gets [`Error::NoSpace`] and changes nothing, if it is not
//! longer than [`MAX_UNDIVIDED_WRITE_BYTES`].
//!
//! # On top of an archive
//!
//! [`Store::with_base`] puts a store on top of a page archive: pages that were never written are read from there. So a disk image
//! can be used and changed straight from its archive.
//!
//! # Length
//!
//! [`Store::resize`] changes the length while requests go on. The table and the slabs have addresses for
//! [`StoreOptions::max_size_bytes`] from the start, which take no memory until they are used. A request either sees the new length, or
//! is waited for before pages are cut off, so that no write can reach them afterwards.
//!
//! # Surviving the process
//!
//! Table and slabs lie in memfds. While another process holds them, a new process can [`Store::attach`] after the first was
//! killed at any moment. The table alone defines the content of the store: a page is written to a slot that no entry names,
//! and then a single atomic write of its entry makes it part of the store. Everything else is rebuilt from the table.
#![deny(unsafe_code)]

mod atomic_word;
mod base;
mod error;
mod handle;
mod load;
mod maintenance;
mod mapping;
mod options;
mod request_gate;
mod resize;
mod save;
mod slots;
mod snapshot;
mod stats;
mod store;
mod table;
mod write;

pub use error::{Error, ResizeRefusal, Result};
pub use handle::{StoreHandle, ZeroPages};
pub use maintenance::{Compaction, Maintenance, MaintenanceOptions, RecompressOptions, Recompression};
pub use options::StoreOptions;
pub use snapshot::{Snapshot, SnapshotPart};
pub use stats::{IoStat, MmStat, RecompressProgress, StoreStats};
pub use store::{PageState, Store};
pub use write::MAX_UNDIVIDED_WRITE_BYTES;

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
