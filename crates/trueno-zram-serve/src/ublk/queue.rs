//! One queue of a device: fetches requests, serves them, and returns their results.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use trueno_zram_store::{MAX_UNDIVIDED_WRITE_BYTES, ZeroPages};

use super::layout::{ABORTED, Descriptor, data_offset, io as command, operation};
use super::ring::{Completed, Descriptors, QueueRing};
use crate::export::{ExportError, ExportIo, SECTOR_BYTES};

/// The most data of one request. A store writes it as a whole or not at all.
pub(super) const MAX_IO_BYTES: u32 = 256 << 10;

const _: () = assert!(MAX_IO_BYTES as usize <= MAX_UNDIVIDED_WRITE_BYTES);

const EIO: i32 = 5;
const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;

/// One queue of a device. It is created before the device starts; afterwards it allocates nothing.
pub(super) struct UblkQueue {
    device: Arc<File>,
    number: u16,
    depth: u16,
    descriptors: Descriptors,
    io: Box<dyn ExportIo>,
    buffer: Box<[u8]>,
}

impl UblkQueue {
    pub(super) fn new(device: Arc<File>, number: u16, depth: u16, io: Box<dyn ExportIo>) -> io::Result<Self> {
        let descriptors = Descriptors::map(&device, number, depth)?;
        let buffer = vec![0; MAX_IO_BYTES as usize].into_boxed_slice();
        Ok(Self { device, number, depth, descriptors, io, buffer })
    }

    /// Serves requests until the device stops. The driver wants all commands of a queue from one thread: this one.
    ///
    /// `fetching` is called once the driver can hand out requests.
    pub(super) fn run(mut self, fetching: &dyn Fn()) -> io::Result<()> {
        // Memory that this thread needs must not be found by writing to this very device. It needs a privilege. Without
        // it the device works as long as it is not used for swap, and a server for swap warns.
        let _ = super::become_io_flusher();
        let mut ring = QueueRing::new(&self.device, self.number, self.depth)?;
        for tag in 0..self.depth {
            ring.push(command::FETCH, tag, 0)?;
        }
        ring.submit()?;
        fetching();
        let mut left = self.depth;
        let mut completed = Vec::with_capacity(2 * usize::from(self.depth));
        while left > 0 {
            ring.wait(&mut completed)?;
            for Completed { tag, result } in completed.iter().copied() {
                if result == 0 {
                    let result = self.serve(tag);
                    ring.push(command::COMMIT_AND_FETCH, tag, result)?;
                } else if result == ABORTED {
                    left -= 1;
                } else {
                    return Err(io::Error::from_raw_os_error(-result));
                }
            }
        }
        Ok(())
    }

    /// Serves a request. Returns its length, or an error's number below 0.
    fn serve(&mut self, tag: u16) -> i32 {
        let Some(request) = self.descriptors.get(tag) else { return -EINVAL };
        let len_bytes = u64::from(request.sectors) * SECTOR_BYTES;
        let served = match (request.start_sector.checked_mul(SECTOR_BYTES), request.operation) {
            (None, _) => Err(EINVAL),
            (Some(at), operation::READ) => self.read(tag, at, len_bytes),
            (Some(at), operation::WRITE) => self.write(tag, at, len_bytes),
            (Some(at), operation::DISCARD) => self.io.discard(at, len_bytes).map_err(|error| errno_of(&error)),
            (Some(at), operation::WRITE_ZEROES) => {
                let pages = zero_pages(request);
                self.io.write_zeroes(at, len_bytes, pages).map_err(|error| errno_of(&error))
            }
            (_, operation::FLUSH) => self.io.flush().map_err(|error| errno_of(&error)),
            _ => Err(EINVAL),
        };
        match served {
            Ok(()) => i32::try_from(len_bytes).unwrap_or(i32::MAX),
            Err(number) => -number,
        }
    }

    fn read(&mut self, tag: u16, at: u64, len_bytes: u64) -> Result<(), i32> {
        let buffer = part_of(&mut self.buffer, len_bytes)?;
        self.io.read_at(at, buffer).map_err(|error| errno_of(&error))?;
        self.device.write_all_at(buffer, data_offset(self.number, tag)).map_err(|_| EIO)
    }

    fn write(&mut self, tag: u16, at: u64, len_bytes: u64) -> Result<(), i32> {
        let buffer = part_of(&mut self.buffer, len_bytes)?;
        self.device.read_exact_at(buffer, data_offset(self.number, tag)).map_err(|_| EIO)?;
        self.io.write_at(at, buffer).map_err(|error| errno_of(&error))
    }
}

fn part_of(buffer: &mut [u8], len_bytes: u64) -> Result<&mut [u8], i32> {
    usize::try_from(len_bytes).ok().and_then(|len| buffer.get_mut(..len)).ok_or(EINVAL)
}

fn zero_pages(request: Descriptor) -> ZeroPages {
    if request.flags & operation::NO_UNMAP == 0 { ZeroPages::Discard } else { ZeroPages::Keep }
}

/// Returns the kernel's number of an error.
fn errno_of(error: &ExportError) -> i32 {
    match error {
        ExportError::NoSpace(_) => ENOSPC,
        ExportError::OutOfRange(_) => EINVAL,
        ExportError::ReadOnly => EROFS,
        ExportError::Failed(_) => EIO,
    }
}
