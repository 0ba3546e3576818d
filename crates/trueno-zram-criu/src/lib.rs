//! [CRIU]'s image directories with compressed pages, and lazy restore of processes from them.
//!
//! `criu dump` writes the memory of processes to `pages-N.img`, and its addresses to `pagemap-PID.img`.
//! Compressed into page archives, the memory takes a third of the space, and any page can still be read alone.
//!
//! - [`Pagemap`] reads and writes `pagemap-PID.img`.
//! - [`ImageDir`] knows the files of a directory: plain pages, or archives of them.
//! - [`LazyPages`] takes the place of `criu lazy-pages`: it fills the memory of restored processes itself, from many threads.
//! - [`LazyDir`] is the directory that `criu restore --lazy-pages` starts from.
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
