//! Decodes Zstandard frames of other encoders, of any form, as they come in: libzstd's streaming decoder.

use std::io::Read;

use zstd::zstd_safe::{DCtx, InBuffer, OutBuffer, ResetDirective, get_error_name};

use crate::error::{Error, Result};
use crate::stream::input::InputWindow;

/// Bytes by which the output grows.
const STEP_BYTES: usize = 128 << 10;

const WITHIN: &str = "a Zstandard frame";

/// A streaming decoder for one frame after the other, over the window on the input.
pub(crate) struct StreamDecoder {
    context: DCtx<'static>,
}

impl StreamDecoder {
    pub(crate) fn new() -> Result<Self> {
        let failed = || trueno_zram_core::Error::ZstdFailed { reason: "out of memory".to_owned() };
        DCtx::try_create().map(|context| Self { context }).ok_or_else(|| Error::Decoder(failed()))
    }

    /// Prepares for a frame.
    pub(crate) fn start(&mut self) -> Result<()> {
        let failed =
            |code| Error::Decoder(trueno_zram_core::Error::ZstdFailed { reason: get_error_name(code).to_owned() });
        self.context.reset(ResetDirective::SessionOnly).map(|_| ()).map_err(failed)
    }

    /// Decodes on until `out` has `limit` bytes or the frame ends; returns `true` if it has ended. `at` is the position of
    /// the frame. After an error, `out` has the content before it.
    pub(crate) fn decode<R: Read>(
        &mut self,
        input: &mut InputWindow<R>,
        at: u64,
        out: &mut Vec<u8>,
        limit: usize,
    ) -> Result<bool> {
        while out.len() < limit {
            input.release();
            let ended_early = !input.fill_to(1)?;
            let start = out.len();
            out.resize(start + STEP_BYTES, 0);
            let mut source = InBuffer::around(input.available());
            let mut target = OutBuffer::around(&mut out[start..]);
            let decoded = self.context.decompress_stream(&mut target, &mut source);
            let (read, written) = (source.pos(), target.pos());
            out.truncate(start + written);
            input.consume(read);
            match decoded {
                Ok(0) => return Ok(true),
                // Nothing more comes in and nothing more goes out.
                Ok(_) if ended_early && written < STEP_BYTES => {
                    return Err(Error::Truncated { at: input.end_position(), page: None, within: WITHIN });
                }
                Ok(_) => {}
                Err(code) => {
                    return Err(Error::Block { at, page: None, reason: get_error_name(code).to_owned() });
                }
            }
        }
        Ok(false)
    }
}
