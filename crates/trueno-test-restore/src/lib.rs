//! Shared by the tests of restoring: archives of pages, and second processes whose memory is restored.
//!
//! A test binary starts itself again as a second process: an ignored test is its body, and obeys commands.
//!
//! - [`archive_of`]: an archive in memory; [`forged`]: one whose index lies;
//! - [`replay`]: a second process that repeats what a guest touched first;
//! - [`scheduling`]: which of two threads goes on first;
//! - [`stand_in`]: a second process that obeys, seen from both sides;
//! - [`system`]: changes of memory, and children;
//! - [`userfaultfd`]: memory whose pages are missing until a handler fills them;
//! - [`vmm`]: a second process that behaves as a VMM does.
#![cfg(target_os = "linux")]

pub mod forged;
pub mod replay;
pub mod scheduling;
pub mod stand_in;
pub mod system;
pub mod userfaultfd;
pub mod vmm;

use trueno_zram_archive::{ArchiveWriter, WriteOptions};
use trueno_zram_core::{CpuBatchCompressor, Page};

/// Returns an archive of pages in the default format, without a checksum of the whole content: block checksums alone find damage.
///
/// # Panics
/// If memory runs out.
#[must_use]
pub fn archive_of(pages: &[Page]) -> Vec<u8> {
    let options = WriteOptions::default();
    let mut archive = ArchiveWriter::new(Vec::new(), options).expect("memory");
    archive.write_batch(&CpuBatchCompressor::default().compress(pages).expect("pages")).expect("memory");
    archive.finish(None).expect("memory").0
}

/// Runs the examples of the project's README as tests. This crate is not published and depends on all crates that they use.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
