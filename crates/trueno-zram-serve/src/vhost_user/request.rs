//! Requests of a virtio block device: header, data, status.

use std::io::{self, Read, Write};

use trueno_zram_store::{MAX_UNDIVIDED_WRITE_BYTES, ZeroPages};

use crate::export::{ExportError, ExportIo, SECTOR_BYTES};

/// The most ranges of one discard or write zeroes request.
pub(super) const MAX_SEGMENTS: u32 = 32;

/// The most sectors of one range: 1 GiB.
pub(super) const MAX_SEGMENT_SECTORS: u32 = 1 << 21;

/// Data that is copied at a time: as much as a store writes as a whole or not at all.
pub(super) const BUFFER_BYTES: usize = MAX_UNDIVIDED_WRITE_BYTES;

const HEADER_BYTES: usize = 16;
const SEGMENT_BYTES: usize = 16;
const ID_BYTES: usize = 20;

/// Request types (virtio 1.2, section 5.2.6).
mod kind {
    pub(super) const IN: u32 = 0;
    pub(super) const OUT: u32 = 1;
    pub(super) const FLUSH: u32 = 4;
    pub(super) const GET_ID: u32 = 8;
    pub(super) const DISCARD: u32 = 11;
    pub(super) const WRITE_ZEROES: u32 = 13;
}

/// The last byte of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum RequestStatus {
    Ok = 0,
    IoError = 1,
    Unsupported = 2,
}

/// The export and the buffer of one queue. Created with the device.
pub(super) struct QueueIo {
    pub(super) io: Box<dyn ExportIo>,
    pub(super) buffer: Box<[u8]>,
    pub(super) read_only: bool,
}

impl QueueIo {
    /// Serves the request in `input`, with `data_bytes` of room in `output` before the status.
    pub(super) fn serve(&mut self, input: &mut impl Read, output: &mut impl Write, data_bytes: usize) -> RequestStatus {
        let mut header = [0; HEADER_BYTES];
        if input.read_exact(&mut header).is_err() {
            return RequestStatus::IoError;
        }
        let [k0, k1, k2, k3, _, _, _, _, sector @ ..] = header;
        let sector = u64::from_le_bytes(sector);
        let done = match u32::from_le_bytes([k0, k1, k2, k3]) {
            kind::IN => self.read(sector, output, data_bytes),
            kind::OUT => self.write(sector, input),
            kind::FLUSH => self.io.flush().map_err(RequestFailed::from),
            kind::GET_ID => write_id(output, data_bytes),
            kind::DISCARD => self.each_segment(input, |io, offset, len_bytes, _| io.discard(offset, len_bytes)),
            kind::WRITE_ZEROES => self.each_segment(input, |io, offset, len_bytes, unmap| {
                io.write_zeroes(offset, len_bytes, if unmap { ZeroPages::Discard } else { ZeroPages::Keep })
            }),
            _ => return RequestStatus::Unsupported,
        };
        match done {
            Ok(()) => RequestStatus::Ok,
            Err(RequestFailed) => RequestStatus::IoError,
        }
    }

    fn read(&mut self, sector: u64, output: &mut impl Write, data_bytes: usize) -> Result<(), RequestFailed> {
        let mut at = sector.checked_mul(SECTOR_BYTES).ok_or(RequestFailed)?;
        let mut left = data_bytes;
        while left > 0 {
            let part = &mut self.buffer[..left.min(BUFFER_BYTES)];
            self.io.read_at(at, part)?;
            output.write_all(part)?;
            at += part.len() as u64;
            left -= part.len();
        }
        Ok(())
    }

    fn write(&mut self, sector: u64, input: &mut impl Read) -> Result<(), RequestFailed> {
        self.check_writable()?;
        let mut at = sector.checked_mul(SECTOR_BYTES).ok_or(RequestFailed)?;
        loop {
            let len = read_up_to(input, &mut self.buffer)?;
            if len == 0 {
                return Ok(());
            }
            self.io.write_at(at, &self.buffer[..len])?;
            at += len as u64;
        }
    }

    fn each_segment(
        &mut self,
        input: &mut impl Read,
        mut work: impl FnMut(&mut dyn ExportIo, u64, u64, bool) -> Result<(), ExportError>,
    ) -> Result<(), RequestFailed> {
        self.check_writable()?;
        let mut segment = [0; SEGMENT_BYTES];
        for _ in 0..=MAX_SEGMENTS {
            match read_up_to(input, &mut segment)? {
                0 => return Ok(()),
                SEGMENT_BYTES => {}
                _ => return Err(RequestFailed),
            }
            let [s0, s1, s2, s3, s4, s5, s6, s7, n0, n1, n2, n3, flags @ ..] = segment;
            let sector = u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
            let sectors = u32::from_le_bytes([n0, n1, n2, n3]);
            if sectors > MAX_SEGMENT_SECTORS {
                return Err(RequestFailed);
            }
            let offset = sector.checked_mul(SECTOR_BYTES).ok_or(RequestFailed)?;
            let unmap = u32::from_le_bytes(flags) & 1 != 0;
            work(&mut *self.io, offset, u64::from(sectors) * SECTOR_BYTES, unmap)?;
        }
        Err(RequestFailed)
    }

