//! Pages as Zstandard frames, using the C library.

use zstd::bulk;
use zstd::zstd_safe::CParameter;

use crate::error::{Error, Result};
use crate::page::{PAGE_SIZE, Page};

/// A reusable Zstandard compression context.
pub(super) struct Encoder(bulk::Compressor<'static>);

impl Encoder {
    pub(super) fn new(level: i32) -> Result<Self> {
        let levels = zstd::compression_level_range();
        if !levels.contains(&level) {
            return Err(Error::ZstdLevel { level, min: *levels.start(), max: *levels.end() });
        }
        let mut compressor = bulk::Compressor::new(level).map_err(failed)?;
        // Every frame holds exactly one page, so the length is not stored.
        compressor.set_parameter(CParameter::ContentSizeFlag(false)).map_err(failed)?;
        Ok(Self(compressor))
    }

    /// Returns the length of the frame, or `None` if the page does not shrink.
    pub(super) fn encode(&mut self, page: &Page, out: &mut Page) -> Result<Option<usize>> {
        match self.0.compress_to_buffer(page, &mut out[..PAGE_SIZE - 1]) {
            Ok(len_bytes) => Ok(Some(len_bytes)),
            Err(error) if is_destination_too_small(&error) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }
}

/// A reusable Zstandard decompression context.
pub(super) struct Decoder(bulk::Decompressor<'static>);

impl Decoder {
    pub(super) fn new() -> Result<Self> {
        bulk::Decompressor::new().map(Self).map_err(failed)
    }

    pub(super) fn decode(&mut self, frame: &[u8], page: &mut Page) -> Result<()> {
        match self.0.decompress_to_buffer(frame, &mut page[..]) {
            Ok(PAGE_SIZE) => Ok(()),
            Ok(len_bytes) => Err(Error::ZstdFrameLength { len_bytes }),
            Err(error) => Err(Error::CorruptZstd { reason: error.to_string() }),
        }
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::ZstdFailed { reason: error.to_string() }
}

/// Returns `true` if the output buffer was too small. The library reports errors by name only.
fn is_destination_too_small(error: &std::io::Error) -> bool {
    error.to_string().contains("Destination buffer is too small")
}
