//! Pipelines for page archives: compresses files, devices, pipes and processes into archives, and restores them.
//!
//! The crate `trueno-zram-archive` defines the formats, and works with bytes in memory and on one thread. This crate adds files
//! and threads: it reads, compresses and writes in parallel, skips holes, and gives a new file its name only once it is complete.
//!
//! ```
//! use trueno_zram_archive::WriteOptions;
//! use trueno_zram_core::{Algorithm, PageCodec};
//! use trueno_zram_io::{
//!     Compressors, Decoders, Input, Output, OutputOptions, OutputTarget, PageSource, Workers, compress, restore,
//! };
//!
//! # let folder = tempfile::tempdir()?;
//! # let (image, archive, copy) = (folder.path().join("image"), folder.path().join("archive"), folder.path().join("copy"));
//! std::fs::write(&image, vec![7; 100_000])?;
//! let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build()?;
//!
//! // A file to an archive, with a codec per thread. The second argument of `create`, and that of `finish`, is the metadata of the
//! // file whose permissions and times the new file gets; with `None` it has those of any new file.
//! let source = Input::open(&image)?.into_pages();
//! let output = Output::create(&OutputTarget::Path(archive.clone()), None, OutputOptions::default())?;
//! let options = WriteOptions::default().with_content_len(source.len_bytes());
//! let mut codecs = [PageCodec::new(Algorithm::Lz4)?, PageCodec::new(Algorithm::Lz4)?];
//! let done = compress(source, output, options, Compressors::Cpu(&mut codecs), Workers::new(&pool))?;
//! assert_eq!(done.summary.content_len, 100_000);
//! done.out.finish(None)?;
//!
//! // And back.
//! let mut output = Output::create(&OutputTarget::Path(copy.clone()), None, OutputOptions::default())?;
//! restore(&Input::open(&archive)?, &mut output, Decoders::Cpu, Workers::new(&pool))?;
//! output.finish(None)?;
//! assert_eq!(std::fs::read(&copy)?, vec![7; 100_000]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Reading archives
//! - [`ArchiveOpener`] opens archives and deltas by path, and finds the bases of deltas.
//! - [`restore`] restores any .lz4 or .zst file, [`restore_pages`] an archive or a delta that is open already,
//!   [`restore_ranges`] parts of it, and [`salvage`] the intact parts of a damaged file. Content goes to a [`Sink`].
//! - [`MappedFile`] reads archives page by page, without a system call for each.
//!
//! # Writing archives
//! - [`compress`] turns a [`PageSource`] into an archive, and [`compress_delta`] into a delta, which holds only the pages that a
//!   base does not have.
//! - [`Input`] opens a file, a device or a pipe; [`FileSource`] reads it as pages.
//!
//! # Files
//! - [`Output`] is standard output, a device, or a new file; [`ExistingFile`] fills a file that others have open. A [`Spool`]
//!   holds an archive until its output may be written.
//! - [`ReservedInput`] notices changes of a file that will be removed once it is read.
//! - [`UnixSocket`] is a listening socket that owns its path.
//! - [`interrupt`] removes temporary files before a signal ends the process.
//!
//! # Threads
//! Pipelines run on the thread pool of the caller, which [`Workers`] holds together with an [`Observer`]. With a GPU, lanes
//! run on as many additional threads, since its compressor may need the pool; one more thread drives the GPU, and three
//! more allocate its memory. Restoring a stream takes one more thread that writes. A [`Timeline`] records the time that
//! threads spend per stage.
#![deny(unsafe_code)]

mod archives;
mod compress;
mod error;
mod files;
#[cfg_attr(not(feature = "gpu"), path = "gpu_absent.rs")]
mod gpu;
mod input;
pub mod interrupt;
mod lock;
mod mapping;
mod output;
mod pipeline;
mod restore;
mod workers;

pub use archives::archive_opener::{ArchiveChain, ArchiveOpener, ChainFile};
pub use archives::mapped_file::MappedFile;
pub use archives::unchanged_file::FileChanged;
pub use compress::{Compressed, CompressedDelta, Compressors, DeltaBase, DeltaOptions, compress, compress_delta};
pub use error::{Error, Operation, Refusal, Result, STANDARD_INPUT, STANDARD_OUTPUT, os_text};
pub use files::file_system::mapping_page_bytes;
pub use files::regular_file::{FileId, open_regular_file};
pub use files::standard_streams::{check_stdout_written, stdout_file_metadata, was_closed_at_start};
pub use files::unix_socket::{SocketRefusal, UnixSocket};
pub use gpu::Gpu;
pub use input::lease::{OpenForWriting, ReservedInput};
pub use input::page_source::{Claim, ClaimedRange, FileSource, NamedArchive, PageSource};
pub use input::process_memory::read_process_memory;
pub use input::{Input, LengthChanged};
pub use mapping::bus_error::MappingGuard;
pub use output::existing_file::ExistingFile;
pub use output::owner_and_mode::MetadataWarning;
pub use output::positional_file::PositionalFile;
pub use output::spool::Spool;
pub use output::{ArchiveOutput, Output, OutputOptions, OutputTarget};
pub use pipeline::timeline::{Stage, Timeline};
pub use restore::{Decoders, Discard, Salvaged, Sink, WriteMode, restore, restore_pages, restore_ranges, salvage};
pub use workers::{Observer, Workers};

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
