//! A buffered connection: many requests per system call in, many replies per system call out.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use trueno_zram_connections::{ClientTimeout, PausedAt, time_left};

use super::linger::{LINGER, Linger};

/// Bytes read at a time at most.
const INPUT_BYTES: usize = 1 << 20;

const _: () = assert!(INPUT_BYTES >= trueno_zram_store::MAX_UNDIVIDED_WRITE_BYTES);

/// Replies are sent when they have reached this length, and before the server waits for the client for long.
const OUTPUT_BYTES: usize = 256 << 10;

/// Replies of this length are sent without waiting for more requests: the client has enough to do.
const SEND_NOW_BYTES: usize = 32 << 10;

/// A stream that may have non-blocking reads, and a time limit for blocking ones.
pub(super) trait Duplex: Read + Write {
    /// Reads bytes that have arrived. Returns `None` if there are none, or if the stream cannot tell.
    fn try_read(&mut self, _bytes: &mut [u8]) -> io::Result<Option<usize>> {
        Ok(None)
    }

    /// Makes reads fail that wait longer than this, if the stream has time limits.
    fn set_read_timeout(&mut self, _time: Duration) -> io::Result<()> {
        Ok(())
    }
}

/// Any stream. It has no non-blocking reads and no time limits.
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

impl<S: Read + Write> Duplex for AnyStream<S> {}

/// A connection with buffers for both directions.
#[derive(Debug)]
pub(super) struct BufferedStream<S> {
    stream: S,
    timeout: ClientTimeout,
    input: Box<[u8]>,
    /// The part of `input` that was read and not used.
    start: usize,
    end: usize,
    /// Replies that were not sent.
    pub(super) out: Vec<u8>,
    linger: Linger,
}

impl<S: Duplex> BufferedStream<S> {
    pub(super) fn new(stream: S, timeout: ClientTimeout) -> Self {
        let input = vec![0; INPUT_BYTES].into_boxed_slice();
        let out = Vec::with_capacity(2 * OUTPUT_BYTES);
        Self { stream, timeout, input, start: 0, end: 0, out, linger: Linger::new() }
    }

    /// Limits the wait within a request from now on. Between requests there is no limit.
    pub(super) fn wait_within_requests(&mut self, time: Duration) -> io::Result<()> {
        self.timeout = ClientTimeout::WithinRequest;
        self.stream.set_read_timeout(time)
    }

    /// Waits for at least `len` bytes of a message that has begun, and returns all bytes that have arrived. Sends the replies
    /// before it waits.
    ///
    /// Returns `None` if the client is gone, and at the end of the input.
    pub(super) fn peek(&mut self, len: usize) -> io::Result<Option<&[u8]>> {
        self.peek_after(len, PausedAt::WithinRequest)
    }

    fn peek_after(&mut self, len: usize, before: PausedAt) -> io::Result<Option<&[u8]>> {
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
                    if let ClientTimeout::Until(deadline) = self.timeout {
                        self.stream.set_read_timeout(time_left(deadline)?)?;
                    }
                    self.stream.read(&mut self.input[self.end..])
                }
            };
            let silence = if self.start == self.end { before } else { PausedAt::WithinRequest };
            match read {
                Ok(0) => return Ok(None),
                Ok(read) => self.end += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.timeout.after_pause(error, silence)?,
                Err(error) => return Err(error),
            }
        }
        Ok(Some(&self.input[self.start..self.end]))
    }

    /// Waits a moment for another request while there are replies to send, if the client is likely to send one.
    fn read_soon(&mut self) -> io::Result<Option<usize>> {
        if self.out.is_empty() || self.out.len() >= SEND_NOW_BYTES || !self.linger.is_due() {
            return Ok(None);
        }
        let start = Instant::now();
        loop {
            if let Some(read) = self.stream.try_read(&mut self.input[self.end..])? {
                self.linger.record_hit();
                return Ok(Some(read));
            }
            if start.elapsed() >= LINGER {
                self.linger.record_miss();
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

    /// Waits for a message that starts with exactly `N` bytes, and takes them.
    pub(super) fn take<const N: usize>(&mut self) -> io::Result<Option<[u8; N]>> {
        let taken = self.peek_after(N, PausedAt::BetweenRequests)?.and_then(|bytes| bytes.first_chunk::<N>().copied());
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
            // The memory of a long read is not kept.
            self.out.shrink_to(8 * OUTPUT_BYTES);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// A client whose reads return these bytes in turn, or time out for `None`. After the last one, it has left.
    struct Scripted(VecDeque<Option<&'static [u8]>>);

    impl Read for Scripted {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            let piece = self.0.pop_front().unwrap_or(Some(b"")).ok_or(io::ErrorKind::WouldBlock)?;
            bytes[..piece.len()].copy_from_slice(piece);
            Ok(piece.len())
        }
    }

    impl Write for Scripted {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Duplex for Scripted {}

    fn client(timeout: ClientTimeout, reads: &[Option<&'static [u8]>]) -> BufferedStream<Scripted> {
        BufferedStream::new(Scripted(reads.iter().copied().collect()), timeout)
    }

    #[test]
    fn a_client_may_be_silent_between_requests_but_not_within_one() {
        let (ab, c, d, pause): (_, _, _, Option<&[u8]>) = (Some(&b"ab"[..]), Some(&b"c"[..]), Some(&b"d"[..]), None);
        let take = |reads: &[_]| client(ClientTimeout::WithinRequest, reads).take::<4>().map_err(|error| error.kind());
        assert_eq!(take(&[pause, pause, pause, ab, c, d]), Ok(Some(*b"abcd")), "slow, but it sends on");
        assert_eq!(take(&[pause, ab, pause, c, d]), Err(io::ErrorKind::TimedOut));
        assert_eq!(take(&[pause, ab]), Ok(None), "it has left");
        // The data of a request has begun with its header, even if nothing of it is there.
        let mut writer = client(ClientTimeout::WithinRequest, &[ab, pause]);
        assert_eq!(writer.take().unwrap(), Some(*b"ab"));
        assert_eq!(writer.peek(1).map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
    }

    #[test]
    fn a_negotiation_ends_at_its_time_however_the_client_moves() {
        let byte: Option<&[u8]> = Some(b"x");
        let take = |timeout| client(timeout, &[byte, None, byte]).take::<2>().map_err(|error| error.kind());
        let now = Instant::now();
        assert_eq!(take(ClientTimeout::Until(now + Duration::from_secs(3600))), Ok(Some(*b"xx")));
        assert_eq!(take(ClientTimeout::Until(now)), Err(io::ErrorKind::TimedOut));
        assert_eq!(take(ClientTimeout::Unlimited), Err(io::ErrorKind::WouldBlock), "the stream's own limit");
    }
}
