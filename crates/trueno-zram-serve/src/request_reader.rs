//! Reads a client's request until a deadline, however often the client sends a byte.

use std::io::{self, Read};
use std::time::Instant;

use trueno_zram_connections::time_left;

use crate::endpoint::SocketStream;

/// Reads from a client: its request until a deadline, and the rest within the socket's time limit.
#[derive(Debug)]
pub(crate) struct RequestReader<'a> {
    pub(crate) stream: &'a SocketStream,
    pub(crate) deadline: Option<Instant>,
}

impl Read for RequestReader<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut stream = self.stream;
        let Some(deadline) = self.deadline else { return stream.read(bytes) };
        loop {
            stream.set_read_timeout(Some(time_left(deadline)?))?;
            match stream.read(bytes) {
                // Sockets may wake up early.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }
}
