//! A buffered connection: many requests per system call in, many replies per system call out.

use std::io::{self, Read, Write};
use std::time::Instant;

use super::linger::{LINGER, Linger};

/// Bytes read at a time at most.
const INPUT_BYTES: usize = 1 << 20;

const _: () = assert!(INPUT_BYTES >= trueno_zram_store::MAX_ATOMIC_WRITE_BYTES);

/// Replies are sent when they have reached this length, and before the server waits for the client for long.
const OUTPUT_BYTES: usize = 256 << 10;

/// Replies of this length are sent without waiting for more requests: the client has enough to do.
const ENOUGH_BYTES: usize = 32 << 10;

/// A stream that can tell whether there is something to read.
pub(super) trait Duplex: Read + Write {
    /// Reads what is there, or returns `None` if there is nothing.
    fn try_read(&mut self, bytes: &mut [u8]) -> io::Result<Option<usize>>;
}

/// Any stream. It does not tell whether there is something to read.
#[derive(Debug)]
pub(super) struct AnyStream<S>(pub(super) S);

impl<S: Read> Read for AnyStream<S> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.read(bytes)
    }
}

impl<S: Write> Write for AnyStream<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl<S: Read + Write> Duplex for AnyStream<S> {
    fn try_read(&mut self, _: &mut [u8]) -> io::Result<Option<usize>> {
        Ok(None)
    }
}

/// A connection with buffers for both directions.
#[derive(Debug)]
pub(super) struct Buffered<S> {
    stream: S,
    input: Box<[u8]>,
    /// The part of `input` that was read and not used.
    start: usize,
    end: usize,
    /// Replies that were not sent.
    pub(super) out: Vec<u8>,
    linger: Linger,
}

impl<S: Duplex> Buffered<S> {
    pub(super) fn new(stream: S) -> Self {
        let input = vec![0; INPUT_BYTES].into_boxed_slice();
        Self { stream, input, start: 0, end: 0, out: Vec::with_capacity(2 * OUTPUT_BYTES), linger: Linger::new() }
    }

    /// Waits for at least `len` bytes, and returns all that are there. Sends the replies before it waits.
    ///
    /// Returns `None` if the client is gone, and at the end of the input.
    pub(super) fn peek(&mut self, len: usize) -> io::Result<Option<&[u8]>> {
        debug_assert!(len <= INPUT_BYTES);
        while self.end - self.start < len {
            if self.input.len() - self.start < len {
                self.input.copy_within(self.start..self.end, 0);
                self.end -= self.start;
                self.start = 0;
            }
            let read = match self.read_soon()? {
                Some(read) => Ok(read),
                None => {
                    self.flush()?;
                    self.stream.read(&mut self.input[self.end..])
                }
            };
            match read {
                Ok(0) => return Ok(None),
                Ok(read) => self.end += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Some(&self.input[self.start..self.end]))
    }

    /// Waits a moment for another request while there are replies to send, if the client is likely to send one.
    fn read_soon(&mut self) -> io::Result<Option<usize>> {
        if self.out.is_empty() || self.out.len() >= ENOUGH_BYTES || !self.linger.is_due() {
            return Ok(None);
        }
        let start = Instant::now();
        loop {
            if let Some(read) = self.stream.try_read(&mut self.input[self.end..])? {
                self.linger.paid_off();
                return Ok(Some(read));
            }
            if start.elapsed() >= LINGER {
                self.linger.failed();
                return Ok(None);
            }
            // Not a yield: on a busy machine that would take much longer than the wait.
            std::hint::spin_loop();
        }
    }

    /// Takes bytes off the front of what [`peek`](Self::peek) returned.
    pub(super) fn consume(&mut self, len: usize) {
        self.start = (self.start + len).min(self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Waits for exactly `N` bytes and takes them.
    pub(super) fn take<const N: usize>(&mut self) -> io::Result<Option<[u8; N]>> {
        let taken = self.peek(N)?.and_then(|bytes| bytes.first_chunk::<N>().copied());
        if taken.is_some() {
            self.consume(N);
        }
        Ok(taken)
    }

    /// Sends the replies if they are long.
    pub(super) fn flush_if_long(&mut self) -> io::Result<()> {
        if self.out.len() >= OUTPUT_BYTES { self.flush() } else { Ok(()) }
    }

    /// Sends the replies.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if !self.out.is_empty() {
            self.stream.write_all(&self.out)?;
            self.out.clear();
            // A long read must not keep its memory for ever.
            self.out.shrink_to(8 * OUTPUT_BYTES);
        }
        Ok(())
    }
}