    fn check_writable(&self) -> Result<(), RequestFailed> {
        if self.read_only { Err(RequestFailed) } else { Ok(()) }
    }
}

/// A failed request. A virtio device reports no reason.
struct RequestFailed;

impl<E: std::error::Error> From<E> for RequestFailed {
    fn from(_: E) -> Self {
        Self
    }
}

/// Fills `buffer` as far as the input goes.
fn read_up_to(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match input.read(&mut buffer[len..])? {
            0 => break,
            read => len += read,
        }
    }
    Ok(len)
}

fn write_id(output: &mut impl Write, data_bytes: usize) -> Result<(), RequestFailed> {
    let mut id = [0; ID_BYTES];
    id[..11].copy_from_slice(b"trueno-zram");
    Ok(output.write_all(&id[..data_bytes.min(ID_BYTES)])?)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use trueno_zram_store::{PageState, Store, StoreOptions};

    use super::*;
    use crate::{Export, StoreExport};

    fn queue() -> QueueIo {
        let store = Arc::new(Store::create(&StoreOptions::new(1 << 20)).unwrap());
        let io = StoreExport::new(store).open().unwrap();
        QueueIo { io, buffer: vec![0; BUFFER_BYTES].into(), read_only: false }
    }

    fn request(kind: u32, sector: u64, data: &[u8]) -> Vec<u8> {
        [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes(), data].concat()
    }

    fn segment(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
        [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
    }

    fn call(queue: &mut QueueIo, request: &[u8], room: usize) -> (RequestStatus, Vec<u8>) {
        let mut out = Vec::new();
        let status = queue.serve(&mut &request[..], &mut out, room);
        (status, out)
    }

    #[test]
    fn what_is_written_is_read() {
        let mut queue = queue();
        let data: Vec<u8> = (0..=255u8).cycle().take(200_704).collect();
        assert_eq!(call(&mut queue, &request(kind::OUT, 3, &data), 0), (RequestStatus::Ok, vec![]));
        assert!(call(&mut queue, &request(kind::IN, 3, b""), data.len()) == (RequestStatus::Ok, data));
        assert_eq!(call(&mut queue, &request(kind::FLUSH, 0, b""), 0).0, RequestStatus::Ok);
        assert!(call(&mut queue, &request(kind::GET_ID, 0, b""), 20).1.starts_with(b"trueno-zram\0"));
    }

    #[test]
    fn ranges_are_discarded_and_set_to_zero() {
        let mut queue = queue();
        call(&mut queue, &request(kind::OUT, 0, &[7; 32768]), 0);
        let ranges = [segment(0, 8, 0), segment(16, 8, 0)].concat();
        assert_eq!(call(&mut queue, &request(kind::DISCARD, 0, &ranges), 0).0, RequestStatus::Ok);
        assert_eq!(call(&mut queue, &request(kind::WRITE_ZEROES, 0, &segment(32, 8, 0)), 0).0, RequestStatus::Ok);
        assert_eq!(call(&mut queue, &request(kind::WRITE_ZEROES, 0, &segment(48, 8, 1)), 0).0, RequestStatus::Ok);
        let states: Vec<_> = (0..8).map(|page| queue.io.extent(page * 4096, 1).state).collect();
        use PageState::{Data, Hole, Zero};
        assert_eq!(states, [Hole, Data, Hole, Data, Zero, Data, Hole, Data]);
    }

    #[test]
    fn wrong_requests_fail_and_do_no_harm() {
        let mut queue = queue();
        let end = (1 << 20) / SECTOR_BYTES;
        assert_eq!(call(&mut queue, b"short", 0).0, RequestStatus::IoError);
        assert_eq!(call(&mut queue, &request(99, 0, b""), 0).0, RequestStatus::Unsupported);
        assert_eq!(call(&mut queue, &request(kind::IN, end, b""), 512).0, RequestStatus::IoError);
        assert_eq!(call(&mut queue, &request(kind::IN, u64::MAX, b""), 512).0, RequestStatus::IoError);
        assert_eq!(call(&mut queue, &request(kind::OUT, end - 1, &[1; 1024]), 0).0, RequestStatus::IoError);
        assert_eq!(call(&mut queue, &request(kind::DISCARD, 0, b"half a segment"), 0).0, RequestStatus::IoError);
        assert_eq!(call(&mut queue, &request(kind::DISCARD, 0, &segment(0, u32::MAX, 0)), 0).0, RequestStatus::IoError);
        assert_eq!(call(&mut queue, &request(kind::DISCARD, 0, &segment(end, 1, 0)), 0).0, RequestStatus::IoError);
        let many = segment(0, 1, 0).repeat(100);
        assert_eq!(call(&mut queue, &request(kind::DISCARD, 0, &many), 0).0, RequestStatus::IoError);
        queue.read_only = true;
        assert_eq!(call(&mut queue, &request(kind::OUT, 0, &[1; 512]), 0).0, RequestStatus::IoError);
        assert_eq!(call(&mut queue, &request(kind::IN, 0, b""), 512), (RequestStatus::Ok, vec![0; 512]));
    }
}
