//! The transmission phase: requests and replies.

use std::io;
use std::ops::ControlFlow;

use trueno_zram_core::PAGE_SIZE;
use trueno_zram_store::{MAX_UNDIVIDED_WRITE_BYTES, PageState, ZeroPages};

use super::handshake::Agreement;
use super::protocol::{
    ALLOCATION_ID, MAX_PAYLOAD, NbdErrno, NbdRequest, REQUEST_LEN, chunk, command, flag, put_chunk, put_simple_reply,
    state,
};
use super::stream::{BufferedStream, Duplex};
use crate::export::{ExportError, ExportIo};

/// Extents of one block status reply. A client asks again for the rest.
const MAX_EXTENTS: usize = 4096;

/// Serves requests until the client leaves, or does not keep to the protocol.
pub(super) fn serve<S: Duplex>(stream: &mut BufferedStream<S>, agreement: &Agreement) -> io::Result<()> {
    let Ok(io) = agreement.export.export.open() else {
        // The export is negotiated already. The client sees the connection end.
        return Ok(());
    };
    let size_bytes = agreement.export.export.size_bytes();
    let read_only = agreement.export.export.is_read_only();
    let structured = agreement.structured_replies;
    let mut transfer = Transmission { stream, io, size_bytes, read_only, structured };
    while let Some(bytes) = transfer.stream.take::<REQUEST_LEN>()? {
        let Some(request) = NbdRequest::decode(&bytes) else { break };
        if transfer.answer(request, agreement.allocation_context)?.is_break() {
            break;
        }
        transfer.stream.flush_if_long()?;
    }
    transfer.stream.flush()
}

struct Transmission<'a, S> {
    stream: &'a mut BufferedStream<S>,
    io: Box<dyn ExportIo>,
    size_bytes: u64,
    read_only: bool,
    structured: bool,
}

