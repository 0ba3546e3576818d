//! A stream of bytes into an archive, in one call.

use std::io::{self, Read, Write};

use trueno_zram_core::{Algorithm, AlignedPages, CpuBatchCompressor, PAGE_SIZE};

use crate::error::{Error, Result};
use crate::format::Format;
use crate::hashes::content_hash::ContentHash;
use crate::write::options::{WriteOptions, WriteSummary};
use crate::write::writer::ArchiveWriter;

/// Pages that are read and compressed at a time: 16 MiB.
const BATCH_PAGES: usize = 4096;

/// The level of Zstandard pages. A higher one gains little on pages of 4 KiB.
const ZSTD_LEVEL: i32 = 3;

/// Compresses all of `input` into an archive, which is written to `out`. Pages are compressed on all cores; reading and writing
/// happen on the calling thread. `trueno-zram-io` overlaps them.
///
/// ```
/// use trueno_zram_archive::{Format, WriteOptions, compress};
/// let options = WriteOptions::default().with_format(Format::Zstd);
/// let mut archive = Vec::new();
/// let summary = compress(&[7; 100_000][..], &mut archive, &options)?;
/// assert_eq!((summary.content_len, summary.archive_len), (100_000, archive.len() as u64));
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
///
/// # Errors
/// [`Error::Read`] for the input, [`Error::Write`] for the output; [`Error::Misuse`] if the input does not have the
/// [announced length](WriteOptions::content_len).
pub fn compress(mut input: impl Read, out: impl Write, options: &WriteOptions) -> Result<WriteSummary> {
    options.format.check_supported()?;
    let algorithm = match options.format {
        Format::Lz4 => Algorithm::Lz4,
        Format::Zstd => Algorithm::Zstd { level: ZSTD_LEVEL },
    };
    let failed = |error| Error::Source(Box::new(error));
    let mut compressor = CpuBatchCompressor::new(algorithm).map_err(failed)?;
    let mut archive = ArchiveWriter::new(out, *options)?;
    let mut hash = options.content_checksum.then(ContentHash::new);
    let (mut buffer, mut at) = (AlignedPages::new(BATCH_PAGES), 0);
    loop {
        let len = fill(&mut input, buffer.as_flattened_mut()).map_err(|source| Error::Read { at, source })?;
        let (pages, tail) = (&buffer[..len / PAGE_SIZE], &buffer.as_flattened()[len - len % PAGE_SIZE..len]);
        if let Some(hash) = &mut hash {
            hash.update(&buffer.as_flattened()[..len]);
        }
        archive.write_batch_of(&compressor.compress(pages).map_err(failed)?, pages)?;
        at += len as u64;
        if len < BATCH_PAGES * PAGE_SIZE {
            archive.write_tail(tail)?;
            return archive.finish(hash).map(|(_, summary)| summary);
        }
    }
}

/// Reads until `bytes` is full or the input ends. Returns how many bytes were read.
fn fill(input: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match input.read(&mut bytes[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
