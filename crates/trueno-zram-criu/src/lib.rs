//! [CRIU]'s image directories with compressed pages, and lazy restore of processes from them.
//!
//! `criu dump` writes the memory of processes to `pages-N.img`, and its addresses to `pagemap-PID.img`.
//! Compressed into page archives, the memory takes a third of the space, and any page can still be read alone. Pages that a process
//! can run without until it touches them are **lazy**: CRIU marks them in the pagemap.
//!
//! - [`ImageDir`] knows the files of a directory: pagemaps, and their pages, which are plain or compressed.
//! - [`LazyDir`] is a directory made from it, without the lazy pages, that `criu restore --lazy-pages` starts from.
//! - [`LazyPages`] takes the place of `criu lazy-pages`: it restores the lazy pages of processes that run, from many threads.
//! - [`DumpedMemory`] is the memory that they come from.
//! - [`Pagemap`] reads and writes `pagemap-PID.img`.
//!
//! ```no_run
//! use std::os::unix::net::UnixListener;
//! use trueno_zram_criu::{DumpedMemory, ImageDir, LAZY_PAGES_SOCKET, LazyDir, LazyPages};
//! use trueno_zram_io::ArchiveOpener;
//!
//! let (images, opener) = (ImageDir::open("images".as_ref())?, ArchiveOpener::new());
//! let lazy = LazyDir::create("lazy".as_ref())?;
//! lazy.write(&images, &opener)?;
//! let memory = DumpedMemory::open(&images, &opener)?;
//! let daemon = LazyPages::new(memory, Default::default(), |notice| eprintln!("{notice:?}"))?;
//! let listener = UnixListener::bind(LAZY_PAGES_SOCKET)?;
//! LazyPages::prepare_socket(&listener)?;
//! // Now start `criu restore -D lazy -W . --lazy-pages` in this directory.
//! let report = daemon.serve(&listener)?;
//! println!("{} faults, all memory restored: {}", report.faults, report.complete);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Nothing here is trusted: pagemaps, archives and messages that are malformed are an [`Error`] that says what is wrong and
//! where. Pages of 4 KiB only.
//!
//! [CRIU]: https://criu.org
#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]

mod early_checks;
mod error;
mod image_dir;
mod lazy_dir;
mod lazy_pages;
mod memory;
mod pagemap;
mod wire;

pub use error::{Error, PagemapProblem};
pub use image_dir::{ImageDir, PagesName};
pub use lazy_dir::LazyDir;
pub use lazy_pages::{LAZY_PAGES_SOCKET, LazyPages};
pub use memory::DumpedMemory;
pub use pagemap::{Pagemap, PagemapEntry};

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
