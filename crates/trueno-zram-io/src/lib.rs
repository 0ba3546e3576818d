//! Pipelines for page archives: files, devices, pipes and processes in; archives and restored images out.
//!
//! - [`ArchiveOpener`] opens archives and deltas by path, and finds the bases of deltas.
//! - [`Input`] opens a file, a device or a pipe; [`FileSource`] reads it as pages, and skips holes.
//! - [`compress`] turns a [`PageSource`] into an archive. Ranges are claimed under a lock and read outside it; lanes read,
//!   compress and assemble blocks side by side, and write them at preassigned offsets.
//! - [`compress_delta`] turns one into a delta: only pages that a base does not have. [`restore_pages`] restores it, and
//!   [`restore_ranges`] parts of it or of an archive.
//! - [`restore`] turns an archive, or any other .lz4 file, into its content, which a [`Sink`] takes; [`salvage`] does the
//!   same with what is left of a damaged one.
//! - [`Output`] is standard output, a device, or a new file that gets its name once it is complete.
//! - [`UnixSocket`] is a listening socket that has its path to itself.
//! - [`MappedFile`] reads archives page by page, without a system call for each.
//! - [`Timeline`] tells where the time of a pipeline went.
//!
//! Threads belong to the caller: on the CPU, lanes run on the rayon pool they are given. With a GPU, as many lanes run on
//! threads of their own, since its compressor may need the pool, and one more thread drives the GPU. Restoring a stream
//! takes one more thread that writes.
//!
//! ```
//! use trueno_zram_archive::WriteOptions;
//! use trueno_zram_core::{Algorithm, PageCodec};
//! use trueno_zram_io::{Compressors, Input, PageSource, compress};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("image");
//! std::fs::write(&path, vec![7; 100_000])?;
//! let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build()?;
//! let mut codecs = [PageCodec::new(Algorithm::Lz4)?, PageCodec::new(Algorithm::Lz4)?];
//! let source = Input::open(&path)?.into_pages();
//! let options = WriteOptions::default().with_content_len(source.len_bytes());
//! let done = compress(source, (Vec::new(), "memory"), options, Compressors::Lanes(&mut codecs), &pool, &())?;
//! assert_eq!(done.summary.content_len, 100_000);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

mod archives;
mod compress;
mod error;
mod files;
mod input;
pub mod interrupt;
mod mapping;
mod output;
mod pipeline;
mod restore;

pub use archives::archive_opener::{ArchiveChain, ArchiveOpener, ChainFile};
pub use archives::mapped_file::MappedFile;
pub use archives::unchanged_file::FileChanged;
pub use compress::{Base, Compressed, CompressedDelta, Compressors, Gpu, compress, compress_delta};
pub use error::{Error, Operation, Refusal, Result, STANDARD_INPUT, STANDARD_OUTPUT, os_text};
pub use files::file_system::mapping_page_bytes;
pub use files::regular_file::{FileId, open_regular_file};
pub use files::standard_streams::{check_stdout_written, stdout_file_metadata, was_closed_at_start};
pub use files::unix_socket::{SocketRefusal, UnixSocket};
pub use input::Input;
pub use input::lease::{OpenForWriting, ReservedInput};
pub use input::page_source::{Claim, ClaimedRange, FileSource, NamedArchive, PageSource};
pub use input::process_memory::read_process_memory;
pub use mapping::bus_error::MappingGuard;
pub use output::existing_file::ExistingFile;
pub use output::owner_and_mode::Warning;
pub use output::positional_file::PositionalFile;
pub use output::spool::Spool;
pub use output::{ArchiveOutput, Output, OutputOptions, OutputTarget};
pub use pipeline::timeline::{Stage, Timeline};
pub use restore::{Decoders, Discard, Salvaged, Sink, WriteMode, restore, restore_pages, restore_ranges, salvage};

use std::time::Duration;

/// Follows a pipeline: how much is done, out of how much. `()` ignores everything.
pub trait Observer: Sync {
    /// The length of the content, once it is known.
    fn total(&self, _content_bytes: Option<u64>) {}

    /// Bytes of content done so far, and the bytes of archive that hold them.
    fn progress(&self, _content_bytes: u64, _archive_bytes: u64) {}

    /// The time that a thread spent on a stage.
    fn spent(&self, _stage: Stage, _time: Duration) {}
}

impl Observer for () {}
