//! Messages that are read from a userfaultfd: `struct uffd_msg`.

use std::ops::Range;

use rustix::io::Errno;

use crate::error::Error;
use crate::uffd::Userfaultfd;

const MESSAGE_LEN: usize = 32;
const PAGEFAULT: u8 = 0x12;
const REMOVE: u8 = 0x15;
const UNMAP: u8 = 0x16;
/// Flags of faults on memory that is write-protected or already in the page cache.
const FLAG_WP: u64 = 1 << 1;
const FLAG_MINOR: u64 = 1 << 2;

/// What happened in the VMM's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A thread waits for the page at this address.
    Fault(u64),
    /// The VMM gave these addresses back, or unmapped them.
    Removed(Range<u64>),
}

/// A buffer for messages.
#[derive(Debug)]
pub(crate) struct Events {
    bytes: [u8; 64 * MESSAGE_LEN],
    len: usize,
}

impl Events {
    pub(crate) fn new() -> Self {
        Self { bytes: [0; 64 * MESSAGE_LEN], len: 0 }
    }

    /// Reads the messages that wait. Returns `false` if there are none.
    pub(crate) fn read(&mut self, uffd: &Userfaultfd) -> Result<bool, Error> {
        self.len = match rustix::io::read(uffd, &mut self.bytes) {
            Ok(len) => len,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(error) => return Err(Error::system("reading the userfaultfd")(error)),
        };
        Ok(self.len > 0)
    }

    /// Returns the messages of the last read.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Result<Event, Error>> {
        self.bytes[..self.len].as_chunks().0.iter().map(parse)
    }
}

fn parse(message: &[u8; MESSAGE_LEN]) -> Result<Event, Error> {
    let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| message[at + byte]));
    let (first, second) = (word(8), word(16));
    match message[0] {
        PAGEFAULT if first & (FLAG_WP | FLAG_MINOR) == 0 => Ok(Event::Fault(second)),
        REMOVE | UNMAP => Ok(Event::Removed(first..second)),
        event => Err(Error::Event { event, address: second }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(event: u8, first: u64, second: u64) -> [u8; MESSAGE_LEN] {
        let mut message = [0; MESSAGE_LEN];
        message[0] = event;
        message[8..16].copy_from_slice(&first.to_ne_bytes());
        message[16..24].copy_from_slice(&second.to_ne_bytes());
        message
    }

    #[test]
    fn messages_are_faults_removals_or_errors() {
        assert_eq!(parse(&message(PAGEFAULT, 1, 0x7000)).unwrap(), Event::Fault(0x7000));
        assert_eq!(parse(&message(REMOVE, 0x1000, 0x3000)).unwrap(), Event::Removed(0x1000..0x3000));
        assert_eq!(parse(&message(UNMAP, 0x1000, 0x3000)).unwrap(), Event::Removed(0x1000..0x3000));
        for (event, flags) in [(PAGEFAULT, FLAG_WP), (PAGEFAULT, FLAG_MINOR), (0x13, 0), (0x14, 0), (0, 0)] {
            assert!(matches!(parse(&message(event, flags, 5)), Err(Error::Event { address: 5, .. })));
        }
    }
}
