//! A new file written through memory mappings, by many threads at once.
//!
//! `pwrite` holds the lock of the file, so that several threads write no faster than one. Copies into a shared mapping
//! hold no lock. On a tmpfs with 16 cores they are 1.5 times as fast; with two cores, and on disks, `pwrite` is faster.
//!
//! A page of a mapping that the file system has no room for ends the process with SIGBUS. So pages are populated before
//! they are written: that fails with an error.
#![allow(unsafe_code, reason = "mappings are raw memory")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::ordered::lock;

/// Bytes of the file that are mapped at a time: a multiple of every page size.
const WINDOW_BYTES: usize = 64 << 20;

/// A file that is mapped window by window. A window is unmapped as soon as all of it was written.
#[derive(Debug)]
pub(crate) struct Mapping {
    file: File,
    windows: Mutex<BTreeMap<u64, Arc<Window>>>,
}

/// A part of the file in memory.
#[derive(Debug)]
struct Window {
    start: NonNull<u8>,
    /// Bytes not written yet.
    left: Mutex<usize>,
}

// SAFETY: the mapping belongs to the window alone and is unmapped with it. It is only written, through `copy_at`, whose
// caller keeps writes apart.
unsafe impl Send for Window {}
// SAFETY: as above; `copy_at` takes `&self`, and no reference to the mapped bytes is ever made.
unsafe impl Sync for Window {}

impl Mapping {
    /// A mapping of `file`, which nobody else writes or makes shorter.
    pub(crate) fn new(file: File) -> Self {
        Self { file, windows: Mutex::new(BTreeMap::new()) }
    }

    /// Has memory for the pages of a range, all of which will be written. The file grows in steps, beyond the range.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`] if the file system is full; [`io::ErrorKind::Unsupported`] if this part cannot be
    /// mapped, and has to be written in another way.
    pub(crate) fn populate(&self, at: u64, len_bytes: usize) -> io::Result<()> {
        let (mut at, mut left) = (at, len_bytes);
        while left > 0 {
            let (number, offset) = window_of(at);
            let now = left.min(WINDOW_BYTES - offset);
            self.window(number)?.populate(offset, now)?;
            at += now as u64;
            left -= now;
        }
        Ok(())
    }

    /// Writes `bytes` at `at`, in a range that was populated. No byte is written twice.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] if the range was not populated.
    pub(crate) fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let (mut at, mut rest) = (at, bytes);
        while !rest.is_empty() {
            let (number, offset) = window_of(at);
            let (now, after) = rest.split_at(rest.len().min(WINDOW_BYTES - offset));
            let window = lock(&self.windows).get(&number).map(Arc::clone).ok_or(io::ErrorKind::Unsupported)?;
            window.copy_at(offset, now);
            let mut left = lock(&window.left);
            *left -= now.len();
            if *left == 0 {
                drop(left);
                // Unmapped here, without the lock, once no other thread holds it.
                let done = lock(&self.windows).remove(&number);
                drop(done);
            }
            at += now.len() as u64;
            rest = after;
        }
        Ok(())
    }

    fn window(&self, number: u64) -> io::Result<Arc<Window>> {
        let mut windows = lock(&self.windows);
        if let Some(window) = windows.get(&number) {
            return Ok(Arc::clone(window));
        }
        let window = Arc::new(Window::map(&self.file, number)?);
        windows.insert(number, Arc::clone(&window));
        Ok(window)
    }
}

/// The window of a position, and its place there.
fn window_of(at: u64) -> (u64, usize) {
    let offset = usize::try_from(at % WINDOW_BYTES as u64).expect("less than a window");
    (at / WINDOW_BYTES as u64, offset)
}

impl Window {
    fn map(file: &File, number: u64) -> io::Result<Self> {
        let unsupported = |error: io::Error| io::Error::new(io::ErrorKind::Unsupported, error);
        let start = number.checked_mul(WINDOW_BYTES as u64).ok_or(io::ErrorKind::FileTooLarge)?;
        let end = start.checked_add(WINDOW_BYTES as u64).ok_or(io::ErrorKind::FileTooLarge)?;
        if file.metadata()?.len() < end {
            file.set_len(end).map_err(unsupported)?;
        }
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at a place that the system chooses touches no memory in use.
        let mapped = unsafe { mmap(ptr::null_mut(), WINDOW_BYTES, protection, flags, file, start) };
        let mapped = mapped.map_err(|errno| unsupported(errno.into()))?;
        let start = NonNull::new(mapped.cast()).ok_or(io::ErrorKind::Unsupported)?;
        Ok(Self { start, left: Mutex::new(WINDOW_BYTES) })
    }

    /// Has memory for the pages of a range.
    fn populate(&self, offset: usize, len_bytes: usize) -> io::Result<()> {
        assert!(offset + len_bytes <= WINDOW_BYTES, "a range ends within its window");
        let page_bytes = rustix::param::page_size();
        let first_page = offset - offset % page_bytes;
        let pages_end = (offset + len_bytes).next_multiple_of(page_bytes);
        // SAFETY: the offset is within the mapping, by the assertion.
        let pages = unsafe { self.start.add(first_page) };
        // SAFETY: the pages are within the mapping, whose length is a multiple of the page size. The call reads no memory
        // and changes none that was written.
        let populated = unsafe { madvise(pages.as_ptr().cast(), pages_end - first_page, Advice::LinuxPopulateWrite) };
        populated.map_err(|errno| match errno {
            // The kernel's answer where a write would raise SIGBUS: the file system is full.
            Errno::FAULT => io::Error::from(Errno::NOSPC),
            Errno::INVAL | Errno::NOSYS => io::Error::from(io::ErrorKind::Unsupported),
            errno => errno.into(),
        })
    }

    /// Copies `bytes` to `offset`, which no other thread does at the same time.
    fn copy_at(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= WINDOW_BYTES, "a write ends within its window");
        // SAFETY: the offset is within the mapping, by the assertion.
        let place = unsafe { self.start.add(offset) };
        // SAFETY: `place` is valid for `bytes.len()` bytes by the assertion, and mapped memory of its own. The file is
        // not made shorter while it is written, and its pages are there, since they were populated. No other thread
        // writes these bytes, and none reads them.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), place.as_ptr(), bytes.len()) };
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and nothing refers to it any more. A failure leaves it mapped.
        let _unmapped = unsafe { munmap(self.start.as_ptr().cast(), WINDOW_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn many_threads_write_across_windows() {
        let file = tempfile::tempfile().unwrap();
        let mapping = Mapping::new(file.try_clone().unwrap());
        // Pieces of an odd length, so that pages and windows are shared.
        let piece = 100_003;
        let pieces = WINDOW_BYTES / piece + 40;
        std::thread::scope(|scope| {
            for first in 0..3 {
                let mapping = &mapping;
                scope.spawn(move || {
                    for number in (first..pieces).step_by(3) {
                        let byte = u8::try_from(number % 251).unwrap();
                        mapping.populate((number * piece) as u64, piece).unwrap();
                        mapping.write_at((number * piece) as u64, &vec![byte; piece]).unwrap();
                    }
                });
            }
        });
        assert_eq!(lock(&mapping.windows).len(), 1, "the first window is complete");
        let far = mapping.write_at(5 * WINDOW_BYTES as u64, b"where nothing was populated");
        assert_eq!(far.unwrap_err().kind(), io::ErrorKind::Unsupported);
        let mut read = vec![0; piece];
        for number in 0..pieces {
            file.read_exact_at(&mut read, (number * piece) as u64).unwrap();
            assert!(read.iter().all(|byte| usize::from(*byte) == number % 251), "piece {number}");
        }
    }
}
