//! The pipelines from end to end: files into archives and deltas, and back, on the CPU and with the interpreter as the GPU.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod compress;
mod delta;
mod restore;
mod round_trip;

use std::io;
use std::path::PathBuf;

use rayon::ThreadPool;
use tempfile::TempDir;
use trueno_zram_archive::ContentSpan;
use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions, Interpreter};
use trueno_zram_core::{Algorithm, PAGE_SIZE, Page, PageCodec};
use trueno_zram_io::{Claim, Error, LengthChanged, Operation, PageSource, Result, Sink};

/// ENOSPC: no space left on device.
const FULL: i32 = 28;
/// EIO: input/output error.
const BROKEN: i32 = 5;

fn pool(threads: usize) -> ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap()
}

fn codecs(lanes: usize) -> Vec<PageCodec> {
    codecs_of(Algorithm::Lz4, lanes)
}

fn codecs_of(algorithm: Algorithm, lanes: usize) -> Vec<PageCodec> {
    (0..lanes).map(|_| PageCodec::new(algorithm).unwrap()).collect()
}

/// The interpreter in place of a GPU, with slots of `batch_size` pages.
fn interpreter(algorithm: Algorithm, batch_size: usize) -> GpuBatchCompressor<Interpreter> {
    let config = GpuBatchConfig { algorithm, batch_size, ring_buffer_slots: 2, ..GpuBatchConfig::default() };
    GpuBatchCompressor::interpreted(config, &GpuOptions::default()).unwrap()
}

/// The file and the system's code of a failed call.
fn failed_call(error: &Error) -> (&str, Option<i32>) {
    match error {
        Error::Io { name, source, .. } => (name, source.raw_os_error()),
        error => panic!("{error}"),
    }
}

/// The change of an input's length that an error reports.
fn length_change(error: &Error) -> LengthChanged {
    match error {
        Error::Io { source, .. } => *source.get_ref().unwrap().downcast_ref().unwrap(),
        error => panic!("{error}"),
    }
}

/// A file with this content.
fn file(content: &[u8]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    std::fs::write(&path, content).unwrap();
    (folder, path)
}

/// Takes content in order, into memory.
#[derive(Default)]
struct Memory {
    content: Vec<u8>,
    /// The number of times that an archive was not what its index says.
    restarts: usize,
    /// Fails once it has this much.
    fails_at: Option<usize>,
    /// Fails by a panic.
    panics: bool,
}

impl Sink for Memory {
    fn take(&mut self, span: ContentSpan<'_>) -> Result<()> {
        if self.fails_at.is_some_and(|limit| self.content.len() >= limit) {
            assert!(!self.panics, "this sink panics");
            return Err(Error::io("memory", Operation::Write, io::Error::from_raw_os_error(FULL)));
        }
        match span {
            ContentSpan::Data(bytes) => self.content.extend_from_slice(bytes),
            ContentSpan::Zeros(zeros) => self.content.resize(self.content.len() + usize::try_from(zeros).unwrap(), 0),
        }
        Ok(())
    }

    fn restart(&mut self) -> Result<()> {
        self.restarts += 1;
        Ok(())
    }

    fn name(&self) -> &str {
        "memory"
    }
}

/// Pages of numbers; one claim fails.
#[derive(Debug)]
struct Numbers {
    next: u8,
    fails_at: u8,
}

impl PageSource for Numbers {
    type Error = Error;

    fn len_bytes(&self) -> Option<u64> {
        None
    }

    fn claim(&mut self, buffer: &mut [Page]) -> Result<Claim> {
        if self.next == self.fails_at {
            return Err(Error::io("numbers", Operation::Read, io::Error::from_raw_os_error(BROKEN)));
        }
        if self.next == 200 {
            return Ok(Claim::End);
        }
        buffer[0].fill(self.next);
        self.next += 1;
        Ok(Claim::Filled(PAGE_SIZE))
    }

    fn sections(&mut self) -> Result<Vec<(&'static str, Vec<u8>)>> {
        Ok(vec![("note", b"two hundred pages".to_vec())])
    }
}
