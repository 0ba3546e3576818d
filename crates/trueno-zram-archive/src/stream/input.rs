//! A window on an input stream: the bytes read ahead, and their position in the stream.

use std::io::{ErrorKind, Read};

use crate::error::{Error, Result};

/// Bytes read beyond those that are needed.
const READ_AHEAD: usize = 256 << 10;

pub(crate) struct InputWindow<R> {
    reader: R,
    /// Initialised storage; bytes `pos..end` are read and not consumed.
    storage: Vec<u8>,
    pos: usize,
    end: usize,
    /// Position of `storage[0]` in the stream.
    base: u64,
    at_end: bool,
    /// Bytes that `release` has moved.
    #[cfg(test)]
    moved_bytes: u64,
}

impl<R: Read> InputWindow<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self {
            reader,
            storage: Vec::new(),
            pos: 0,
            end: 0,
            base: 0,
            at_end: false,
            #[cfg(test)]
            moved_bytes: 0,
        }
    }

    /// Position of the next byte in the stream.
    pub(crate) fn position(&self) -> u64 {
        self.base + self.pos as u64
    }

    /// Position in the stream after the last byte read.
    pub(crate) fn end_position(&self) -> u64 {
        self.base + self.end as u64
    }

    /// The bytes that are read and not consumed.
    pub(crate) fn available(&self) -> &[u8] {
        &self.storage[self.pos..self.end]
    }

    /// Returns the position of the next byte in [`window`](Self::window).
    pub(crate) fn window_pos(&self) -> usize {
        self.pos
    }

    /// All bytes in memory, those consumed since the last [`release`](Self::release) included.
    pub(crate) fn window(&self) -> &[u8] {
        &self.storage[..self.end]
    }

    /// Reads until `len` bytes are available; returns `false` if the stream ends before.
    #[inline]
    pub(crate) fn fill_to(&mut self, len: usize) -> Result<bool> {
        if self.end - self.pos >= len { Ok(true) } else { self.read_until(len) }
    }

    #[cold]
    fn read_until(&mut self, len: usize) -> Result<bool> {
        while self.end - self.pos < len {
            if self.at_end {
                return Ok(false);
            }
            let wanted = self.pos + len + READ_AHEAD;
            // Storage grows with the bytes that are there, not with the length that is claimed.
            let target = wanted.min(2 * self.end + READ_AHEAD);
            if self.storage.len() < target {
                self.storage.resize(target, 0);
            }
            match self.reader.read(&mut self.storage[self.end..target]) {
                Ok(0) => self.at_end = true,
                Ok(count) => self.end += count.min(target - self.end),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(source) => return Err(Error::Read { at: self.end_position(), source }),
            }
        }
        Ok(true)
    }

    /// Like [`fill_to`](Self::fill_to); an early end is an error that names the part that is cut short.
    #[inline]
    pub(crate) fn require(&mut self, len: usize, within: &'static str) -> Result<&[u8]> {
        if self.fill_to(len)? {
            Ok(&self.storage[self.pos..self.pos + len])
        } else {
            Err(Error::Truncated { at: self.end_position(), page: None, within })
        }
    }

    /// Reads a little-endian 32-bit number and consumes it.
    pub(crate) fn take_u32(&mut self, within: &'static str) -> Result<u32> {
        let bytes = self.require(4, within)?;
        let number = u32::from_le_bytes(bytes.try_into().expect("four bytes"));
        self.consume(4);
        Ok(number)
    }

    /// Consumes `len` available bytes.
    pub(crate) fn consume(&mut self, len: usize) {
        assert!(len <= self.end - self.pos, "only available bytes can be consumed");
        self.pos += len;
    }

    /// Consumes `len` bytes, available or not, and calls `visit` with one part of them after the other.
    pub(crate) fn drain(&mut self, len: u64, within: &'static str, mut visit: impl FnMut(&[u8])) -> Result<()> {
        let mut left = len;
        while left > 0 {
            self.release();
            self.require(1, within)?;
            let available = self.available();
            let part = &available[..available.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
            visit(part);
            let part_len = part.len();
            self.consume(part_len);
            left -= part_len as u64;
        }
        Ok(())
    }

    /// Consumes `len` bytes, available or not.
    pub(crate) fn skip(&mut self, len: u64, within: &'static str) -> Result<()> {
        self.drain(len, within, |_| {})
    }

    /// Consumes the rest of the stream; returns its length in bytes.
    pub(crate) fn skip_rest(&mut self) -> Result<u64> {
        let start = self.position();
        while self.fill_to(1)? {
            self.consume(self.available().len());
            self.release();
        }
        Ok(self.position() - start)
    }

    /// Frees consumed bytes. Positions in the window from before are no longer valid.
    pub(crate) fn release(&mut self) {
        let left = self.end - self.pos;
        // Moving the rest costs its length, so wait until as much was consumed: the cost per input byte is constant,
        // however small the frames are.
        if left > self.pos {
            return;
        }
        self.storage.copy_within(self.pos..self.end, 0);
        #[cfg(test)]
        {
            self.moved_bytes += left as u64;
        }
        self.base += self.pos as u64;
        self.end = left;
        self.pos = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releasing_often_moves_no_more_bytes_than_the_input_has() {
        let bytes = vec![7; 3_000_000];
        let mut input = InputWindow::new(&bytes[..]);
        for number in 0..300_000 {
            input.release();
            assert_eq!(input.position(), number * 10);
            assert_eq!(input.require(10, "the test").expect("enough"), [7; 10]);
            input.consume(10);
        }
        assert!(!input.fill_to(1).expect("the end"));
        assert!(input.moved_bytes <= bytes.len() as u64, "{} bytes moved", input.moved_bytes);
        assert!(input.storage.len() <= 4 * READ_AHEAD, "{} bytes held", input.storage.len());
    }

    #[test]
    fn a_claimed_length_sets_no_memory_aside() {
        let mut input = InputWindow::new(&[1, 2, 3][..]);
        assert!(!input.fill_to(1 << 30).expect("a short stream"));
        assert!(input.storage.len() <= 2 * READ_AHEAD, "{} bytes for 3", input.storage.len());
    }
}
