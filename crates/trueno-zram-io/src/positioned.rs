//! A file that each thread reads at a position of its own.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

/// Reads a shared file with `pread`. Seeking costs nothing, and moves nobody else.
#[derive(Clone, Copy, Debug)]
pub struct Positioned<'a> {
    file: &'a File,
    at: u64,
}

impl<'a> Positioned<'a> {
    /// Starts at the file's first byte.
    #[must_use]
    pub fn new(file: &'a File) -> Self {
        Self { file, at: 0 }
    }
}

impl Read for Positioned<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(bytes, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for Positioned<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(step) => self.at.checked_add_signed(step),
            // Block devices report no length.
            SeekFrom::End(step) => {
                let mut file = self.file;
                let before = file.stream_position()?;
                let end = file.seek(SeekFrom::End(0))?;
                file.seek(SeekFrom::Start(before))?;
                end.checked_add_signed(step)
            }
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}
