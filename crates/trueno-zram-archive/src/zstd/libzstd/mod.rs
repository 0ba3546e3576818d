//! All calls of libzstd. Without the feature `zstd`, `libzstd_absent.rs` takes the place of this module.

mod frame_decoder;
mod stream_decoder;

pub(crate) use frame_decoder::FrameDecoder;
pub(crate) use stream_decoder::StreamDecoder;

use trueno_zram_core::{Error, Result};

/// Compresses bytes to a frame, at the default level.
pub(crate) fn compress(bytes: &[u8]) -> Result<Vec<u8>> {
    let frame = zstd::bulk::compress(bytes, zstd::DEFAULT_COMPRESSION_LEVEL);
    frame.map_err(|error| Error::ZstdFailed { reason: error.to_string() })
}