impl<S: Duplex> Transmission<'_, S> {
    /// Answers a request. Returns `Break` if the connection ends with it.
    fn answer(&mut self, request: NbdRequest, allocation_context: bool) -> io::Result<ControlFlow<()>> {
        let result = match request.command {
            command::DISCONNECT => return Ok(ControlFlow::Break(())),
            command::WRITE => match self.write(request)? {
                Some(result) => result,
                None => return Ok(ControlFlow::Break(())),
            },
            command::READ => {
                match self.check(request, flag::FUA | flag::DONT_FRAGMENT).and_then(|()| self.read(request)) {
                    // The reply has been written with its data.
                    Ok(()) => return Ok(ControlFlow::Continue(())),
                    error => error,
                }
            }
            command::BLOCK_STATUS if allocation_context && self.structured && request.len > 0 => {
                match self.check(request, flag::FUA | flag::REQUEST_ONE).map(|()| self.block_status(request)) {
                    Ok(()) => return Ok(ControlFlow::Continue(())),
                    error => error,
                }
            }
            command::FLUSH => check_flags(request, flag::FUA).and_then(|()| self.io.flush().map_err(errno_of)),
            command::TRIM => self
                .check_change(request, flag::FUA)
                .and_then(|()| self.io.discard(request.offset, request.len.into()).map_err(errno_of_change)),
            command::WRITE_ZEROES => {
                let allowed = flag::FUA | flag::NO_HOLE | flag::FAST_ZERO;
                let pages = if request.flags & flag::NO_HOLE == 0 { ZeroPages::Discard } else { ZeroPages::Keep };
                self.check_change(request, allowed).and_then(|()| {
                    self.io.write_zeroes(request.offset, request.len.into(), pages).map_err(errno_of_change)
                })
            }
            _ => Err(NbdErrno::Invalid),
        };
        self.reply(request.cookie, result);
        Ok(ControlFlow::Continue(()))
    }

    /// Appends a reply without data.
    fn reply(&mut self, cookie: u64, result: Result<(), NbdErrno>) {
        let out = &mut self.stream.out;
        match result {
            Ok(()) if self.structured => put_chunk(out, cookie, chunk::NONE, 0),
            Ok(()) => put_simple_reply(out, cookie, 0),
            Err(errno) if self.structured => {
                put_chunk(out, cookie, chunk::ERROR, 6);
                out.extend((errno as u32).to_be_bytes());
                out.extend(0u16.to_be_bytes());
            }
            Err(errno) => put_simple_reply(out, cookie, errno as u32),
        }
    }

    /// Reads data straight into the reply. An error leaves the replies unchanged.
    fn read(&mut self, request: NbdRequest) -> Result<(), NbdErrno> {
        if request.len > MAX_PAYLOAD {
            return Err(NbdErrno::Invalid);
        }
        let out = &mut self.stream.out;
        let before = out.len();
        if self.structured {
            put_chunk(out, request.cookie, chunk::OFFSET_DATA, request.len + 8);
            out.extend(request.offset.to_be_bytes());
        } else {
            put_simple_reply(out, request.cookie, 0);
        }
        let start = out.len();
        out.resize(start + request.len as usize, 0);
        self.io.read_at(request.offset, &mut out[start..]).map_err(|error| {
            out.truncate(before);
            errno_of(error)
        })
    }

    /// Writes data in parts that the store writes completely or not at all: a request of up to that length at once. Returns
    /// `None` if the client leaves before its end, or announces more than it may.
    fn write(&mut self, request: NbdRequest) -> io::Result<Option<Result<(), NbdErrno>>> {
        if request.len > MAX_PAYLOAD {
            return Ok(None);
        }
        let mut result = self.check_change(request, flag::FUA);
        let (mut at, mut left) = (request.offset, request.len as usize);
        while left > 0 {
            // Parts of a longer request end at page boundaries.
            let within = usize::try_from(at % PAGE_SIZE as u64).unwrap_or(0);
            let part = if left <= MAX_UNDIVIDED_WRITE_BYTES { left } else { MAX_UNDIVIDED_WRITE_BYTES - within };
            let Some(bytes) = self.stream.peek(part)? else { return Ok(None) };
            if result.is_ok() {
                result = self.io.write_at(at, &bytes[..part]).map_err(errno_of_change);
            }
            self.stream.consume(part);
            at = at.wrapping_add(part as u64);
            left -= part;
        }
        Ok(Some(result))
    }

    /// Appends the extents of a range.
    fn block_status(&mut self, request: NbdRequest) {
        let max_extents = if request.flags & flag::REQUEST_ONE == 0 { MAX_EXTENTS } else { 1 };
        let mut extents: Vec<u8> = Vec::new();
        let (mut at, end) = (request.offset, request.offset + u64::from(request.len));
        while at < end && extents.len() < max_extents * 8 {
            let extent = self.io.extent(at, end - at);
            let flags = match extent.state {
                PageState::Hole => state::HOLE | state::ZERO,
                PageState::Zero => state::ZERO,
                PageState::Data => 0,
            };
            let len = extent.len_bytes.clamp(1, end - at);
            extents.extend(u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes());
            extents.extend(flags.to_be_bytes());
            at += len;
        }
        let len = u32::try_from(extents.len() + 4).unwrap_or(u32::MAX);
        put_chunk(&mut self.stream.out, request.cookie, chunk::BLOCK_STATUS, len);
        self.stream.out.extend(ALLOCATION_ID.to_be_bytes());
        self.stream.out.extend(extents);
    }

    /// Checks the flags and the range of a request.
    fn check(&self, request: NbdRequest, allowed: u16) -> Result<(), NbdErrno> {
        check_flags(request, allowed)?;
        let end = request.offset.checked_add(request.len.into());
        if end.is_some_and(|end| end <= self.size_bytes) { Ok(()) } else { Err(NbdErrno::Invalid) }
    }

    /// Checks a request that changes the export.
    fn check_change(&self, request: NbdRequest, allowed: u16) -> Result<(), NbdErrno> {
        if self.read_only {
            return Err(NbdErrno::NotPermitted);
        }
        check_flags(request, allowed)?;
        self.check(request, allowed).map_err(|_| NbdErrno::NoSpace)
    }
}

fn check_flags(request: NbdRequest, allowed: u16) -> Result<(), NbdErrno> {
    if request.flags & !allowed == 0 { Ok(()) } else { Err(NbdErrno::Invalid) }
}

/// The error of a request that changes the export. One beyond the end is ENOSPC: the export may have become shorter.
fn errno_of_change(error: ExportError) -> NbdErrno {
    match error {
        ExportError::OutOfRange(_) => NbdErrno::NoSpace,
        error => errno_of(error),
    }
}

fn errno_of(error: ExportError) -> NbdErrno {
    match error {
        ExportError::NoSpace(_) => NbdErrno::NoSpace,
        ExportError::OutOfRange(_) => NbdErrno::Invalid,
        ExportError::ReadOnly => NbdErrno::NotPermitted,
        ExportError::Failed(_) => NbdErrno::Io,
    }
}
