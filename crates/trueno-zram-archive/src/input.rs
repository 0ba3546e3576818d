//! A window on an input stream: bytes read ahead, and where in the stream they stand.

use std::io::{ErrorKind, Read};

use crate::error::{Error, Result};

/// Bytes asked for beyond those that are needed.
const READ_AHEAD: usize = 256 << 10;

pub(crate) struct Input<R> {
    reader: R,
    /// Initialised storage; bytes `pos..end` are read and not consumed.
    storage: Vec<u8>,
    pos: usize,
    end: usize,
    /// Where `storage[0]` stands in the stream.
    base: u64,
    at_end: bool,
}

impl<R: Read> Input<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self { reader, storage: Vec::new(), pos: 0, end: 0, base: 0, at_end: false }
    }

    /// Where in the stream the next byte stands.
    pub(crate) fn position(&self) -> u64 {
        self.base + self.pos as u64
    }

    /// Where in the stream the bytes read so far end.
    pub(crate) fn end_position(&self) -> u64 {
        self.base + self.end as u64
    }

    /// What is read and not consumed.
    pub(crate) fn available(&self) -> &[u8] {
        &self.storage[self.pos..self.end]
    }

    /// The next byte's place in [`window`](Self::window).
    pub(crate) fn place(&self) -> usize {
        self.pos
    }

    /// All bytes since the last [`release`](Self::release), consumed or not.
    pub(crate) fn window(&self) -> &[u8] {
        &self.storage[..self.end]
    }

    /// Reads until `len` bytes are available; `false` if the stream ends before.
    pub(crate) fn need(&mut self, len: usize) -> Result<bool> {
        while self.end - self.pos < len {
            if self.at_end {
                return Ok(false);
            }
            let wanted = self.pos + len + READ_AHEAD;
            if self.storage.len() < wanted {
                self.storage.resize(wanted, 0);
            }
            match self.reader.read(&mut self.storage[self.end..wanted]) {
                Ok(0) => self.at_end = true,
                Ok(count) => self.end += count.min(wanted - self.end),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(source) => return Err(Error::Read { at: self.end_position(), source }),
            }
        }
        Ok(true)
    }

    /// As [`need`](Self::need); an early end is an error that says what is cut short.
    pub(crate) fn demand(&mut self, len: usize, within: &'static str) -> Result<&[u8]> {
        if self.need(len)? {
            Ok(&self.storage[self.pos..self.pos + len])
        } else {
            Err(Error::Truncated { at: self.end_position(), within })
        }
    }

    /// Goes on by `len` bytes, which must be available.
    pub(crate) fn consume(&mut self, len: usize) {
        assert!(len <= self.end - self.pos, "only what is available can be consumed");
        self.pos += len;
    }

    /// Goes on by `len` bytes, whether they are available or not.
    pub(crate) fn skip(&mut self, len: u64, within: &'static str) -> Result<()> {
        let mut left = len;
        while left > 0 {
            self.release();
            self.demand(1, within)?;
            let step = left.min(self.available().len() as u64);
            self.consume(usize::try_from(step).expect("as many as are in memory"));
            left -= step;
        }
        Ok(())
    }

    /// Lets consumed bytes go: places in the window that were noted before do not hold any more.
    pub(crate) fn release(&mut self) {
        self.storage.copy_within(self.pos..self.end, 0);
        self.base += self.pos as u64;
        self.end -= self.pos;
        self.pos = 0;
    }
}
