//! A file that several threads write at preassigned offsets.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::files::file_system;
use crate::lock::lock;
use crate::output::mapped_output::MappedOutput;

/// From this many threads on, mappings of a tmpfs are faster than `pwrite` on one thread.
const MAPPING_THREADS: usize = 4;

/// Threads that populate mappings at a time. More of them wait for each other in the kernel.
const MAX_POPULATING: usize = 6;

/// The last byte of a file that other processes can truncate. It is written after all others: no earlier write restores the
/// length of the file, so a file that is long enough then was never truncated, unless another process has extended it again.
#[derive(Debug)]
pub(crate) struct LastByte {
    at: u64,
    byte: Mutex<Option<u8>>,
}

impl LastByte {
    /// The last byte of a file of `len_bytes`; none if it is empty.
    pub(crate) fn of(len_bytes: u64) -> Option<Arc<Self>> {
        let at = len_bytes.checked_sub(1)?;
        Some(Arc::new(Self { at, byte: Mutex::new(None) }))
    }

    /// Keeps the byte, if it is the last of `bytes`. Returns the others.
    pub(crate) fn cut<'a>(&self, at: u64, bytes: &'a [u8]) -> &'a [u8] {
        match bytes.split_last() {
            Some((last, others)) if at.saturating_add(others.len() as u64) == self.at => {
                *lock(&self.byte) = Some(*last);
                others
            }
            _ => bytes,
        }
    }

    /// Writes the byte, unless it is zero and was left out.
    pub(crate) fn write(&self, file: &File) -> io::Result<()> {
        let byte = lock(&self.byte).take();
        byte.map_or(Ok(()), |byte| file.write_all_at(&[byte], self.at))
    }
}

/// A regular file that is written at any position by any thread. No byte is written twice.
#[derive(Debug)]
pub struct PositionalFile {
    file: Arc<File>,
    /// Kept back, if others can make the file shorter.
    last_byte: Option<Arc<LastByte>>,
    mapping: Option<MappedOutput>,
    /// `true` if a part could not be mapped. It and the parts after it are written with `pwrite`.
    unmappable: AtomicBool,
    /// Threads that write or populate now. More would only spin on a lock of the kernel.
    active: Mutex<usize>,
    /// Notified when a thread is done.
    changed: Condvar,
}

/// A range of a file that is about to be written, piece by piece.
#[derive(Debug)]
pub(crate) struct Prepared<'a> {
    file: &'a PositionalFile,
    /// The mapping, if the range has its memory there already.
    populated: Option<&'a MappedOutput>,
}

impl Prepared<'_> {
    /// Writes all of `bytes` at `at`, within the range.
    pub(crate) fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.populated.map_or_else(|| self.file.pwrite(at, bytes), |mapping| mapping.write_at(at, bytes))
    }
}

impl PositionalFile {
    /// Prepares a new file, which nobody else writes, for this many threads.
    pub(crate) fn new(file: &Arc<File>, threads: usize) -> Self {
        let is_tmpfs = file_system::kind_of(file) == Some(file_system::TMPFS);
        let mapping = (is_tmpfs && threads >= MAPPING_THREADS).then(|| MappedOutput::new(Arc::clone(file)));
        Self { mapping, ..Self::by_pwrite(file, None) }
    }

    /// Prepares a file that others may have open as well. It is not mapped: it might become shorter.
    pub(crate) fn by_pwrite(file: &Arc<File>, last_byte: Option<Arc<LastByte>>) -> Self {
        Self {
            file: Arc::clone(file),
            last_byte,
            mapping: None,
            unmappable: AtomicBool::new(false),
            active: Mutex::new(0),
            changed: Condvar::new(),
        }
    }

    /// Returns the number of threads that should write at a time. With `pwrite`, one is as fast as many, which would wait for
    /// the lock of the file.
    pub(crate) fn writers(&self) -> usize {
        if self.mapping.is_some() { MAX_POPULATING } else { 1 }
    }

    /// Writes all of `bytes` at `at`.
    pub(crate) fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.prepare(at, bytes.len())?.write_at(at, bytes)
    }

    /// Prepares a range, all of which will be written. For a mapped file that is what takes time: better once for a long range
    /// than for each of its pieces.
    pub(crate) fn prepare(&self, at: u64, len_bytes: usize) -> io::Result<Prepared<'_>> {
        let mut populated = self.mapping.as_ref().filter(|_| !self.unmappable.load(Ordering::Relaxed));
        if let Some(mapping) = populated {
            match self.limited(|| mapping.populate(at, len_bytes)) {
                Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                    self.unmappable.store(true, Ordering::Relaxed);
                    populated = None;
                }
                prepared => prepared?,
            }
        }
        Ok(Prepared { file: self, populated })
    }

    fn pwrite(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        if let Some(mapping) = &self.mapping {
            // Beside other ranges, which are mapped.
            return mapping.pwrite_at(at, bytes);
        }
        let bytes = self.last_byte.as_ref().map_or(bytes, |last| last.cut(at, bytes));
        self.limited(|| self.file.write_all_at(bytes, at))
    }

    /// Runs `work`, on a limited number of threads at a time.
    fn limited(&self, work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let too_many = |active: &mut usize| *active >= self.writers();
        *self.changed.wait_while(lock(&self.active), too_many).unwrap_or_else(PoisonError::into_inner) += 1;
        let done = work();
        *lock(&self.active) -= 1;
        self.changed.notify_one();
        done
    }
}
