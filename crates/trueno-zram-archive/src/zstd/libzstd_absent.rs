//! Replaces `libzstd` in builds without the feature `zstd`. Nothing here is ever created: archives and files in the Zstandard
//! format are rejected when they are opened (`Format::check_supported`).

use std::convert::Infallible;
use std::io::Read;

use trueno_zram_core::Page;

use crate::error::{Error, Result};
use crate::stream::input::InputWindow;

/// Stands in for the decoder of whole frames.
pub(crate) struct FrameDecoder(Infallible);

impl FrameDecoder {
    pub(crate) fn acquire() -> trueno_zram_core::Result<Self> {
        Err(unsupported())
    }

    pub(crate) fn decode(&mut self, _frame: &[u8], _out: &mut [u8]) -> trueno_zram_core::Result<usize> {
        match self.0 {}
    }

    pub(crate) fn decode_page(&mut self, _frame: &[u8], _page: &mut Page) -> trueno_zram_core::Result<()> {
        match self.0 {}
    }
}

/// Stands in for a streaming decoder.
pub(crate) struct StreamDecoder(Infallible);

impl StreamDecoder {
    pub(crate) fn new() -> Result<Self> {
        Err(Error::Decoder(unsupported()))
    }

    pub(crate) fn start(&mut self) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn decode<R: Read>(
        &mut self,
        _input: &mut InputWindow<R>,
        _at: u64,
        _out: &mut Vec<u8>,
        _limit: usize,
    ) -> Result<bool> {
        match self.0 {}
    }
}

pub(crate) fn compress(_bytes: &[u8]) -> trueno_zram_core::Result<Vec<u8>> {
    Err(unsupported())
}

fn unsupported() -> trueno_zram_core::Error {
    trueno_zram_core::Error::Unsupported { what: "Zstandard".to_owned(), by: "this build (without the feature `zstd`)" }
}
