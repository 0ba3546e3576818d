//! Decodes whole Zstandard frames in memory, with contexts of libzstd that threads share.

use std::sync::{Mutex, PoisonError};

use trueno_zram_core::{Error, PAGE_SIZE, Page, Result};
use zstd::bulk::Decompressor;

/// Contexts that no thread uses: as many as were in use at the same time. One takes 160 KB and some microseconds to make.
static IDLE: Mutex<Vec<Decompressor<'static>>> = Mutex::new(Vec::new());

/// A decoder of frames: a context on loan, which goes back when it is dropped.
pub(crate) struct FrameDecoder(Option<Decompressor<'static>>);

impl FrameDecoder {
    /// Takes an idle context, or makes one.
    pub(crate) fn acquire() -> Result<Self> {
        let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match idle {
            Some(idle) => Ok(Self(Some(idle))),
            None => Decompressor::new()
                .map(|made| Self(Some(made)))
                .map_err(|error| Error::ZstdFailed { reason: error.to_string() }),
        }
    }

    /// Decodes a frame to the start of `out`; returns the length of its content. The rest of `out` is zeros then, and all
    /// of it after an error: libzstd copies some literals too many, which may be those of an earlier frame.
    pub(crate) fn decode(&mut self, frame: &[u8], out: &mut [u8]) -> Result<usize> {
        let context = self.0.as_mut().expect("present until it is dropped");
        let decoded = context.decompress_to_buffer(frame, out);
        out[decoded.as_ref().map_or(0, |len| *len)..].fill(0);
        decoded.map_err(|error| Error::CorruptZstd { reason: error.to_string() })
    }

    /// Decodes a frame of exactly one page.
    pub(crate) fn decode_page(&mut self, frame: &[u8], page: &mut Page) -> Result<()> {
        match self.decode(frame, page)? {
            PAGE_SIZE => Ok(()),
            len_bytes => Err(Error::ZstdFrameLength { len_bytes }),
        }
    }
}

impl Drop for FrameDecoder {
    fn drop(&mut self) {
        if let Some(context) = self.0.take() {
            IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(context);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_neither_shorter_nor_longer() {
        for (len, is_page) in [(PAGE_SIZE - 1, false), (PAGE_SIZE, true), (PAGE_SIZE + 1, false)] {
            let frame = zstd::bulk::compress(&vec![7; len], 1).expect("it compresses");
            let mut page = [0xff; PAGE_SIZE];
            let mut decoder = FrameDecoder::acquire().expect("there is memory");
            assert_eq!(decoder.decode_page(&frame, &mut page).is_ok(), is_page, "{len} bytes");
        }
    }
}
