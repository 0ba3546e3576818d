//! Pages as Zstandard frames, using the C library.

use zstd::zstd_safe::{CCtx, CParameter, DCtx, get_error_name};

use crate::error::{Error, Result};
use crate::page::{PAGE_SIZE, Page};

/// The C library's name of the error for a frame that would not fit. It has no other form that safe code can compare.
const DESTINATION_TOO_SMALL: &str = "Destination buffer is too small";
const OUT_OF_MEMORY: &str = "Allocation error : not enough memory";

/// A reusable Zstandard compression context. It allocates for its first page only.
pub(super) struct ZstdEncoder(CCtx<'static>);

impl ZstdEncoder {
    pub(super) fn new(level: i32) -> Result<Self> {
        let levels = zstd::compression_level_range();
        if !levels.contains(&level) {
            return Err(Error::ZstdLevel { level, min: *levels.start(), max: *levels.end() });
        }
        let mut context = CCtx::try_create().ok_or_else(|| failed(OUT_OF_MEMORY))?;
        // Every frame holds exactly one page, so the length is not stored.
        for parameter in [CParameter::CompressionLevel(level), CParameter::ContentSizeFlag(false)] {
            context.set_parameter(parameter).map_err(|code| failed(get_error_name(code)))?;
        }
        Ok(Self(context))
    }

    /// Encodes a page as a frame. Returns its length, or `None` if the page does not shrink.
    pub(super) fn encode(&mut self, page: &Page, out: &mut Page) -> Result<Option<usize>> {
        match self.0.compress2(&mut out[..PAGE_SIZE - 1], page).map_err(get_error_name) {
            Ok(len_bytes) => Ok(Some(len_bytes)),
            Err(DESTINATION_TOO_SMALL) => Ok(None),
            Err(name) => Err(failed(name)),
        }
    }
}

/// A reusable Zstandard decompression context. It allocates for its first page only.
pub(super) struct ZstdDecoder(DCtx<'static>);

impl ZstdDecoder {
    pub(super) fn new() -> Result<Self> {
        DCtx::try_create().map(Self).ok_or_else(|| failed(OUT_OF_MEMORY))
    }

    /// Decodes a frame of exactly one page. After an error the page holds zeros.
    pub(super) fn decode(&mut self, frame: &[u8], page: &mut Page) -> Result<()> {
        let error = match self.0.decompress(&mut page[..], frame).map_err(get_error_name) {
            Ok(PAGE_SIZE) => return Ok(()),
            Ok(len_bytes) => Error::ZstdFrameLength { len_bytes },
            Err(name) => Error::CorruptZstd { reason: name.to_owned() },
        };
        // libzstd copies some literals too many, which may be those of an earlier frame, and overwrites them later.
        page.fill(0);
        Err(error)
    }
}

fn failed(name: &str) -> Error {
    Error::ZstdFailed { reason: name.to_owned() }
}
