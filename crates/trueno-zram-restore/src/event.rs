//! Messages that are read from a userfaultfd: `struct uffd_msg`.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use rustix::io::Errno;

use crate::error::Error;
use crate::uffd::Userfaultfd;

pub(crate) const MESSAGE_LEN: usize = 32;
pub(crate) const PAGEFAULT: u8 = 0x12;
pub(crate) const FORK: u8 = 0x13;
pub(crate) const REMAP: u8 = 0x14;
const REMOVE: u8 = 0x15;
const UNMAP: u8 = 0x16;
/// Flags of faults on memory that is write-protected or already in the page cache.
const FLAG_WP: u64 = 1 << 1;
const FLAG_MINOR: u64 = 1 << 2;

/// An event in the memory of a VMM or a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A thread waits for the page at this address.
    Fault(u64),
    /// The content of these addresses was given back: zeros from now on.
    Removed(Range<u64>),
    /// These addresses were unmapped.
    Unmapped(Range<u64>),
    /// Memory was moved.
    Remapped { from: u64, to: u64, len: u64 },
    /// A child has a copy of the memory, and a userfaultfd of its own: [`Events::next_forked`].
    Forked,
}

/// A thread waits for the page at an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) address: u64,
    /// The time at which the handler read the event.
    pub(crate) read_at: Instant,
}

/// A buffer for messages.
#[derive(Debug)]
pub(crate) struct Events {
    bytes: [u8; 64 * MESSAGE_LEN],
    len: usize,
    forked: VecDeque<Userfaultfd>,
}

impl Events {
    pub(crate) fn new() -> Self {
        Self { bytes: [0; 64 * MESSAGE_LEN], len: 0, forked: VecDeque::new() }
    }

    /// Reads the messages that wait. Returns `false` if there are none.
    pub(crate) fn read(&mut self, uffd: &Userfaultfd) -> Result<bool, Error> {
        self.len = match uffd.read(&mut self.bytes, &mut self.forked) {
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

    /// Returns the userfaultfd of the next child, in the order of [`Event::Forked`].
    pub(crate) fn next_forked(&mut self) -> Option<Userfaultfd> {
        self.forked.pop_front()
    }
}

fn parse(message: &[u8; MESSAGE_LEN]) -> Result<Event, Error> {
    let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| message[at + byte]));
    let (first, second) = (word(8), word(16));
    match message[0] {
        PAGEFAULT if first & (FLAG_WP | FLAG_MINOR) == 0 => Ok(Event::Fault(second)),
        FORK => Ok(Event::Forked),
        REMAP => Ok(Event::Remapped { from: first, to: second, len: word(24) }),
        REMOVE => Ok(Event::Removed(first..second)),
        UNMAP => Ok(Event::Unmapped(first..second)),
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
    fn messages_are_faults_changes_or_errors() {
        assert_eq!(parse(&message(PAGEFAULT, 1, 0x7000)).unwrap(), Event::Fault(0x7000));
        assert_eq!(parse(&message(REMOVE, 0x1000, 0x3000)).unwrap(), Event::Removed(0x1000..0x3000));
        assert_eq!(parse(&message(UNMAP, 0x1000, 0x3000)).unwrap(), Event::Unmapped(0x1000..0x3000));
        assert_eq!(parse(&message(FORK, 9, 0)).unwrap(), Event::Forked);
        let mut remap = message(REMAP, 0x1000, 0x8000);
        remap[24..].copy_from_slice(&0x2000u64.to_ne_bytes());
        assert_eq!(parse(&remap).unwrap(), Event::Remapped { from: 0x1000, to: 0x8000, len: 0x2000 });
        for (event, flags) in [(PAGEFAULT, FLAG_WP), (PAGEFAULT, FLAG_MINOR), (0x17, 0), (0, 0)] {
            assert!(matches!(parse(&message(event, flags, 5)), Err(Error::Event { address: 5, .. })));
        }
    }
}
